/* policy.h - which expert records stay in memory: a pure data structure. No I/O, no weights, no locks; allocates once.
 *
 * One byte budget over all layers. An expert's score is its decayed use count: a use counts half after `half_life` tokens (LRFU,
 * Lee et al. 2001). Scores of all experts are kept, so history survives eviction. The victim is the lowest score per byte among
 * records that nobody uses: never one that is pinned, loading or kept. A pass of many tokens scans every layer once: records of
 * layers still ahead are then kept before those just used, unless these were clearly more used before.
 * Layers that are used in a cycle (`keep`) need no scores: some stay, the others pass through what is left.
 * Layers are counted 0..n_layers-1 over the layers that have experts; an id is a record over all layers. Victim: O(log n).
 */
#ifndef MOEGG_POLICY_H
#define MOEGG_POLICY_H
#include <stdint.h>

typedef struct mg_policy mg_policy;

typedef struct {
    int32_t n_layers;
    const int32_t *n_experts;     /* [n_layers] */
    const int32_t *top_k;         /* [n_layers] */
    const int64_t *record_bytes;  /* [n_layers] what a record takes of the budget */
    int64_t budget;
    double half_life;             /* tokens */
    const uint8_t *keep;          /* NULL, or a cycle: [n_layers] layers of one record each, 1: it stays once it is ready */
} mg_policy_config;

enum { MG_ABSENT = 0, MG_LOADING = 1, MG_READY = 2, MG_DONE = 3 };      /* DONE: in the store's requests, used and released */

/* Bytes without which nothing works: 2 * top_k records of the layer where that is most; of a cycle what stays and the largest other. */
int64_t mg_policy_minimum(const mg_policy_config *c);
mg_policy *mg_policy_new(const mg_policy_config *c);      /* NULL: no memory, or a budget below the minimum */
void mg_policy_free(mg_policy *p);

int32_t mg_policy_count(const mg_policy *p);                                   /* records over all layers */
int32_t mg_policy_id(const mg_policy *p, int32_t layer, int32_t expert);
int32_t mg_policy_layer(const mg_policy *p, int32_t id);
int64_t mg_policy_used(const mg_policy *p);
int64_t mg_policy_budget(const mg_policy *p);
int mg_policy_state(const mg_policy *p, int32_t id);
int mg_policy_pinned(const mg_policy *p, int32_t id);
double mg_policy_score(const mg_policy *p, int32_t id);                        /* decayed uses, as of now */

/* A pass over all layers begins. scan: it has so many tokens that it will touch about every record. */
void mg_policy_pass(mg_policy *p, int64_t n_tokens, int scan);
/* The pass has reached `layer` and knows what it needs there: what was kept for it and is not needed is free to go. */
void mg_policy_arrive(mg_policy *p, int32_t layer);
void mg_policy_use(mg_policy *p, int32_t id, double uses, int again);          /* again: a later group of tokens may need it too */
void mg_policy_pin(mg_policy *p, int32_t id);
void mg_policy_unpin(mg_policy *p, int32_t id);

/* Makes room for an absent record and marks it loading. ahead: for a layer that is still to come.
 * Returns how many records were evicted for it, or -1 (and nothing changes) if there is no room. FREE: evict nothing; NEXT: nor take
 * the place of what stays. */
enum { MG_ADMIT_DEMAND = 0, MG_ADMIT_GUESS = 1, MG_ADMIT_FREE = 2, MG_ADMIT_NEXT = 3 };
int32_t mg_policy_admit(mg_policy *p, int32_t id, int how);
const int32_t *mg_policy_evicted(const mg_policy *p);                          /* of the last admit or budget call */
void mg_policy_loaded(mg_policy *p, int32_t id);                               /* loading -> ready */
void mg_policy_failed(mg_policy *p, int32_t id);                               /* loading -> absent, its bytes are free */
void mg_policy_again(mg_policy *p, int32_t id);                                /* ready -> loading: its bytes were lost outside */

/* A record that nobody uses goes at once, unless it is kept; all of them, kept or not. Returns how many were evicted. */
int32_t mg_policy_drop(mg_policy *p, int32_t id);
int32_t mg_policy_drop_all(mg_policy *p);

/* Evicts down to a new budget as far as records are free to go; returns how many went, -1 below the minimum. */
int32_t mg_policy_set_budget(mg_policy *p, int64_t budget);
/* Keep a record for good once it is ready. -1 if the rest would fall below the minimum. */
int mg_policy_keep(mg_policy *p, int32_t id);
/* Score from a usage history. Before the first pass. */
void mg_policy_seed(mg_policy *p, int32_t id, double uses);
/* The records worth loading at the start, most wanted first, as many as the budget holds; those without any use only if all
 * records fit. out: [count]. */
int32_t mg_policy_warm_order(mg_policy *p, int32_t *out);

/* One layer of one pass of a recorded trace, as the store would do it; for replay without weights. hit: [n] or NULL.
 * Returns how many of the n experts were present. Each is used once per pass. */
int32_t mg_policy_access(mg_policy *p, int32_t layer, int32_t n, const int32_t *experts, const int32_t *uses, uint8_t *hit);

#endif
