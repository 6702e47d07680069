/* op_latent.c - what multi-head latent attention (arch/mla.py) needs beside attention itself: per-head products, the latent row,
 * and the gate of heads.
 *
 * The cache holds [c | kr] by position, one row for all heads; it serves as keys, and its first `rank` values as values.
 */
#include "exec_int.h"
#include <string.h>

typedef struct { mg_exec *e; const mg_op *op; int act; int64_t n; size_t stride; } heads_ctx;

static const float *head_in(const mg_exec *e, const mg_op *op, int64_t n, int64_t i) {
    return row(e, op->src, i % n) + i / n * op->head_src;
}

static void heads_act_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const heads_ctx *c = ctx;
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        mg_kernels.act[c->act](head_in(c->e, c->op, c->n, i), c->op->mat[0].cols, c->e->act + i * c->stride);
}

/* For each head h and token t: dst[t, h * head_dst ..] = W_h src[t, h * head_src ..]; mat has the rows of one head, heads follow. */
void mg_op_heads(mg_exec *e, const mg_op *op) {
    const mg_mat *m = &op->mat[0];
    const int act = act_of(m), direct = act == MG_ACT_F32 && m->cols % 2 == 0;
    const int64_t n = e->n_tokens, rows = n * op->heads;
    const size_t bytes = (size_t)(m->rows / MG_GROUP) * mg_group_bytes(m->quant, m->cols);
    heads_ctx c = {e, op, act, n, mg_act_bytes(act, m->cols)};
    const void **ptr = e->act_ptr;                           /* row h * n + t */
    for (int64_t i = 0; i < rows; i++) ptr[i] = direct ? (const void *)head_in(e, op, n, i) : e->act + i * c.stride;
    if (!direct) mg_pool_run(e->pool, heads_act_task, &c, rows, m->cols >= 16384 ? 1 : 16384 / m->cols);
    for (int h = 0; h < op->heads; h++)
        e->jobs[h] = (mg_job){m, m->w + h * bytes, NULL, ptr + h * n, e->buf[op->dst] + h * op->head_dst, e->ld[op->dst], (int32_t)n, 0};
    mg_jobs_run(e, op->heads);
}

/* src: queries [nope | rope]; their rotated parts go behind the first `rank` values of each head of dst. src2: [c | kr], which is
 * normed, rotated and kept. */
static void latent_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const op_ctx *c = ctx;
    const mg_exec *e = c->e;
    const mg_attn_layer *l = c->op->attn;
    const mg_attn *s = &l->shape;
    const size_t size = s->f32 ? 4 : 2;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        const float *q = row(e, c->op->src, i), *cosine, *sine;
        float *kv = row(e, c->op->src2, i), *out = row(e, c->op->dst, i);
        mg_rope_row(e, l->rope, e->seq[i], e->pos[i], &cosine, &sine);
        for (int h = 0; h < l->n_head; h++) {
            float *to = out + h * s->dim + s->dim_pad;
            memcpy(to, q + h * (l->nope + l->rope_dim) + l->nope, (size_t)l->rope_dim * 4);
            if (cosine) mg_ops.rope(to, cosine, sine, l->rope->half, l->rope->interleaved);
        }
        mg_norm_row(&l->k_norm, kv, s->dim_pad, kv);
        if (cosine) mg_ops.rope(kv + s->dim_pad, cosine, sine, l->rope->half, l->rope->interleaved);
        mg_ops.store_v(kv, s->dim_pad + l->rope_dim, s->f32,
                       (char *)e->kv[e->seq[i]][l->kv_index].k + (int64_t)(e->pos[i] % s->cap) * s->dim * size);
    }
}

void mg_op_latent(mg_exec *e, const mg_op *op) {
    mg_per_token(e, op, latent_task, op->attn->n_head * op->attn->rope_dim + op->attn->shape.dim);
}

/* Head h of dst times sigmoid(src[h]). */
static void gate_heads_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const op_ctx *c = ctx;
    const int64_t n = c->op->n, heads = c->op->streams;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        float *g = row(c->e, c->op->src, i), *y = row(c->e, c->op->dst, i);
        mg_ops.act(MG_SIGMOID, NULL, g, heads, g);
        for (int64_t h = 0; h < heads; h++) mg_ops.scale(y + h * n, g[h], n);
    }
}

void mg_op_gate_heads(mg_exec *e, const mg_op *op) { mg_per_token(e, op, gate_heads_task, (int64_t)op->streams * op->n); }
