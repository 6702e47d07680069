/* op_index.c - what a query sees in sparse attention (arch/blocks.py, Indexer): index keys are kept, blocks of `ratio` neighbours
 * scored, the best chosen.
 *
 * Of a query at position t the complete blocks among keys 0..t compete, the incomplete one is always seen. Index keys are kept per token
 * (raw) and per complete block (normed mean, rotated as its first token), so that a session can go back to any length; if a block is
 * one token, its key is all there is, f16 where keys are. Equal scores: the lower position. A score depends on nothing but its query and key.
 */
#include "exec_int.h"
#include "fp16.h"
#include <string.h>

enum { PART = 1024 };        /* blocks that are scored at a time where few rows see many; a multiple of 16 */

static int64_t blocks_of(const mg_indexer *x, int32_t pos) { return (pos + 1) / x->ratio; }

static void rotate(const mg_exec *e, const mg_rope *r, int64_t seq, int64_t pos, float *x) {
    const float *cosine, *sine;
    mg_rope_row(e, r, seq, pos, &cosine, &sine);
    mg_ops.rope(x, cosine, sine, r->half, r->interleaved);
}

/* Norm, rotation and place of the key of block b. */
static void store_block(const mg_exec *e, const mg_indexer *x, int64_t seq, int64_t b, float *key) {
    void *blocks = e->index[seq][x->index].blocks;
    const int64_t at = b / 16 * x->dim * 16 + b % 16;
    mg_norm_row(&x->k_norm, key, x->dim, key);
    rotate(e, x->rope, seq, b * x->ratio, key);
    if (x->f32)
        for (int64_t d = 0; d < x->dim; d++) ((float *)blocks)[at + d * 16] = key[d];
    else
        for (int64_t d = 0; d < x->dim; d++) ((uint16_t *)blocks)[at + d * 16] = mg_f32_to_f16(key[d]);
}

/* Index queries are normed and rotated in place; the raw key is stored. */
static void query_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const op_ctx *c = ctx;
    const mg_exec *e = c->e;
    const mg_indexer *x = c->op->indexer;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        float *q = row(e, c->op->src, i), *key = row(e, c->op->src2, i);
        for (int h = 0; h < x->n_head; h++) {
            mg_norm_row(&x->q_norm, q + h * x->dim, x->dim, q + h * x->dim);
            rotate(e, x->rope, e->seq[i], e->pos[i], q + h * x->dim);
        }
        if (x->ratio == 1) store_block(e, x, e->seq[i], e->pos[i], key);
        else memcpy(e->index[e->seq[i]][x->index].raw + (int64_t)e->pos[i] * x->dim, key, (size_t)x->dim * 4);
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
        const int64_t b = blocks_of(x, e->pos[i]) - 1;
        const float *raw = e->index[e->seq[i]][x->index].raw + b * x->ratio * x->dim;
        float *mean = row(e, c->op->src2, i);                /* the raw key is stored; its row is free */
        memcpy(mean, raw, (size_t)x->dim * 4);
        for (int k = 1; k < x->ratio; k++) mg_ops.add(mean, raw + k * x->dim, x->dim);
        mg_ops.scale(mean, 1.0f / (float)x->ratio, x->dim);
        store_block(e, x, e->seq[i], b, mean);
    }
}

void mg_op_index(mg_exec *e, const mg_op *op) {
    mg_per_token(e, op, query_task, (int64_t)(op->indexer->n_head + 1) * op->indexer->dim);
    if (op->indexer->ratio > 1) mg_per_token(e, op, block_task, op->indexer->dim);
}

typedef struct { mg_exec *e; const mg_op *op; int64_t parts; } choose_ctx;     /* parts of a row's scores, 0: each row is scored whole */

static void score(const choose_ctx *c, int64_t i, int64_t from, int64_t to, float *out) {
    const mg_indexer *x = c->op->indexer;
    const char *keys = c->e->index[c->e->seq[i]][x->index].blocks;
    mg_mixers.index_scores(row(c->e, c->op->src, i), x->weighed ? row(c->e, c->op->src3, i) : NULL, x->n_head, x->dim,
                           keys + from * x->dim * (x->f32 ? 4 : 2), x->f32, to - from, x->scale, out + from);
}

static void score_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const choose_ctx *c = ctx;
    const mg_indexer *x = c->op->indexer;
    (void)worker;
    for (int64_t item = begin; item < end; item++) {
        const int64_t i = item / c->parts, from = item % c->parts * PART, n = blocks_of(x, c->e->pos[i]);
        if (n > x->budget / x->ratio && from < n)
            score(c, i, from, from + PART < n ? from + PART : n, c->e->sparse_scratch + i * c->e->sparse_floats);
    }
}

static void choose_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const choose_ctx *c = ctx;
    const mg_exec *e = c->e;
    const mg_indexer *x = c->op->indexer;
    for (int64_t i = begin; i < end; i++) {
        const int64_t n = blocks_of(x, e->pos[i]), most = x->budget / x->ratio;
        float *scores = e->sparse_scratch + (c->parts ? i : worker) * e->sparse_floats, least = 0;
        int32_t *seen = e->seen + i * e->seen_ld, *at = seen + 1, count = 0;
        int64_t spare = most;
        if (n > most) {
            if (!c->parts) score(c, i, 0, n, scores);
            least = mg_ops.kth(scores, n, (int)most, scores + x->max_blocks);
            for (int64_t b = 0; b < n; b++) spare -= scores[b] > least;
        }
        for (int64_t b = 0; b < n; b++) {
            if (n > most && !(scores[b] > least || (scores[b] == least && spare-- > 0))) continue;
            for (int k = 0; k < x->ratio; k++) at[count++] = (int32_t)(b * x->ratio + k);
        }
        for (int64_t p = n * x->ratio; p <= e->pos[i]; p++) at[count++] = (int32_t)p;
        seen[0] = count;
    }
}

/* src: index queries; src3: what their heads count. */
void mg_op_choose(mg_exec *e, const mg_op *op) {
    int32_t deepest = 0;
    for (int32_t t = 0; t < e->n_tokens; t++) deepest = e->pos[t] > deepest ? e->pos[t] : deepest;
    const int64_t parts = (blocks_of(op->indexer, deepest) + PART - 1) / PART;
    choose_ctx c = {e, op, parts > 1 && e->n_tokens <= mg_pool_threads(e->pool) ? parts : 0};
    if (c.parts) mg_pool_run(e->pool, score_task, &c, e->n_tokens * c.parts, 1);
    mg_pool_run(e->pool, choose_task, &c, e->n_tokens, 1);
}
