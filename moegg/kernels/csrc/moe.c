/* moe.c - the MoE ops: route (route.c), bring the chosen experts in, compute them as they arrive, sum.
 *
 * Routing is an op of its own that asks the store for the records, so that what lies between it and the experts (the guess of
 * the next layer's, a shared expert, a dense block) is computed while they load; they are held meanwhile. Outputs are stored
 * per (token, rank) and summed in rank order, so neither the order in which experts arrive nor the number that fits into
 * memory at once changes a bit. Experts in memory are computed first, while the others load; when a layer needs more than the
 * store can hold, it goes in waves.
 */
#include "exec_int.h"
#include <string.h>

#define BATCH 8               /* experts computed before the store is asked for more */

typedef struct { mg_exec *e; const mg_moe_layer *l; float *dst; int64_t ld_dst; } moe_ctx;

/* Sorts (token, rank) pairs by expert: expert_ids (ascending), expert_first, pair_token, and pair_of[token, rank]. */
static int group_pairs(mg_exec *e, const mg_moe_layer *l) {
    const int64_t pairs = (int64_t)e->n_tokens * l->top_k;
    int n = 0;
    for (int i = 0; i <= l->n_expert; i++) e->expert_first[i] = 0;
    for (int64_t p = 0; p < pairs; p++) e->expert_first[e->route_idx[p] + 1]++;
    for (int i = 0; i < l->n_expert; i++) e->expert_first[i + 1] += e->expert_first[i];
    for (int64_t p = 0; p < pairs; p++) {                    /* first[i] walks to the start of i + 1 */
        const int32_t at = e->expert_first[e->route_idx[p]]++;
        e->pair_token[at] = (int32_t)(p / l->top_k);
        e->pair_of[p] = at;
        e->pair_w[at] = e->route_w[p];
    }
    for (int i = 0, start = 0; i < l->n_expert; i++) {
        const int end = e->expert_first[i];
        if (end > start) {
            e->expert_ids[n] = i;
            e->expert_first[n++] = start;                    /* n <= i: entries below i are no longer needed */
        }
        start = end;
    }
    e->expert_first[n] = (int32_t)pairs;
    return n;
}

/* --- computing ---------------------------------------------------------------------------------------------------------- */

static const void **pair_rows(const mg_exec *e, int act) { return e->act_ptr + (2 + act) * act_rows(e); }
static const void **down_rows(const mg_exec *e) { return e->act_ptr + 4 * act_rows(e); }
static int down_needs_rows(const mg_moe_layer *l) { return act_of(&l->part[2]) != MG_ACT_F32 || l->width % 2; }

/* What all experts of the layer share: activation rows by pair, in the formats of gate and up, and the addresses of down's.
 * One scratch serves both formats: a width that A8 takes is even, and even float rows need none. */
static void prepare(mg_exec *e, const mg_moe_layer *l, int src) {
    const int64_t pairs = (int64_t)e->n_tokens * l->top_k, ld = pad16(l->width);
    const size_t stride = mg_act_bytes(act_of(&l->part[2]), l->width);
    for (int m = 0; m < 2; m++) {
        const int act = act_of(&l->part[m]);
        if (m && act == act_of(&l->part[0])) break;
        const void **ptr = mg_act_rows(e, act, e->buf[src], e->ld[src], l->part[m].cols, e->n_tokens, e->act);
        for (int64_t p = 0; p < pairs; p++) pair_rows(e, act)[p] = ptr[e->pair_token[p]];
    }
    for (int64_t p = 0; p < pairs; p++)
        down_rows(e)[p] = down_needs_rows(l) ? e->pair_act + p * stride : (const void *)(e->pair_gate + p * ld);
}

/* gate * up of the batch's pairs, and their activation rows. A weight on an expert's input is one on gate and up, which are linear. */
static void pair_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const moe_ctx *c = ctx;
    const int64_t ld = pad16(c->l->width);
    const int act = act_of(&c->l->part[2]);
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        const int32_t p = c->e->batch_pair[i];
        float *x = c->e->pair_gate + p * ld, *up = c->e->pair_up + p * ld;
        if (c->l->weigh_input) {
            mg_ops.scale(x, c->e->pair_w[p], c->l->width);
            mg_ops.scale(up, c->e->pair_w[p], c->l->width);
        }
        mg_ops.glu(c->l->act, x, up, c->l->width, x);
        if (down_needs_rows(c->l)) mg_kernels.act[act](x, c->l->width, (void *)down_rows(c->e)[p]);
    }
}

static const float *bias_of(const mg_exec *e, const mg_moe_layer *l, int i, int part) {
    return l->bias_offset[part] ? (const float *)(e->records[i] + l->bias_offset[part]) : NULL;
}

/* Inputs of the experts for calibration: gate (and so up) reads the tokens' rows, down reads what the pairs have become. */
static void tally_gate(mg_exec *e, const mg_moe_layer *l, const float *x, int64_t ld, int n) {
    for (int i = 0; i < n; i++)
        for (int32_t p = e->expert_first[i]; p < e->expert_first[i + 1]; p++)
            mg_tally_rows(&l->part[0], e->expert_ids[i], x + e->pair_token[p] * ld, ld, 1);
}

static void tally_down(mg_exec *e, const mg_moe_layer *l, int64_t ld, int m) {
    for (int k = 0; k < m; k++) {
        const int32_t i = e->batch[k], p = e->expert_first[i];
        mg_tally_rows(&l->part[2], e->expert_ids[i], e->pair_gate + p * ld, ld, e->expert_first[i + 1] - p);
    }
}

/* The experts expert_ids[batch[0..m)], whose records are in memory, over all their pairs. */
static void compute(mg_exec *e, const mg_moe_layer *l, int64_t ld_dst, int m) {
    const int64_t ld = pad16(l->width);
    moe_ctx c = {e, l, NULL, 0};
    int n_jobs = 0, n_pairs = 0;
    for (int k = 0; k < m; k++)                  /* gate and up of a record are neighbours */
        for (int part = 0; part < 2; part++) {
            const int32_t i = e->batch[k], p = e->expert_first[i], n = e->expert_first[i + 1] - p;
            e->jobs[n_jobs++] = (mg_job){&l->part[part], e->records[i] + l->part_offset[part], bias_of(e, l, i, part),
                                         pair_rows(e, act_of(&l->part[part])) + p, (part ? e->pair_up : e->pair_gate) + p * ld, ld, n, 0};
        }
    mg_jobs_run(e, n_jobs);
    for (int k = 0; k < m; k++)
        for (int32_t p = e->expert_first[e->batch[k]]; p < e->expert_first[e->batch[k] + 1]; p++) e->batch_pair[n_pairs++] = p;
    mg_pool_run(e->pool, pair_task, &c, n_pairs, l->width >= 8192 ? 1 : 8192 / l->width);
    if (l->part[2].tally) tally_down(e, l, ld, m);
    for (int k = 0; k < m; k++) {
        const int32_t i = e->batch[k], p = e->expert_first[i], n = e->expert_first[i + 1] - p;
        e->jobs[k] = (mg_job){&l->part[2], e->records[i] + l->part_offset[2], bias_of(e, l, i, 2), down_rows(e) + p,
                              e->pair_out + p * ld_dst, ld_dst, n, 0};
    }
    mg_jobs_run(e, m);
}

static void combine_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const moe_ctx *c = ctx;
    const mg_exec *e = c->e;
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        float *y = c->dst + t * c->ld_dst;
        if (!c->l->adds) memset(y, 0, (size_t)c->l->part[2].rows * 4);
        for (int64_t p = t * c->l->top_k; p < (t + 1) * c->l->top_k; p++)
            mg_ops.axpy(c->l->weigh_input ? 1.0f : e->pair_w[e->pair_of[p]], e->pair_out + e->pair_of[p] * c->ld_dst, y, c->l->part[2].rows);
    }
}

/* --- streaming ---------------------------------------------------------------------------------------------------------- */

/* Asks for all experts of the layer, and holds those that are there or on their way. */
static void ask(mg_exec *e, const mg_moe_layer *l) {
    for (int i = 0; i < e->n_chosen; i++) {
        e->expert_uses[i] = e->expert_first[i + 1] - e->expert_first[i];
        e->expert_state[i] = MG_ABSENT;
    }
    e->held = l;
    mg_store_request(e->store, l->index, e->n_chosen, e->expert_ids, e->expert_uses, e->records, e->expert_state);
}

/* Lets go of what a pass that ends between route and experts still holds. */
void mg_moe_drop(mg_exec *e) {
    if (e->held) mg_store_release(e->store, e->held->index, e->n_chosen, NULL, e->expert_ids, e->expert_state);
    e->held = NULL;
}

/* All experts through the store: computed as they are there; for what there was no room it is asked again. */
static int streamed(mg_exec *e, const mg_moe_layer *l, int64_t ld_dst) {
    const int n = e->n_chosen;
    int left = n, status = MG_OK;
    while (left && status == MG_OK) {
        int absent = 0, ready = 0, m = 0;
        for (int i = 0; i < n; i++) absent += e->expert_state[i] == MG_ABSENT;
        if (absent) mg_store_request(e->store, l->index, n, e->expert_ids, NULL, e->records, e->expert_state);
        for (int i = 0; i < n; i++) ready += e->expert_state[i] == MG_READY;
        for (int i = 0; i < n && (ready == left || m < BATCH); i++)
            if (e->expert_state[i] == MG_READY) e->batch[m++] = i;
        if (!m) {
            status = mg_store_wait(e->store, l->index, n, e->expert_ids, e->records, e->expert_state);
            continue;
        }
        compute(e, l, ld_dst, m);
        mg_store_release(e->store, l->index, m, e->batch, e->expert_ids, e->expert_state);
        left -= m;
        if (left && e->cancel && *e->cancel) status = MG_E_CANCEL;
    }
    if (status == MG_OK) e->held = NULL;                     /* else mg_moe_drop lets go of the rest */
    return status;
}

/* Tells the store what the first `ranks` ranks of route_idx want, likeliest first. */
static void predict(mg_exec *e, const mg_moe_layer *l, int ranks) {
    int n = 0;
    memset(e->expert_uses, 0, (size_t)l->n_expert * 4);
    for (int k = 0; k < ranks; k++)                          /* by rank first, so that one token's guesses come in that order */
        for (int64_t t = 0; t < e->n_tokens; t++) {
            const int32_t x = e->route_idx[t * l->top_k + k];
            if (!e->expert_uses[x]++) e->batch[n++] = x;
        }
    for (int i = 1; i < n; i++) {                            /* then by how many tokens want it; stable */
        const int32_t x = e->batch[i];
        int at = i;
        for (; at > 0 && e->expert_uses[e->batch[at - 1]] < e->expert_uses[x]; at--) e->batch[at] = e->batch[at - 1];
        e->batch[at] = x;
    }
    mg_store_predict(e->store, l->index, n, e->batch);
}

/* Chooses the experts of each token, and asks the store for them. */
void mg_op_route(mg_exec *e, const mg_op *op) {
    const mg_moe_layer *l = op->moe;
    const int64_t pairs = (int64_t)e->n_tokens * l->top_k;
    mg_route(e, l, op->src);
    if (e->capture_idx) {
        memcpy(e->capture_idx + l->index * pairs, e->route_idx, (size_t)pairs * 4);
        memcpy(e->capture_w + l->index * pairs, e->route_w, (size_t)pairs * 4);
    }
    e->n_chosen = group_pairs(e, l);
    if (e->store) ask(e, l);
}

/* The experts that mg_op_route has chosen; their sum is written to dst, or added to it if the layer `adds`. */
int mg_op_moe(mg_exec *e, const mg_op *op) {
    const mg_moe_layer *l = op->moe;
    const int64_t ld_dst = e->ld[op->dst];
    const int n = e->n_chosen;
    moe_ctx c = {e, l, e->buf[op->dst], ld_dst};
    int status = MG_OK;
    prepare(e, l, op->src);
    if (l->part[0].tally) tally_gate(e, l, e->buf[op->src], e->ld[op->src], n);
    if (e->store) {
        status = streamed(e, l, ld_dst);
    } else {
        for (int i = 0; i < n; i++) {
            e->records[i] = l->base + l->stride * l->slot[e->expert_ids[i]];
            e->batch[i] = i;
        }
        compute(e, l, ld_dst, n);
    }
    if (status == MG_OK) mg_pool_run(e->pool, combine_task, &c, e->n_tokens, 4);
    return status;
}

/* Runs a later layer's router on what the residual stream is now (normed into dst) and tells the store. What this layer has chosen
 * is grouped by then: only the arrays of route.c are written anew. */
void mg_op_lookahead(mg_exec *e, const mg_op *op) {
    const mg_moe_layer *l = op->moe;
    mg_route(e, l, op->dst);
    predict(e, l, e->lookahead < l->top_k ? e->lookahead : l->top_k);
}
