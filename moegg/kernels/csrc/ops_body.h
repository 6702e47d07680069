/* ops_body.h - the float kernels, written once over vf.h; each ops_<level>.c includes it and exports one table. */
#include "ops.h"
#include "vf.h"

#define TAIL(n) ((n) & ~(int64_t)15)            /* floats in whole vectors */

/* The last n % 16 floats of a row, zero filled. */
VF_FN vf load_tail(const float *p, int64_t n) {
    float f[16] = {0};
    for (int64_t i = 0; i < n; i++) f[i] = p[i];
    return vf_load(f);
}

VF_FN void store_tail(float *p, vf a, int64_t n) {
    float f[16];
    vf_store(f, a);
    for (int64_t i = 0; i < n; i++) p[i] = f[i];
}

/* Runs `expr` over x[0..n), with `a` the vector at i; writes to y. */
#define MAP(n, x, y, expr)                                                              \
    do {                                                                                \
        int64_t i = 0;                                                                  \
        for (; i < TAIL(n); i += 16) { vf a = vf_load((x) + i); vf_store((y) + i, expr); } \
        if (i < (n)) { vf a = load_tail((x) + i, (n) - i); store_tail((y) + i, expr, (n) - i); } \
    } while (0)
#define LOAD2(p, n) (i < TAIL(n) ? vf_load((p) + i) : load_tail((p) + i, (n) - i))

VF_TARGET static void op_rmsnorm(const float *x, const float *w, float eps, int64_t n, float *y) {
    vf s = vf_set1(0);
    int64_t j = 0;
    for (; j < TAIL(n); j += 16) { vf a = vf_load(x + j); s = vf_fma(a, a, s); }
    if (j < n) { vf a = load_tail(x + j, n - j); s = vf_fma(a, a, s); }
    const vf r = vf_set1(1.0f / sqrtf(vf_sum(s) / (float)n + eps));
    if (w) MAP(n, x, y, vf_mul(vf_mul(a, r), LOAD2(w, n)));
    else MAP(n, x, y, vf_mul(a, r));
}

/* Mean first, then the variance around it: a large mean must not cancel it. */
VF_TARGET static void op_layernorm(const float *x, const float *w, const float *b, float eps, int64_t n, float *y) {
    vf s = vf_set1(0);
    int64_t j = 0;
    for (; j < TAIL(n); j += 16) s = vf_add(s, vf_load(x + j));
    if (j < n) s = vf_add(s, load_tail(x + j, n - j));
    const float mean = vf_sum(s) / (float)n;
    const vf m = vf_set1(mean);
    s = vf_set1(0);
    for (j = 0; j < TAIL(n); j += 16) { vf a = vf_sub(vf_load(x + j), m); s = vf_fma(a, a, s); }
    if (j < n) {
        float f[16] = {0};
        for (int64_t i = j; i < n; i++) f[i - j] = x[i] - mean;
        s = vf_fma(vf_load(f), vf_load(f), s);
    }
    const vf r = vf_set1(1.0f / sqrtf(vf_sum(s) / (float)n + eps));
    MAP(n, x, y, vf_mul(vf_sub(a, m), r));
    if (w) MAP(n, y, y, vf_mul(a, LOAD2(w, n)));
    if (b) MAP(n, y, y, vf_add(a, LOAD2(b, n)));
}

VF_TARGET static void op_rope(float *x, const float *cosine, const float *sine, int64_t half, int interleaved) {
    if (interleaved) {
        for (int64_t i = 0; i < half; i++) {
            const float a = x[2 * i], b = x[2 * i + 1];
            x[2 * i] = a * cosine[i] - b * sine[i];
            x[2 * i + 1] = b * cosine[i] + a * sine[i];
        }
        return;
    }
    int64_t i = 0;
    for (; i < TAIL(half); i += 16) {
        const vf a = vf_load(x + i), b = vf_load(x + half + i), c = vf_load(cosine + i), s = vf_load(sine + i);
        vf_store(x + i, vf_sub(vf_mul(a, c), vf_mul(b, s)));
        vf_store(x + half + i, vf_add(vf_mul(b, c), vf_mul(a, s)));
    }
    for (; i < half; i++) {
        const float a = x[i], b = x[half + i];
        x[i] = a * cosine[i] - b * sine[i];
        x[half + i] = b * cosine[i] + a * sine[i];
    }
}

VF_FN vf activation(const int act, vf a) {
    const vf one = vf_set1(1.0f), e = vf_set1(0);
    if (act == MG_GELU_TANH) {
        const vf c0 = vf_set1(0.79788456f), c1 = vf_set1(0.044715f), half = vf_set1(0.5f);
        return vf_mul(vf_mul(half, a), vf_add(one, vf_tanh(vf_mul(c0, vf_fma(vf_mul(c1, vf_mul(a, a)), a, a)))));
    }
    return vf_div(act == MG_SILU ? a : one, vf_add(one, vf_exp(vf_sub(e, a))));
}

VF_FN vf swiglu_oai(vf g, vf u) {
    const vf one = vf_set1(1.0f), top = vf_set1(7.0f);
    g = vf_min(top, g);
    u = vf_max(vf_set1(-7.0f), vf_min(top, u));
    return vf_mul(vf_div(g, vf_add(one, vf_exp(vf_mul(vf_set1(-1.702f), g)))), vf_add(one, u));
}

VF_FN vf silu_cut(vf g, vf u) {
    const vf top = vf_set1(7.0f);
    return vf_mul(activation(MG_SILU, vf_min(top, g)), vf_max(vf_set1(-7.0f), vf_min(top, u)));
}

VF_TARGET static void op_glu(int act, const float *g, const float *u, int64_t n, float *h) {
    switch (act) {
    case MG_SILU: MAP(n, g, h, vf_mul(activation(MG_SILU, a), LOAD2(u, n))); break;
    case MG_GELU_TANH: MAP(n, g, h, vf_mul(activation(MG_GELU_TANH, a), LOAD2(u, n))); break;
    case MG_SIGMOID: MAP(n, g, h, vf_mul(activation(MG_SIGMOID, a), LOAD2(u, n))); break;
    case MG_SWIGLU_OAI: MAP(n, g, h, swiglu_oai(a, LOAD2(u, n))); break;
    case MG_SILU_CUT: MAP(n, g, h, silu_cut(a, LOAD2(u, n))); break;
    }
}

VF_FN vf xielu(vf x, const float *v) {
    const vf rest = vf_mul(vf_set1(v[2]), x);
    const vf above = vf_fma(vf_mul(vf_set1(v[0]), x), x, rest), below = vf_sub(vf_expm1(vf_min(vf_set1(v[3]), x)), x);
    return vf_pick(vf_set1(0), x, above, vf_fma(vf_set1(v[1]), below, rest));
}

VF_TARGET static void op_act(int act, const float *values, const float *x, int64_t n, float *h) {
    switch (act) {
    case MG_SILU: MAP(n, x, h, activation(MG_SILU, a)); break;
    case MG_GELU_TANH: MAP(n, x, h, activation(MG_GELU_TANH, a)); break;
    case MG_SIGMOID: MAP(n, x, h, activation(MG_SIGMOID, a)); break;
    case MG_XIELU: MAP(n, x, h, xielu(a, values)); break;
    }
}

VF_TARGET static void op_add(float *x, const float *y, int64_t n) { MAP(n, x, x, vf_add(a, LOAD2(y, n))); }
VF_TARGET static void op_scale(float *x, float s, int64_t n) { const vf v = vf_set1(s); MAP(n, x, x, vf_mul(a, v)); }
VF_TARGET static void op_axpy(float w, const float *y, float *x, int64_t n) { const vf v = vf_set1(w); MAP(n, x, x, vf_fma(v, LOAD2(y, n), a)); }
VF_TARGET static float op_dot(const float *x, const float *y, int64_t n) {
    vf s = vf_set1(0);
    int64_t i = 0;
    for (; i < TAIL(n); i += 16) s = vf_fma(vf_load(x + i), vf_load(y + i), s);
    if (i < n) s = vf_fma(load_tail(x + i, n - i), load_tail(y + i, n - i), s);
    return vf_sum(s);
}
VF_TARGET static void op_softcap(float *x, float cap, int64_t n) {
    const vf c = vf_set1(cap);
    MAP(n, x, x, vf_mul(c, vf_tanh(vf_div(a, c))));
}

VF_TARGET static void op_softmax(float *x, int64_t n) {
    float m = x[0];
    for (int64_t i = 1; i < n; i++) m = x[i] > m ? x[i] : m;
    const vf vm = vf_set1(m);
    MAP(n, x, x, vf_exp(vf_sub(a, vm)));
    vf s = vf_set1(0);
    int64_t j = 0;
    for (; j < TAIL(n); j += 16) s = vf_add(s, vf_load(x + j));
    if (j < n) s = vf_add(s, load_tail(x + j, n - j));
    op_scale(x, 1.0f / vf_sum(s), n);
}

/* A min-heap of the k largest so far; blocks of 64 whose maximum is not above its root are passed over. */
VF_TARGET static float op_kth(const float *x, int64_t n, int k, float *heap) {
    int size = 0;
    for (int64_t b = 0; b < n; b += 64) {
        const int64_t end = b + 64 < n ? b + 64 : n;
        if (size == k && end - b == 64) {
            float f[16], top;
            vf_store(f, vf_max(vf_max(vf_load(x + b), vf_load(x + b + 16)), vf_max(vf_load(x + b + 32), vf_load(x + b + 48))));
            top = f[0];
            for (int i = 1; i < 16; i++) top = f[i] > top ? f[i] : top;
            if (!(top > heap[0])) continue;
        }
        for (int64_t i = b; i < end; i++) {
            int at = 0;
            if (size < k) {                              /* sift up */
                for (at = size++; at && heap[(at - 1) / 2] > x[i]; at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
            } else if (x[i] > heap[0]) {                 /* replace the root, sift down */
                for (int c; (c = 2 * at + 1) < k; at = c) {
                    if (c + 1 < k && heap[c + 1] < heap[c]) c++;
                    if (heap[c] >= x[i]) break;
                    heap[at] = heap[c];
                }
            } else {
                continue;
            }
            heap[at] = x[i];
        }
    }
    return heap[0];
}

VF_TARGET static void op_store_v(const float *x, int64_t dim, int f32, void *dst) {
    if (f32) {
        memcpy(dst, x, (size_t)dim * 4);
        return;
    }
    uint16_t *h = dst, tail[16];
    int64_t i = 0;
    for (; i < TAIL(dim); i += 16) vf_storeh(h + i, vf_load(x + i));
    if (i < dim) {
        vf_storeh(tail, load_tail(x + i, dim - i));
        memcpy(h + i, tail, (size_t)(dim - i) * 2);
    }
}

/* --- attention ---------------------------------------------------------------------------------------------------------
 * Partial results over MG_CHUNK keys at absolute positions: scores, their maximum, exp, sums. Per query row the operations and their
 * order depend only on its position, so any split of a prompt gives the same bits. Sum of weights: lane = key position % 16. */

VF_FN float exp1(float x) {
    float f[16];
    vf_store(f, vf_exp(vf_set1(x)));
    return f[0];
}

VF_FN vf load_kv(const void *p, int64_t at, int f32) { return f32 ? vf_load((const float *)p + at) : vf_loadh((const uint16_t *)p + at); }

/* The line at p + bytes comes into the second-level cache. Memory is read evenly: keys AHEAD bytes before they are multiplied, values while
 * their keys are, the next chunk's keys while values are added; caches of long contexts are cold, and hardware follows no strides. */
VF_FN void fetch(const void *p, int64_t bytes) { __builtin_prefetch((const void *)((uintptr_t)p + (uintptr_t)bytes), 0, 2); }

/* fn(n, wide, ...) with constants for n <= MG_QROWS rows, f32 or f16, which keep sums in registers; where a vector is a loop they would
 * only cost a minute of compiling. */
#if defined(VF_PLAIN)
#define BY_ROWS(n, wide, fn, ...) fn(n, wide, __VA_ARGS__)
#else
#define ROWS(N, wide, fn, ...) case N: if (wide) fn(N, 1, __VA_ARGS__); else fn(N, 0, __VA_ARGS__); break
#define BY_ROWS(n, wide, fn, ...)                                                                                                            \
    switch (n) {                                                                                                                             \
        ROWS(1, wide, fn, __VA_ARGS__); ROWS(2, wide, fn, __VA_ARGS__); ROWS(3, wide, fn, __VA_ARGS__); ROWS(4, wide, fn, __VA_ARGS__);         \
        ROWS(5, wide, fn, __VA_ARGS__); ROWS(6, wide, fn, __VA_ARGS__); ROWS(7, wide, fn, __VA_ARGS__); ROWS(8, wide, fn, __VA_ARGS__);         \
    }
#endif

/* SUMS vectors stay in registers: N rows take AT_ONCE(N) vectors of keys or values at a time, rows past BLOCK_ROWS come in two halves.
 * KEY_ROWS rows share KEYS keys by position. */
#if defined(VF_AVX512)
enum { SUMS = 16, BLOCK_ROWS = 8, KEY_ROWS = 4, KEYS = 4 };
#else
enum { SUMS = 5, BLOCK_ROWS = 5, KEY_ROWS = 4, KEYS = 1 };
#endif
enum { ONCE = 4, AHEAD = 16384 };                        /* AT_ONCE at most; bytes from the keys that are read to those that are fetched */
#define AT_ONCE(N) (SUMS / (N) > ONCE ? ONCE : SUMS / (N) > 1 ? SUMS / (N) : 1)

/* s[r][0..16 B) = q[r] . K of B blocks of 16 keys, for N rows. */
VF_FN void score_block(const int N, const int B, const int f32, const void *k, const void *v, int64_t at, int64_t dim, const float *const *q,
                       float *s, float scale) {
    vf acc[MG_QROWS][ONCE];
    for (int r = 0; r < N; r++)
        for (int b = 0; b < B; b++) acc[r][b] = vf_set1(0);
    const int64_t step = f32 ? 64 : 32;                  /* bytes of a vector */
    for (int64_t d = 0; d < dim; d++) {
        vf kv[ONCE];
        if (f32 || !(d & 1))                             /* a cache line */
            for (int b = 0; b < B; b++) {
                fetch(k, (at / 16 + b * dim + d) * step + AHEAD);
                fetch(v, (at / 16 + b * dim + d) * step);
            }
        for (int b = 0; b < B; b++) kv[b] = load_kv(k, at + (b * dim + d) * 16, f32);
        for (int r = 0; r < N; r++) {
            const vf x = vf_set1(q[r][d]);
            for (int b = 0; b < B; b++) acc[r][b] = vf_fma(x, kv[b], acc[r][b]);
        }
    }
    for (int r = 0; r < N; r++)
        for (int b = 0; b < B; b++) vf_store(s + r * MG_SCORES + 16 * b, vf_mul(acc[r][b], vf_set1(scale)));
}

/* Of n blocks. */
VF_FN void score_blocks(const int N, const int f32, const void *k, const void *v, int64_t at, int64_t dim, int n, const float *const *q,
                        float *s, float scale) {
    const int B = AT_ONCE(N);
    int b = 0;
    for (; b + B <= n; b += B) score_block(N, B, f32, k, v, at + b * 16 * dim, dim, q, s + b * 16, scale);
    for (; B > 1 && b < n; b++) score_block(N, 1, f32, k, v, at + b * 16 * dim, dim, q, s + b * 16, scale);
}

/* The same of keys by position, [16][dim]: lanes are dimensions, summed by a tree. t [N][16][16] gets what it sums. */
VF_FN void row_lanes(const int N, const int f32, const int first, const void *k, int64_t at, int64_t dim, const float *const *q, float *t) {
    for (int j = 0; j < 16; j += KEYS) {
        vf acc[KEYS][KEY_ROWS];
        for (int i = 0; i < KEYS; i++)
            for (int r = 0; r < N; r++) acc[i][r] = vf_set1(0);
        for (int64_t d = 0; d < dim; d += 16) {
            vf x[KEY_ROWS];
            if (first && (f32 || !(d & 16)))
                for (int i = 0; i < KEYS; i++) fetch(k, (at + (j + i) * dim + d) * (f32 ? 4 : 2) + AHEAD);
            for (int r = 0; r < N; r++) x[r] = vf_load(q[r] + d);
            for (int i = 0; i < KEYS; i++) {
                const vf kv = load_kv(k, at + (j + i) * dim + d, f32);
                for (int r = 0; r < N; r++) acc[i][r] = vf_fma(kv, x[r], acc[i][r]);
            }
        }
        for (int i = 0; i < KEYS; i++)
            for (int r = 0; r < N; r++) vf_store(t + (r * 16 + j + i) * 16, acc[i][r]);
    }
}

VF_FN void score_rows(const int N, const int f32, const void *k, int64_t at, int64_t dim, const float *const *q, float *s, float scale) {
    float t[MG_QROWS * 256];
#define PART(P)                                                                                               \
    if (N > P * KEY_ROWS)                                                                                     \
        row_lanes(N - P * KEY_ROWS < KEY_ROWS ? N - P * KEY_ROWS : KEY_ROWS, f32, P == 0, k, at, dim, q + P * KEY_ROWS, \
                  t + P * KEY_ROWS * 256)
    PART(0); PART(1); PART(2); PART(3);
#undef PART
    for (int r = 0; r < N; r++) vf_store(s + r * MG_SCORES, vf_mul(vf_sums(t + r * 256), vf_set1(scale)));
}

/* o[r][od..od + 16 B) += sum over j < n of p[r][j] * V[j], for N rows. */
VF_FN void value_block(const int N, const int B, const int f32, const void *v, int64_t at, int64_t ldv, int n, const void *next, int64_t next_at,
                       const float *p, float *const *o, int64_t od) {
    const int64_t step = f32 ? 64 : 32;
    vf acc[MG_QROWS][ONCE];
    for (int r = 0; r < N; r++)
        for (int b = 0; b < B; b++) acc[r][b] = vf_load(o[r] + od + 16 * b);
    for (int j = 0; j < n; j++) {
        vf vv[ONCE];
        for (int b = 0; b < B * step; b += 64) fetch(next, next_at + j * B * step + b);
        for (int b = 0; b < B; b++) vv[b] = load_kv(v, at + j * ldv + 16 * b, f32);
        for (int r = 0; r < N; r++) {
            const vf w = vf_set1(p[r * MG_SCORES + j]);
            for (int b = 0; b < B; b++) acc[r][b] = vf_fma(w, vv[b], acc[r][b]);
        }
    }
    for (int r = 0; r < N; r++)
        for (int b = 0; b < B; b++) vf_store(o[r] + od + 16 * b, acc[r][b]);
}

VF_FN void value_blocks(const int N, const int f32, const mg_attn *a, int64_t slot, int n, const float *p, float *const *o) {
    const int B = AT_ONCE(N);
    const int64_t wide = f32 ? 4 : 2, next = (slot + MG_CHUNK) * a->dim * wide;
    int64_t d = 0;
    for (; d + 16 * B <= a->dim_pad; d += 16 * B)
        value_block(N, B, f32, a->v, slot * a->ldv + d, a->ldv, n, a->k, next + d * n * wide, p, o, MG_PART_HEAD + d);
    for (; B > 1 && d < a->dim_pad; d += 16)
        value_block(N, 1, f32, a->v, slot * a->ldv + d, a->ldv, n, a->k, next + d * n * wide, p, o, MG_PART_HEAD + d);
}

/* The weights of one row: scores p[lo..hi) become exp(p - their maximum), others of [from, to) 0; l: their sums by lane. Returns the maximum. */
VF_FN float weigh(float *p, int lo, int hi, int from, int to, float softcap, vf *l) {
    const int b0 = lo & ~15, b1 = (hi + 15) & ~15;
    *l = vf_set1(0);
    if (lo >= hi) {                                      /* this row sees nothing of this chunk */
        memset(p + from, 0, (size_t)(to - from) * 4);
        return -INFINITY;
    }
    if (softcap != 0.0f) op_softcap(p + lo, softcap, hi - lo);
    for (int j = b0; j < lo; j++) p[j] = -INFINITY;
    for (int j = hi; j < b1; j++) p[j] = -INFINITY;
    vf most = vf_load(p + b0);
    for (int b = b0 + 16; b < b1; b += 16) most = vf_max(vf_load(p + b), most);
    const float top = vf_top(most);
    const vf m = vf_set1(top);
    for (int b = b0; b < b1; b += 16) {
        vf_store(p + b, vf_exp(vf_sub(vf_load(p + b), m)));
        if (b < lo) memset(p + b, 0, (size_t)(lo - b) * 4);
        if (b + 16 > hi) memset(p + hi, 0, (size_t)(b + 16 - hi) * 4);
        *l = vf_add(*l, vf_load(p + b));
    }
    if (from < b0) memset(p + from, 0, (size_t)(b0 - from) * 4);
    if (to > b1) memset(p + b1, 0, (size_t)(to - b1) * 4);
    return top;
}

VF_FN void attention_rows(const int N, const int f32, const mg_attn *a, const float *const *q, const int32_t *pos, int32_t begin,
                          float *const *part, float *s) {
    const int half = N > BLOCK_ROWS ? N / 2 : N;
    int lo[MG_QROWS], hi[MG_QROWS], from = MG_CHUNK, to = 0;        /* keys of this chunk that a row sees, that any row sees */
    for (int r = 0; r < N; r++) {
        const int32_t oldest = mg_oldest(a, pos[r]) - begin, end = pos[r] + 1 - begin;
        lo[r] = oldest > 0 ? oldest : 0;
        hi[r] = end < MG_CHUNK ? end : MG_CHUNK;
        from = lo[r] < from ? lo[r] : from;
        to = hi[r] > to ? hi[r] : to;
        memset(part[r] + MG_PART_HEAD, 0, (size_t)a->dim_pad * 4);
    }
    for (int at = from & ~15, n; at < to; at += n) {     /* n: keys to the end of the ring */
        const int32_t slot = (begin + at) % a->cap;
        n = to - at < a->cap - slot ? to - at : a->cap - slot;
        const int64_t k = (int64_t)slot * a->dim;
        if (a->by_row) {
            for (int b = 0; b < n; b += 16) score_rows(N, f32, a->k, k + b * a->dim, a->dim, q, s + at + b, a->scale);
            continue;
        }
        score_blocks(half, f32, a->k, a->v, k, a->dim, (n + 15) / 16, q, s + at, a->scale);
        if (N > half) score_blocks(N - half, f32, a->k, a->v, k, a->dim, (n + 15) / 16, q + half, s + half * MG_SCORES + at, a->scale);
    }
    for (int r = 0; r < N; r++) {
        vf l;
        part[r][16] = weigh(s + r * MG_SCORES, lo[r], hi[r], from, to, a->softcap, &l);
        vf_store(part[r], l);
    }
    for (int at = from, n; at < to; at += n) {
        const int32_t slot = (begin + at) % a->cap;
        n = to - at < a->cap - slot ? to - at : a->cap - slot;
        value_blocks(half, f32, a, slot, n, s + at, part);
        if (N > half) value_blocks(N - half, f32, a, slot, n, s + half * MG_SCORES + at, part + half);
    }
}

VF_TARGET static void op_attention(const mg_attn *a, int n, const float *const *q, const int32_t *pos, int32_t begin, float *const *part,
                                   float *scratch) {
    BY_ROWS(n, a->f32, attention_rows, a, q, pos, begin, part, scratch);
}

VF_TARGET static void op_attention_fold(float *into, const float *part, int64_t dim_pad) {
    const size_t bytes = (size_t)(MG_PART_HEAD + dim_pad) * 4;
    if (part[16] == -INFINITY) return;                   /* the row sees nothing of that chunk */
    if (into[16] == -INFINITY) {
        memcpy(into, part, bytes);
        return;
    }
    const float top = part[16] > into[16] ? part[16] : into[16];
    const vf ca = vf_set1(exp1(into[16] - top)), cb = vf_set1(exp1(part[16] - top));
    vf_store(into, vf_fma(vf_load(part), cb, vf_mul(vf_load(into), ca)));
    into[16] = top;
    for (int64_t d = MG_PART_HEAD; d < MG_PART_HEAD + dim_pad; d += 16)
        vf_store(into + d, vf_fma(vf_load(part + d), cb, vf_mul(vf_load(into + d), ca)));
}

VF_TARGET static void op_attention_finish(const float *part, int64_t dim, float sink, float *out) {
    float inv = 1.0f / vf_sum(vf_load(part));
    if (sink != -INFINITY) {
        const float top = sink > part[16] ? sink : part[16], c = exp1(part[16] - top);
        inv = c / (vf_sum(vf_load(part)) * c + exp1(sink - top));
    }
    for (int64_t d = 0; d < dim; d++) out[d] = part[MG_PART_HEAD + d] * inv;
}

#define MG_OP_TABLE(name) \
    const mg_op_table name = {op_rmsnorm, op_layernorm, op_rope, op_attention, op_attention_fold, op_attention_finish, \
        op_glu, op_act, op_add, op_scale, op_axpy, op_dot, op_softcap, op_softmax, op_kth, op_store_v}
