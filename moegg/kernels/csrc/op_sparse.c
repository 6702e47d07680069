/* op_sparse.c - attention over chosen blocks of keys: an indexer scores blocks of `ratio` neighbouring keys, the best ones are seen.
 *
 * Of a query at position t the complete blocks among keys 0..t compete, the incomplete one is always seen. Index keys are kept per token
 * (raw) and per complete block (normed mean, rotated as its first token), so that a session can go back to any length.
 */
#include "exec_int.h"
#include <string.h>

static int64_t blocks_of(const mg_indexer *x, int32_t pos) { return (pos + 1) / x->ratio; }

static void rotate(const mg_exec *e, const mg_rope *r, int64_t seq, int64_t pos, float *x) {
    int k = 0;
    while (k + 1 < r->n && e->seq_len[seq] > r->limit[k]) k++;
    mg_ops.rope(x, r->cosine[k] + pos * r->half, r->sine[k] + pos * r->half, r->half, r->interleaved);
}

/* Index queries are normed and rotated in place; the raw key is stored. */
static void query_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const op_ctx *c = ctx;
    const mg_exec *e = c->e;
    const mg_indexer *x = c->op->indexer;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        float *q = row(e, c->op->src, i);
        for (int h = 0; h < x->n_head; h++) {
            mg_ops.rmsnorm(q + h * x->dim, x->q_norm, x->eps, x->dim, q + h * x->dim);
            rotate(e, x->rope, e->seq[i], e->pos[i], q + h * x->dim);
        }
        memcpy(e->index[e->seq[i]][x->index].raw + (int64_t)e->pos[i] * x->dim, row(e, c->op->src2, i), (size_t)x->dim * 4);
    }
}

/* The key of each block that a row completes. */
static void block_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const op_ctx *c = ctx;
    const mg_exec *e = c->e;
    const mg_indexer *x = c->op->indexer;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        if ((e->pos[i] + 1) % x->ratio) continue;
        const mg_index *s = &e->index[e->seq[i]][x->index];
        const int64_t b = blocks_of(x, e->pos[i]) - 1;
        float *mean = row(e, c->op->src2, i);                /* the raw key is stored; its row is free */
        memcpy(mean, s->raw + b * x->ratio * x->dim, (size_t)x->dim * 4);
        for (int k = 1; k < x->ratio; k++) mg_ops.add(mean, s->raw + (b * x->ratio + k) * x->dim, x->dim);
        mg_ops.scale(mean, 1.0f / (float)x->ratio, x->dim);
        mg_ops.rmsnorm(mean, x->k_norm, x->eps, x->dim, mean);
        rotate(e, x->rope, e->seq[i], b * x->ratio, mean);
        for (int64_t d = 0; d < x->dim; d++) s->blocks[(b / 16 * x->dim + d) * 16 + b % 16] = mean[d];
    }
}

void mg_op_index(mg_exec *e, const mg_op *op) {
    mg_per_token(e, op, query_task, (int64_t)(op->indexer->n_head + 1) * op->indexer->dim);
    mg_per_token(e, op, block_task, op->indexer->dim);
}

/* The positions that row i sees, ascending, into at; returns how many. Ties go to the lower block. */
static int32_t choose(const mg_exec *e, const mg_indexer *x, const float *q, int64_t i, float *scores, int32_t *at) {
    const int64_t n = blocks_of(x, e->pos[i]), most = x->budget / x->ratio;
    int64_t spare = 0;
    int32_t count = 0;
    float least = 0;
    if (n > most) {
        mg_mixers.index_scores(q, x->n_head, x->dim, e->index[e->seq[i]][x->index].blocks, n, x->scale, scores);
        least = mg_ops.kth(scores, n, (int)most, scores + x->max_blocks);
        spare = most;
        for (int64_t b = 0; b < n; b++) spare -= scores[b] > least;
    }
    for (int64_t b = 0; b < n; b++) {
        if (n > most && !(scores[b] > least || (scores[b] == least && spare-- > 0))) continue;
        for (int k = 0; k < x->ratio; k++) at[count++] = (int32_t)(b * x->ratio + k);
    }
    for (int64_t p = n * x->ratio; p <= e->pos[i]; p++) at[count++] = (int32_t)p;
    return count;
}

/* Items: a row and a KV head. Heads of one row that follow one another choose once. */
static void sparse_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const op_ctx *c = ctx;
    const mg_exec *e = c->e;
    const mg_attn_layer *l = c->op->attn;
    const mg_attn *s = &l->shape;
    const mg_indexer *x = c->op->indexer;
    const size_t size = s->f32 ? 4 : 2;
    const int group = l->n_head / l->n_kv;
    const int64_t most = pad16(x->budget + x->ratio);
    float *scores = e->sparse_scratch + worker * e->sparse_floats, *sums = scores + 2 * x->max_blocks, *weights = sums + MG_QROWS * s->dim_pad;
    int32_t *at = (int32_t *)(weights + MG_QROWS * most), n = 0;
    for (int64_t item = begin; item < end; item++) {
        const int64_t i = item / l->n_kv, g = item % l->n_kv;
        const mg_kv *kv = &e->kv[e->seq[i]][l->kv_index];
        if (item == begin || g == 0) n = choose(e, x, row(e, c->op->src2, i), i, scores, at);
        mg_sparse_rows t = {
            .k = (const char *)kv->k + g * s->cap * s->dim * size, .v = (const char *)kv->v + g * s->cap * s->dim_pad * size, .at = at,
            .weights = weights, .sums = sums, .dim = s->dim, .dim_pad = s->dim_pad, .stride = most, .n = n, .f32 = s->f32, .scale = s->scale};
        for (int h = 0; h < group; h += MG_QROWS) {
            const int heads = group - h < MG_QROWS ? group - h : MG_QROWS;
            for (int r = 0; r < heads; r++) {
                t.q[r] = row(e, c->op->src, i) + (g * group + h + r) * s->dim;
                t.o[r] = row(e, c->op->dst, i) + (g * group + h + r) * s->dim;
            }
            mg_mixers.sparse(heads, &t);
        }
    }
}

void mg_op_sparse(mg_exec *e, const mg_op *op) {
    op_ctx c = {e, op};
    mg_pool_run(e->pool, sparse_task, &c, (int64_t)e->n_tokens * op->attn->n_kv, 1);
}
