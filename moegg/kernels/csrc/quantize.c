/* quantize.c - floats to blocks: plain rounding and the better scale searches. Other rows: quantize_grid.c.
 *
 * Plain rounding (f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1) equals ggml's reference bit for bit, in the order of
 * operations of its gguf package (gguf-py quants.py). The searches follow the idea of ggml's make_qx_quants and make_qkx2_quants
 * (try nearby scales, solve weighted least squares for each) and are written anew; k-quants always search. Values of no meaning
 * (NaN, infinity) give defined but useless codes: callers refuse them.
 */
#include "fp16.h"
#include "kernels.h"
#include "quants.h"
#include "quantize_int.h"

/* --- floats ------------------------------------------------------------------------------------------------------------- */

QUANT(f32) { memcpy(b, x, (size_t)n * 4); }
QUANT(f16) {
    for (int64_t i = 0; i < n; i++) b[i] = mg_f32_to_f16(x[i]);
}
QUANT(bf16) {
    for (int64_t i = 0; i < n; i++) b[i] = mg_f32_to_bf16(x[i]);
}

/* --- searches ----------------------------------------------------------------------------------------------------------- */

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

/* Weights of the error: a large element matters more, a small one still matters. */
static void weigh(const float *x, int n, float *w) {
    v4 s = splat(0);
    for (int i = 0; i < n; i += 4) s += load(x + i) * load(x + i);
    const float rms = sqrtf(total(s) / n);
    for (int i = 0; i < n; i++) w[i] = rms + fabsf(x[i]);
}

/* Sum of w (x - d q - m)^2 with the nearest codes q in lo..hi, which are left in q. */
static float encode(const float *x, const float *w, int n, float d, float m, float lo, float hi, float *q) {
    const v4 inv = splat(inverse(d)), lo4 = splat(lo), hi4 = splat(hi);
    v4 s = splat(0);
    for (int i = 0; i < n; i += 4) {
        const v4 xi = load(x + i), qi = code((xi - m) * inv, lo4, hi4), e = xi - d * qi - m;
        store(q + i, qi);
        s += load(w + i) * e * e;
    }
    return total(s);
}

/* The d of x ~ d * q, q in lo..hi (lo < 0): the extreme element is put near lo or near hi, and of all tries the one whose least
 * squares d takes most off the error, (sum w x q)^2 / sum w q^2, wins. */
static float fit_scale(const float *x, const float *w, int n, float lo, float hi) {
    const float top = extreme(x, n);
    float best = 0, d = 0;
    if (!(fabsf(top) < 0x1p+127f) || top == 0) return 0;
    for (int k = -9; k <= 9; k++)
        for (int side = 0; side < 2; side++) {
            const v4 inv = splat(((side ? hi : lo) + 0.1f * k) / top), lo4 = splat(lo), hi4 = splat(hi);
            v4 xq = splat(0), qq = splat(0);
            for (int i = 0; i < n; i += 4) {
                const v4 xi = load(x + i), q = code(xi * inv, lo4, hi4), wq = load(w + i) * q;
                xq += wq * xi;
                qq += wq * q;
            }
            const float XQ = total(xq), QQ = total(qq);
            if (XQ * XQ > best * QQ) best = XQ * XQ / QQ, d = XQ / QQ;
        }
    return d;
}

/* Weighted least squares d and m for the codes that step and minimum d, m give: false if there is no sensible answer. */
static int solve(const float *x, const float *w, int n, float top, float W, float X, int below, float *d, float *m) {
    const v4 inv = splat(inverse(*d)), lo = splat(0), hi = splat(top);
    v4 q1 = lo, q2 = lo, xq = lo;
    for (int i = 0; i < n; i += 4) {
        const v4 xi = load(x + i), q = code((xi - *m) * inv, lo, hi), wq = load(w + i) * q;
        q1 += wq;
        q2 += wq * q;
        xq += wq * xi;
    }
    const float Q1 = total(q1), Q2 = total(q2), XQ = total(xq), det = W * Q2 - Q1 * Q1;
    if (!(det > 0)) return 0;
    *d = (W * XQ - X * Q1) / det;
    *m = (Q2 * X - Q1 * XQ) / det;
    if (below && *m > 0) *m = 0, *d = XQ / Q2;
    return *d > 0;
}

/* d and m of x ~ d * q + m, q in 0..top; `below`: m must not be above zero. Tries the plain step and others around it. */
static void fit_affine(const float *x, const float *w, int n, float top, int below, float *d_out, float *m_out) {
    float lo, hi, q[32], W = 0, X = 0;
    range(x, n, &lo, &hi);
    if (below && lo > 0) lo = 0;
    *d_out = 0;
    *m_out = lo;
    if (!(hi - lo > 0)) return;
    for (int i = 0; i < n; i++) W += w[i], X += w[i] * x[i];
    *d_out = (hi - lo) / top;
    float best = encode(x, w, n, *d_out, lo, 0, top, q);
    for (int k = -10; k <= 10; k++) {
        float d = (hi - lo) / (top + 0.1f * k), m = lo;
        if (!solve(x, w, n, top, W, X, below, &d, &m)) continue;
        const float err = encode(x, w, n, d, m, 0, top, q);
        if (err < best) best = err, *d_out = d, *m_out = m;
    }
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
static mg_f16 symmetric(const float *x, int half, int search, uint8_t *q) {
    float d = extreme(x, 32) / -half;
    const float inv = inverse(d);
    for (int i = 0; i < 32; i++) q[i] = (uint8_t)clamp(x[i] * inv + (half + 0.5f), 0, 2 * half - 1);
    if (search) {
        float w[32], plain[32], best[32];
        weigh(x, 32, w);
        const float fit = to_f16(fit_scale(x, w, 32, -half, half - 1));
        const float err = encode(x, w, 32, to_f16(d), 0, -half, half - 1, plain);
        if (fit && encode(x, w, 32, fit, 0, -half, half - 1, best) < err) d = fit;
        else memcpy(best, plain, sizeof best);
        for (int i = 0; i < 32; i++) q[i] = (uint8_t)(best[i] + half);
    }
    return mg_f32_to_f16(d);
}

/* One affine block: scale, minimum and codes 0..top. */
static mg_f16 affine(const float *x, int top, int search, mg_f16 *m_out, uint8_t *q) {
    float lo, hi;
    range(x, 32, &lo, &hi);
    float d = (hi - lo) / top;
    const float inv = inverse(d);
    for (int i = 0; i < 32; i++) q[i] = (uint8_t)clamp((x[i] - lo) * inv + 0.5f, 0, top);
    if (search) {
        float w[32], plain[32], best[32], fit, m;
        weigh(x, 32, w);
        fit_affine(x, w, 32, top, 0, &fit, &m);
        fit = to_f16(fit), m = to_f16(m);
        const float err = encode(x, w, 32, to_f16(d), to_f16(lo), 0, top, plain);
        if (encode(x, w, 32, fit, m, 0, top, best) < err) d = fit, lo = m;
        else memcpy(best, plain, sizeof best);
        for (int i = 0; i < 32; i++) q[i] = (uint8_t)best[i];
    }
    *m_out = mg_f32_to_f16(lo);
    return mg_f32_to_f16(d);
}

QUANT(q4_0) {
    for (uint8_t q[32]; n > 0; n--, b++, x += 32) {
        b->d = symmetric(x, 8, search, q);
        pack_nibbles(q, b->qs);
    }
}

QUANT(q4_1) {
    for (uint8_t q[32]; n > 0; n--, b++, x += 32) {
        b->d = affine(x, 15, search, &b->m, q);
        pack_nibbles(q, b->qs);
    }
}

QUANT(q5_0) {
    for (uint8_t q[32]; n > 0; n--, b++, x += 32) {
        b->d = symmetric(x, 16, search, q);
        pack_nibbles(q, b->qs);
        pack_fifth(q, b->qh);
    }
}

QUANT(q5_1) {
    for (uint8_t q[32]; n > 0; n--, b++, x += 32) {
        b->d = affine(x, 31, search, &b->m, q);
        pack_nibbles(q, b->qs);
        pack_fifth(q, b->qh);
    }
}

/* Rounds halves away from zero, as ggml does here. */
QUANT(q8_0) {
    for (; n > 0; n--, b++, x += 32) {
        const float d = fabsf(extreme(x, 32)) / 127, inv = inverse(d);
        b->d = mg_f32_to_f16(d);
        for (int i = 0; i < 32; i++) {
            const float v = clamp(x[i] * inv, -127, 127), whole = (float)(int)v;
            b->qs[i] = (int8_t)(whole + (v - whole >= 0.5f) - (v - whole <= -0.5f));
        }
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

/* One affine super-block of 256 / n sub-blocks; scales and minima are 0..most. They are rounded together; then each sub-block
 * tries the neighbours of its rounded pair. */
static void affine_k(const float *x, int n, int top, int most, mg_f16 *d_out, mg_f16 *dmin_out, int *sc, int *mn,
                     uint8_t *codes) {
    float w[256], d[16], m[16], d_max = 0, m_max = 0, q[32];
    for (int j = 0; j < 256 / n; j++) {
        weigh(x + n * j, n, w + n * j);
        fit_affine(x + n * j, w + n * j, n, top, 1, &d[j], &m[j]);
        d_max = d[j] > d_max ? d[j] : d_max;
        m_max = -m[j] > m_max ? -m[j] : m_max;
    }
    *d_out = mg_f32_to_f16(d_max / most);
    *dmin_out = mg_f32_to_f16(m_max / most);
    const float du = mg_f16_to_f32(*d_out), mu = mg_f16_to_f32(*dmin_out);
    for (int j = 0; j < 256 / n; j++) {
        const int s0 = (int)nearest(clamp(d[j] * inverse(du), 0, most)), m0 = (int)nearest(clamp(-m[j] * inverse(mu), 0, most));
        float best = -1;
        for (int s = s0 > 0 ? s0 - 1 : 0; s <= s0 + 1 && s <= most; s++)
            for (int k = m0 > 0 ? m0 - 1 : 0; k <= m0 + 1 && k <= most; k++) {
                const float err = encode(x + n * j, w + n * j, n, du * s, -(mu * k), 0, top, q);
                if (best >= 0 && !(err < best)) continue;
                best = err, sc[j] = s, mn[j] = k;
                for (int i = 0; i < n; i++) codes[n * j + i] = (uint8_t)q[i];
            }
    }
}

/* One symmetric super-block of 16 sub-blocks: codes 0..2*half-1 stand for -half.., scales are -most..most-1. */
static mg_f16 symmetric_k(const float *x, int half, int most, int *sc, uint8_t *codes) {
    float w[256], d[16], q[16], top = 0;
    for (int j = 0; j < 16; j++) {
        weigh(x + 16 * j, 16, w + 16 * j);
        d[j] = fit_scale(x + 16 * j, w + 16 * j, 16, -half, half - 1);
        top = fabsf(d[j]) > fabsf(top) ? d[j] : top;
    }
    const mg_f16 d_out = mg_f32_to_f16(top / -most);
    const float du = mg_f16_to_f32(d_out);
    for (int j = 0; j < 16; j++) {
        const int s0 = (int)nearest(clamp(d[j] * inverse(du), -most, most - 1));
        float best = -1;
        sc[j] = 0;
        for (int i = 0; i < 16; i++) codes[16 * j + i] = (uint8_t)half;
        for (int s = s0 > -most ? s0 - 1 : -most; s <= s0 + 1 && s < most; s++) {
            const float err = encode(x + 16 * j, w + 16 * j, 16, du * s, 0, -half, half - 1, q);
            if (best >= 0 && !(err < best)) continue;
            best = err, sc[j] = s;
            for (int i = 0; i < 16; i++) codes[16 * j + i] = (uint8_t)(q[i] + half);
        }
    }
    return d_out;
}

/* Low two bits of the codes: four sub-blocks of 32 share 32 bytes. */
static void pack_crumbs(const uint8_t *q, uint8_t *qs) {
    memset(qs, 0, 64);
    for (int e = 0; e < 256; e++) qs[e / 128 * 32 + e % 32] |= (uint8_t)((q[e] & 3) << e / 32 % 4 * 2);
}

QUANT(q2_k) {
    for (uint8_t q[256]; n > 0; n--, b++, x += 256) {
        int sc[16], mn[16];
        affine_k(x, 16, 3, 15, &b->d, &b->dmin, sc, mn, q);
        for (int j = 0; j < 16; j++) b->scales[j] = (uint8_t)(sc[j] | mn[j] << 4);
        pack_crumbs(q, b->qs);
    }
}

QUANT(q3_k) {
    for (uint8_t q[256]; n > 0; n--, b++, x += 256) {
        int sc[16];
        memset(b, 0, sizeof *b);
        b->d = symmetric_k(x, 4, 32, sc, q);
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
    for (uint8_t q[256]; n > 0; n--, b++, x += 256) {
        int sc[8], mn[8];
        affine_k(x, 32, 15, 63, &b->d, &b->dmin, sc, mn, q);
        set_scale_min(b->scales, sc, mn);
        pack_halves(q, b->qs);
    }
}

QUANT(q5_k) {
    for (uint8_t q[256]; n > 0; n--, b++, x += 256) {
        int sc[8], mn[8];
        affine_k(x, 32, 31, 63, &b->d, &b->dmin, sc, mn, q);
        set_scale_min(b->scales, sc, mn);
        pack_halves(q, b->qs);
        memset(b->qh, 0, sizeof b->qh);
        for (int i = 0; i < 256; i++) b->qh[i % 32] |= (uint8_t)(q[i] >> 4 << i / 32);
    }
}

QUANT(q6_k) {
    for (uint8_t q[256]; n > 0; n--, b++, x += 256) {
        int sc[16];
        memset(b, 0, sizeof *b);
        b->d = symmetric_k(x, 32, 128, sc, q);
        for (int j = 0; j < 16; j++) b->scales[j] = (int8_t)sc[j];
        for (int e = 0; e < 256; e++) {
            const int h = e / 128, k = e / 32 % 4;
            b->ql[64 * h + 32 * (k % 2) + e % 32] |= (uint8_t)((q[e] & 15) << k / 2 * 4);
            b->qh[32 * h + e % 32] |= (uint8_t)(q[e] >> 4 << 2 * k);
        }
    }
}

/* --- by id -------------------------------------------------------------------------------------------------------------- */

int mg_quant_row(int quant, const float *src, void *dst, int64_t cols, int search) {
    switch (quant) {
#define READ_ONLY(...)
#define Q(id, name, elems, bytes, act, units) case id: mg_quant_##name(src, dst, cols / elems, search); return MG_OK;
#include "quants.def"
#undef Q
    }
    return MG_E_QUANT;
}
