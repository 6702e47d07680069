# _core.pxd - what other extensions may call of the C code, which is linked into _core alone (one dispatch table, one pool).
# Types and constants of kernels.h may be used anywhere, its functions only inside _core; others call the cdef functions below.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from moegg.kernels.exec cimport mg_exec, mg_op_table, mg_pool
from moegg.kernels.store_c cimport mg_policy_calls, mg_store_calls

cdef extern from "kernels.h" nogil:
    enum:
        MG_GROUP
        MG_QUANT_MAX
        MG_ACT_F32
        MG_ACT_A8
        MG_OK
        MG_E_QUANT
        MG_E_LEVEL
        MG_E_NOMEM
        MG_E_CANCEL
        MG_E_FETCH
    ctypedef struct mg_quant:
        int id
        const char *name
        int block_elems, block_bytes, act
        const char *units
    ctypedef void (*mg_group_fn)(const uint8_t *w, int64_t cols, const void *const *a, int n, float *const *y) noexcept
    ctypedef void (*mg_act_fn)(const float *x, int64_t cols, void *dst) noexcept
    ctypedef struct mg_kernel_table:
        mg_group_fn *group
        mg_act_fn *act
    mg_kernel_table mg_kernels
    const mg_quant *mg_quant_get(int id)
    size_t mg_act_bytes(int act, int64_t cols)
    size_t mg_group_bytes(int quant, int64_t cols)
    size_t mg_row_bytes(int quant, int64_t cols)
    void mg_dequant_row(int quant, const void *src, float *dst, int64_t cols)
    int mg_quant_row(int quant, const float *src, void *dst, int64_t cols, int search, const float *worth)
    void mg_dequant_interleaved_row(int quant, const void *matrix, int64_t row, int64_t cols, float *dst)
    void mg_interleave(int quant, const void *src, int64_t rows, int64_t cols, void *dst)
    void mg_deinterleave(int quant, const void *src, int64_t rows, int64_t cols, void *dst)
    const char *mg_level_name()
    const char *mg_host_level_name()
    int mg_select(const char *level)
    int mg_levels(const char **names, int max)
    ctypedef void (*mg_task_fn)(void *ctx, int64_t begin, int64_t end, int worker) noexcept
    mg_pool *mg_pool_new(int n_threads)
    void mg_pool_free(mg_pool *p)
    int mg_pool_threads(const mg_pool *p)
    void mg_pool_set_spin(mg_pool *p, int64_t us)
    void mg_pool_run(mg_pool *p, mg_task_fn fn, void *ctx, int64_t n_items, int64_t chunk)

cdef size_t act_bytes(int act, int64_t cols) noexcept nogil
cdef mg_pool *pool_new(int n_threads) noexcept nogil
cdef void pool_free(mg_pool *p) noexcept nogil
cdef void pool_set_spin(mg_pool *p, int64_t us) noexcept nogil

# the executor (csrc/exec.h)
cdef size_t job_bytes() noexcept nogil
cdef int exec_run(mg_exec *e) noexcept nogil
cdef int exec_begin(mg_exec *e, int32_t n_tokens) noexcept nogil
cdef int32_t exec_span(const mg_exec *e, int32_t first) noexcept nogil
cdef int exec_part(mg_exec *e, int32_t first, int32_t end, float *residual, int more) noexcept nogil
cdef int exec_check(mg_exec *e) noexcept nogil

# the float kernels in force (csrc/ops.h)
cdef const mg_op_table *op_table() noexcept nogil

# the expert store and its policy (csrc/calls.h)
cdef const mg_store_calls *store_calls() noexcept nogil
cdef const mg_policy_calls *policy_calls() noexcept nogil
