/* exec.c - the executor: walks the op list, splits each op over the pool, allocates nothing.
 *
 * Matrix products are lists of jobs (one matrix, n activation rows); the pool claims 16-row groups across all jobs of a phase,
 * so that the experts of a layer cost one barrier per phase (moe.c).
 */
#include "exec_int.h"
#include <math.h>
#include <string.h>

size_t mg_job_bytes(void) { return sizeof(mg_job); }

static int64_t groups_of(const mg_mat *m) { return (m->rows + MG_GROUP - 1) / MG_GROUP; }

/* --- matrix products --------------------------------------------------------------------------------------------------- */

#define ROWS_PER_CALL 64

static void one_group(const mg_job *j, int64_t g) {
    const mg_mat *m = j->mat;
    const mg_group_fn fn = mg_kernels.group[m->quant];
    const uint8_t *w = j->w + (size_t)g * mg_group_bytes(m->quant, m->cols);
    float *y[ROWS_PER_CALL];
    for (int32_t i0 = 0; i0 < j->n; i0 += ROWS_PER_CALL) {
        const int n = j->n - i0 < ROWS_PER_CALL ? j->n - i0 : ROWS_PER_CALL;
        for (int i = 0; i < n; i++) y[i] = j->dst + (i0 + i) * j->ld + g * MG_GROUP;
        fn(w, m->cols, j->act + i0, n, y);
        if (m->bias) {
            const int64_t left = m->rows - g * MG_GROUP, rows = left < MG_GROUP ? left : MG_GROUP;
            for (int i = 0; i < n; i++)
                for (int64_t r = 0; r < rows; r++) y[i][r] += m->bias[g * MG_GROUP + r];
        }
    }
}

typedef struct { const mg_job *jobs; int n; } job_list;

static void job_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const job_list *l = ctx;
    int lo = 0, hi = l->n - 1;                   /* the job that holds group `begin` */
    (void)worker;
    while (lo < hi) {
        const int mid = (lo + hi + 1) / 2;
        if (l->jobs[mid].first <= begin) lo = mid; else hi = mid - 1;
    }
    for (int64_t g = begin; g < end; g++) {
        while (lo + 1 < l->n && l->jobs[lo + 1].first <= g) lo++;
        one_group(&l->jobs[lo], g - l->jobs[lo].first);
    }
}

/* Chunks of about 32 KiB of weights times rows: small products stay on one thread. */
void mg_jobs_run(mg_exec *e, int n_jobs) {
    int64_t total = 0, cost = 1;
    for (int i = 0; i < n_jobs; i++) {
        mg_job *j = &e->jobs[i];
        const int64_t c = (int64_t)mg_group_bytes(j->mat->quant, j->mat->cols) * (j->n < 4 ? 1 : j->n / 4);
        j->first = (int32_t)total;
        total += groups_of(j->mat);
        cost = c > cost ? c : cost;
    }
    job_list l = {e->jobs, n_jobs};
    mg_pool_run(e->pool, job_task, &l, total, cost >= 32768 ? 1 : 32768 / cost);
}

typedef struct { mg_exec *e; const float *src; int64_t ld, cols; int act; uint8_t *dst; size_t stride; } act_ctx;

static void act_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const act_ctx *a = ctx;
    (void)worker;
    for (int64_t i = begin; i < end; i++) mg_kernels.act[a->act](a->src + i * a->ld, a->cols, a->dst + i * a->stride);
}

const void **mg_act_rows(mg_exec *e, int act, const float *src, int64_t ld, int64_t cols, int64_t n, uint8_t *dst) {
    const void **ptr = e->act_ptr + act * act_rows(e);
    if (act == MG_ACT_F32 && cols % 2 == 0) {
        for (int64_t i = 0; i < n; i++) ptr[i] = src + i * ld;
        return ptr;
    }
    act_ctx a = {e, src, ld, cols, act, dst, mg_act_bytes(act, cols)};
    for (int64_t i = 0; i < n; i++) ptr[i] = a.dst + i * a.stride;
    mg_pool_run(e->pool, act_task, &a, n, cols >= 16384 ? 1 : 16384 / cols);
    return ptr;
}

/* All mats read the same rows. Mats are run by activation format, so that one scratch serves both. */
void mg_linear(mg_exec *e, const mg_mat *mats, float *const *dst, const int64_t *ld, int n_mats, const float *src, int64_t ld_src, int64_t n) {
    for (int act = MG_ACT_F32; act <= MG_ACT_A8; act++) {
        int n_jobs = 0;
        const void **ptr = NULL;
        for (int i = 0; i < n_mats; i++) {
            if (act_of(&mats[i]) != act) continue;
            if (!ptr) ptr = mg_act_rows(e, act, src, ld_src, mats[i].cols, n, e->act);
            e->jobs[n_jobs++] = (mg_job){&mats[i], mats[i].w, ptr, dst[i], ld[i], (int32_t)n, 0};
        }
        if (n_jobs) mg_jobs_run(e, n_jobs);
    }
}

static void op_linear(mg_exec *e, const mg_op *op) {
    float *dst[3];
    int64_t ld[3];
    for (int i = 0; i < op->n_mats; i++) {
        dst[i] = e->buf[op->mat_dst[i]];
        ld[i] = e->ld[op->mat_dst[i]];
    }
    mg_linear(e, op->mat, dst, ld, op->n_mats, e->buf[op->src], e->ld[op->src], e->n_tokens);
}

/* --- per-token ops ------------------------------------------------------------------------------------------------------ */

typedef struct { mg_exec *e; const mg_op *op; } op_ctx;

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
    for (int64_t i = begin; i < end; i++)
        mg_ops.rmsnorm(row(c->e, c->op->src, i), c->op->norm, c->op->eps, c->op->n, row(c->e, c->op->dst, i));
}

static void add_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const op_ctx *c = ctx;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        float *y = row(c->e, c->op->src, i);
        if (c->op->norm) mg_ops.rmsnorm(y, c->op->norm, c->op->eps, c->op->n, y);
        mg_ops.add(row(c->e, c->op->dst, i), y, c->op->n);
    }
}

static void glu_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const op_ctx *c = ctx;
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        mg_ops.glu(c->op->act, row(c->e, c->op->src, i), row(c->e, c->op->src2, i), c->op->n, row(c->e, c->op->dst, i));
}

/* Serial up to about 16 K floats, then chunks of that size. */
static void per_token(mg_exec *e, const mg_op *op, mg_task_fn fn, int64_t floats) {
    op_ctx c = {e, op};
    mg_pool_run(e->pool, fn, &c, e->n_tokens, floats >= 16384 ? 1 : 16384 / (floats > 0 ? floats : 1));
}

static int op_embed(mg_exec *e, const mg_op *op) {
    const mg_mat *m = &op->mat[0];
    if (e->store && m->gather && e->rows_at >= 0) {
        const int status = mg_store_rows(e->store, e->rows_at, (int64_t)mg_row_bytes(m->quant, m->cols), e->n_tokens, e->token);
        if (status != MG_OK) return status;
    }
    per_token(e, op, embed_task, m->cols);
    return MG_OK;
}

/* --- attention ---------------------------------------------------------------------------------------------------------- */

static void rope_kv_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const op_ctx *c = ctx;
    const mg_exec *e = c->e;
    const mg_attn_layer *l = c->op->attn;
    const mg_attn *s = &l->shape;
    const size_t size = s->f32 ? 4 : 2;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        float *q = row(e, c->op->src, i), *k = row(e, c->op->src2, i);
        const float *v = row(e, c->op->src3, i);
        const float *cosine = NULL, *sine = NULL;
        if (l->rope) {
            int r = 0;
            while (r + 1 < l->rope->n && e->seq_len[e->seq[i]] > l->rope->limit[r]) r++;
            cosine = l->rope->cosine[r] + (int64_t)e->pos[i] * l->rope->half;
            sine = l->rope->sine[r] + (int64_t)e->pos[i] * l->rope->half;
        }
        for (int h = 0; h < l->n_head; h++) {
            if (l->q_norm) mg_ops.rmsnorm(q + h * s->dim, l->q_norm, l->q_eps, s->dim, q + h * s->dim);
            if (cosine) mg_ops.rope(q + h * s->dim, cosine, sine, l->rope->half, l->rope->interleaved);
        }
        const mg_kv *kv = &e->kv[e->seq[i]][l->kv_index];
        const int64_t slot = e->pos[i] % s->cap;
        for (int h = 0; h < l->n_kv; h++) {
            float *kh = k + h * s->dim;
            if (l->k_norm) mg_ops.rmsnorm(kh, l->k_norm, l->k_eps, s->dim, kh);
            if (cosine) mg_ops.rope(kh, cosine, sine, l->rope->half, l->rope->interleaved);
            const int64_t at = (int64_t)h * s->cap * s->dim + slot / 16 * 16 * s->dim + slot % 16;
            if (s->f32) {
                float *dst = (float *)kv->k + at;
                for (int d = 0; d < s->dim; d++) dst[d * 16] = kh[d];
            } else {
                uint16_t *dst = (uint16_t *)kv->k + at, half[16];
                for (int d0 = 0; d0 < s->dim; d0 += 16) {
                    const int n = s->dim - d0 < 16 ? s->dim - d0 : 16;
                    mg_ops.store_v(kh + d0, n, 0, half);
                    for (int d = 0; d < n; d++) dst[(d0 + d) * 16] = half[d];
                }
            }
            mg_ops.store_v(v + h * s->dim, s->dim, s->f32, (char *)kv->v + ((int64_t)h * s->cap + slot) * s->dim_pad * size);
        }
    }
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
    it->a.v = (const char *)kv->v + (int64_t)h_kv * it->a.cap * it->a.dim_pad * size;
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
    const int32_t oldest = it->a.window && it->pos[0] >= it->a.window ? it->pos[0] - it->a.window + 1 : 0;
    *first = oldest / MG_CHUNK;
    *last = it->pos[it->n - 1] / MG_CHUNK + 1;
}

static void attention_out(const attn_ctx *c, const attn_item *it, int r, const float *part) {
    mg_ops.attention_finish(part, it->a.dim, row(c->e, c->op->dst, it->token[r]) + it->head[r] * it->a.dim);
}

/* Many items: up to MG_ATTN_ITEMS neighbours walk the chunks of their KV head together, so that a chunk is read into the cache
 * once for all of them; each folds its partial results as it goes. */
static void attention_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const attn_ctx *c = ctx;
    const int64_t stride = MG_PART_HEAD + c->op->attn->shape.dim_pad;
    float *scratch = c->e->attn_scratch + worker * c->e->attn_scratch_floats, *sums = scratch + MG_QROWS * (MG_TILE + stride);
    float *sum[MG_QROWS], *part[MG_QROWS];
    attn_item it[MG_ATTN_ITEMS];
    int32_t first[MG_ATTN_ITEMS], last[MG_ATTN_ITEMS];
    for (int r = 0; r < MG_QROWS; r++) part[r] = scratch + MG_QROWS * MG_TILE + r * stride;
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

/* Few items over a long context: (item, chunk) pairs run apart, then each item folds its parts in the same order. */
static void attention_split_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const attn_ctx *c = ctx;
    const int64_t stride = MG_PART_HEAD + c->op->attn->shape.dim_pad;
    attn_item it;
    for (int64_t i = begin; i < end; i++) {
        const int64_t item = i / c->chunks, k = i % c->chunks;
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

static void op_attention(mg_exec *e, const mg_op *op) {
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
    int64_t chunk = items / (4 * mg_pool_threads(e->pool));
    chunk = chunk < 1 ? 1 : chunk > MG_ATTN_ITEMS ? MG_ATTN_ITEMS : chunk;
    if (chunk * work < 65536) chunk = 65536 / work;
    mg_pool_run(e->pool, attention_task, &c, items, chunk);
}

/* --- head and loop ------------------------------------------------------------------------------------------------------ */

/* Only the rows that need logits are normed and multiplied; they are gathered into the first rows of dst. */
static void op_head(mg_exec *e, const mg_op *op) {
    if (!e->n_out) return;
    for (int32_t i = 0; i < e->n_out; i++)
        mg_ops.rmsnorm(row(e, op->src, e->out_row[i]), op->norm, op->eps, op->n, row(e, op->dst, i));
    mg_linear(e, op->mat, &e->logits, &e->ld_logits, 1, e->buf[op->dst], e->ld[op->dst], e->n_out);
    if (op->softcap != 0.0f)
        for (int32_t i = 0; i < e->n_out; i++) mg_ops.softcap(e->logits + i * e->ld_logits, op->softcap, op->mat[0].rows);
}

static int run_ops(mg_exec *e, int32_t first, int32_t end) {
    for (int32_t i = first; i < end; i++) {
        const mg_op *op = &e->ops[i];
        int status = MG_OK;
        if (e->cancel && *e->cancel) return MG_E_CANCEL;
        switch (op->kind) {
        case MG_OP_EMBED: status = op_embed(e, op); break;
        case MG_OP_NORM: per_token(e, op, norm_task, op->n); break;
        case MG_OP_LINEAR: op_linear(e, op); break;
        case MG_OP_ROPE_KV: per_token(e, op, rope_kv_task, 2 * (op->attn->n_head + op->attn->n_kv) * op->attn->shape.dim); break;
        case MG_OP_ATTENTION: op_attention(e, op); break;
        case MG_OP_ADD: per_token(e, op, add_task, op->n); break;
        case MG_OP_GLU: per_token(e, op, glu_task, op->n); break;
        case MG_OP_MOE: status = mg_op_moe(e, op); break;
        case MG_OP_HEAD: op_head(e, op); break;
        case MG_OP_LOOKAHEAD:
            if (!e->store || !e->lookahead) break;
            per_token(e, op, norm_task, op->n);
            mg_op_lookahead(e, op);
            break;
        }
        if (status != MG_OK) return status;
    }
    return MG_OK;
}

#if defined(MOEGG_DEBUG)
int mg_in_pass;                                 /* alloc_guard.h */
#endif

static int guarded_ops(mg_exec *e, int32_t first, int32_t end) {
#if defined(MOEGG_DEBUG)
    mg_in_pass = 1;
    const int status = run_ops(e, first, end);
    mg_in_pass = 0;
    return status;
#else
    return run_ops(e, first, end);
#endif
}

int mg_exec_begin(mg_exec *e, int32_t n_tokens) { return e->store ? mg_store_pass(e->store, n_tokens) : MG_OK; }

int mg_exec_check(mg_exec *e) { return e->store ? mg_store_check(e->store) : MG_OK; }

int mg_exec_run(mg_exec *e) {
    int status = mg_exec_begin(e, e->n_tokens);
    if (status == MG_OK) status = guarded_ops(e, 0, e->n_ops);
    return status == MG_OK ? mg_exec_check(e) : status;
}

int32_t mg_exec_span(const mg_exec *e, int32_t first) {
    int32_t end = first + 1;
    while (end < e->n_ops && e->ops[end].layer == e->ops[first].layer) end++;
    return end;
}

int mg_exec_part(mg_exec *e, int32_t first, int32_t end, float *residual, int more) {
    float *own = e->buf[0];
    e->buf[0] = residual;
    if (e->store) mg_store_more(e->store, more);
    const int status = guarded_ops(e, first, end);
    e->buf[0] = own;
    return status;
}
