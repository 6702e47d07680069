/* mixers_body.h - the kernels of mixers.h, written once over vf.h; included after ops_body.h by each ops_<level>.c. */
#include "mixers.h"

VF_FN vf sigmoid_v(vf a) {
    const vf one = vf_set1(1.0f);
    return vf_div(one, vf_add(one, vf_exp(vf_sub(vf_set1(0), a))));
}

VF_FN vf silu_v(vf a) { return vf_div(a, vf_add(vf_set1(1.0f), vf_exp(vf_sub(vf_set1(0), a)))); }

/* log(1 + exp(x)) = max(x, 0) + 2 atanh(z / (2 + z)) with z = exp(-|x|): nine terms of the series, relative error about 1e-7. */
VF_FN vf softplus_v(vf x) {
    const vf z = vf_exp(vf_min(x, vf_sub(vf_set1(0), x)));
    const vf s = vf_div(z, vf_add(z, vf_set1(2.0f))), s2 = vf_mul(s, s);
    vf p = vf_set1(1.0f / 17);
    for (int i = 15; i > 0; i -= 2) p = vf_fma(p, s2, vf_set1(1.0f / (float)i));
    return vf_add(vf_max(x, vf_set1(0)), vf_mul(vf_add(s, s), p));
}

VF_FN vf load_lanes(const float *p, int lanes) { return lanes == 16 ? vf_load(p) : load_tail(p, lanes); }

VF_FN void store_lanes(float *p, vf a, int lanes) {
    if (lanes == 16) vf_store(p, a);
    else store_tail(p, a, lanes);
}

VF_TARGET static void mixer_conv(const mg_conv_tile *t) {
    const int past = (t->taps - 1) * t->dilation;
    vf h[MG_PAST_MAX];
    for (int j = 0; j < past; j++) h[j] = vf_load(t->past + j * 16);
    for (int i = 0; i < t->n; i++) {
        vf x = load_lanes(t->x + i * t->ld, t->lanes);
        if (t->pre) x = vf_mul(x, load_lanes(t->pre + i * t->ld_pre, t->lanes));
        vf y = t->bias ? load_lanes(t->bias, t->lanes) : vf_set1(0);
        for (int j = 0; j + 1 < t->taps; j++) y = vf_fma(vf_load(t->w + j * 16), h[j * t->dilation], y);
        y = vf_fma(vf_load(t->w + (t->taps - 1) * 16), x, y);
        if (t->silu) y = silu_v(y);
        if (t->post) y = vf_mul(y, load_lanes(t->post + i * t->ld_post, t->lanes));
        store_lanes(t->x + i * t->ld, y, t->lanes);
        for (int j = 0; j + 1 < past; j++) h[j] = h[j + 1];
        if (past) h[past - 1] = x;
    }
    for (int j = 0; j < past; j++) vf_store(t->past + j * 16, h[j]);
}

VF_FN vf sum4(const vf *a) { return vf_add(vf_add(a[0], a[1]), vf_add(a[2], a[3])); }

/* Sums over the keys run in four lanes of i % 4, so that they do not wait for each other. */
VF_TARGET static void mixer_matrix(const mg_matrix_tile *t) {
    for (int i = 0; i < t->n; i++) {
        const float *q = t->q + i * t->ldq, *k = t->k + i * t->ldk, *decay = t->decay + i * t->ld_decay;
        const vf one = vf_set1(decay[0]);
        vf d = load_lanes(t->v + i * t->ldv, t->lanes), o[4], r[4];
        for (int j = 0; j < 4; j++) o[j] = r[j] = vf_set1(0);
        if (t->beta) {
            for (int j = 0; j < t->dk; j++) {
                const vf s = vf_mul(t->per_key ? vf_set1(decay[j]) : one, vf_load(t->s + j * 16));
                r[j % 4] = vf_fma(vf_set1(k[j]), s, r[j % 4]);
            }
            d = vf_mul(vf_sub(d, sum4(r)), vf_set1(t->beta[i * t->ld_beta]));
        }
        for (int j = 0; j < t->dk; j++) {
            const vf s = vf_fma(vf_set1(k[j]), d, vf_mul(t->per_key ? vf_set1(decay[j]) : one, vf_load(t->s + j * 16)));
            vf_store(t->s + j * 16, s);
            o[j % 4] = vf_fma(vf_set1(q[j]), s, o[j % 4]);
        }
        store_lanes(t->o + i * t->ldo, sum4(o), t->lanes);
    }
}

VF_TARGET static void mixer_scan(const mg_scan_tile *t) {
    vf a[MG_SCAN_MAX], h[MG_SCAN_MAX];
    for (int j = 0; j < t->states; j++) {
        a[j] = vf_sub(vf_set1(0), vf_exp(vf_load(t->a_log + j * 16)));
        h[j] = vf_load(t->h + j * 16);
    }
    const vf d = load_lanes(t->d, t->lanes);
    for (int i = 0; i < t->n; i++) {
        const float *b = t->b + i * t->ldb, *c = t->c + i * t->ldc;
        const vf x = load_lanes(t->x + i * t->ldx, t->lanes), dt = load_lanes(t->dt + i * t->ld_dt, t->lanes);
        const vf in = vf_mul(dt, x);
        vf y = vf_mul(d, x);
        for (int j = 0; j < t->states; j++) {
            h[j] = vf_fma(vf_set1(b[j]), in, vf_mul(vf_exp(vf_mul(dt, a[j])), h[j]));
            y = vf_fma(vf_set1(c[j]), h[j], y);
        }
        store_lanes(t->x + i * t->ldx, vf_mul(y, silu_v(load_lanes(t->z + i * t->ldz, t->lanes))), t->lanes);
    }
    for (int j = 0; j < t->states; j++) vf_store(t->h + j * 16, h[j]);
}

VF_TARGET static void mixer_unit(const float *x, float scale, int64_t n, float *y) {
    vf s = vf_set1(0);
    int64_t j = 0;
    for (; j < TAIL(n); j += 16) { const vf a = vf_load(x + j); s = vf_fma(a, a, s); }
    if (j < n) { const vf a = load_tail(x + j, n - j); s = vf_fma(a, a, s); }
    const vf r = vf_set1(scale / sqrtf(vf_sum(s) + 1e-6f));
    MAP(n, x, y, vf_mul(a, r));
}

VF_TARGET static void mixer_decay(int mode, float *x, const float *bias, const float *rate, float bound, int64_t n) {
    if (mode == MG_DECAY_BOUNDED) {
        const vf b = vf_set1(bound);
        MAP(n, x, x, vf_exp(vf_mul(b, sigmoid_v(vf_mul(LOAD2(rate, n), vf_add(a, LOAD2(bias, n)))))));
    } else {
        MAP(n, x, x, vf_exp(vf_sub(vf_set1(0), vf_mul(LOAD2(rate, n), softplus_v(vf_add(a, LOAD2(bias, n)))))));
    }
}

VF_TARGET static void mixer_sigmoid(float *x, int64_t n) { MAP(n, x, x, sigmoid_v(a)); }
VF_TARGET static void mixer_softplus(float *x, int64_t n) { MAP(n, x, x, softplus_v(a)); }

VF_TARGET static void mixer_gate(int silu, const float *g, float *x, int64_t n) {
    if (silu) MAP(n, g, x, vf_mul(silu_v(a), LOAD2(x, n)));
    else MAP(n, g, x, vf_mul(sigmoid_v(a), LOAD2(x, n)));
}

VF_TARGET static float mixer_dot(const float *x, const float *y, int64_t n) {
    vf s = vf_set1(0);
    int64_t i = 0;
    for (; i < TAIL(n); i += 16) s = vf_fma(vf_load(x + i), vf_load(y + i), s);
    if (i < n) s = vf_fma(load_tail(x + i, n - i), load_tail(y + i, n - i), s);
    return vf_sum(s);
}

/* --- sparse attention ------------------------------------------------------------------------------------------------------- */

VF_TARGET static void mixer_index_scores(const float *q, int heads, int64_t dim, const float *keys, int64_t n, float scale, float *out) {
    for (int64_t b = 0; b < n; b += 16, keys += dim * 16) {
        vf sum = vf_set1(0);
        for (int h = 0; h < heads; h++) {
            vf a = vf_set1(0);
            for (int64_t d = 0; d < dim; d++) a = vf_fma(vf_set1(q[h * dim + d]), vf_load(keys + d * 16), a);
            sum = vf_add(sum, vf_max(a, vf_set1(0)));
        }
        store_lanes(out + b, vf_mul(sum, vf_set1(scale)), n - b < 16 ? (int)(n - b) : 16);
    }
}

VF_TARGET static void mixer_sparse(const mg_sparse_row *t) {
    float lanes[16], top = -INFINITY;
    int32_t block = -1;
    for (int j = 0; j < t->n; j++) {
        if (t->at[j] / 16 != block) {
            vf a = vf_set1(0);
            block = t->at[j] / 16;
            for (int64_t d = 0; d < t->dim; d++)
                a = vf_fma(vf_set1(t->q[d]), load_kv(t->k, ((int64_t)block * t->dim + d) * 16, t->f32), a);
            vf_store(lanes, vf_mul(a, vf_set1(t->scale)));
        }
        t->scratch[j] = lanes[t->at[j] % 16];
        top = t->scratch[j] > top ? t->scratch[j] : top;
    }
    const vf m = vf_set1(top);
    vf sum = vf_set1(0);
    MAP(t->n, t->scratch, t->scratch, vf_exp(vf_sub(a, m)));
    int64_t j = 0;
    for (; j < TAIL(t->n); j += 16) sum = vf_add(sum, vf_load(t->scratch + j));
    if (j < t->n) sum = vf_add(sum, load_tail(t->scratch + j, t->n - j));
    const float inv = 1.0f / vf_sum(sum);
    for (int64_t d = 0; d < t->dim; d += 16) {
        vf a = vf_set1(0);
        for (int i = 0; i < t->n; i++)
            a = vf_fma(vf_set1(t->scratch[i]), load_kv(t->v, (int64_t)t->at[i] * t->dim_pad + d, t->f32), a);
        store_lanes(t->o + d, vf_mul(a, vf_set1(inv)), t->dim - d < 16 ? (int)(t->dim - d) : 16);
    }
}

#define MG_MIXER_TABLE(name) \
    const mg_mixer_table name = {mixer_conv, mixer_matrix, mixer_scan, mixer_unit, mixer_decay, mixer_sigmoid, mixer_softplus, mixer_gate, mixer_dot, \
        mixer_index_scores, mixer_sparse}
