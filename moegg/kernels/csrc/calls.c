/* calls.c - see calls.h. */
#include "calls.h"

const mg_store_calls mg_store_table = {
    .open = mg_store_open, .close = mg_store_close, .minimum = mg_store_minimum, .map = mg_store_map, .begin = mg_store_pass,
    .more = mg_store_more, .request = mg_store_request, .wait = mg_store_wait, .release = mg_store_release,
    .predict = mg_store_predict, .seed = mg_store_seed, .warm = mg_store_warm, .warming = mg_store_warming,
    .uses = mg_store_uses, .load = mg_store_load, .alloc = mg_store_alloc, .set_budget = mg_store_set_budget,
    .next = mg_store_next, .empty = mg_store_empty,
    .counters = mg_store_counters, .error = mg_store_error,
};

const mg_policy_calls mg_policy_table = {
    .minimum = mg_policy_minimum, .make = mg_policy_new, .discard = mg_policy_free, .count = mg_policy_count,
    .id = mg_policy_id, .used = mg_policy_used, .state = mg_policy_state, .score = mg_policy_score, .begin = mg_policy_pass,
    .arrive = mg_policy_arrive, .use = mg_policy_use, .pin = mg_policy_pin, .unpin = mg_policy_unpin,
    .admit = mg_policy_admit, .evicted = mg_policy_evicted, .loaded = mg_policy_loaded, .failed = mg_policy_failed,
    .drop = mg_policy_drop, .drop_all = mg_policy_drop_all, .set_budget = mg_policy_set_budget, .keep = mg_policy_keep,
    .seed = mg_policy_seed, .warm_order = mg_policy_warm_order,
    .access = mg_policy_access,
};
