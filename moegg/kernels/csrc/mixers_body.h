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

VF_FN vf conv_in(const mg_conv_tile *t, int i) {
    const vf x = load_lanes(t->x + i * t->ld, t->lanes);
    return t->pre ? vf_mul(x, load_lanes(t->pre + i * t->ld_pre, t->lanes)) : x;
}

VF_FN void conv_out(const mg_conv_tile *t, int i, vf y) {
    if (t->silu) y = silu_v(y);
    if (t->post) y = vf_mul(y, load_lanes(t->post + i * t->ld_post, t->lanes));
    store_lanes(t->x + i * t->ld, y, t->lanes);
}

/* Three or four taps, as models have them: the past in registers. */
VF_FN void conv_short(const int taps, const mg_conv_tile *t, vf bias) {
    const float *w = t->w + (taps - 3) * 16;
    vf a = vf_load(t->past), b = vf_load(t->past + (taps - 3) * 16), c = vf_load(t->past + (taps - 2) * 16);
    for (int i = 0; i < t->n; i++) {
        const vf x = conv_in(t, i);
        vf y = taps > 3 ? vf_fma(vf_load(t->w), a, bias) : bias;
        y = vf_fma(vf_load(w + 32), x, vf_fma(vf_load(w + 16), c, vf_fma(vf_load(w), b, y)));
        a = b;
        b = c;
        c = x;
        conv_out(t, i, y);
    }
    vf_store(t->past, a);                                /* with three taps overwritten by the next */
    vf_store(t->past + (taps - 3) * 16, b);
    vf_store(t->past + (taps - 2) * 16, c);
}

VF_TARGET static void mixer_conv(const mg_conv_tile *t) {
    const int past = (t->taps - 1) * t->dilation;
    const vf bias = t->bias ? load_lanes(t->bias, t->lanes) : vf_set1(0);
    vf h[MG_PAST_MAX];
    if (t->dilation == 1 && t->taps == 3) { conv_short(3, t, bias); return; }
    if (t->dilation == 1 && t->taps == 4) { conv_short(4, t, bias); return; }
    for (int j = 0; j < past; j++) h[j] = vf_load(t->past + j * 16);
    for (int i = 0; i < t->n; i++) {
        const vf x = conv_in(t, i);
        vf y = bias;
        for (int j = 0; j + 1 < t->taps; j++) y = vf_fma(vf_load(t->w + j * 16), h[j * t->dilation], y);
        conv_out(t, i, vf_fma(vf_load(t->w + (t->taps - 1) * 16), x, y));
        for (int j = 0; j + 1 < past; j++) h[j] = h[j + 1];
        if (past) h[past - 1] = x;
    }
    for (int j = 0; j < past; j++) vf_store(t->past + j * 16, h[j]);
}

/* Sums over the keys run in four lanes of j % 4, so that they do not wait for each other. Levels whose registers do not hold all
 * of them go through the keys twice, for two lanes each. */
#if defined(VF_AVX512)
enum { KEY_LANES = 4, KEYS_AT_ONCE = 4 };
#else
enum { KEY_LANES = 4, KEYS_AT_ONCE = 2 };
#endif

VF_FN vf sum4(const vf *a) { return vf_add(vf_add(a[0], a[1]), vf_add(a[2], a[3])); }

/* What one sweep over a tile does, a row of it being read and written once: first the decay of a token and its prediction r = S^T k
 * (`begin`), or the update of a token with k, d and its result o = S^T q (`end`), or the latter and the next token's former. */
typedef struct { const float *k, *q, *next_decay, *next_k; float *s; int dk; } sweep;

VF_FN void key_row(const int end, const int begin, const int per_key, const sweep *w, int j, vf d, vf decay, vf *o, vf *r) {
    vf s = vf_load(w->s + j * 16);
    if (end) {
        s = vf_fma(vf_set1(w->k[j]), d, s);
        *o = vf_fma(vf_set1(w->q[j]), s, *o);
    }
    if (begin) {
        s = vf_mul(per_key ? vf_set1(w->next_decay[j]) : decay, s);
        *r = vf_fma(vf_set1(w->next_k[j]), s, *r);
    }
    vf_store(w->s + j * 16, s);
}

VF_FN void sweep_keys(const int end, const int begin, const int per_key, const sweep *w, vf d, vf *o, vf *r) {
    const vf decay = begin && !per_key ? vf_set1(w->next_decay[0]) : d;
    const int whole = w->dk & ~3;
    vf all_o[KEY_LANES], all_r[KEY_LANES];
    for (int lane = 0; lane < KEY_LANES; lane += KEYS_AT_ONCE) {
        vf a[KEYS_AT_ONCE], b[KEYS_AT_ONCE];
        for (int u = 0; u < KEYS_AT_ONCE; u++) a[u] = b[u] = vf_set1(0);
        for (int j = lane; j < whole; j += KEY_LANES)
            for (int u = 0; u < KEYS_AT_ONCE; u++) key_row(end, begin, per_key, w, j + u, d, decay, &a[u], &b[u]);
        for (int u = 0; u < KEYS_AT_ONCE; u++) {
            if (whole + lane + u < w->dk) key_row(end, begin, per_key, w, whole + lane + u, d, decay, &a[u], &b[u]);
            all_o[lane + u] = a[u];
            all_r[lane + u] = b[u];
        }
    }
    if (end) *o = sum4(all_o);
    if (begin) *r = sum4(all_r);
}

VF_FN void prefetch_row(const float *p, int n) {
    for (int i = 0; i < n; i += 16) __builtin_prefetch(p + i);
}

VF_FN void delta_tile(const int per_key, const mg_matrix_tile *t) {
    vf o = vf_set1(0), r = o;
    sweep w = {.next_decay = t->decay, .next_k = t->k, .s = t->s, .dk = t->dk};
    sweep_keys(0, 1, per_key, &w, o, &o, &r);
    for (int i = 0; i < t->n; i++) {
        const vf v = load_lanes(t->v + i * t->ldv, t->lanes), d = vf_mul(vf_sub(v, r), vf_set1(t->beta[i * t->ld_beta]));
        w.q = t->q + i * t->ldq;
        w.k = w.next_k;
        if (i + 1 < t->n) {
            w.next_k = t->k + (i + 1) * t->ldk;
            w.next_decay = t->decay + (i + 1) * t->ld_decay;
            if (i + 2 < t->n) {
                prefetch_row(w.next_k + t->ldk, t->dk);
                prefetch_row(w.q + 2 * t->ldq, t->dk);
                if (per_key) prefetch_row(w.next_decay + t->ld_decay, t->dk);
            }
            sweep_keys(1, 1, per_key, &w, d, &o, &r);
        } else {
            sweep_keys(1, 0, per_key, &w, d, &o, &r);
        }
        store_lanes(t->o + i * t->ldo, o, t->lanes);
    }
}

VF_FN void key_row_plain(const float *k, const float *q, float *s, vf d, vf decay, vf *o) {
    const vf x = vf_fma(vf_set1(*k), d, vf_mul(decay, vf_load(s)));
    vf_store(s, x);
    *o = vf_fma(vf_set1(*q), x, *o);
}

/* Without correction: one decay per head, and nothing to predict. */
VF_FN void plain_tile(const mg_matrix_tile *t) {
    const int whole = t->dk & ~3;
    for (int i = 0; i < t->n; i++) {
        const float *q = t->q + i * t->ldq, *k = t->k + i * t->ldk;
        const vf decay = vf_set1(t->decay[i * t->ld_decay]), d = load_lanes(t->v + i * t->ldv, t->lanes);
        vf o[KEY_LANES];
        for (int u = 0; u < KEY_LANES; u++) o[u] = vf_set1(0);
        if (i + 1 < t->n) {
            prefetch_row(k + t->ldk, t->dk);
            prefetch_row(q + t->ldq, t->dk);
        }
        for (int j = 0; j < whole; j += KEY_LANES)
            for (int u = 0; u < KEY_LANES; u++) key_row_plain(k + j + u, q + j + u, t->s + (j + u) * 16, d, decay, &o[u]);
        for (int u = 0; u < KEY_LANES; u++)
            if (whole + u < t->dk) key_row_plain(k + whole + u, q + whole + u, t->s + (whole + u) * 16, d, decay, &o[u]);
        store_lanes(t->o + i * t->ldo, sum4(o), t->lanes);
    }
}

VF_TARGET static void mixer_matrix(const mg_matrix_tile *t) {
    if (!t->beta) plain_tile(t);
    else if (t->per_key) delta_tile(1, t);
    else delta_tile(0, t);
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

/* Index heads that share what is loaded. */
#if defined(VF_AVX512)
enum { INDEX_HEADS = 8 };
#else
enum { INDEX_HEADS = 4 };
#endif

/* sum += w[h] relu(q[h] . keys) of H heads, in their order. */
VF_FN vf index_heads(const int H, const int f32, const float *q, const float *w, int64_t dim, const void *keys, int64_t at, vf sum) {
    vf a[INDEX_HEADS];
    for (int h = 0; h < H; h++) a[h] = vf_set1(0);
    for (int64_t d = 0; d < dim; d++) {
        const vf k = load_kv(keys, at + d * 16, f32);
        for (int h = 0; h < H; h++) a[h] = vf_fma(vf_set1(q[h * dim + d]), k, a[h]);
    }
    for (int h = 0; h < H; h++) sum = vf_fma(vf_set1(w ? w[h] : 1.0f), vf_max(a[h], vf_set1(0)), sum);
    return sum;
}

VF_FN void index_rows(const int f32, const float *q, const float *w, int heads, int64_t dim, const void *keys, int64_t n, float scale, float *out) {
    for (int64_t b = 0; b < n; b += 16) {
        vf sum = vf_set1(0);
        int h = 0;
        for (; h + INDEX_HEADS <= heads; h += INDEX_HEADS) sum = index_heads(INDEX_HEADS, f32, q + h * dim, w ? w + h : w, dim, keys, b * dim, sum);
        for (; h < heads; h++) sum = index_heads(1, f32, q + h * dim, w ? w + h : w, dim, keys, b * dim, sum);
        store_lanes(out + b, vf_mul(sum, vf_set1(scale)), n - b < 16 ? (int)(n - b) : 16);
    }
}

VF_TARGET static void mixer_index_scores(const float *q, const float *w, int heads, int64_t dim, const void *keys, int f32, int64_t n, float scale,
                                         float *out) {
    if (f32) index_rows(1, q, w, heads, dim, keys, n, scale, out);
    else index_rows(0, q, w, heads, dim, keys, n, scale, out);
}

#define MG_MIXER_TABLE(name) \
    const mg_mixer_table name = {mixer_conv, mixer_matrix, mixer_scan, mixer_unit, mixer_decay, mixer_sigmoid, mixer_softplus, mixer_gate, \
        mixer_dot, mixer_index_scores}
