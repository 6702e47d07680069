/* route.c - the router of a MoE layer: logits to the top_k experts of each token and their weights.
 *
 * Plain C over the shared float kernels, one token at a time, so that neither threads nor the split of a batch change a bit.
 * Ties go to the lowest id. Formulas: transformers 5.24, the routers of the architectures in moegg/models. Checked when the layer
 * was described: top_k experts lie in any top_group groups, groups are of one size, at least two experts each where two are summed.
 */
#include "exec_int.h"
#include <math.h>
#include <string.h>

/* idx[0..k): the k largest of c[0..n), descending. */
static void largest(const float *c, int n, int k, int32_t *idx) {
    for (int r = 0; r < k; r++) {
        int best = -1;
        for (int i = 0; i < n; i++) {
            if (best >= 0 && !(c[i] > c[best])) continue;
            int taken = 0;
            for (int j = 0; j < r; j++) taken |= idx[j] == i;
            if (!taken) best = i;
        }
        idx[r] = best;
    }
}

/* c = -inf outside the top_group groups whose largest c, or sum of the two largest, is largest. */
static void keep_groups(const mg_moe_layer *l, float *c) {
    const int size = l->n_expert / l->n_group;
    float score[MG_MAX_GROUPS] = {0};
    int32_t best[MG_MAX_GROUPS];
    for (int g = 0; g < l->n_group; g++) {
        int32_t top[2];
        largest(c + g * size, size, l->group_sum ? 2 : 1, top);
        score[g] = c[g * size + top[0]] + (l->group_sum ? c[g * size + top[1]] : 0.0f);
    }
    largest(score, l->n_group, l->top_group, best);
    for (int g = 0; g < l->n_group; g++) {
        int kept = 0;
        for (int r = 0; r < l->top_group; r++) kept |= best[r] == g;
        for (int i = g * size; !kept && i < (g + 1) * size; i++) c[i] = -INFINITY;
    }
}

/* Rank by rank: the largest logit left, and its share of the softmax over what is left and within a margin of 2 * jitter of it.
 * c: scratch. */
static void sparsemixer(const mg_moe_layer *l, const float *s, float *c, int32_t *idx, float *w) {
    largest(s, l->n_expert, l->top_k, idx);
    for (int r = 0; r < l->top_k; r++) {
        const float top = s[idx[r]];
        for (int i = 0; i < l->n_expert; i++) {
            const float size = fabsf(s[i]) > top ? fabsf(s[i]) : top;
            c[i] = (top - s[i]) / size > 2.0f * l->jitter ? -INFINITY : s[i];
        }
        for (int j = 0; j < r; j++) c[idx[j]] = -INFINITY;
        mg_ops.softmax(c, l->n_expert);
        w[r] = c[idx[r]];
    }
}

typedef struct { mg_exec *e; const mg_moe_layer *l; } route_ctx;

static void choose_task(void *ctx, int64_t begin, int64_t end, int worker) {
    const route_ctx *c = ctx;
    const mg_moe_layer *l = c->l;
    const int n = l->n_expert, grows = !l->select_bias && l->n_group == 1;     /* the choice grows with the logit */
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        float *s = c->e->route_logits + t * pad16(n), *choice = c->e->route_choice + t * pad16(n), *w = c->e->route_w + t * l->top_k;
        int32_t *idx = c->e->route_idx + t * l->top_k;
        float sum = 0;
        if (l->score == MG_SCORE_SPARSEMIXER) {
            sparsemixer(l, s, choice, idx, w);
        } else {
            if (grows) largest(s, n, l->top_k, idx);
            if (l->score == MG_SCORE_SOFTMAX) mg_ops.softmax(s, n); else mg_ops.act(MG_SIGMOID, NULL, s, n, s);
            if (!grows) {
                memcpy(choice, s, (size_t)n * 4);
                if (l->select_bias) mg_ops.add(choice, l->select_bias, n);
                if (l->n_group > 1) keep_groups(l, choice);
                largest(choice, n, l->top_k, idx);
            }
            for (int k = 0; k < l->top_k; k++) w[k] = s[idx[k]];
        }
        for (int k = 0; k < l->top_k; k++) sum += w[k];
        sum += l->sum_eps;
        if (sum < l->sum_min) sum = l->sum_min;
        for (int k = 0; k < l->top_k; k++) {
            w[k] = (l->renormalise ? w[k] / sum : w[k]) * l->scale;
            if (l->expert_scale) w[k] *= l->expert_scale[idx[k]];
        }
    }
}

void mg_route(mg_exec *e, const mg_moe_layer *l, int buf) {
    const int64_t ld = pad16(l->n_expert);
    route_ctx c = {e, l};
    mg_linear(e, &l->router, &e->route_logits, &ld, 1, e->buf[buf], e->ld[buf], e->n_tokens);
    mg_pool_run(e->pool, choose_task, &c, e->n_tokens, 8);
}
