/* op_attention.c - grouped-query attention: head norms, rope and the write of keys and values; then the walk over the keys. */
#include "exec_int.h"
#include <math.h>
#include <string.h>

/* Norms, rope and temperature of all heads of q or k, in place; cosine NULL: no rotation. */
static void turn_heads(const mg_attn_layer *l, float *x, int heads, const mg_norm *norm, int wide, const float *cosine, const float *sine) {
    const int64_t dim = l->shape.dim;
    for (int step = 0; step < 2; step++) {
        if (step == l->norm_last) {
            if (wide) mg_norm_row(norm, x, heads * dim, x);
            for (int h = 0; h < heads && !wide; h++) mg_norm_row(norm, x + h * dim, dim, x + h * dim);
        } else if (cosine) {
            for (int h = 0; h < heads; h++) mg_ops.rope(x + h * dim, cosine, sine, l->rope->half, l->rope->interleaved);
        }
    }
}

/* One head's key and value to their places in the session's state. */
static void store_kv(const mg_attn *s, const mg_kv *kv, int h, int64_t slot, const float *k, const float *v) {
    const int64_t at = (int64_t)h * s->cap * s->dim + slot / 16 * 16 * s->dim + slot % 16;
    if (s->f32) {
        float *dst = (float *)kv->k + at;
        for (int d = 0; d < s->dim; d++) dst[d * 16] = k[d];
    } else {
        uint16_t *dst = (uint16_t *)kv->k + at, half[16];
        for (int d0 = 0; d0 < s->dim; d0 += 16) {
            const int n = s->dim - d0 < 16 ? s->dim - d0 : 16;
            mg_ops.store_v(k + d0, n, 0, half);
            for (int d = 0; d < n; d++) dst[(d0 + d) * 16] = half[d];
        }
    }
    mg_ops.store_v(v, s->dim, s->f32, (char *)kv->v + ((int64_t)h * s->cap + slot) * s->dim_pad * (s->f32 ? 4 : 2));
}

void mg_rope_row(const mg_exec *e, const mg_rope *rope, int64_t seq, int64_t pos, const float **cosine, const float **sine) {
    *cosine = *sine = NULL;
    if (!rope) return;
    int r = 0;
    while (r + 1 < rope->n && e->seq_len[seq] > rope->limit[r]) r++;
    *cosine = rope->cosine[r] + pos * rope->half;
    *sine = rope->sine[r] + pos * rope->half;
}

static void rope_kv_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const op_ctx *c = ctx;
    const mg_exec *e = c->e;
    const mg_attn_layer *l = c->op->attn;
    const mg_attn *s = &l->shape;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        float *q = row(e, c->op->src, i), *k = row(e, c->op->src2, i), *v = row(e, c->op->src3, i);
        const float *cosine, *sine;
        mg_rope_row(e, l->rope, e->seq[i], e->pos[i], &cosine, &sine);
        if (l->k_is_v) memcpy(v, k, (size_t)l->n_kv * s->dim * 4);
        turn_heads(l, q, l->n_head, &l->q_norm, l->q_wide, cosine, sine);
        if (l->q_scale) mg_ops.scale(q, l->q_scale[e->pos[i]], (int64_t)l->n_head * s->dim);
        if (l->shared) continue;
        turn_heads(l, k, l->n_kv, &l->k_norm, l->k_wide, cosine, sine);
        const mg_kv *kv = &e->kv[e->seq[i]][l->kv_index];
        for (int h = 0; h < l->n_kv; h++) {
            mg_norm_row(&l->v_norm, v + h * s->dim, s->dim, v + h * s->dim);
            store_kv(s, kv, h, e->pos[i] % s->cap, k + h * s->dim, v + h * s->dim);
        }
    }
}

void mg_op_rope_kv(mg_exec *e, const mg_op *op) {
    mg_per_token(e, op, rope_kv_task, 2 * (op->attn->n_head + op->attn->n_kv) * op->attn->shape.dim);
}

/* An attention item: one KV head, one block of tokens of one session, and up to MG_QROWS of their query heads' rows. */
typedef struct { mg_attn a; const float *q[MG_QROWS]; int32_t pos[MG_QROWS], token[MG_QROWS], head[MG_QROWS]; int n; } attn_item;

typedef struct { mg_exec *e; const mg_op *op; int n_sub, n_blocks, chunks; } attn_ctx;   /* items: KV head, block, part of the heads */

static void attention_item(const attn_ctx *c, int64_t item, attn_item *it) {
    const mg_exec *e = c->e;
    const mg_attn_layer *l = c->op->attn;
    const int group = l->n_head / l->n_kv, sub = (int)(item % c->n_sub), h_kv = (int)(item / c->n_sub / c->n_blocks);
    const int64_t block = item / c->n_sub % c->n_blocks;
    const int32_t t0 = e->blocks[block], t1 = e->blocks[block + 1];
    const int g0 = sub * MG_QROWS, g1 = g0 + MG_QROWS < group ? g0 + MG_QROWS : group;
    const mg_kv *kv = &e->kv[e->seq[t0]][l->kv_index];
    const size_t size = l->shape.f32 ? 4 : 2;
    it->a = l->shape;
    it->a.k = (const char *)kv->k + (int64_t)h_kv * it->a.cap * it->a.dim * size;
    it->a.v = it->a.by_row ? it->a.k : (const char *)kv->v + (int64_t)h_kv * it->a.cap * it->a.dim_pad * size;
    it->n = 0;
    for (int32_t t = t0; t < t1; t++)
        for (int g = g0; g < g1; g++, it->n++) {
            it->head[it->n] = h_kv * group + g;
            it->token[it->n] = t;
            it->pos[it->n] = e->pos[t];
            it->q[it->n] = row(e, c->op->src, t) + it->head[it->n] * it->a.dim;
        }
}

/* Chunks [first, last) of MG_CHUNK keys that a row block sees. */
static void chunk_range(const attn_item *it, int32_t *first, int32_t *last) {
    *first = mg_oldest(&it->a, it->pos[0]) / MG_CHUNK;
    *last = it->pos[it->n - 1] / MG_CHUNK + 1;
}

static void attention_out(const attn_ctx *c, const attn_item *it, int r, const float *part) {
    const float *sinks = c->op->attn->sinks;
    mg_ops.attention_finish(part, it->a.value_dim, sinks ? sinks[it->head[r]] : -INFINITY,
                            row(c->e, c->op->dst, it->token[r]) + it->head[r] * it->a.value_dim);
}

/* Many items: up to MG_ATTN_ITEMS neighbours walk the chunks of their KV head together, so that a chunk is read into the cache
 * once for all of them; each folds its partial results as it goes. */
static void attention_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const attn_ctx *c = ctx;
    const int64_t stride = MG_PART_HEAD + c->op->attn->shape.dim_pad;
    float *scratch = c->e->attn_scratch + worker * c->e->attn_scratch_floats, *sums = scratch + MG_QROWS * (MG_SCORES + stride);
    float *sum[MG_QROWS], *part[MG_QROWS];
    attn_item it[MG_ATTN_ITEMS];
    int32_t first[MG_ATTN_ITEMS], last[MG_ATTN_ITEMS];
    for (int r = 0; r < MG_QROWS; r++) part[r] = scratch + MG_QROWS * MG_SCORES + r * stride;
    while (begin < end) {
        int n = 0;
        int32_t from = INT32_MAX, to = 0;
        for (; begin + n < end && n < MG_ATTN_ITEMS; n++) {
            attention_item(c, begin + n, &it[n]);
            if (it[n].a.k != it[0].a.k) break;           /* another head or session */
            chunk_range(&it[n], &first[n], &last[n]);
            from = first[n] < from ? first[n] : from;
            to = last[n] > to ? last[n] : to;
        }
        for (int32_t k = from; k < to; k++)
            for (int i = 0; i < n; i++) {
                if (k < first[i] || k >= last[i]) continue;
                for (int r = 0; r < it[i].n; r++) sum[r] = sums + (i * MG_QROWS + r) * stride;
                mg_ops.attention(&it[i].a, it[i].n, it[i].q, it[i].pos, k * MG_CHUNK, k == first[i] ? sum : part, scratch);
                for (int r = 0; k > first[i] && r < it[i].n; r++) mg_ops.attention_fold(sum[r], part[r], it[i].a.dim_pad);
            }
        for (int i = 0; i < n; i++)
            for (int r = 0; r < it[i].n; r++) attention_out(c, &it[i], r, sums + (i * MG_QROWS + r) * stride);
        begin += n;
    }
}

/* Few items over a long context: pairs of item and chunk run apart, then each item folds its parts in the same order. Items that read the
 * same keys are neighbours. */
static void attention_split_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const attn_ctx *c = ctx;
    const int64_t stride = MG_PART_HEAD + c->op->attn->shape.dim_pad;
    attn_item it;
    for (int64_t i = begin; i < end; i++) {
        const int64_t k = i / c->n_sub % c->chunks, item = i / c->n_sub / c->chunks * c->n_sub + i % c->n_sub;
        int32_t first, last;
        float *part[MG_QROWS];
        attention_item(c, item, &it);
        chunk_range(&it, &first, &last);
        if (k < first || k >= last) continue;
        for (int r = 0; r < it.n; r++) part[r] = c->e->attn_parts + ((item * MG_QROWS + r) * c->chunks + k) * stride;
        mg_ops.attention(&it.a, it.n, it.q, it.pos, (int32_t)k * MG_CHUNK, part, c->e->attn_scratch + worker * c->e->attn_scratch_floats);
    }
}

static void attention_join_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const attn_ctx *c = ctx;
    const int64_t stride = MG_PART_HEAD + c->op->attn->shape.dim_pad;
    attn_item it;
    (void)worker;
    for (int64_t item = begin; item < end; item++) {
        int32_t first, last;
        attention_item(c, item, &it);
        chunk_range(&it, &first, &last);
        for (int r = 0; r < it.n; r++) {
            float *parts = c->e->attn_parts + (item * MG_QROWS + r) * c->chunks * stride;
            for (int32_t k = first + 1; k < last; k++) mg_ops.attention_fold(parts + first * stride, parts + k * stride, it.a.dim_pad);
            attention_out(c, &it, r, parts + first * stride);
        }
    }
}

void mg_op_attention(mg_exec *e, const mg_op *op) {
    const mg_attn_layer *l = op->attn;
    const int group = l->n_head / l->n_kv, n_sub = (group + MG_QROWS - 1) / MG_QROWS;
    const int32_t per_block = group >= MG_QROWS ? 1 : MG_QROWS / group;
    int32_t n = 0, deepest = 0;
    for (int32_t t = 0; t < e->n_tokens; t++) {
        deepest = e->pos[t] > deepest ? e->pos[t] : deepest;
        if (n == 0 || t - e->blocks[n - 1] >= per_block || e->seq[t] != e->seq[t - 1]) e->blocks[n++] = t;
    }
    e->blocks[n] = e->n_tokens;
    const int64_t items = (int64_t)n * l->n_kv * n_sub;
    attn_ctx c = {e, op, n_sub, n, deepest / MG_CHUNK + 1};
    if (c.chunks > 1 && items * MG_QROWS <= e->max_split_rows) {
        mg_pool_run(e->pool, attention_split_task, &c, items * c.chunks, 1);
        mg_pool_run(e->pool, attention_join_task, &c, items, items);
        return;
    }
    const int64_t work = (int64_t)(deepest + 1) * l->shape.dim * group * per_block;
    int64_t chunk = items / ((l->shape.by_row ? 2 : 4) * mg_pool_threads(e->pool));       /* latent rows are read by all heads */
    chunk = chunk < 1 ? 1 : chunk > MG_ATTN_ITEMS ? MG_ATTN_ITEMS : chunk;
    if (chunk * work < 65536) chunk = 65536 / work;
    mg_pool_run(e->pool, attention_task, &c, items, chunk);
}
