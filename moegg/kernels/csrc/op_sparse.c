/* op_sparse.c - attention over the positions that op_index.c chose: what a query sees is put side by side and walked as a context of its
 * own by the kernel of dense attention, chunk by chunk. A query that sees all before it needs no copy; so the sums are those of dense
 * attention up to the budget, and beyond it those over the chosen positions in their order. One query at a time, all threads.
 *
 * Latent rows, which all heads read, are copied first; of grouped heads each chunk's keys and values by the thread that multiplies them.
 */
#include "exec_int.h"
#include <math.h>
#include <string.h>

typedef struct {
    mg_exec *e;
    const mg_op *op;
    mg_attn a;               /* of the positions that are walked */
    const mg_kv *kv;         /* all that are kept; of latents rows in k */
    const int32_t *at;
    int64_t token;
    int32_t n, chunks, all;  /* all: the query sees every position before it */
} sparse_ctx;

static float *part_of(const sparse_ctx *c, int64_t head, int64_t chunk) {
    return c->e->sparse_parts + (head * c->chunks + chunk) * (MG_PART_HEAD + c->a.dim_pad);
}

/* The partial results of at most MG_QROWS heads from `first` on, in front of `end`, over the n keys from `begin` on that `a` holds for chunk k. */
static void heads_part(const sparse_ctx *c, const mg_attn *a, int64_t first, int64_t end, int64_t k, int32_t begin, int32_t n, int worker) {
    const float *q[MG_QROWS];
    float *part[MG_QROWS];
    int32_t pos[MG_QROWS];
    int heads = 0;
    for (; heads < MG_QROWS && first + heads < end; heads++) {
        q[heads] = row(c->e, c->op->src, c->token) + (first + heads) * a->dim;
        part[heads] = part_of(c, first + heads, k);
        pos[heads] = begin + n - 1;
    }
    mg_ops.attention(a, heads, q, pos, begin, part, c->e->attn_scratch + worker * c->e->attn_scratch_floats);
}

static int32_t keys_of(const sparse_ctx *c, int64_t k) { return c->n - (int32_t)k * MG_CHUNK < MG_CHUNK ? c->n - (int32_t)k * MG_CHUNK : MG_CHUNK; }

/* --- latent rows --- */

static void latent_gather_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const sparse_ctx *c = ctx;
    const size_t bytes = (size_t)c->a.dim * (c->a.f32 ? 4 : 2);
    (void)worker;
    for (int64_t j = begin; j < end; j++) memcpy(c->e->gathered + j * bytes, (const char *)c->kv->k + c->at[j] * bytes, bytes);
}

/* Items: a chunk and up to MG_QROWS heads, which are neighbours. */
static void latent_part_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const sparse_ctx *c = ctx;
    const int64_t heads = c->op->attn->n_head, n_sub = (heads + MG_QROWS - 1) / MG_QROWS;
    for (int64_t i = begin; i < end; i++)
        heads_part(c, &c->a, i % n_sub * MG_QROWS, heads, i / n_sub, (int32_t)(i / n_sub) * MG_CHUNK, keys_of(c, i / n_sub), worker);
}

/* --- grouped heads --- */

#define LINE 64              /* bytes of memory that come together */

/* `bytes` of neighbouring lanes of a block of 16 keys, from lane to lane, for each of dim values. */
static inline __attribute__((always_inline)) void copy_lanes(const size_t bytes, size_t step, const char *from, char *to, int64_t dim) {
    for (int64_t d = 0; d < dim; d++) memcpy(to + d * step, from + d * step, bytes);
}

/* The keys at[0..n) of one KV head as blocks of 16, and their values. Four neighbours go together; what comes next is fetched meanwhile. */
static void gather(const mg_attn *a, const char *k, const char *v, const int32_t *at, int32_t n, char *keys, char *values) {
    const size_t size = a->f32 ? 4 : 2, step = 16 * size, block = step * a->dim, wide = size * a->dim_pad;
    for (int32_t j = 0; j < n;) {
        const char *from = k + at[j] / 16 * block + at[j] % 16 * size;
        char *to = keys + j / 16 * block + j % 16 * size;
        const int run = j % 4 == 0 && at[j] % 4 == 0 && j + 3 < n && at[j + 3] == at[j] + 3 ? 4 : 1, next = j + run;
        if (next < n && at[next] / 16 != at[j] / 16)
            for (size_t b = 0; b < block; b += LINE) __builtin_prefetch(k + at[next] / 16 * block + b);
        for (int32_t i = next; i < next + run && i < n; i++)
            for (size_t b = 0; b < wide; b += LINE) __builtin_prefetch(v + at[i] * wide + b);
        if (run == 4 && size == 2) copy_lanes(8, step, from, to, a->dim);
        else if (run == 4) copy_lanes(16, step, from, to, a->dim);
        else if (size == 2) copy_lanes(2, step, from, to, a->dim);
        else copy_lanes(4, step, from, to, a->dim);
        for (; j < next; j++) memcpy(values + j * wide, v + at[j] * wide, wide);
    }
}

/* Items: a KV head and a chunk. */
static void grouped_part_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const sparse_ctx *c = ctx;
    const mg_attn_layer *l = c->op->attn;
    const int64_t group = l->n_head / l->n_kv, size = c->a.f32 ? 4 : 2;
    char *keys = (char *)c->e->gathered + worker * MG_CHUNK * (c->a.dim + c->a.dim_pad) * size, *values = keys + MG_CHUNK * c->a.dim * size;
    for (int64_t i = begin; i < end; i++) {
        const int64_t g = i / c->chunks, k = i % c->chunks;
        mg_attn a = c->a;
        a.k = (const char *)c->kv->k + g * a.cap * a.dim * size;
        a.v = (const char *)c->kv->v + g * a.cap * a.dim_pad * size;
        if (!c->all) {
            gather(&a, a.k, a.v, c->at + k * MG_CHUNK, keys_of(c, k), keys, values);
            a.k = keys;
            a.v = values;
            a.cap = MG_CHUNK;
        }
        for (int64_t h = g * group; h < (g + 1) * group; h += MG_QROWS)
            heads_part(c, &a, h, (g + 1) * group, k, c->all ? (int32_t)k * MG_CHUNK : 0, keys_of(c, k), worker);
    }
}

static void join_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const sparse_ctx *c = ctx;
    (void)worker;
    for (int64_t h = begin; h < end; h++) {
        float *sum = part_of(c, h, 0);
        for (int32_t k = 1; k < c->chunks; k++) mg_ops.attention_fold(sum, part_of(c, h, k), c->a.dim_pad);
        mg_ops.attention_finish(sum, c->a.value_dim, -INFINITY, row(c->e, c->op->dst, c->token) + h * c->a.value_dim);
    }
}

void mg_op_sparse(mg_exec *e, const mg_op *op) {
    const mg_attn_layer *l = op->attn;
    int all = 1;
    for (int32_t i = 0; i < e->n_tokens; i++) all &= e->seen[i * e->seen_ld] == e->pos[i] + 1;
    if (all) {
        mg_op_attention(e, op);
        return;
    }
    for (int32_t i = 0; i < e->n_tokens; i++) {
        const int32_t *seen = e->seen + i * e->seen_ld;
        const mg_kv *kv = &e->kv[e->seq[i]][l->kv_index];
        sparse_ctx c = {e, op, l->shape, kv, seen + 1, i, seen[0], (seen[0] + MG_CHUNK - 1) / MG_CHUNK, seen[0] > e->pos[i]};
        if (c.a.by_row) {
            c.a.k = kv->k;
            if (!c.all) {
                c.a.k = e->gathered;
                c.a.cap = (c.n + MG_TILE - 1) / MG_TILE * MG_TILE;
                mg_pool_run(e->pool, latent_gather_task, &c, c.n, 64);
            }
            c.a.v = c.a.k;
            mg_pool_run(e->pool, latent_part_task, &c, (int64_t)((l->n_head + MG_QROWS - 1) / MG_QROWS) * c.chunks, 1);
        } else {
            mg_pool_run(e->pool, grouped_part_task, &c, (int64_t)l->n_kv * c.chunks, 1);
        }
        mg_pool_run(e->pool, join_task, &c, l->n_head, 8);
    }
}
