/* op_streams.c - residual streams behind gates (hyper-connections), and hashed n-gram embeddings that are added to them.
 *
 * X holds op->streams streams of op->n floats, side by side. Per row everything is one thread's work in one order.
 */
#include "exec_int.h"
#include <math.h>
#include <string.h>

/* --- reading and writing the streams ---------------------------------------------------------------------------------------- */

static void repeat_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const op_ctx *c = ctx;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        float *x = row(c->e, c->op->dst, i);
        for (int b = 1; b < c->op->streams; b++) memcpy(x + (int64_t)b * c->op->n, x, (size_t)c->op->n * 4);
    }
}

static void grouped_norm(const mg_op *op, const mg_norm *norm, const float *x, float *y) {
    for (int64_t b = 0; b < op->streams; b++)
        mg_ops.rmsnorm(x + b * op->n, norm->w + b * op->n, norm->eps, op->n, y + b * op->n);
}

static void norm_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const op_ctx *c = ctx;
    (void)worker;
    for (int64_t i = begin; i < end; i++) grouped_norm(c->op, &c->op->norm, row(c->e, c->op->src, i), row(c->e, c->op->dst, i));
}

/* silu(x / streams) in place. */
static void squash_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const op_ctx *c = ctx;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        float *x = row(c->e, c->op->dst, i);
        mg_ops.scale(x, 1.0f / (float)c->op->streams, c->op->n);
        mg_mixers.gate(0, x, x, c->op->n);
    }
}

/* dst = mean over the streams of sigmoid(src2) * src; src is lost. */
static void mix_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const op_ctx *c = ctx;
    const int64_t n = c->op->n;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        float *x = row(c->e, c->op->src, i), *y = row(c->e, c->op->dst, i);
        mg_mixers.gate(0, row(c->e, c->op->src2, i), x, n * c->op->streams);
        memcpy(y, x, (size_t)n * 4);
        for (int64_t b = 1; b < c->op->streams; b++) mg_ops.add(y, x + b * n, n);
        mg_ops.scale(y, 1.0f / (float)c->op->streams, n);
    }
}

/* Stream b of dst += 2 sigmoid(src2[b] / streams) * src. */
static void inject_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const op_ctx *c = ctx;
    const int64_t n = c->op->n;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        float *w = row(c->e, c->op->src2, i);
        mg_ops.scale(w, 1.0f / (float)c->op->streams, c->op->streams);
        mg_mixers.sigmoid(w, c->op->streams);
        for (int64_t b = 0; b < c->op->streams; b++)
            mg_ops.axpy(2.0f * w[b], row(c->e, c->op->src, i), row(c->e, c->op->dst, i) + b * n, n);
    }
}

/* --- n-grams ---------------------------------------------------------------------------------------------------------------- */

/* The token s places before row i of the pass, or the end-of-sequence id where there is none or one lies between. */
static int64_t earlier(const mg_exec *e, const mg_ngram *g, int64_t i, int s) {
    const int32_t *ids = e->history[e->seq[i]] + e->pos[i];
    for (int k = 1; k < s; k++)
        if (k > e->pos[i] || ids[-k] == g->eos) return g->eos;
    return s > e->pos[i] ? g->eos : ids[-s];
}

/* Row r of the table in its shards. */
static void table_row(const mg_ngram *g, int64_t r, float *dst) {
    const int64_t shard = r / g->shard_rows;
    mg_dequant_row(g->quant, g->shard[shard] + (r % g->shard_rows) * (int64_t)mg_row_bytes(g->quant, g->dim), dst, g->dim);
}

static void ngram_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const op_ctx *c = ctx;
    const mg_ngram *g = c->op->ngram;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        uint64_t mix = (uint64_t)c->e->token[i] * g->multiplier[0];
        float *y = row(c->e, c->op->dst, i);
        for (int n = 2, h = 0; n <= g->size; n++) {
            mix ^= (uint64_t)earlier(c->e, g, i, n - 1) * g->multiplier[n - 1];
            for (int j = 0; j < g->heads; j++, h++) {
                int64_t r = (int64_t)mix % g->modulus[h];
                r = (r < 0 ? r + g->modulus[h] : r) + g->offset[h];
                table_row(g, r, y + (int64_t)h * g->dim);
            }
        }
    }
}

/* src: keys [streams * n], overwritten by the normed gated values; src2: values [n]; X = dst is read; src3: gated values. */
static void ple_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const op_ctx *c = ctx;
    const mg_op *op = c->op;
    const mg_ngram *g = op->ngram;
    const int64_t n = op->n;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        float *k = row(c->e, op->src, i), *y = row(c->e, op->src3, i);
        const float *v = row(c->e, op->src2, i);
        grouped_norm(op, &g->norm_key, k, k);
        grouped_norm(op, &g->norm_query, row(c->e, op->dst, i), y);
        for (int64_t b = 0; b < op->streams; b++) {
            const float s = mg_mixers.dot(k + b * n, y + b * n, n) / sqrtf((float)n);
            float w[16] = {s == 0.0f ? 0.0f : copysignf(sqrtf(fmaxf(fabsf(s), 1e-6f)), s)};
            mg_mixers.sigmoid(w, 1);
            memcpy(y + b * n, v, (size_t)n * 4);
            mg_ops.scale(y + b * n, w[0], n);
        }
        grouped_norm(op, &g->norm_conv, y, k);
    }
}

void mg_op_streams(mg_exec *e, const mg_op *op) {
    switch (op->kind) {
    case MG_OP_REPEAT: mg_per_token(e, op, repeat_task, (int64_t)op->n * op->streams); break;
    case MG_OP_GROUPED_NORM: mg_per_token(e, op, norm_task, (int64_t)op->n * op->streams); break;
    case MG_OP_SQUASH: mg_per_token(e, op, squash_task, op->n); break;
    case MG_OP_MIX: mg_per_token(e, op, mix_task, (int64_t)op->n * op->streams); break;
    case MG_OP_INJECT: mg_per_token(e, op, inject_task, (int64_t)op->n * op->streams); break;
    case MG_OP_NGRAM: mg_per_token(e, op, ngram_task, 4096); break;
    case MG_OP_PLE: mg_per_token(e, op, ple_task, 4 * (int64_t)op->n * op->streams); break;
    default: break;
    }
}
