"""The one extension that links csrc: numpy in, numpy out, every shape checked here because the C code does not check.

Owns nothing but short-lived scratch; releases the GIL around all work. N, K: rows and columns of a matrix, T: activation rows.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc

import numpy as np

from moegg.kernels.store_c cimport mg_policy_table, mg_store_table

from moegg.errors import BadRequest
from moegg.quants import INTERLEAVED, QUANTS, ROW_MAJOR


cdef extern from "exec.h" nogil:
    size_t mg_job_bytes()
    int mg_exec_run(mg_exec *e)
    int mg_exec_begin(mg_exec *e, int32_t n_tokens)
    int32_t mg_exec_span(const mg_exec *e, int32_t first)
    int mg_exec_part(mg_exec *e, int32_t first, int32_t end, float *residual, int more)
    int mg_exec_check(mg_exec *e)
    mg_op_table mg_ops

cdef extern from "<unistd.h>" nogil:
    int usleep(unsigned int us)

cdef extern from "measure.h" nogil:
    uint64_t mg_measure_read(mg_pool *p, const void *data, int64_t nbytes, int64_t ahead)
    int64_t mg_measure_int8(mg_pool *p, int64_t items)
    int64_t mg_measure_fma(mg_pool *p, int64_t items)


# --- checks -------------------------------------------------------------------------------------------------------------

cdef _quant(name):
    """The Quant of `name`, which C must know by the same id and size."""
    q = QUANTS.get(name)
    if q is None:
        raise BadRequest(f"quant: got {name!r}, expected one of {', '.join(QUANTS)}", "kernel-quant")
    return q


cdef _fits(q, int64_t cols):
    if cols < 1 or not q.fits(cols):
        raise BadRequest(f"{q.name}: columns: got {cols}, expected a positive multiple of {q.block_elems}", "kernel-shape")


cdef _bytes(what, data, shape):
    """`data` as a contiguous uint8 array of `shape` (None: any length), aligned for the block structs."""
    a = np.ascontiguousarray(data)
    if a.dtype != np.uint8 or a.ndim != len(shape) or any(s is not None and s != n for s, n in zip(shape, a.shape)):
        want = "[" + ", ".join("N" if s is None else str(s) for s in shape) + "]"
        raise BadRequest(f"{what}: got {a.dtype} {list(a.shape)}, expected uint8 {want}", "kernel-shape")
    return a.copy() if a.ctypes.data % 4 else a


cdef _floats(what, x):
    a = np.ascontiguousarray(x)
    if a.dtype != np.float32 or a.ndim != 2:
        raise BadRequest(f"{what}: got {a.dtype} {list(a.shape)}, expected float32 with 2 dimensions", "kernel-shape")
    return a


cdef void *_at(a) except? NULL:
    return <void *><uintptr_t>a.ctypes.data


# --- rows ---------------------------------------------------------------------------------------------------------------

def quantize(quant: str, x, search: bool = False, worth=None):
    """x f32 [N, K] -> row-major blocks uint8 [N, row_bytes]. Plain rounding equals ggml's reference.

    search: quants that have a plain rounding look for the scale of least weighted squared error; k-quants always do.
    worth: f32 [K], positive: what an error in each column costs; None: all the same.
    NaN and infinity give useless codes: the caller looks for them. Raises BadRequest.
    """
    q, x = _quant(quant), _floats("quantize", x)
    if not q.encodes:
        raise BadRequest(f"quantize: {q.name} can only be read, not written", "kernel-quant")
    cdef int64_t rows = x.shape[0], cols = x.shape[1], r
    _fits(q, cols)
    out = np.empty((rows, q.row_bytes(cols, ROW_MAJOR)), np.uint8)
    cdef const float *columns = NULL
    if worth is not None:
        worth = _floats("quantize: worth", np.asarray(worth)[None])
        if worth.shape[1] != cols:
            raise BadRequest(f"quantize: worth: got {worth.shape[1]} columns, expected {cols}", "kernel-shape")
        columns = <const float *>_at(worth)
    cdef int id = q.id, deep = search
    cdef size_t step = out.shape[1]
    cdef const float *src = <const float *>_at(x)
    cdef uint8_t *dst = <uint8_t *>_at(out)
    with nogil:
        for r in range(rows):
            mg_quant_row(id, src + r * cols, dst + r * step, cols, deep, columns)
    return out


def dequantize(quant: str, data, cols: int):
    """Row-major blocks uint8 [N, row_bytes] -> f32 [N, cols]. Raises BadRequest."""
    q = _quant(quant)
    cdef int64_t k = cols, rows, r
    _fits(q, k)
    data = _bytes("dequantize", data, (None, q.row_bytes(k, ROW_MAJOR)))
    rows = data.shape[0]
    out = np.empty((rows, k), np.float32)
    cdef int id = q.id
    cdef size_t step = data.shape[1]
    cdef const uint8_t *src = <const uint8_t *>_at(data)
    cdef float *dst = <float *>_at(out)
    with nogil:
        for r in range(rows):
            mg_dequant_row(id, src + r * step, dst + r * k, k)
    return out


# --- layout -------------------------------------------------------------------------------------------------------------

def interleave(quant: str, data, cols: int):
    """Row-major blocks uint8 [N, row_bytes] -> groups of 16 rows, zero-padded, uint8 [matrix_bytes]. Raises BadRequest."""
    q = _quant(quant)
    cdef int64_t k = cols, rows
    _fits(q, k)
    data = _bytes("interleave", data, (None, q.row_bytes(k, ROW_MAJOR)))
    rows = data.shape[0]
    out = np.empty(q.matrix_bytes(rows, k, INTERLEAVED), np.uint8)
    cdef int id = q.id
    cdef const void *src = _at(data)
    cdef void *dst = _at(out)
    with nogil:
        mg_interleave(id, src, rows, k, dst)
    return out


def deinterleave(quant: str, data, rows: int, cols: int):
    """Interleaved [rows, cols] matrix uint8 [matrix_bytes] -> row-major blocks uint8 [rows, row_bytes]. Raises BadRequest."""
    q = _quant(quant)
    cdef int64_t k = cols, n = rows
    _fits(q, k)
    data = _bytes("deinterleave", data, (q.matrix_bytes(n, k, INTERLEAVED),))
    out = np.empty((n, q.row_bytes(k, ROW_MAJOR)), np.uint8)
    cdef int id = q.id
    cdef const void *src = _at(data)
    cdef void *dst = _at(out)
    with nogil:
        mg_deinterleave(id, src, n, k, dst)
    return out


def dequantize_row(quant: str, data, rows: int, cols: int, row: int):
    """Row `row` of an interleaved [rows, cols] matrix as f32 [cols]: how a tied embedding is looked up. Raises BadRequest."""
    q = _quant(quant)
    cdef int64_t k = cols, r = row
    _fits(q, k)
    data = _bytes("dequantize_row", data, (q.matrix_bytes(rows, k, INTERLEAVED),))
    if not 0 <= row < rows:
        raise BadRequest(f"dequantize_row: row: got {row}, expected 0 to {rows - 1}", "kernel-shape")
    out = np.empty(k, np.float32)
    mg_dequant_interleaved_row(q.id, _at(data), r, k, <float *>_at(out))
    return out


# --- products -----------------------------------------------------------------------------------------------------------

def activations(quant: str, x):
    """x f32 [T, K] -> the activation rows that kernels of `quant` read, uint8 [T, act_bytes] (kernels.h, A8 or F32)."""
    q, x = _quant(quant), _floats("activations", x)
    cdef int64_t rows = x.shape[0], cols = x.shape[1], r
    _fits(q, cols)
    cdef int act = mg_quant_get(q.id).act
    cdef size_t step = mg_act_bytes(act, cols)
    out = np.zeros((rows, step), np.uint8)
    cdef const float *src = <const float *>_at(x)
    cdef uint8_t *dst = <uint8_t *>_at(out)
    with nogil:
        for r in range(rows):
            mg_kernels.act[act](src + r * cols, cols, dst + r * step)
    return out


cdef struct Product:
    int quant, n                # n: activation rows
    int64_t cols, ld            # ld: floats from one row of y to the next
    size_t group_bytes
    const uint8_t *w
    const void **a              # [n]
    float *y
    float **out                 # [threads, n] pointers into y, one set per worker


cdef void _product(void *ctx, int64_t begin, int64_t end, int worker) noexcept nogil:
    cdef Product *p = <Product *>ctx
    cdef float **out = p.out + <int64_t>worker * p.n
    cdef int64_t g, t
    for g in range(begin, end):
        for t in range(p.n):
            out[t] = p.y + t * p.ld + g * MG_GROUP
        mg_kernels.group[p.quant](p.w + g * p.group_bytes, p.cols, p.a, p.n, out)


def matmul(quant: str, w, rows: int, cols: int, x, n_threads: int | Pool = 1):
    """x f32 [T, cols] times the transpose of an interleaved [rows, cols] matrix w uint8 [matrix_bytes] -> f32 [T, rows].

    Activations go through the quant's activation format, as in the engine. n_threads: a number, or a Pool that exists already.
    Raises BadRequest.
    """
    q, x = _quant(quant), _floats("matmul", x)
    cdef int64_t n = x.shape[0], t, groups = (rows + MG_GROUP - 1) // MG_GROUP
    _fits(q, cols)
    if x.shape[1] != cols:
        raise BadRequest(f"matmul: x: got {list(x.shape)}, expected [T, {cols}]", "kernel-shape")
    w = _bytes("matmul", w, (q.matrix_bytes(rows, cols, INTERLEAVED),))
    acts = activations(quant, x)
    y = np.empty((n, groups * MG_GROUP), np.float32)
    pool = n_threads if isinstance(n_threads, Pool) else Pool(n_threads)
    cdef Product p
    cdef int n_workers = mg_pool_threads((<Pool>pool).ptr)
    p.quant, p.n, p.cols, p.ld = q.id, <int>n, cols, groups * MG_GROUP
    p.group_bytes = mg_group_bytes(p.quant, p.cols)
    p.w, p.y = <const uint8_t *>_at(w), <float *>_at(y)
    p.a = <const void **>malloc(sizeof(void *) * n)
    p.out = <float **>malloc(sizeof(void *) * n * n_workers)
    try:
        if n and (p.a == NULL or p.out == NULL):
            raise MemoryError
        for t in range(n):
            p.a[t] = <const uint8_t *>_at(acts) + t * <int64_t>acts.shape[1]
        with nogil:
            mg_pool_run((<Pool>pool).ptr, _product, &p, groups, 1)
    finally:
        free(p.a)
        free(p.out)
    return np.ascontiguousarray(y[:, :rows])


# --- levels -------------------------------------------------------------------------------------------------------------

def levels():
    """CPU levels that this host can use, lowest first."""
    cdef const char *names[8]
    return [names[i].decode() for i in range(mg_levels(names, 8))]


def level():
    """The CPU level in force."""
    return mg_level_name().decode()


def host_level():
    """The highest CPU level of this host."""
    return mg_host_level_name().decode()


def select(name: str | None = None):
    """Puts a CPU level in force, None: the highest. Not while kernels run. Raises BadRequest for one that this host lacks."""
    text = str(name).encode()
    cdef const char *wanted = NULL
    if name is not None:
        wanted = text
    if mg_select(wanted) != MG_OK:
        raise BadRequest(f"CPU level: got {name!r}, expected one of {', '.join(levels())}", "cpu-level")


def info():
    """{'level': in force, 'host': highest of this host, 'levels': usable ones}, for --version and bench records."""
    return {"level": level(), "host": host_level(), "levels": levels()}


# --- pool ---------------------------------------------------------------------------------------------------------------

cdef struct Visits:
    int32_t *cells
    unsigned int sleep_us


cdef class Pool:
    """A thread pool (csrc/pool.c) as an object, for matmul and the tests. n_threads counts the caller."""
    cdef mg_pool *ptr

    def __cinit__(self, n_threads: int, spin_us: int = 200):
        if not 1 <= n_threads <= 1024:
            raise BadRequest(f"threads: got {n_threads}, expected 1 to 1024", "threads-range")
        self.ptr = mg_pool_new(n_threads)
        if self.ptr == NULL:
            raise MemoryError
        mg_pool_set_spin(self.ptr, spin_us)

    def __dealloc__(self):
        mg_pool_free(self.ptr)

    def count(self, n_items: int, chunk: int, times: int = 1, worker_sleep_us: int = 0):
        """Runs a job over n_items `times` times; how often each item was visited, int32 [n_items].

        worker_sleep_us: workers other than the caller sleep that long in each chunk, as if the system had stopped them.
        """
        seen = np.zeros(n_items, np.int32)
        cdef Visits v
        v.cells, v.sleep_us = <int32_t *>_at(seen), worker_sleep_us
        cdef int64_t n = n_items, c = chunk, jobs = times, k
        with nogil:
            for k in range(jobs):
                mg_pool_run(self.ptr, _visit, &v, n, c)
        return seen

    def read(self, data, ahead: int = 0):
        """XOR of the 8-byte words of data uint8 [N], N a multiple of 64, each read once; ahead: bytes of software prefetch.

        Whoever takes the time has the read bandwidth. Raises BadRequest.
        """
        data = _bytes("read", data, (None,))
        if data.size % 64:
            raise BadRequest(f"read: got {data.size} B, expected a multiple of 64", "kernel-shape")
        cdef const void *at = _at(data)
        cdef int64_t nbytes = data.size, distance = ahead
        cdef uint64_t x
        with nogil:
            x = mg_measure_read(self.ptr, at, nbytes, distance)
        return x

    def int8(self, items: int):
        """Runs `items` pieces of int8 dot products at the level in force; returns the operations done (csrc/measure.c)."""
        cdef int64_t n = items, ops
        with nogil:
            ops = mg_measure_int8(self.ptr, n)
        return ops

    def fma(self, items: int):
        """The same of float multiply-adds."""
        cdef int64_t n = items, ops
        with nogil:
            ops = mg_measure_fma(self.ptr, n)
        return ops


cdef void _visit(void *ctx, int64_t begin, int64_t end, int worker) noexcept nogil:
    cdef Visits *v = <Visits *>ctx
    cdef int64_t i
    for i in range(begin, end):
        v.cells[i] += 1
    if worker and v.sleep_us:
        usleep(v.sleep_us)


# --- for other extensions -----------------------------------------------------------------------------------------------

cdef size_t act_bytes(int act, int64_t cols) noexcept nogil:
    return mg_act_bytes(act, cols)

cdef mg_pool *pool_new(int n_threads) noexcept nogil:
    return mg_pool_new(n_threads)

cdef void pool_free(mg_pool *p) noexcept nogil:
    mg_pool_free(p)

cdef void pool_set_spin(mg_pool *p, int64_t us) noexcept nogil:
    mg_pool_set_spin(p, us)

cdef size_t job_bytes() noexcept nogil:
    return mg_job_bytes()

cdef int exec_run(mg_exec *e) noexcept nogil:
    return mg_exec_run(e)

cdef int exec_begin(mg_exec *e, int32_t n_tokens) noexcept nogil:
    return mg_exec_begin(e, n_tokens)

cdef int32_t exec_span(const mg_exec *e, int32_t first) noexcept nogil:
    return mg_exec_span(e, first)

cdef int exec_part(mg_exec *e, int32_t first, int32_t end, float *residual, int more) noexcept nogil:
    return mg_exec_part(e, first, end, residual, more)

cdef int exec_check(mg_exec *e) noexcept nogil:
    return mg_exec_check(e)

cdef const mg_store_calls *store_calls() noexcept nogil:
    return &mg_store_table

cdef const mg_policy_calls *policy_calls() noexcept nogil:
    return &mg_policy_table

cdef const mg_op_table *op_table() noexcept nogil:
    return &mg_ops
