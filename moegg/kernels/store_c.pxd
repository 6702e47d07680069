# store_c.pxd - csrc/store.h, policy.h and calls.h for Cython; comments are in the headers.
from libc.stdint cimport int32_t, int64_t, uint8_t

cdef extern from "store.h" nogil:
    enum:
        MG_IO_OK
        MG_IO_ERRNO
        MG_IO_SHORT
        MG_IO_CHANGED
        MG_IO_BUDGET
        MG_IO_STUCK
        MG_IO_FORKED
        MG_ABSENT
        MG_LOADING
        MG_READY
        MG_DONE
    ctypedef struct mg_io_error:
        int32_t kind, os_errno, layer, expert
        int64_t offset, nbytes
    ctypedef int64_t (*mg_read_hook)(void *ctx, int fd, void *buf, int64_t nbytes, int64_t offset)
    ctypedef struct mg_file_config:
        int32_t n_parts
        const char **paths
        const int64_t *identity
        int32_t direct, exact, fresh
        mg_read_hook hook
        void *hook_ctx
    ctypedef struct mg_store_layer:
        int32_t n, top_k
        int64_t base, stride, record_bytes
        const int32_t *slot
    ctypedef struct mg_store_config:
        mg_file_config file
        int32_t n_layers
        const mg_store_layer *layers
        int64_t budget, max_budget
        int32_t n_threads, max_rows, copy
        int64_t min_part, max_part
        double half_life
        const uint8_t *keep
        const int32_t *cancel
    ctypedef struct mg_counters:
        int64_t hits, misses, demanded, predicted, wasted, warmed, loaded, reads, retries, evictions, wait_ns, faults
        int64_t cache_bytes, peak_bytes, budget, tokens, direct
    ctypedef struct mg_store:
        pass

cdef extern from "policy.h" nogil:
    ctypedef struct mg_policy:
        pass
    ctypedef struct mg_policy_config:
        int32_t n_layers
        const int32_t *n_experts
        const int32_t *top_k
        const int64_t *record_bytes
        int64_t budget
        double half_life
        const uint8_t *keep
    enum:
        MG_ADMIT_DEMAND
        MG_ADMIT_GUESS
        MG_ADMIT_FREE
        MG_ADMIT_NEXT

cdef extern from "calls.h" nogil:
    ctypedef struct mg_store_calls:
        mg_store *(*open)(const mg_store_config *c, mg_io_error *error) noexcept nogil
        void (*close)(mg_store *s) noexcept nogil
        int64_t (*minimum)(int32_t n_layers, const mg_store_layer *layers, const uint8_t *keep) noexcept nogil
        const uint8_t *(*map)(const mg_store *s) noexcept nogil
        int (*begin)(mg_store *s, int32_t n_tokens) noexcept nogil
        void (*more)(mg_store *s, int more) noexcept nogil
        int (*request)(mg_store *s, int32_t layer, int32_t n, const int32_t *experts, const int32_t *uses,
                       const uint8_t **records, uint8_t *state) noexcept nogil
        int (*wait)(mg_store *s, int32_t layer, int32_t n, const int32_t *experts, const uint8_t **records,
                    uint8_t *state) noexcept nogil
        void (*release)(mg_store *s, int32_t layer, int32_t m, const int32_t *which, const int32_t *experts,
                        uint8_t *state) noexcept nogil
        void (*predict)(mg_store *s, int32_t layer, int32_t n, const int32_t *experts) noexcept nogil
        void (*next)(mg_store *s, int32_t layer) noexcept nogil
        int32_t (*seed)(mg_store *s, const double *uses, int32_t per_layer) noexcept nogil
        void (*warm)(mg_store *s) noexcept nogil
        int64_t (*warming)(mg_store *s) noexcept nogil
        void (*uses)(mg_store *s, double *out) noexcept nogil
        int (*load)(mg_store *s, int64_t offset, int64_t nbytes, void *dst) noexcept nogil
        void *(*alloc)(mg_store *s, int64_t nbytes) noexcept nogil
        int (*set_budget)(mg_store *s, int64_t budget) noexcept nogil
        int (*empty)(mg_store *s) noexcept nogil
        void (*counters)(mg_store *s, mg_counters *out) noexcept nogil
        void (*error)(mg_store *s, mg_io_error *out) noexcept nogil
    ctypedef struct mg_policy_calls:
        int64_t (*minimum)(const mg_policy_config *c) noexcept nogil
        mg_policy *(*make)(const mg_policy_config *c) noexcept nogil
        void (*discard)(mg_policy *p) noexcept nogil
        int32_t (*count)(const mg_policy *p) noexcept nogil
        int32_t (*id)(const mg_policy *p, int32_t layer, int32_t expert) noexcept nogil
        int64_t (*used)(const mg_policy *p) noexcept nogil
        int (*state)(const mg_policy *p, int32_t id) noexcept nogil
        double (*score)(const mg_policy *p, int32_t id) noexcept nogil
        void (*begin)(mg_policy *p, int64_t n_tokens, int scan) noexcept nogil
        void (*arrive)(mg_policy *p, int32_t layer) noexcept nogil
        void (*use)(mg_policy *p, int32_t id, double uses, int again) noexcept nogil
        void (*pin)(mg_policy *p, int32_t id) noexcept nogil
        void (*unpin)(mg_policy *p, int32_t id) noexcept nogil
        int32_t (*admit)(mg_policy *p, int32_t id, int how) noexcept nogil
        const int32_t *(*evicted)(const mg_policy *p) noexcept nogil
        void (*loaded)(mg_policy *p, int32_t id) noexcept nogil
        void (*failed)(mg_policy *p, int32_t id) noexcept nogil
        int32_t (*drop)(mg_policy *p, int32_t id) noexcept nogil
        int32_t (*drop_all)(mg_policy *p) noexcept nogil
        int32_t (*set_budget)(mg_policy *p, int64_t budget) noexcept nogil
        int (*keep)(mg_policy *p, int32_t id) noexcept nogil
        void (*seed)(mg_policy *p, int32_t id, double uses) noexcept nogil
        int32_t (*warm_order)(mg_policy *p, int32_t *out) noexcept nogil
        int32_t (*access)(mg_policy *p, int32_t layer, int32_t n, const int32_t *experts, const int32_t *uses,
                          uint8_t *hit) noexcept nogil
    const mg_store_calls mg_store_table
    const mg_policy_calls mg_policy_table
