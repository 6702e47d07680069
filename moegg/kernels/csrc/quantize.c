/* quantize.c - floats to blocks: plain rounding, and packing of what the searches find (search.h). Other rows: quantize_grid.c.
 *
 * Plain rounding (f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1) equals ggml's reference bit for bit, in the order of
 * operations of its gguf package (gguf-py quants.py). k-quants always search. Values of no meaning (NaN, infinity) give defined but
 * useless codes: callers refuse them.
 */
#include "fp16.h"
#include "kernels.h"
#include "quants.h"
#include "quantize_int.h"
#include "search.h"

/* --- floats ------------------------------------------------------------------------------------------------------------- */

QUANT(f32) { memcpy(b, x, (size_t)n * 4); }
QUANT(f16) {
    for (int64_t i = 0; i < n; i++) b[i] = mg_f32_to_f16(x[i]);
}
QUANT(bf16) {
    for (int64_t i = 0; i < n; i++) b[i] = mg_f32_to_bf16(x[i]);
}

/* --- errors of a block of 32 ---------------------------------------------------------------------------------------------- */

/* Four floats at a time in the compilers' own vector types: the same bits everywhere, which reordered loops would not give. */
typedef float v4 __attribute__((vector_size(16)));
typedef int32_t m4 __attribute__((vector_size(16)));

static inline v4 load(const float *p) { v4 v; memcpy(&v, p, 16); return v; }
static inline void store(float *p, v4 v) { memcpy(p, &v, 16); }
static inline v4 splat(float f) { return (v4){f, f, f, f}; }
static inline v4 pick(m4 c, v4 a, v4 b) { return (v4)((c & (m4)a) | (~c & (m4)b)); }
static inline v4 code(v4 v, v4 lo, v4 hi) {                                       /* nearest in lo..hi; NaN: lo */
    v = pick(v > lo, v, lo);
    return pick(v < hi, v, hi) + 12582912.0f - 12582912.0f;
}
static inline float total(v4 s) { return (s[0] + s[2]) + (s[1] + s[3]); }

/* Sum of w (x - d q - m)^2 with the nearest codes q in lo..hi, which are left in q. */
static float encode(const float *x, const float *w, int n, float d, float m, float lo, float hi, float *q) {
    const v4 inv = splat(inverse(d)), lo4 = splat(lo), hi4 = splat(hi);
    v4 s = splat(0);
    for (int i = 0; i < n; i += 4) {
        const v4 xi = load(x + i), t = xi - m, qi = code(t * inv, lo4, hi4), e = t - d * qi;
        store(q + i, qi);
        s += load(w + i) * e * e;
    }
    return total(s);
}

/* Weighted sums over given codes: what least squares needs. */
typedef struct { float q, qq, xq; } moments;

static moments sums(const float *x, const float *w, int n, const float *q) {
    v4 q1 = splat(0), q2 = q1, xq = q1;
    for (int i = 0; i < n; i += 4) {
        const v4 qi = load(q + i), wq = load(w + i) * qi;
        q1 += wq;
        q2 += wq * qi;
        xq += wq * load(x + i);
    }
    return (moments){total(q1), total(q2), total(xq)};
}

/* --- blocks of 32 ------------------------------------------------------------------------------------------------------- */

static void pack_nibbles(const uint8_t *q, uint8_t *qs) {
    for (int i = 0; i < 16; i++) qs[i] = (uint8_t)((q[i] & 15) | q[i + 16] << 4);
}
static void pack_fifth(const uint8_t *q, uint8_t *qh) {
    uint32_t h = 0;
    for (int i = 0; i < 32; i++) h |= (uint32_t)(q[i] >> 4) << i;
    memcpy(qh, &h, 4);
}

/* One symmetric block: scale and codes 0..2*half-1. Plain: the extreme element becomes code 0. */
static mg_f16 symmetric(const float *x, int half, int search, const float *worth, uint8_t *q) {
    float d = extreme(x, 32) / -half;
    const float inv = inverse(d);
    for (int i = 0; i < 32; i++) q[i] = (uint8_t)clamp(x[i] * inv + (half + 0.5f), 0, 2 * half - 1);
    if (search) {
        float w[32], plain[32], best[32];
        mg_search.weigh(x, worth, 32, w);
        const float fit = to_f16(mg_search.scale(x, w, 32, -half, half - 1));
        const float err = encode(x, w, 32, to_f16(d), 0, -half, half - 1, plain);
        if (fit && encode(x, w, 32, fit, 0, -half, half - 1, best) < err) d = fit;
        else memcpy(best, plain, sizeof best);
        for (int i = 0; i < 32; i++) q[i] = (uint8_t)(best[i] + half);
    }
    return mg_f32_to_f16(d);
}

/* One affine block: scale, minimum and codes 0..top. */
static mg_f16 affine(const float *x, int top, int search, const float *worth, mg_f16 *m_out, uint8_t *q) {
    float lo, hi;
    range(x, 32, &lo, &hi);
    float d = (hi - lo) / top;
    const float inv = inverse(d);
    for (int i = 0; i < 32; i++) q[i] = (uint8_t)clamp((x[i] - lo) * inv + 0.5f, 0, top);
    if (search) {
        float w[32], plain[32], best[32];
        mg_search.weigh(x, worth, 32, w);
        const mg_fit f = mg_search.affine(x, w, 32, top);
        const float fit = to_f16(f.d), m = to_f16(f.m);
        const float err = encode(x, w, 32, to_f16(d), to_f16(lo), 0, top, plain);
        if (encode(x, w, 32, fit, m, 0, top, best) < err) d = fit, lo = m;
        else memcpy(best, plain, sizeof best);
        for (int i = 0; i < 32; i++) q[i] = (uint8_t)best[i];
    }
    *m_out = mg_f32_to_f16(lo);
    return mg_f32_to_f16(d);
}

QUANT(q4_0) {
    for (uint8_t q[32]; n > 0; n--, b++, x += 32, worth += worth ? 32 : 0) {
        b->d = symmetric(x, 8, search, worth, q);
        pack_nibbles(q, b->qs);
    }
}

QUANT(q4_1) {
    for (uint8_t q[32]; n > 0; n--, b++, x += 32, worth += worth ? 32 : 0) {
        b->d = affine(x, 15, search, worth, &b->m, q);
        pack_nibbles(q, b->qs);
    }
}

QUANT(q5_0) {
    for (uint8_t q[32]; n > 0; n--, b++, x += 32, worth += worth ? 32 : 0) {
        b->d = symmetric(x, 16, search, worth, q);
        pack_nibbles(q, b->qs);
        pack_fifth(q, b->qh);
    }
}

QUANT(q5_1) {
    for (uint8_t q[32]; n > 0; n--, b++, x += 32, worth += worth ? 32 : 0) {
        b->d = affine(x, 31, search, worth, &b->m, q);
        pack_nibbles(q, b->qs);
        pack_fifth(q, b->qh);
    }
}

/* Rounds halves away from zero, as ggml does here. The search takes the least squares scale of those codes, if it is better. */
QUANT(q8_0) {
    for (; n > 0; n--, b++, x += 32, worth += worth ? 32 : 0) {
        const float d = fabsf(extreme(x, 32)) / 127, inv = inverse(d);
        float q[32], w[32], fit[32];
        b->d = mg_f32_to_f16(d);
        for (int i = 0; i < 32; i++) {
            const float v = clamp(x[i] * inv, -127, 127), whole = (float)(int)v;
            q[i] = whole + (v - whole >= 0.5f) - (v - whole <= -0.5f);
        }
        if (search) {
            mg_search.weigh(x, worth, 32, w);
            const moments s = sums(x, w, 32, q);
            const float better = to_f16(s.xq * inverse(s.qq)), err = encode(x, w, 32, to_f16(d), 0, -127, 127, q);
            if (encode(x, w, 32, better, 0, -127, 127, fit) < err) {
                b->d = mg_f32_to_f16(better);
                memcpy(q, fit, sizeof q);
            }
        }
        for (int i = 0; i < 32; i++) b->qs[i] = (int8_t)q[i];
    }
}

/* --- super-blocks of 256 ------------------------------------------------------------------------------------------------ */

static void set_scale_min(uint8_t *s, const int *sc, const int *m) {
    for (int j = 0; j < 4; j++) {
        s[j] = (uint8_t)(sc[j] | sc[j + 4] >> 4 << 6);
        s[j + 4] = (uint8_t)(m[j] | m[j + 4] >> 4 << 6);
        s[j + 8] = (uint8_t)((sc[j + 4] & 15) | (m[j + 4] & 15) << 4);
    }
}

/* Low two bits of the codes: four sub-blocks of 32 share 32 bytes. */
static void pack_crumbs(const uint8_t *q, uint8_t *qs) {
    memset(qs, 0, 64);
    for (int e = 0; e < 256; e++) qs[e / 128 * 32 + e % 32] |= (uint8_t)((q[e] & 3) << e / 32 % 4 * 2);
}

QUANT(q2_k) {
    for (uint8_t q[256]; n > 0; n--, b++, x += 256, worth += worth ? 256 : 0) {
        int sc[16] = {0}, mn[16] = {0};
        mg_search.affine_k(x, worth, 16, 3, 15, &b->d, &b->dmin, sc, mn, q);
        for (int j = 0; j < 16; j++) b->scales[j] = (uint8_t)(sc[j] | mn[j] << 4);
        pack_crumbs(q, b->qs);
    }
}

QUANT(q3_k) {
    for (uint8_t q[256]; n > 0; n--, b++, x += 256, worth += worth ? 256 : 0) {
        int sc[16] = {0};
        memset(b, 0, sizeof *b);
        b->d = mg_search.symmetric_k(x, worth, 4, 32, sc, q);
        for (int j = 0; j < 16; j++) {
            b->scales[j % 8] |= (uint8_t)(((sc[j] + 32) & 15) << j / 8 * 4);
            b->scales[8 + j % 4] |= (uint8_t)((sc[j] + 32) >> 4 << j / 4 * 2);
        }
        for (int e = 0; e < 256; e++) b->hmask[e % 32] |= (uint8_t)(q[e] >> 2 << e / 32);
        pack_crumbs(q, b->qs);
    }
}

/* Sub-blocks 2p and 2p + 1 share 32 bytes, low and high nibbles. */
static void pack_halves(const uint8_t *q, uint8_t *qs) {
    for (int i = 0; i < 128; i++) qs[i] = (uint8_t)((q[i / 32 * 64 + i % 32] & 15) | q[i / 32 * 64 + 32 + i % 32] << 4);
}

QUANT(q4_k) {
    for (uint8_t q[256]; n > 0; n--, b++, x += 256, worth += worth ? 256 : 0) {
        int sc[8] = {0}, mn[8] = {0};
        mg_search.affine_k(x, worth, 32, 15, 63, &b->d, &b->dmin, sc, mn, q);
        set_scale_min(b->scales, sc, mn);
        pack_halves(q, b->qs);
    }
}

QUANT(q5_k) {
    for (uint8_t q[256]; n > 0; n--, b++, x += 256, worth += worth ? 256 : 0) {
        int sc[8] = {0}, mn[8] = {0};
        mg_search.affine_k(x, worth, 32, 31, 63, &b->d, &b->dmin, sc, mn, q);
        set_scale_min(b->scales, sc, mn);
        pack_halves(q, b->qs);
        memset(b->qh, 0, sizeof b->qh);
        for (int i = 0; i < 256; i++) b->qh[i % 32] |= (uint8_t)(q[i] >> 4 << i / 32);
    }
}

QUANT(q6_k) {
    for (uint8_t q[256]; n > 0; n--, b++, x += 256, worth += worth ? 256 : 0) {
        int sc[16] = {0};
        memset(b, 0, sizeof *b);
        b->d = mg_search.symmetric_k(x, worth, 32, 128, sc, q);
        for (int j = 0; j < 16; j++) b->scales[j] = (int8_t)sc[j];
        for (int e = 0; e < 256; e++) {
            const int h = e / 128, k = e / 32 % 4;
            b->ql[64 * h + 32 * (k % 2) + e % 32] |= (uint8_t)((q[e] & 15) << k / 2 * 4);
            b->qh[32 * h + e % 32] |= (uint8_t)(q[e] >> 4 << 2 * k);
        }
    }
}

/* --- by id -------------------------------------------------------------------------------------------------------------- */

int mg_quant_row(int quant, const float *src, void *dst, int64_t cols, int search, const float *worth) {
    switch (quant) {
#define READ_ONLY(...)
#define Q(id, name, elems, bytes, act, units, scales) case id: mg_quant_##name(src, dst, cols / elems, search, worth); return MG_OK;
#include "quants.def"
#undef Q
    }
    return MG_E_QUANT;
}
