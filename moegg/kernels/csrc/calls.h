/* calls.h - the functions of the store and the policy as tables, for extensions that do not link csrc (_core alone does). */
#ifndef MOEGG_CALLS_H
#define MOEGG_CALLS_H
#include "policy.h"
#include "store.h"

typedef struct {
    mg_store *(*open)(const mg_store_config *c, mg_io_error *error);
    void (*close)(mg_store *s);
    int64_t (*minimum)(int32_t n_layers, const mg_store_layer *layers, const uint8_t *keep);
    const uint8_t *(*map)(const mg_store *s);
    int (*begin)(mg_store *s, int32_t n_tokens);                        /* mg_store_pass */
    void (*more)(mg_store *s, int more);
    int (*request)(mg_store *s, int32_t layer, int32_t n, const int32_t *experts, const int32_t *uses, const uint8_t **records,
                   uint8_t *state);
    int (*wait)(mg_store *s, int32_t layer, int32_t n, const int32_t *experts, const uint8_t **records, uint8_t *state);
    void (*release)(mg_store *s, int32_t layer, int32_t m, const int32_t *which, const int32_t *experts, uint8_t *state);
    void (*predict)(mg_store *s, int32_t layer, int32_t n, const int32_t *experts);
    void (*next)(mg_store *s, int32_t layer);
    int32_t (*seed)(mg_store *s, const double *uses, int32_t per_layer);
    void (*warm)(mg_store *s);
    int64_t (*warming)(mg_store *s);
    void (*uses)(mg_store *s, double *out);
    int (*load)(mg_store *s, int64_t offset, int64_t nbytes, void *dst);
    void *(*alloc)(mg_store *s, int64_t nbytes);
    int (*set_budget)(mg_store *s, int64_t budget);
    int (*empty)(mg_store *s);
    void (*counters)(mg_store *s, mg_counters *out);
    void (*error)(mg_store *s, mg_io_error *out);
} mg_store_calls;

typedef struct {
    int64_t (*minimum)(const mg_policy_config *c);
    mg_policy *(*make)(const mg_policy_config *c);                      /* mg_policy_new */
    void (*discard)(mg_policy *p);                                      /* mg_policy_free */
    int32_t (*count)(const mg_policy *p);
    int32_t (*id)(const mg_policy *p, int32_t layer, int32_t expert);
    int64_t (*used)(const mg_policy *p);
    int (*state)(const mg_policy *p, int32_t id);
    double (*score)(const mg_policy *p, int32_t id);
    void (*begin)(mg_policy *p, int64_t n_tokens, int scan);            /* mg_policy_pass */
    void (*arrive)(mg_policy *p, int32_t layer);
    void (*use)(mg_policy *p, int32_t id, double uses, int again);
    void (*pin)(mg_policy *p, int32_t id);
    void (*unpin)(mg_policy *p, int32_t id);
    int32_t (*admit)(mg_policy *p, int32_t id, int how);
    const int32_t *(*evicted)(const mg_policy *p);
    void (*loaded)(mg_policy *p, int32_t id);
    void (*failed)(mg_policy *p, int32_t id);
    int32_t (*drop)(mg_policy *p, int32_t id);
    int32_t (*drop_all)(mg_policy *p);
    int32_t (*set_budget)(mg_policy *p, int64_t budget);
    int (*keep)(mg_policy *p, int32_t id);
    void (*seed)(mg_policy *p, int32_t id, double uses);
    int32_t (*warm_order)(mg_policy *p, int32_t *out);
    int32_t (*access)(mg_policy *p, int32_t layer, int32_t n, const int32_t *experts, const int32_t *uses, uint8_t *hit);
} mg_policy_calls;

extern const mg_store_calls mg_store_table;
extern const mg_policy_calls mg_policy_table;

#endif
