/* values.c - blocks to floats: what the codes of every row of quants.def mean.
 *
 * The values of ggml's types equal its own bit for bit, in the order of operations of its gguf package (gguf-py quants.py): f32,
 * rounded after each step. Whatever the bytes are, the result is defined and nothing beyond the row is read.
 */
#include "fp16.h"
#include "iquants.h"
#include "kernels.h"
#include "quants.h"

#define DEQUANT(name) static void dequant_##name(const mg_##name *b, float *x, int64_t n)

static void dequant_f32(const mg_f32 *b, float *x, int64_t n) { memcpy(x, b, (size_t)n * 4); }
static void dequant_f16(const mg_f16 *b, float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = mg_f16_to_f32(b[i]);
}
static void dequant_bf16(const mg_bf16 *b, float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = mg_bf16_to_f32(b[i]);
}

/* --- blocks of 32 ------------------------------------------------------------------------------------------------------- */

static int nibble(const uint8_t *qs, int i) { return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4; }
static int five(const uint8_t *qs, const uint8_t *qh, int i) { return nibble(qs, i) | (int)(mg_ld32(qh) >> i & 1) << 4; }

DEQUANT(q4_0) {
    for (; n > 0; n--, b++)
        for (int i = 0; i < 32; i++) *x++ = mg_f16_to_f32(b->d) * (nibble(b->qs, i) - 8);
}

DEQUANT(q4_1) {
    for (; n > 0; n--, b++)
        for (int i = 0; i < 32; i++) *x++ = mg_f16_to_f32(b->d) * nibble(b->qs, i) + mg_f16_to_f32(b->m);
}

DEQUANT(q5_0) {
    for (; n > 0; n--, b++)
        for (int i = 0; i < 32; i++) *x++ = mg_f16_to_f32(b->d) * (five(b->qs, b->qh, i) - 16);
}

DEQUANT(q5_1) {
    for (; n > 0; n--, b++)
        for (int i = 0; i < 32; i++) *x++ = mg_f16_to_f32(b->d) * five(b->qs, b->qh, i) + mg_f16_to_f32(b->m);
}

DEQUANT(q8_0) {
    for (; n > 0; n--, b++)
        for (int i = 0; i < 32; i++) *x++ = b->qs[i] * mg_f16_to_f32(b->d);
}

DEQUANT(iq4_nl) {
    for (; n > 0; n--, b++)
        for (int i = 0; i < 32; i++) *x++ = mg_f16_to_f32(b->d) * mg_iq4_grid[nibble(b->qs, i)];
}

DEQUANT(mxfp4) {
    for (; n > 0; n--, b++)
        for (int i = 0; i < 32; i++) *x++ = mg_e8m0_half(b->e) * mg_fp4_grid[nibble(b->qs, i)];
}

/* --- super-blocks of 256 ------------------------------------------------------------------------------------------------ */

/* Bits 2k, 2k + 1 of a byte of 64, where k is the 32-element sub-block within its half. */
static int crumb(const uint8_t *qs, int e) { return qs[e / 128 * 32 + e % 32] >> e / 32 % 4 * 2 & 3; }

DEQUANT(q2_k) {
    for (; n > 0; n--, b++)
        for (int e = 0; e < 256; e++) {
            const float d = mg_f16_to_f32(b->d) * (b->scales[e / 16] & 15), m = mg_f16_to_f32(b->dmin) * (b->scales[e / 16] >> 4);
            *x++ = d * crumb(b->qs, e) - m;
        }
}

/* The 6-bit scales: 16 nibbles in 8 bytes, low ones first, then four bytes that hold bits 4 and 5 of every fourth scale. */
DEQUANT(q3_k) {
    for (; n > 0; n--, b++)
        for (int e = 0; e < 256; e++) {
            const uint8_t *s = b->scales;
            const int i = e / 16, sc = ((s[i % 8] >> i / 8 * 4 & 15) | (s[8 + i % 4] >> i / 4 * 2 & 3) << 4) - 32;
            *x++ = mg_f16_to_f32(b->d) * sc * (crumb(b->qs, e) - 4 * !(b->hmask[e % 32] >> e / 32 & 1));
        }
}

/* 6-bit scale and minimum of sub-block j in 12 bytes: four low halves, four low halves of minima, then the rest. */
static void get_scale_min(const uint8_t *s, int j, int *sc, int *m) {
    *sc = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    *m = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
}

DEQUANT(q4_k) {
    for (; n > 0; n--, b++)
        for (int j = 0, sc, m; j < 8; j++) {
            get_scale_min(b->scales, j, &sc, &m);
            const float d = mg_f16_to_f32(b->d) * sc, dm = mg_f16_to_f32(b->dmin) * m;
            for (int i = 0; i < 32; i++) *x++ = d * (b->qs[j / 2 * 32 + i] >> j % 2 * 4 & 15) - dm;
        }
}

DEQUANT(q5_k) {
    for (; n > 0; n--, b++)
        for (int j = 0, sc, m; j < 8; j++) {
            get_scale_min(b->scales, j, &sc, &m);
            const float d = mg_f16_to_f32(b->d) * sc, dm = mg_f16_to_f32(b->dmin) * m;
            for (int i = 0; i < 32; i++) *x++ = d * ((b->qs[j / 2 * 32 + i] >> j % 2 * 4 & 15) | (b->qh[i] >> j & 1) << 4) - dm;
        }
}

/* Element e = 128 h + 32 k + i: nibble k / 2 of ql[64 h + 32 (k % 2) + i], bits 2k of qh[32 h + i]. */
DEQUANT(q6_k) {
    for (; n > 0; n--, b++)
        for (int e = 0; e < 256; e++) {
            const int h = e / 128, k = e / 32 % 4, i = e % 32;
            const int q = (b->ql[64 * h + 32 * (k % 2) + i] >> k / 2 * 4 & 15) | (b->qh[32 * h + i] >> 2 * k & 3) << 4;
            *x++ = mg_f16_to_f32(b->d) * b->scales[e / 16] * (q - 32);
        }
}

/* The sub-blocks' 6-bit scales: nibbles, then bits 4 and 5 two by two. */
DEQUANT(iq4_xs) {
    for (; n > 0; n--, b++)
        for (int j = 0; j < 8; j++) {
            const int sc = ((b->scales_l[j / 2] >> j % 2 * 4 & 15) | (b->scales_h >> 2 * j & 3) << 4) - 32;
            const float d = mg_f16_to_f32(b->d) * sc;
            for (int i = 0; i < 32; i++) *x++ = d * mg_iq4_grid[nibble(b->qs + 16 * j, i)];
        }
}

/* Trit k of a byte: the byte is the fraction 0.trits in base three, times 256, rounded up. */
static int trit(uint8_t v, int k) {
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    return (uint8_t)(v * power[k]) * 3 >> 8;
}

/* 32 bytes of five trits, 16 of five, 4 of four; trit k of all bytes of a run, then trit k + 1. */
DEQUANT(tq1_0) {
    for (; n > 0; n--, b++)
        for (int e = 0; e < 256; e++) {
            const int f = e - 160, g = e - 240;
            const int q = f < 0 ? trit(b->qs[e % 32], e / 32) : g < 0 ? trit(b->qs[32 + f % 16], f / 16)
                                                                      : trit(b->qh[g % 4], g / 4);
            *x++ = mg_f16_to_f32(b->d) * (q - 1);
        }
}

DEQUANT(tq2_0) {
    for (; n > 0; n--, b++)
        for (int e = 0; e < 256; e++) *x++ = mg_f16_to_f32(b->d) * (crumb(b->qs, e) - 1);
}

#define CODEBOOK(name)                                                                      \
    DEQUANT(name) {                                                                         \
        for (mg_iq q; n > 0; n--, b++) {                                                    \
            mg_iq_##name(b, &q);                                                            \
            for (int e = 0; e < 256; e++) *x++ = q.d * (q.sc[e / 16] * q.c[e]);             \
        }                                                                                   \
    }

CODEBOOK(iq2_xxs)
CODEBOOK(iq2_xs)
CODEBOOK(iq2_s)
CODEBOOK(iq3_xxs)
CODEBOOK(iq3_s)
CODEBOOK(iq1_s)
CODEBOOK(iq1_m)

/* --- blocks of 64 and 128 ------------------------------------------------------------------------------------------------- */

DEQUANT(nvfp4) {
    for (; n > 0; n--, b++)
        for (int e = 0; e < 64; e++) {
            const int q = b->qs[e / 16 * 8 + e % 8] >> e % 16 / 8 * 4 & 15;
            *x++ = mg_ue4m3_half(b->d[e / 16]) * mg_fp4_grid[q];
        }
}

DEQUANT(ternary) {
    for (; n > 0; n--, b++)
        for (int e = 0; e < 128; e++) *x++ = mg_bf16_to_f32(b->d) * (crumb(b->qs, e) - 1);
}

static int half_nibble(const uint8_t *qs, int e) { return qs[e % 32] >> e / 32 * 4 & 15; }

DEQUANT(mlx4) {
    for (; n > 0; n--, b++)
        for (int e = 0; e < 64; e++) *x++ = mg_bf16_to_f32(b->d) * half_nibble(b->qs, e) + mg_bf16_to_f32(b->m);
}

DEQUANT(mlx4_f16) {
    for (; n > 0; n--, b++)
        for (int e = 0; e < 64; e++) *x++ = mg_f16_to_f32(b->d) * half_nibble(b->qs, e) + mg_f16_to_f32(b->m);
}

DEQUANT(fp8_32) {
    for (; n > 0; n--, b++)
        for (int i = 0; i < 32; i++) *x++ = mg_e4m3_scaled(b->qs[i], mg_float_of(mg_ld32(b->d)));
}

DEQUANT(fp8_128) {
    for (; n > 0; n--, b++)
        for (int i = 0; i < 128; i++) *x++ = mg_e4m3_scaled(b->qs[i], mg_float_of(mg_ld32(b->d)));
}

/* --- by id -------------------------------------------------------------------------------------------------------------- */

void mg_dequant_row(int quant, const void *src, float *dst, int64_t cols) {
    switch (quant) {
#define Q(id, name, elems, bytes, act, units, scales) case id: dequant_##name(src, dst, cols / elems); break;
#include "quants.def"
#undef Q
    }
}
