/* search_body.h - the searches of search.h for the level that the including file names (vf.h).
 *
 * The idea is that of ggml's make_qx_quants and make_qkx2_quants (try nearby scales, solve weighted least squares for each), written
 * anew: every try is settled, codes for its scale and the best scale for those codes in turn. No fma here: the tests' numpy has none.
 */
#include <float.h>

#include "quantize_int.h"
#include "search.h"
#include "vf.h"

enum { SETTLE = 2 };             /* times that the units of a super-block are solved anew, as long as it helps */
static const float COUNT[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
static const float FOURS[16] = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};
static const float IN_FOUR[16] = {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3};

VF_FN vf within(vf v, vf lo, vf hi) { return vf_min(vf_max(v, lo), hi); }
VF_FN vf whole(vf v) { return vf_sub(vf_add(v, vf_set1(12582912.0f)), vf_set1(12582912.0f)); }        /* nearest; |v| < 2^22 */
VF_FN vf finite_inverse(vf d) { return within(vf_div(vf_set1(1), d), vf_set1(-FLT_MAX), vf_set1(FLT_MAX)); }     /* 0 times it is 0 */
VF_FN float lane(vf v, int l) { float f[16]; vf_store(f, v); return f[l]; }

/* Which codes a block has: whole numbers in lo..hi, or the values of iq4's grid. */
typedef struct { float lo, hi; int grid; } kind;

/* Of 16 values that belong to iq4's codes, those of the codes nearest to v; the lower of two equally near ones. */
VF_FN vf on_grid(vf v, const float *of) {
    vf r = vf_set1(of[0]);
    for (int q = 0; q < 15; q++) r = vf_pick(vf_set1(0.5f * (mg_iq4_grid[q] + mg_iq4_grid[q + 1])), v, vf_set1(of[q + 1]), r);
    return r;
}
VF_FN vf nearest_code(vf v, kind c) {
    static const float grid[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    return c.grid ? on_grid(v, grid) : whole(within(v, vf_set1(c.lo), vf_set1(c.hi)));
}

/* 16 tries: the sums of w e e (e = x - d q - m), w q, w q q and w x q for the nearest codes q. */
typedef struct { vf ee, q, qq, xq; } tries;
VF_FN tries try16(const float *x, const float *w, int n, vf d, vf m, vf inv, kind c) {
    tries t = {vf_set1(0), vf_set1(0), vf_set1(0), vf_set1(0)};
    for (int i = 0; i < n; i++) {
        const vf xi = vf_set1(x[i]), wi = vf_set1(w[i]), y = vf_sub(xi, m), q = nearest_code(vf_mul(y, inv), c);
        const vf wq = vf_mul(wi, q), e = vf_sub(y, vf_mul(d, q));
        t.ee = vf_add(t.ee, vf_mul(vf_mul(wi, e), e));
        t.q = vf_add(t.q, wq);
        t.qq = vf_add(t.qq, vf_mul(wq, q));
        t.xq = vf_add(t.xq, vf_mul(wq, xi));
    }
    return t;
}

static VF_TARGET void search_weigh(const float *x, const float *worth, int n, float *w) {
    vf s = vf_mul(vf_load(x), vf_load(x));
    for (int i = 16; i < n; i += 16) s = vf_add(s, vf_mul(vf_load(x + i), vf_load(x + i)));
    const float square = vf_sum(s) / n, rms = sqrtf(square);
    if (worth)
        for (int i = 0; i < n; i++) w[i] = worth[i] * sqrtf(square + x[i] * x[i]);
    else
        for (int i = 0; i < n; i++) w[i] = rms + fabsf(x[i]);
}

/* The extreme element is put near lo or near hi, in 16 steps each; the d that takes most off the error, (sum w x q)^2 / sum w q^2,
 * wins. */
VF_FN float fit_scale(const float *x, const float *w, int n, kind c, float step) {
    const float top = extreme(x, n);
    const vf zero = vf_set1(0);
    float best = 0, fit = 0;
    if (!(fabsf(top) < 0x1p+127f) || top == 0) return 0;
    for (int side = 0; side < 2; side++) {
        const vf end = vf_add(vf_set1(side ? c.hi : c.lo), vf_mul(vf_sub(vf_load(COUNT), vf_set1(8)), vf_set1(step)));
        vf inv = vf_div(end, vf_set1(top)), d = zero, gain = zero;
        for (int round = 0; round < 2; round++) {
            const tries t = try16(x, w, n, zero, zero, inv, c);
            d = vf_div(t.xq, t.qq);
            gain = vf_mul(d, t.xq);
            inv = vf_div(t.qq, t.xq);
        }
        gain = vf_pick(zero, gain, gain, zero);                                         /* NaN: 0 */
        const int l = vf_least(vf_sub(zero, gain));
        if (lane(gain, l) > best) best = lane(gain, l), fit = lane(d, l);
    }
    return fit;
}
static VF_TARGET float search_scale(const float *x, const float *w, int n, float lo, float hi) {
    return fit_scale(x, w, n, (kind){lo, hi, 0}, 0.3f);
}
static VF_TARGET float search_scale_iq4(const float *x, const float *w, int n) {
    return fit_scale(x, w, n, (kind){-127, 113, 1}, 2);
}

/* `below`: m must not be above zero. Steps around the plain one are tried, all settled. */
VF_FN mg_fit fit_affine(const float *x, const float *w, int n, float top, int below) {
    const vf zero = vf_set1(0);
    float lo, hi;
    range(x, n, &lo, &hi);
    if (below && lo > 0) lo = 0;
    mg_fit f = {.d = hi - lo > 0 ? (hi - lo) / top : 0, .m = lo};
    for (int i = 0; i < n; i++) f.W += w[i], f.X += w[i] * x[i];
    if (!(f.d > 0)) return f;
    const vf W = vf_set1(f.W), X = vf_set1(f.X), step = vf_set1(top < 8 ? 0.15f : 0.3f);
    vf inv = vf_div(vf_add(vf_set1(top), vf_mul(vf_sub(vf_load(COUNT), vf_set1(8)), step)), vf_set1(hi - lo));
    vf d = zero, m = vf_set1(lo), gain = zero, q = zero;
    for (int round = 0; round < 3; round++) {
        const tries t = try16(x, w, n, zero, m, inv, (kind){0, top, 0});
        const vf det = vf_sub(vf_mul(W, t.qq), vf_mul(t.q, t.q));
        d = vf_div(vf_sub(vf_mul(W, t.xq), vf_mul(X, t.q)), det);
        m = vf_div(vf_sub(vf_mul(t.qq, X), vf_mul(t.q, t.xq)), det);
        if (below) {
            d = vf_pick(zero, m, vf_div(t.xq, t.qq), d);
            m = vf_pick(zero, m, zero, m);
        }
        gain = vf_add(vf_mul(d, t.xq), vf_mul(m, X));                                   /* what d and m take off sum w x x */
        gain = vf_pick(zero, det, vf_pick(zero, d, vf_pick(zero, gain, gain, zero), zero), zero);
        inv = vf_div(vf_set1(1), d);
        q = t.q;
    }
    const int l = vf_least(vf_sub(zero, gain));
    if (lane(gain, l) > 0) f.d = lane(d, l), f.m = lane(m, l), f.bend = lane(q, l) / f.W;
    return f;
}
static VF_TARGET mg_fit search_affine(const float *x, const float *w, int n, float top) { return fit_affine(x, w, n, top, 0); }

/* --- super-blocks: what the sub-blocks want, rounded to units that least squares settles ------------------------------------ */

/* For units du and mu: the four scales nearest to the wanted one, each with the four minima nearest to the one that keeps the mean.
 * Returns the best lane. */
VF_FN int place(const float *x, const float *w, int n, const mg_fit *f, float du, float mu, float top, float most, tries *t, vf *s,
                vf *k) {
    const vf zero = vf_set1(0), limit = vf_set1(most), worst = vf_set1(FLT_MAX);
    const float s0 = nearest(clamp(f->d * inverse(du), 0, most) - 1.5f);
    *s = within(vf_add(vf_set1(s0), vf_load(FOURS)), zero, limit);
    const vf d = vf_mul(vf_set1(du), *s), mean = vf_add(vf_set1(f->m), vf_mul(vf_sub(vf_set1(f->d), d), vf_set1(f->bend)));
    const vf k0 = whole(vf_sub(within(vf_mul(vf_sub(zero, mean), vf_set1(inverse(mu))), zero, limit), vf_set1(1.5f)));
    *k = within(vf_add(k0, vf_load(IN_FOUR)), zero, limit);
    *t = try16(x, w, n, d, vf_sub(zero, vf_mul(vf_set1(mu), *k)), finite_inverse(d), (kind){0, top, 0});
    return vf_least(vf_pick(t->ee, worst, t->ee, worst));                               /* NaN: the worst */
}

static VF_TARGET void search_affine_k(const float *x, const float *worth, int n, int top, int most, mg_f16 *d_out, mg_f16 *dmin_out,
                                      int *sc, int *mn, uint8_t *codes) {
    const int subs = 256 / n;
    float w[256], q[256], d_max = 0, m_max = 0, best = -1;
    mg_fit f[16];
    for (int j = 0; j < subs; j++) {
        search_weigh(x + n * j, worth ? worth + n * j : NULL, n, w + n * j);
        f[j] = fit_affine(x + n * j, w + n * j, n, top, 1);
        d_max = f[j].d > d_max ? f[j].d : d_max;
        m_max = -f[j].m > m_max ? -f[j].m : m_max;
    }
    float du = to_f16(d_max / most), mu = to_f16(m_max / most), du_best = du, mu_best = mu;
    for (int round = 0; round <= SETTLE; round++) {
        float sum = 0, ss = 0, sm = 0, mm = 0, xs = 0, xm = 0;
        int at_s[16], at_k[16];
        for (int j = 0; j < subs; j++) {
            tries t;
            vf s16, k16;
            const int l = place(x + n * j, w + n * j, n, f + j, du, mu, top, most, &t, &s16, &k16);
            const float s = lane(s16, l), k = lane(k16, l);
            at_s[j] = (int)s, at_k[j] = (int)k;
            sum += lane(t.ee, l);
            ss += s * s * lane(t.qq, l), sm += s * k * lane(t.q, l), mm += k * k * f[j].W, xs += s * lane(t.xq, l), xm += k * f[j].X;
        }
        if (best >= 0 && !(sum < best)) break;
        best = sum, du_best = du, mu_best = mu;
        memcpy(sc, at_s, (size_t)subs * sizeof *sc);
        memcpy(mn, at_k, (size_t)subs * sizeof *mn);
        const float det = ss * mm - sm * sm;
        du = to_f16(det > 0 ? (mm * xs - sm * xm) / det : xs * inverse(ss));
        mu = to_f16(det > 0 ? (sm * xs - ss * xm) / det : 0);
        if (!(du > 0 && du < 0x1p+15f && mu >= 0 && mu < 0x1p+15f)) break;
    }
    *d_out = mg_f32_to_f16(du_best), *dmin_out = mg_f32_to_f16(mu_best);
    for (int i = 0; i < 256; i += 16) {
        const vf m = vf_set1(-(mu_best * mn[i / n])), inv = finite_inverse(vf_set1(du_best * sc[i / n]));
        vf_store(q + i, nearest_code(vf_mul(vf_sub(vf_load(x + i), m), inv), (kind){0, top, 0}));
    }
    for (int i = 0; i < 256; i++) codes[i] = (uint8_t)q[i];
}

/* Scales sc in -most..most - 1 of 256 / n sub-blocks without minima, and their unit: four units side by side, each with the four
 * scales nearest to the wanted one. */
VF_FN float scales_k(const float *x, const float *worth, int n, kind c, float step, float most, int *sc) {
    const int subs = 256 / n;
    const vf zero = vf_set1(0), least = vf_set1(-most), limit = vf_set1(most - 1);
    float w[256], d[16], top = 0, best = -1, du_best = 0, unit[4];
    for (int j = 0; j < subs; j++) {
        search_weigh(x + n * j, worth ? worth + n * j : NULL, n, w + n * j);
        d[j] = fit_scale(x + n * j, w + n * j, n, c, step);
        top = fabsf(d[j]) > fabsf(top) ? d[j] : top;
    }
    for (int u = 0; u < 4; u++) unit[u] = to_f16(top / (u % 2 ? most - 1 - u / 2 : -most + u / 2));
    memset(sc, 0, (size_t)subs * sizeof *sc);
    for (int round = 0; round <= SETTLE; round++) {
        float du[16], inv[16], sum[4] = {0}, ss[4] = {0}, xs[4] = {0};
        int at[4][16], u = 0;
        for (int l = 0; l < 16; l++) du[l] = unit[l / 4], inv[l] = inverse(unit[l / 4]);
        for (int j = 0; j < subs; j++) {
            const vf want = within(vf_mul(vf_set1(d[j]), vf_load(inv)), least, limit);
            const vf s16 = within(vf_add(whole(vf_sub(want, vf_set1(1.5f))), vf_load(IN_FOUR)), least, limit);
            const vf d16 = vf_mul(vf_load(du), s16);
            const tries t = try16(x + n * j, w + n * j, n, d16, zero, finite_inverse(d16), c);
            float ee[16], qq[16], xq[16], s[16];
            vf_store(ee, t.ee);
            vf_store(qq, t.qq);
            vf_store(xq, t.xq);
            vf_store(s, s16);
            for (int k = 0; k < 4; k++) {
                int l = 4 * k;
                for (int i = l + 1; i < 4 * k + 4; i++) l = ee[i] < ee[l] ? i : l;
                at[k][j] = (int)s[l];
                sum[k] += ee[l], ss[k] += s[l] * s[l] * qq[l], xs[k] += s[l] * xq[l];
            }
        }
        for (int k = 1; k < 4; k++) u = sum[k] < sum[u] ? k : u;
        if (best >= 0 && !(sum[u] < best)) break;
        best = sum[u], du_best = unit[u];
        memcpy(sc, at[u], (size_t)subs * sizeof *sc);
        for (int k = 0; k < 4; k++) {
            const float next = to_f16(xs[k] * inverse(ss[k]));
            unit[k] = fabsf(next) < 0x1p+15f ? next : 0;
        }
    }
    return du_best;
}

static VF_TARGET mg_f16 search_symmetric_k(const float *x, const float *worth, int half, int most, int *sc, uint8_t *codes) {
    const kind c = {-half, half - 1, 0};
    const float du = scales_k(x, worth, 16, c, 0.3f, most, sc);
    float q[256];
    for (int i = 0; i < 256; i += 16) vf_store(q + i, nearest_code(vf_mul(vf_load(x + i), finite_inverse(vf_set1(du * sc[i / 16]))), c));
    for (int i = 0; i < 256; i++) codes[i] = (uint8_t)(q[i] + half);
    return mg_f32_to_f16(du);
}

static VF_TARGET void search_codes_iq4(const float *x, int n, float d, uint8_t *codes) {
    const vf inv = finite_inverse(vf_set1(d));
    for (int i = 0; i < n; i += 16) {
        float q[16];
        vf_store(q, on_grid(vf_mul(vf_load(x + i), inv), COUNT));
        for (int k = 0; k < 16; k++) codes[i + k] = (uint8_t)q[k];
    }
}

static VF_TARGET mg_f16 search_iq4_k(const float *x, const float *worth, int *sc, uint8_t *codes) {
    const float du = scales_k(x, worth, 32, (kind){-127, 113, 1}, 2, 32, sc);
    for (int j = 0; j < 8; j++) search_codes_iq4(x + 32 * j, 32, du * sc[j], codes + 32 * j);
    return mg_f32_to_f16(du);
}

#define MG_SEARCH_TABLE(name) \
    const mg_search_table name = {search_weigh, search_scale, search_scale_iq4, search_affine, search_affine_k, search_symmetric_k, \
                                  search_iq4_k, search_codes_iq4}
