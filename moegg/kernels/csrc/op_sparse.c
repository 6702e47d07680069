/* op_sparse.c - attention over the positions that op_index.c chose. */
#include "exec_int.h"

/* Items: a row and a KV head. */
static void sparse_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const op_ctx *c = ctx;
    const mg_exec *e = c->e;
    const mg_attn_layer *l = c->op->attn;
    const mg_attn *s = &l->shape;
    const size_t size = s->f32 ? 4 : 2;
    const int group = l->n_head / l->n_kv;
    const int64_t most = pad16(c->op->indexer->budget + c->op->indexer->ratio);
    float *sums = e->sparse_scratch + worker * e->sparse_floats, *weights = sums + MG_QROWS * s->dim_pad;
    for (int64_t item = begin; item < end; item++) {
        const int64_t i = item / l->n_kv, g = item % l->n_kv;
        const mg_kv *kv = &e->kv[e->seq[i]][l->kv_index];
        const int32_t *seen = e->seen + i * e->seen_ld;
        mg_sparse_rows t = {
            .k = (const char *)kv->k + g * s->cap * s->dim * size, .v = (const char *)kv->v + g * s->cap * s->dim_pad * size, .at = seen + 1,
            .weights = weights, .sums = sums, .dim = s->dim, .dim_pad = s->dim_pad, .stride = most, .n = seen[0], .f32 = s->f32, .scale = s->scale};
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
    if (op->attn->shape.by_row) mg_sparse_latent(e, op);
    else mg_pool_run(e->pool, sparse_task, &c, (int64_t)e->n_tokens * op->attn->n_kv, 1);
}
