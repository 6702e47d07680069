/* mixers.h - layers that carry a float state from token to token: causal convolutions, matrix states (Gated DeltaNet, KDA, lightning
 * attention) and selective scans (Mamba). Kernels of one tile and the ops that walk the tokens of a pass.
 *
 * A state is cut into tiles of 16 lanes (channels, or columns of a head's matrix) that never read each other: a task takes one tile
 * through all tokens of one session, so the bits of a result depend neither on threads nor on how a prompt is split. There is one form,
 * the recurrent one; a tile stays in the first-level cache and is read and written once per token. All in f32.
 */
#ifndef MOEGG_MIXERS_H
#define MOEGG_MIXERS_H
#include "ops.h"

#define MG_PAST_MAX 16       /* past inputs that a convolution reads at most: (taps - 1) * dilation */
#define MG_SCAN_MAX 64       /* states per channel of a selective scan at most */

/* Rows t = 0..n of some of 16 lanes: row t of x is at x + t * ldx. Fewer than 16 lanes are read and written where `lanes` says so. */
typedef struct {
    const float *w;          /* [taps][16] */
    const float *bias;       /* NULL, or [lanes] */
    const float *pre, *post; /* NULL, or rows that inputs and outputs are multiplied by */
    float *x;                /* in place */
    float *past;             /* [(taps - 1) * dilation][16], oldest first */
    int64_t ld, ld_pre, ld_post;
    int32_t n, lanes, taps, dilation, silu;
} mg_conv_tile;

/* One head's matrix state, 16 of its columns: s [dk][16]. */
typedef struct {
    const float *q, *k;      /* [dk] */
    const float *v;          /* 16 lanes */
    const float *decay;      /* [dk] if per_key, else one factor; applied to s before anything else */
    const float *beta;       /* one factor; NULL: s += k v^T without correction */
    float *o;                /* 16 lanes: s^T q after the update */
    float *s;
    int64_t ldq, ldk, ldv, ld_decay, ld_beta, ldo;
    int32_t n, dk, lanes, per_key;
} mg_matrix_tile;

/* 16 channels of a selective scan: h [states][16] = exp(dt * a) h + dt * b * x; y = (sum of h * c + d * x) * silu(z). */
typedef struct {
    const float *a_log;      /* [states][16]; a = -exp(a_log) */
    const float *d;          /* [lanes] */
    const float *dt, *z;     /* 16 lanes; dt is positive */
    const float *b, *c;      /* [states] */
    float *x;                /* 16 lanes; y is written here */
    float *h;
    int64_t ldx, ld_dt, ldz, ldb, ldc;
    int32_t n, states, lanes;
} mg_scan_tile;

enum { MG_DECAY_SOFTPLUS = 0, MG_DECAY_BOUNDED = 1 };

typedef struct {
    void (*conv)(const mg_conv_tile *t);
    void (*matrix)(const mg_matrix_tile *t);
    void (*scan)(const mg_scan_tile *t);
    /* y = x / sqrt(sum of x^2 + 1e-6) * scale; y may be x. */
    void (*unit)(const float *x, float scale, int64_t n, float *y);
    /* In place. SOFTPLUS: x = exp(-rate * softplus(x + bias)); BOUNDED: x = exp(bound * sigmoid(rate * (x + bias))). */
    void (*decay)(int mode, float *x, const float *bias, const float *rate, float bound, int64_t n);
    void (*sigmoid)(float *x, int64_t n);
    void (*softplus)(float *x, int64_t n);
    void (*gate)(int silu, const float *g, float *x, int64_t n);               /* x *= silu(g) or sigmoid(g) */
    float (*dot)(const float *x, const float *y, int64_t n);
    /* out[j] = scale * sum over heads of w[h] relu(q[h] . keys[j]), j < n; w NULL: 1. q [heads][dim]; keys [n / 16][dim][16], f16 or f32. */
    void (*index_scores)(const float *q, const float *w, int heads, int64_t dim, const void *keys, int f32, int64_t n, float scale, float *out);
} mg_mixer_table;

extern mg_mixer_table mg_mixers;                /* the table in force; set with mg_ops */
extern const mg_mixer_table mg_mixers_generic;
#if defined(__x86_64__)
extern const mg_mixer_table mg_mixers_avx2, mg_mixers_avx512;
#elif defined(__aarch64__)
extern const mg_mixer_table mg_mixers_neon;
#endif

/* --- layers of a model ---------------------------------------------------------------------------------------------------- */

typedef struct {
    const float *w, *bias;   /* w interleaved: [channels / 16][taps][16] */
    int32_t channels, taps, dilation, silu, buf;
    int64_t at;              /* where its past lies in the layer's state: [channels / 16][past][16] */
} mg_conv;

/* A layer with a state. Buffers are those of exec.h; -1: none. */
typedef struct {
    int32_t index, n_conv;   /* index: which of a session's states */
    int64_t floats;          /* of one state */
    mg_conv conv[3];
    int32_t pre, post;       /* of all convolutions */
    /* matrix states */
    int32_t n_head, n_key_head, dk, dv, per_key, delta, bounded, gate_silu, whole_norm;
    int32_t tiled;           /* head h reads key head h % n_key_head, else h / (n_head / n_key_head) */
    int32_t q, k, v, decay_buf, beta_buf, gate_buf;
    float q_scale, bound, eps;
    const float *decay_bias, *decay_rate;       /* one per decay factor */
    const float *fixed_decay;                   /* [n_head], when the decay does not depend on the input */
    const float *norm;                          /* [dv], or [n_head * dv] if whole_norm */
    int64_t matrix_at;       /* [n_head][pad16(dv) / 16][dk][16] */
    /* selective scans */
    const float *a_log, *d;
    int32_t states, b, c, dt;
} mg_mixer_layer;

#endif
