/* op_rows.c - ops that take one token at a time: embedding, norms, residual adds, gated activations, and the head. */
#include "exec_int.h"
#include <string.h>

static void embed_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const op_ctx *c = ctx;
    const mg_mat *m = &c->op->mat[0];
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        float *x = row(c->e, c->op->dst, i);
        const int64_t id = c->e->token[i];
        if (m->gather) mg_dequant_row(m->quant, m->w + id * mg_row_bytes(m->quant, m->cols), x, m->cols);
        else mg_dequant_interleaved_row(m->quant, m->w, id, m->cols, x);
        if (c->op->scale != 1.0f) mg_ops.scale(x, c->op->scale, m->cols);
    }
}

static void norm_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const op_ctx *c = ctx;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        float *y = row(c->e, c->op->dst, i);
        mg_norm_row(&c->op->norm, row(c->e, c->op->src, i), c->op->n, y);
        if (c->op->scale != 1.0f) mg_ops.scale(y, c->op->scale, c->op->n);
    }
}

static void add_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const op_ctx *c = ctx;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        float *x = row(c->e, c->op->dst, i), *y = row(c->e, c->op->src, i);
        mg_norm_row(&c->op->norm, y, c->op->n, y);
        if (c->op->keep != 1.0f) mg_ops.scale(x, c->op->keep, c->op->n);
        if (c->op->scale == 1.0f) mg_ops.add(x, y, c->op->n);
        else mg_ops.axpy(c->op->scale, y, x, c->op->n);
    }
}

static void glu_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const op_ctx *c = ctx;
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        mg_ops.glu(c->op->act, row(c->e, c->op->src, i), row(c->e, c->op->src2, i) + c->op->at, c->op->n, row(c->e, c->op->dst, i));
}

/* dst *= sigmoid(norm.w . src), one number per token. */
static void gate_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const op_ctx *c = ctx;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        float g = mg_ops.dot(row(c->e, c->op->src, i), c->op->norm.w, c->op->n);
        mg_ops.act(MG_SIGMOID, NULL, &g, 1, &g);
        mg_ops.scale(row(c->e, c->op->dst, i), g, c->op->n);
    }
}

void mg_per_token(mg_exec *e, const mg_op *op, mg_task_fn fn, int64_t floats) {
    op_ctx c = {e, op};
    mg_pool_run(e->pool, fn, &c, e->n_tokens, floats >= 16384 ? 1 : 16384 / (floats > 0 ? floats : 1));
}

static void act_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const op_ctx *c = ctx;
    (void)worker;
    for (int64_t i = begin; i < end; i++) mg_ops.act(c->op->act, c->op->norm.w, row(c->e, c->op->src, i), c->op->n, row(c->e, c->op->dst, i));
}

static void scale_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const op_ctx *c = ctx;
    (void)worker;
    for (int64_t i = begin; i < end; i++) mg_ops.scale(row(c->e, c->op->dst, i), c->op->norm.w[0], c->op->n);
}

/* Gemma's input of each layer, [layers, n], in dst: (norm(scale * dst) + src) / sqrt(2); `at` floats in all. */
static void per_layer_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const op_ctx *c = ctx;
    const int64_t n = c->op->n, all = c->op->at;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        float *x = row(c->e, c->op->dst, i);
        mg_ops.scale(x, c->op->scale, all);
        for (int64_t k = 0; k < all; k += n) mg_norm_row(&c->op->norm, x + k, n, x + k);
        mg_ops.add(x, row(c->e, c->op->src, i), all);
        mg_ops.scale(x, 0.70710678f, all);
    }
}

void mg_op_scale(mg_exec *e, const mg_op *op) { mg_per_token(e, op, scale_task, op->n); }
void mg_op_per_layer(mg_exec *e, const mg_op *op) { mg_per_token(e, op, per_layer_task, op->at); }
void mg_op_norm(mg_exec *e, const mg_op *op) { mg_per_token(e, op, norm_task, op->n); }
void mg_op_add(mg_exec *e, const mg_op *op) { mg_per_token(e, op, add_task, op->n); }
void mg_op_glu(mg_exec *e, const mg_op *op) { mg_per_token(e, op, glu_task, op->n); }
void mg_op_act(mg_exec *e, const mg_op *op) { mg_per_token(e, op, act_task, op->n); }
void mg_op_gate(mg_exec *e, const mg_op *op) { mg_per_token(e, op, gate_task, op->n); }

int mg_op_embed(mg_exec *e, const mg_op *op) {
    const mg_mat *m = &op->mat[0];
    if (e->store && m->gather && m->file_at >= 0) {
        const int status = mg_store_rows(e->store, m->file_at, (int64_t)mg_row_bytes(m->quant, m->cols), e->n_tokens, e->token);
        if (status != MG_OK) return status;
    }
    mg_per_token(e, op, embed_task, m->cols);
    return MG_OK;
}

/* Only the rows that need logits are normed and multiplied; they are gathered into the first rows of dst. */
void mg_op_head(mg_exec *e, const mg_op *op) {
    if (!e->n_out) return;
    for (int32_t i = 0; i < e->n_out; i++) {
        memcpy(row(e, op->dst, i), row(e, op->src, e->out_row[i]), (size_t)op->n * 4);
        mg_norm_row(&op->norm, row(e, op->dst, i), op->n, row(e, op->dst, i));
    }
    mg_linear(e, op->mat, &e->logits, &e->ld_logits, 1, e->buf[op->dst], e->ld[op->dst], e->n_out);
    for (int32_t i = 0; i < e->n_out; i++) {
        float *y = e->logits + i * e->ld_logits;
        if (op->scale != 1.0f) mg_ops.scale(y, op->scale, op->mat[0].rows);
        if (op->softcap != 0.0f) mg_ops.softcap(y, op->softcap, op->mat[0].rows);
    }
}
