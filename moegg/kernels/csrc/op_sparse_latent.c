/* op_sparse_latent.c - latent attention over chosen positions: the rows that a query sees are put side by side and walked as a context
 * of their own by the kernel of dense attention, chunk by chunk. A query that sees all before it needs no copy; so the sums are
 * those of dense attention up to the budget, and beyond it those over the chosen rows in their order. One query at a time, all threads.
 */
#include "exec_int.h"
#include <math.h>
#include <string.h>

typedef struct {
    mg_exec *e;
    const mg_op *op;
    mg_attn a;               /* of the rows that are walked */
    const char *rows;        /* all that are kept */
    const int32_t *at;
    int64_t token;
    int32_t n, chunks;
} latent_ctx;

static void gather_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const latent_ctx *c = ctx;
    const size_t bytes = (size_t)c->a.dim * (c->a.f32 ? 4 : 2);
    (void)worker;
    for (int64_t j = begin; j < end; j++) memcpy(c->e->gathered + j * bytes, c->rows + c->at[j] * bytes, bytes);
}

static float *part_of(const latent_ctx *c, int64_t head, int64_t chunk) {
    return c->e->sparse_parts + (head * c->chunks + chunk) * (MG_PART_HEAD + c->a.dim_pad);
}

/* Items: up to MG_QROWS heads and a chunk. */
static void part_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const latent_ctx *c = ctx;
    for (int64_t item = begin; item < end; item++) {
        const int64_t first = item / c->chunks * MG_QROWS, k = item % c->chunks;
        const float *q[MG_QROWS];
        float *part[MG_QROWS];
        int32_t pos[MG_QROWS];
        int n = 0;
        for (; n < MG_QROWS && first + n < c->op->attn->n_head; n++) {
            q[n] = row(c->e, c->op->src, c->token) + (first + n) * c->a.dim;
            part[n] = part_of(c, first + n, k);
            pos[n] = c->n - 1;
        }
        mg_ops.attention(&c->a, n, q, pos, (int32_t)k * MG_CHUNK, part, c->e->attn_scratch + worker * c->e->attn_scratch_floats);
    }
}

static void join_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const latent_ctx *c = ctx;
    (void)worker;
    for (int64_t h = begin; h < end; h++) {
        float *sum = part_of(c, h, 0);
        for (int32_t k = 1; k < c->chunks; k++) mg_ops.attention_fold(sum, part_of(c, h, k), c->a.dim_pad);
        mg_ops.attention_finish(sum, c->a.value_dim, -INFINITY, row(c->e, c->op->dst, c->token) + h * c->a.value_dim);
    }
}

void mg_sparse_latent(mg_exec *e, const mg_op *op) {
    const mg_attn_layer *l = op->attn;
    int all = 1;
    for (int32_t i = 0; i < e->n_tokens; i++) all &= e->seen[i * e->seen_ld] == e->pos[i] + 1;
    if (all) {
        mg_op_attention(e, op);
        return;
    }
    for (int32_t i = 0; i < e->n_tokens; i++) {
        const int32_t *seen = e->seen + i * e->seen_ld;
        latent_ctx c = {e, op, l->shape, e->kv[e->seq[i]][l->kv_index].k, seen + 1, i, seen[0], (seen[0] + MG_CHUNK - 1) / MG_CHUNK};
        c.a.k = c.rows;
        if (c.n <= e->pos[i]) {
            c.a.k = e->gathered;
            c.a.cap = (c.n + MG_TILE - 1) / MG_TILE * MG_TILE;
            mg_pool_run(e->pool, gather_task, &c, c.n, 64);
        }
        c.a.v = c.a.k;
        mg_pool_run(e->pool, part_task, &c, (int64_t)((l->n_head + MG_QROWS - 1) / MG_QROWS) * c.chunks, 1);
        mg_pool_run(e->pool, join_task, &c, l->n_head, 8);
    }
}
