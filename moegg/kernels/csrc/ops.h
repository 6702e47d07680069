/* ops.h - the float kernels between the matrix products: norms, rope, attention, activations, softmax.
 *
 * One body (ops_body.h) is compiled once per CPU level; all levels give the same bits. No allocation, no threads.
 * Rows may be read and written up to the next multiple of 16 floats: buffers are padded.
 */
#ifndef MOEGG_OPS_H
#define MOEGG_OPS_H
#include <stdint.h>

#define MG_TILE 64           /* key positions that a layer keeps are a multiple of this */
#define MG_CHUNK 512         /* key positions per partial result, at absolute positions: long contexts split over threads */
#define MG_SCORES (MG_CHUNK + 16)    /* floats from one row's scores to the next's: no power of two */
#define MG_PART_HEAD 32      /* floats before the values in a partial result */
#define MG_QROWS 8           /* query rows that share one pass over the keys */

enum { MG_SILU, MG_GELU_TANH, MG_SIGMOID, MG_SWIGLU_OAI, MG_SILU_CUT, MG_XIELU };
#define MG_ACT_VALUES 4      /* of XIELU: a, b, beta, eps */

/* Keys and values of one KV head of one session. K is stored by blocks of 16 positions, [block][dim][16], so that a lane is a
 * key; V is [position][ldv]. by_row: K is [position][dim], dim a multiple of 16, and V its first dim_pad values. cap positions,
 * a multiple of MG_TILE; position p lives at p % cap (a ring for windows). */
typedef struct {
    const void *k, *v;       /* f16 bits, or f32 when f32 is set */
    int32_t cap, dim, dim_pad, f32;
    int32_t value_dim, ldv, by_row;
    int32_t window, chunk;   /* 0: all keys j <= p; a window W: p - W < j; a chunk C: j / C == p / C */
    float scale, softcap;    /* softcap 0: none */
} mg_attn;

/* The first key that position p sees. */
static inline int32_t mg_oldest(const mg_attn *a, int32_t p) {
    if (a->chunk) return p - p % a->chunk;
    return a->window && p >= a->window ? p - a->window + 1 : 0;
}

typedef struct {
    /* y = x / sqrt(mean(x^2) + eps) * w; y may be x. n floats. w NULL: 1. */
    void (*rmsnorm)(const float *x, const float *w, float eps, int64_t n, float *y);
    /* y = (x - mean) / sqrt(mean((x - mean)^2) + eps) * w + b; y may be x. n floats. w NULL: 1; b NULL: 0. */
    void (*layernorm)(const float *x, const float *w, const float *b, float eps, int64_t n, float *y);
    /* In place on the first 2 * half floats of a head; cosine and sine: [half]. */
    void (*rope)(float *x, const float *cosine, const float *sine, int64_t half, int interleaved);
    /* The part of softmax(q[i] . K * scale) V that comes from keys [begin, begin + MG_CHUNK), for n <= MG_QROWS query rows at
     * positions pos[i] (ascending, one session). part[i]: 16 lanes of the running sum, the maximum at [16], then dim_pad values
     * at [MG_PART_HEAD]. scratch: MG_QROWS * MG_SCORES floats. */
    void (*attention)(const mg_attn *a, int n, const float *const *q, const int32_t *pos, int32_t begin, float *const *part, float *scratch);
    void (*attention_fold)(float *into, const float *part, int64_t dim_pad);      /* adds the next chunk; always in chunk order */
    /* sink: a logit without a value that joins the softmax; -INFINITY: none. */
    void (*attention_finish)(const float *part, int64_t dim, float sink, float *out);
    /* h = act(g) * u, n floats; h may be g or u. SWIGLU_OAI: g sigmoid(1.702 g) (u + 1) with g at most 7 and u in -7..7. */
    void (*glu)(int act, const float *g, const float *u, int64_t n, float *h);
    /* h = act(x), SILU to SIGMOID and XIELU; h may be x. values: [MG_ACT_VALUES] of XIELU: a x^2 + beta x where x > 0, elsewhere
     * b (expm1(min(x, eps)) - x) + beta x. */
    void (*act)(int act, const float *values, const float *x, int64_t n, float *h);
    void (*add)(float *x, const float *y, int64_t n);                              /* x += y */
    void (*scale)(float *x, float s, int64_t n);
    void (*axpy)(float w, const float *y, float *x, int64_t n);                    /* x = fma(w, y, x) */
    float (*dot)(const float *x, const float *y, int64_t n);
    void (*softcap)(float *x, float cap, int64_t n);                               /* x = cap * tanh(x / cap) */
    void (*softmax)(float *x, int64_t n);                                          /* in place; padding must be writable */
    float (*kth)(const float *x, int64_t n, int k, float *heap);                   /* the k-th largest; heap: k floats; no NaN */
    void (*store_v)(const float *x, int64_t dim, int f32, void *dst);              /* dim_pad values, padding zeroed by the caller */
} mg_op_table;

extern mg_op_table mg_ops;                      /* the table in force */
extern const mg_op_table mg_ops_generic;
#if defined(__x86_64__)
extern const mg_op_table mg_ops_avx2, mg_ops_avx512;
#elif defined(__aarch64__)
extern const mg_op_table mg_ops_neon;
#endif
void mg_ops_select(const char *level);

#endif
