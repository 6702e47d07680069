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

/* Weights of the error: what the columns are worth, if that is known, times a factor by which a large element matters more and a
 * small one still matters. */
static void weigh(const float *x, const float *worth, int n, float *w) {
    v4 s = splat(0);
    for (int i = 0; i < n; i += 4) s += load(x + i) * load(x + i);
    const float square = total(s) / n, rms = sqrtf(square);
    for (int i = 0; i < n; i++) w[i] = worth ? worth[i] * sqrtf(square + x[i] * x[i]) : rms + fabsf(x[i]);
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

/* The d of x ~ d * q, q in lo..hi (lo < 0): the extreme element is put near lo or near hi, and of all tries the one whose least
 * squares d takes most off the error, (sum w x q)^2 / sum w q^2, wins. */
static float fit_scale(const float *x, const float *w, int n, float lo, float hi) {
    const float top = extreme(x, n);
    float best = 0, d = 0, q[32];
    if (!(fabsf(top) < 0x1p+127f) || top == 0) return 0;
    for (int k = -9; k <= 9; k++)
        for (int side = 0; side < 2; side++) {
            const v4 inv = splat(((side ? hi : lo) + 0.1f * k) / top), lo4 = splat(lo), hi4 = splat(hi);
            v4 xq = splat(0), qq = splat(0);
            for (int i = 0; i < n; i += 4) {
                const v4 xi = load(x + i), qi = code(xi * inv, lo4, hi4), wq = load(w + i) * qi;
                xq += wq * xi;
                qq += wq * qi;
            }
            const float XQ = total(xq), QQ = total(qq);
            if (XQ * XQ > best * QQ) best = XQ * XQ / QQ, d = XQ / QQ;
        }
    for (int k = 0; k < SETTLE && d; k++) {                  /* codes for that d, d for those codes */
        encode(x, w, n, d, 0, lo, hi, q);
        const moments s = sums(x, w, n, q);
        if (!(s.xq * s.xq > best * s.qq)) break;
        best = s.xq * s.xq / s.qq, d = s.xq / s.qq;
    }
    return d;
}

/* Weighted least squares d and m for the codes q: false if there is no sensible answer. W, X: sums of w and of w x. */
static int solve(const float *x, const float *w, int n, const float *q, float W, float X, int below, float *d, float *m) {
    const moments s = sums(x, w, n, q);
    const float det = W * s.qq - s.q * s.q;
    if (!(det > 0)) return 0;
    *d = (W * s.xq - X * s.q) / det;
    *m = (s.qq * X - s.q * s.xq) / det;
    if (below && *m > 0) *m = 0, *d = s.xq / s.qq;
    return *d > 0;
}

/* d and m of x ~ d * q + m, q in 0..top; `below`: m must not be above zero. Tries the plain step and others around it, then
 * settles the best: codes for that d and m, d and m for those codes. q: left with the codes. */
static float fit_affine(const float *x, const float *w, int n, float top, int below, float *d_out, float *m_out, float *q_out) {
    float lo, hi, q[32], W = 0, X = 0;
    range(x, n, &lo, &hi);
    if (below && lo > 0) lo = 0;
    *d_out = hi - lo > 0 ? (hi - lo) / top : 0;
    *m_out = lo;
    float best = encode(x, w, n, *d_out, lo, 0, top, q_out);
    if (!(*d_out > 0)) return best;
    for (int i = 0; i < n; i++) W += w[i], X += w[i] * x[i];
    for (int k = -10; k <= 10 + SETTLE; k++) {
        float d = (hi - lo) / (top + 0.1f * k), m = lo;
        if (k <= 10) encode(x, w, n, d, m, 0, top, q);
        else memcpy(q, q_out, (size_t)n * 4);
        if (!solve(x, w, n, q, W, X, below, &d, &m)) continue;
        const float err = encode(x, w, n, d, m, 0, top, q);
        if (err < best) {
            best = err, *d_out = d, *m_out = m;
            memcpy(q_out, q, (size_t)n * 4);
        } else if (k > 10) break;
    }
    return best;
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
        weigh(x, worth, 32, w);
        const float fit = to_f16(fit_scale(x, w, 32, -half, half - 1));
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
        float w[32], plain[32], best[32], fit, m;
        weigh(x, worth, 32, w);
        fit_affine(x, w, 32, top, 0, &fit, &m, best);
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
            weigh(x, worth, 32, w);
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

/* One super-block while it is searched: 256 / n sub-blocks of x ~ du * sc * q - mu * mn. */
typedef struct {
    const float *x;
    int n;
    float w[256], d[16], m[16], bend[16];       /* wanted scale and minimum, and the mean code, of each sub-block */
    float q[256];
    int sc[16], mn[16];
} super;

/* The best scale and minimum of every sub-block for units du and mu: those next to the wanted ones; where a scale differs from the
 * wanted one, the minimum that keeps the mean. Returns the error. */
static float place(super *b, float du, float mu, int top, int most) {
    float sum = 0, q[32];
    for (int j = 0; j < 256 / b->n; j++) {
        const float *x = b->x + b->n * j, *w = b->w + b->n * j;
        const int s0 = (int)nearest(clamp(b->d[j] * inverse(du), 0, most));
        float best = -1;
        for (int s = s0 > 0 ? s0 - 1 : 0; s <= s0 + 1 && s <= most; s++) {
            const int m0 = (int)nearest(clamp(-(b->m[j] + (b->d[j] - du * s) * b->bend[j]) * inverse(mu), 0, most));
            for (int k = m0 > 0 ? m0 - 1 : 0; k <= m0 + 1 && k <= most; k++) {
                const float err = encode(x, w, b->n, du * s, -(mu * k), 0, top, q);
                if (best >= 0 && !(err < best)) continue;
                best = err, b->sc[j] = s, b->mn[j] = k;
                memcpy(b->q + b->n * j, q, (size_t)b->n * 4);
            }
        }
        sum += best;
    }
    return sum;
}

/* Weighted least squares du and mu for the codes, scales and minima as they are; false if there is no sensible answer. */
static int units(const super *b, float *du, float *mu) {
    float ss = 0, sm = 0, mm = 0, xs = 0, xm = 0;
    for (int j = 0; j < 256 / b->n; j++) {
        const float *x = b->x + b->n * j, *w = b->w + b->n * j;
        const moments t = sums(x, w, b->n, b->q + b->n * j);
        float W = 0, X = 0;
        for (int i = 0; i < b->n; i++) W += w[i], X += w[i] * x[i];
        const float s = (float)b->sc[j], m = (float)b->mn[j];
        ss += s * s * t.qq, sm += s * m * t.q, mm += m * m * W, xs += s * t.xq, xm += m * X;
    }
    const float det = ss * mm - sm * sm;
    if (det > 0) {
        *du = (mm * xs - sm * xm) / det;
        *mu = (sm * xs - ss * xm) / det;
    } else {
        *du = xs * inverse(ss);
        *mu = 0;
    }
    return *du > 0 && *du < 0x1p+15f && *mu >= 0 && *mu < 0x1p+15f;
}

/* One affine super-block; scales and minima are 0..most. Each sub-block says what it wants, the units that the largest of these
 * give are tried, then those of least squares for what came of it. */
static void affine_k(const float *x, const float *worth, int n, int top, int most, mg_f16 *d_out, mg_f16 *dmin_out, int *sc, int *mn,
                     uint8_t *codes) {
    super b = {.x = x, .n = n};
    float d_max = 0, m_max = 0, q[32], best = -1;
    for (int j = 0; j < 256 / n; j++) {
        float W = 0, Q = 0;
        weigh(x + n * j, worth ? worth + n * j : NULL, n, b.w + n * j);
        fit_affine(x + n * j, b.w + n * j, n, top, 1, &b.d[j], &b.m[j], q);
        for (int i = 0; i < n; i++) W += b.w[n * j + i], Q += b.w[n * j + i] * q[i];
        b.bend[j] = Q * inverse(W);
        d_max = b.d[j] > d_max ? b.d[j] : d_max;
        m_max = -b.m[j] > m_max ? -b.m[j] : m_max;
    }
    float du = to_f16(d_max / most), mu = to_f16(m_max / most);
    for (int round = 0; round <= SETTLE; round++) {
        const float err = place(&b, du, mu, top, most);
        if (best >= 0 && !(err < best)) break;
        best = err, *d_out = mg_f32_to_f16(du), *dmin_out = mg_f32_to_f16(mu);
        memcpy(sc, b.sc, 256 / n * sizeof *sc);
        memcpy(mn, b.mn, 256 / n * sizeof *mn);
        for (int i = 0; i < 256; i++) codes[i] = (uint8_t)b.q[i];
        if (!units(&b, &du, &mu)) break;
        du = to_f16(du), mu = to_f16(mu);
    }
}

/* One symmetric super-block of 16 sub-blocks: codes 0..2*half-1 stand for -half.., scales are -most..most-1. */
static mg_f16 symmetric_k(const float *x, const float *worth, int half, int most, int *sc, uint8_t *codes) {
    float w[256], d[16], q[256], trial[16], top = 0, best = -1;
    int s_of[16];
    mg_f16 d_out = 0;
    for (int j = 0; j < 16; j++) {
        weigh(x + 16 * j, worth ? worth + 16 * j : NULL, 16, w + 16 * j);
        d[j] = fit_scale(x + 16 * j, w + 16 * j, 16, -half, half - 1);
        top = fabsf(d[j]) > fabsf(top) ? d[j] : top;
    }
    float du = to_f16(top / -most);
    for (int round = 0; round <= SETTLE; round++) {
        float sum = 0, ss = 0, xs = 0;
        for (int j = 0; j < 16; j++) {
            const int s0 = (int)nearest(clamp(d[j] * inverse(du), -most, most - 1));
            float least = -1;
            s_of[j] = 0;
            memset(q + 16 * j, 0, sizeof trial);
            for (int s = s0 > -most ? s0 - 1 : -most; s <= s0 + 1 && s < most; s++) {
                const float err = encode(x + 16 * j, w + 16 * j, 16, du * s, 0, -half, half - 1, trial);
                if (least >= 0 && !(err < least)) continue;
                least = err, s_of[j] = s;
                memcpy(q + 16 * j, trial, sizeof trial);
            }
            const moments t = sums(x + 16 * j, w + 16 * j, 16, q + 16 * j);
            const float s = (float)s_of[j];
            sum += least, ss += s * s * t.qq, xs += s * t.xq;
        }
        if (best >= 0 && !(sum < best)) break;
        best = sum, d_out = mg_f32_to_f16(du);
        memcpy(sc, s_of, sizeof s_of);
        for (int i = 0; i < 256; i++) codes[i] = (uint8_t)(q[i] + half);
        du = to_f16(xs * inverse(ss));
        if (!(fabsf(du) < 0x1p+15f)) break;
    }
    return d_out;
}

/* Low two bits of the codes: four sub-blocks of 32 share 32 bytes. */
static void pack_crumbs(const uint8_t *q, uint8_t *qs) {
    memset(qs, 0, 64);
    for (int e = 0; e < 256; e++) qs[e / 128 * 32 + e % 32] |= (uint8_t)((q[e] & 3) << e / 32 % 4 * 2);
}

QUANT(q2_k) {
    for (uint8_t q[256]; n > 0; n--, b++, x += 256, worth += worth ? 256 : 0) {
        int sc[16] = {0}, mn[16] = {0};
        affine_k(x, worth, 16, 3, 15, &b->d, &b->dmin, sc, mn, q);
        for (int j = 0; j < 16; j++) b->scales[j] = (uint8_t)(sc[j] | mn[j] << 4);
        pack_crumbs(q, b->qs);
    }
}

QUANT(q3_k) {
    for (uint8_t q[256]; n > 0; n--, b++, x += 256, worth += worth ? 256 : 0) {
        int sc[16] = {0};
        memset(b, 0, sizeof *b);
        b->d = symmetric_k(x, worth, 4, 32, sc, q);
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
        affine_k(x, worth, 32, 15, 63, &b->d, &b->dmin, sc, mn, q);
        set_scale_min(b->scales, sc, mn);
        pack_halves(q, b->qs);
    }
}

QUANT(q5_k) {
    for (uint8_t q[256]; n > 0; n--, b++, x += 256, worth += worth ? 256 : 0) {
        int sc[8] = {0}, mn[8] = {0};
        affine_k(x, worth, 32, 31, 63, &b->d, &b->dmin, sc, mn, q);
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
        b->d = symmetric_k(x, worth, 32, 128, sc, q);
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
#define Q(id, name, elems, bytes, act, units) case id: mg_quant_##name(src, dst, cols / elems, search, worth); return MG_OK;
#include "quants.def"
#undef Q
    }
    return MG_E_QUANT;
}
