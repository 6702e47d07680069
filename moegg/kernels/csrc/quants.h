/* quants.h - one row-major block of each format as a struct; names, fields and bits are ggml's (ggml-common.h). */
#ifndef MOEGG_QUANTS_H
#define MOEGG_QUANTS_H
#include <stdint.h>

typedef float mg_f32;
typedef uint16_t mg_f16, mg_bf16;
typedef struct { mg_f16 d; uint8_t qs[16]; } mg_q4_0;                       /* d * (q - 8); low nibbles first 16 elements */
typedef struct { mg_f16 d, m; uint8_t qs[16]; } mg_q4_1;                    /* d * q + m */
typedef struct { mg_f16 d; uint8_t qh[4], qs[16]; } mg_q5_0;                /* bit i of qh is bit 4 of element i */
typedef struct { mg_f16 d, m; uint8_t qh[4], qs[16]; } mg_q5_1;
typedef struct { mg_f16 d; int8_t qs[32]; } mg_q8_0;
typedef struct { uint8_t scales[16], qs[64]; mg_f16 d, dmin; } mg_q2_k;     /* 16 x 16: d * sc * q - dmin * m */
typedef struct { uint8_t hmask[32], qs[64], scales[12]; mg_f16 d; } mg_q3_k;    /* 16 x 16: d * (sc - 32) * (q - 4) */
typedef struct { mg_f16 d, dmin; uint8_t scales[12], qs[128]; } mg_q4_k;    /* 8 x 32: d * sc * q - dmin * m */
typedef struct { mg_f16 d, dmin; uint8_t scales[12], qh[32], qs[128]; } mg_q5_k;
typedef struct { uint8_t ql[128], qh[64]; int8_t scales[16]; mg_f16 d; } mg_q6_k;   /* 16 x 16: d * sc * (q - 32) */
typedef struct { mg_f16 d; uint8_t qs[16]; } mg_iq4_nl;                     /* d * mg_iq4_grid[q] */
typedef struct { mg_f16 d, scales_h; uint8_t scales_l[4], qs[128]; } mg_iq4_xs;     /* 8 x 32: d * (sc - 32) * mg_iq4_grid[q] */
typedef struct { mg_f16 d; uint16_t qs[32]; } mg_iq2_xxs;                         /* iq1 to iq3: iquants.c */
typedef struct { mg_f16 d; uint16_t qs[32]; uint8_t scales[8]; } mg_iq2_xs;
typedef struct { mg_f16 d; uint8_t qs[32], signs[32], qh[8], scales[8]; } mg_iq2_s;
typedef struct { mg_f16 d; uint8_t qs[64], signs[32]; } mg_iq3_xxs;
typedef struct { mg_f16 d; uint8_t qs[64], qh[8], signs[32], scales[4]; } mg_iq3_s;
typedef struct { mg_f16 d; uint8_t qs[32]; uint16_t qh[8]; } mg_iq1_s;
typedef struct { uint8_t qs[32], qh[16]; uint16_t scales[4]; } mg_iq1_m;
typedef struct { uint8_t qs[48], qh[4]; mg_f16 d; } mg_tq1_0;               /* d * (trit - 1), five or four trits per byte */
typedef struct { uint8_t qs[64]; mg_f16 d; } mg_tq2_0;                      /* d * (q - 1) */
typedef struct { uint8_t e, qs[16]; } mg_mxfp4;                             /* 2^(e - 128) * mg_fp4_grid[q] */
typedef struct { uint8_t d[4], qs[32]; } mg_nvfp4;                          /* 4 x 16: unsigned e4m3 / 2 * mg_fp4_grid[q] */

/* moegg's own, after what MLX and FP8 checkpoints hold. */
typedef struct { mg_bf16 d; uint8_t qs[32]; } mg_ternary;                   /* d * (q - 1) */
typedef struct { mg_bf16 d, m; uint8_t qs[32]; } mg_mlx4;                   /* d * q + m; low nibbles first 32 elements */
typedef struct { mg_f16 d, m; uint8_t qs[32]; } mg_mlx4_f16;
typedef struct { uint8_t d[4], qs[32]; } mg_fp8_32;                         /* f32 d * e4m3 */
typedef struct { uint8_t d[4], qs[128]; } mg_fp8_128;

/* ggml-common.h: kvalues_iq4nl, and kvalues_mxfp4, which are twice the values of e2m1. */
static const int8_t mg_iq4_grid[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const int8_t mg_fp4_grid[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

#define Q(id, name, elems, bytes, act, units, scales) _Static_assert(sizeof(mg_##name) == bytes, #name);
#include "quants.def"
#undef Q

#endif
