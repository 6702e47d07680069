/* mixers.c - the ops of layers with a float state (mixers.h): each task takes one tile of 16 lanes through one session's tokens.
 *
 * A state begins with zeros at position 0, whatever lay there. Where the session wants to be able to go back to (mark_at), the state
 * as it is before that position is copied to one of its marks on the way.
 */
#include "exec_int.h"
#include <string.h>

/* What a pass does with the tiles of a layer: `near` neighbouring tiles go through `block` tokens together, so that the lines of a row
 * that they share are read once. */
typedef struct { int64_t at, floats; } place;    /* of a tile's state in the layer's */
typedef struct mixer_ctx {
    mg_exec *e;
    const mg_mixer_layer *l;
    void (*rows)(const struct mixer_ctx *c, int32_t tile, float *state, int32_t first, int32_t n);
    place (*place)(const mg_mixer_layer *l, int32_t tile);
    int32_t tiles, near, block;
} mixer_ctx;

/* Cuts the pass into runs of one session's tokens: e->blocks[0..n]. */
static int32_t runs(mg_exec *e) {
    int32_t n = 0;
    for (int32_t t = 0; t < e->n_tokens; t++)
        if (t == 0 || e->seq[t] != e->seq[t - 1]) e->blocks[n++] = t;
    e->blocks[n] = e->n_tokens;
    return n;
}

/* Tiles [begin, end) through the tokens of a run. */
static void walk(const mixer_ctx *c, int32_t begin, int32_t end, int32_t run) {
    const mg_exec *e = c->e;
    const int32_t first = e->blocks[run], last = e->blocks[run + 1], seq = e->seq[first], cut = first + e->mark_at[seq] - e->pos[first];
    float *live = e->state[seq][c->l->index];
    for (int32_t t = first, n; t < last; t += n) {
        n = last - t < c->block ? last - t : c->block;
        if (t < cut && cut < t + n) n = cut - t;
        for (int32_t tile = begin; tile < end; tile++) {
            const place p = c->place(c->l, tile);
            float *state = live + p.at;
            if (e->pos[t] == 0) memset(state, 0, (size_t)p.floats * 4);
            if (t == cut) memcpy(state + (1 + e->mark_slot[seq]) * c->l->floats, state, (size_t)p.floats * 4);
            c->rows(c, tile, state, t, n);
        }
    }
}

static void tiles_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const mixer_ctx *c = ctx;
    (void)worker;
    while (begin < end) {
        const int32_t tile = (int32_t)(begin % c->tiles), run = (int32_t)(begin / c->tiles);
        int32_t n = c->tiles - tile < c->near ? c->tiles - tile : c->near;
        n = end - begin < n ? (int32_t)(end - begin) : n;
        walk(c, tile, tile + n, run);
        begin += n;
    }
}

/* All tiles of all sessions, each of which does about `each` multiplications per token. */
static void over_tiles(mixer_ctx *c, int64_t each) {
    const int64_t work = each * c->e->n_tokens, chunk = 16384 / (work > 0 ? work : 1) + 1;
    mg_pool_run(c->e->pool, tiles_task, c, (int64_t)runs(c->e) * c->tiles, chunk > c->near ? chunk : c->near);
}

enum { NEAR = 32, BLOCK = 16 };                  /* 32 KB of a buffer, 2 KB of a row */

static int32_t lanes(int32_t width, int32_t at) { return width - at < 16 ? width - at : 16; }

/* --- convolutions ---------------------------------------------------------------------------------------------------------- */

static int32_t conv_blocks(const mg_conv *v) { return (int32_t)pad16(v->channels) / 16; }

static const mg_conv *conv_of(const mg_mixer_layer *l, int32_t *tile) {
    const mg_conv *v = l->conv;
    while (*tile >= conv_blocks(v)) *tile -= conv_blocks(v++);
    return v;
}

static void conv_rows(const mixer_ctx *c, int32_t tile, float *state, int32_t first, int32_t n) {
    const mg_exec *e = c->e;
    const mg_mixer_layer *l = c->l;
    const mg_conv *v = conv_of(l, &tile);
    const int32_t at = 16 * tile;
    const mg_conv_tile t = {
        .w = v->w + (int64_t)at * v->taps, .bias = v->bias ? v->bias + at : NULL,
        .pre = l->pre < 0 ? NULL : row(e, l->pre, first) + at, .post = l->post < 0 ? NULL : row(e, l->post, first) + at,
        .x = row(e, v->buf, first) + at, .past = state, .ld = e->ld[v->buf],
        .ld_pre = l->pre < 0 ? 0 : e->ld[l->pre], .ld_post = l->post < 0 ? 0 : e->ld[l->post],
        .n = n, .lanes = lanes(v->channels, at), .taps = v->taps, .dilation = v->dilation, .silu = v->silu};
    mg_mixers.conv(&t);
}

static place conv_place(const mg_mixer_layer *l, int32_t tile) {
    const mg_conv *v = conv_of(l, &tile);
    const int64_t floats = 16 * (int64_t)(v->taps - 1) * v->dilation;
    return (place){v->at + tile * floats, floats};
}

void mg_op_conv(mg_exec *e, const mg_op *op) {
    const mg_mixer_layer *l = op->mixer;
    mixer_ctx c = {e, l, conv_rows, conv_place, 0, NEAR, BLOCK};
    for (int i = 0; i < l->n_conv; i++) c.tiles += conv_blocks(&l->conv[i]);
    over_tiles(&c, 16 * (int64_t)l->conv[0].taps);
}

/* --- matrix states --------------------------------------------------------------------------------------------------------- */

/* What a token's step takes: unit keys and queries, decays and betas; or SiLU of queries, keys and values. */
static void factors_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const mixer_ctx *c = ctx;
    const mg_exec *e = c->e;
    const mg_mixer_layer *l = c->l;
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        if (!l->delta) {
            for (int i = 0; i < 3; i++) {
                float *x = row(e, i == 0 ? l->q : i == 1 ? l->k : l->v, t);
                mg_mixers.gate(0, x, x, (int64_t)l->n_head * (i < 2 ? l->dk : l->dv));
            }
            continue;
        }
        for (int32_t h = 0; h < l->n_key_head; h++) {
            float *q = row(e, l->q, t) + (int64_t)h * l->dk, *k = row(e, l->k, t) + (int64_t)h * l->dk;
            mg_mixers.unit(q, l->q_scale, l->dk, q);
            mg_mixers.unit(k, 1.0f, l->dk, k);
        }
        mg_mixers.decay(l->bounded ? MG_DECAY_BOUNDED : MG_DECAY_SOFTPLUS, row(e, l->decay_buf, t), l->decay_bias, l->decay_rate,
                        l->bound, (int64_t)l->n_head * (l->per_key ? l->dk : 1));
        mg_mixers.sigmoid(row(e, l->beta_buf, t), l->n_head);
    }
}

static void matrix_rows(const mixer_ctx *c, int32_t tile, float *state, int32_t first, int32_t n) {
    const mg_exec *e = c->e;
    const mg_mixer_layer *l = c->l;
    const int32_t per = (int32_t)pad16(l->dv) / 16, h = tile / per, at = 16 * (tile % per);
    const int32_t hk = l->tiled ? h % l->n_key_head : h / (l->n_head / l->n_key_head);
    const mg_matrix_tile t = {
        .q = row(e, l->q, first) + (int64_t)hk * l->dk, .k = row(e, l->k, first) + (int64_t)hk * l->dk,
        .v = row(e, l->v, first) + (int64_t)h * l->dv + at,
        .decay = l->fixed_decay ? l->fixed_decay + h : row(e, l->decay_buf, first) + (int64_t)h * (l->per_key ? l->dk : 1),
        .beta = l->delta ? row(e, l->beta_buf, first) + h : NULL,
        .o = row(e, l->v, first) + (int64_t)h * l->dv + at, .s = state,         /* o takes the place of v */
        .ldq = e->ld[l->q], .ldk = e->ld[l->k], .ldv = e->ld[l->v], .ldo = e->ld[l->v],
        .ld_decay = l->fixed_decay ? 0 : e->ld[l->decay_buf], .ld_beta = l->delta ? e->ld[l->beta_buf] : 0,
        .n = n, .dk = l->dk, .lanes = lanes(l->dv, at), .per_key = l->per_key};
    mg_mixers.matrix(&t);
}

static place matrix_place(const mg_mixer_layer *l, int32_t tile) {
    return (place){l->matrix_at + 16 * (int64_t)l->dk * tile, 16 * (int64_t)l->dk};
}

static void output_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const mixer_ctx *c = ctx;
    const mg_exec *e = c->e;
    const mg_mixer_layer *l = c->l;
    const int64_t width = (int64_t)l->n_head * l->dv;
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        float *o = row(e, l->v, t);
        if (l->whole_norm) mg_ops.rmsnorm(o, l->norm, l->eps, width, o);
        else for (int32_t h = 0; h < l->n_head; h++) mg_ops.rmsnorm(o + (int64_t)h * l->dv, l->norm, l->eps, l->dv, o + (int64_t)h * l->dv);
        mg_mixers.gate(l->gate_silu, row(e, l->gate_buf, t), o, width);
    }
}

void mg_op_matrix(mg_exec *e, const mg_op *op) {
    const mg_mixer_layer *l = op->mixer;
    const int64_t width = (int64_t)l->n_head * l->dv, chunk = width >= 8192 ? 1 : 8192 / width;
    mixer_ctx c = {e, l, matrix_rows, matrix_place, l->n_head * ((int32_t)pad16(l->dv) / 16), 1, INT32_MAX};      /* a state fills L1 */
    mg_pool_run(e->pool, factors_task, &c, e->n_tokens, chunk);
    over_tiles(&c, 64 * (int64_t)l->dk);
    mg_pool_run(e->pool, output_task, &c, e->n_tokens, chunk);
}

/* --- selective scans ------------------------------------------------------------------------------------------------------- */

static void scan_rows(const mixer_ctx *c, int32_t tile, float *state, int32_t first, int32_t n) {
    const mg_exec *e = c->e;
    const mg_mixer_layer *l = c->l;
    const int32_t at = 16 * tile;
    const mg_scan_tile t = {
        .a_log = l->a_log + (int64_t)at * l->states, .d = l->d + at, .dt = row(e, l->dt, first) + at,
        .z = row(e, l->gate_buf, first) + at, .b = row(e, l->b, first), .c = row(e, l->c, first), .x = row(e, l->v, first) + at,
        .h = state, .ldx = e->ld[l->v], .ld_dt = e->ld[l->dt], .ldz = e->ld[l->gate_buf], .ldb = e->ld[l->b], .ldc = e->ld[l->c],
        .n = n, .states = l->states, .lanes = lanes(l->dv, at)};
    mg_mixers.scan(&t);
}

static place scan_place(const mg_mixer_layer *l, int32_t tile) {
    return (place){l->matrix_at + 16 * (int64_t)l->states * tile, 16 * (int64_t)l->states};
}

static void dt_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const mixer_ctx *c = ctx;
    (void)worker;
    for (int64_t t = begin; t < end; t++) mg_mixers.softplus(row(c->e, c->l->dt, t), c->l->dv);
}

void mg_op_scan(mg_exec *e, const mg_op *op) {
    mixer_ctx c = {e, op->mixer, scan_rows, scan_place, (int32_t)pad16(op->mixer->dv) / 16, NEAR, BLOCK};
    mg_pool_run(e->pool, dt_task, &c, e->n_tokens, op->mixer->dv >= 8192 ? 1 : 8192 / op->mixer->dv);
    over_tiles(&c, 256 * (int64_t)op->mixer->states);
}
