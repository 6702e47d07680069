"""The float kernels of csrc/ops.h with numpy arrays: one row or one KV head at a time, shapes checked. For sampling and for tests.

All run at the CPU level in force; all levels give the same bits. Arrays are float32 and contiguous.
"""
import numpy as np

from libc.stdint cimport int32_t, int64_t, uintptr_t

from moegg.kernels cimport _core
from moegg.kernels.exec cimport (
    MG_ACT_VALUES, MG_CHUNK, MG_GELU_TANH, MG_PART_HEAD, MG_QROWS, MG_SCORES, MG_SIGMOID, MG_SILU, MG_SILU_CUT, MG_SWIGLU_OAI,
    MG_TILE, MG_XIELU, mg_attn, mg_oldest)

from moegg.errors import BadRequest

_ACTS = {"silu": MG_SILU, "gelu_tanh": MG_GELU_TANH, "sigmoid": MG_SIGMOID, "swiglu_oai": MG_SWIGLU_OAI, "silu_cut": MG_SILU_CUT, "xielu": MG_XIELU}
TILE, CHUNK = MG_TILE, MG_CHUNK


def _row(x, n=None):
    """A copy of x [n] as float32."""
    x = np.array(x, np.float32)
    if x.ndim != 1 or x.size == 0 or (n is not None and x.size != n):
        raise BadRequest(f"ops: got {list(x.shape)}, expected [{'N' if n is None else n}]", "kernel-shape")
    return x


def rmsnorm(x, weight, float eps):
    """x [N] / sqrt(mean(x^2) + eps) * weight [N]; None: 1."""
    cdef float[::1] a = _row(x)
    cdef float[::1] w = a if weight is None else _row(weight, a.shape[0])
    _core.op_table().rmsnorm(&a[0], NULL if weight is None else &w[0], eps, a.shape[0], &a[0])
    return np.asarray(a)


def layernorm(x, weight, bias, float eps):
    """(x [N] - mean) / sqrt(variance + eps) * weight [N] + bias [N]; None: 1 and 0."""
    cdef float[::1] a = _row(x)
    cdef float[::1] w = a if weight is None else _row(weight, a.shape[0])
    cdef float[::1] b = a if bias is None else _row(bias, a.shape[0])
    _core.op_table().layernorm(&a[0], NULL if weight is None else &w[0], NULL if bias is None else &b[0], eps, a.shape[0], &a[0])
    return np.asarray(a)


def rope(x, cosine, sine, interleaved=False):
    """Rotates the first 2 * half values of a head x [Dh]; cosine, sine [half]."""
    cdef float[::1] a = _row(x)
    cdef float[::1] c = _row(cosine)
    cdef float[::1] s = _row(sine, c.shape[0])
    if a.shape[0] < 2 * c.shape[0]:
        raise BadRequest(f"rope: got a head of {a.shape[0]}, expected at least {2 * c.shape[0]}", "kernel-shape")
    _core.op_table().rope(&a[0], &c[0], &s[0], c.shape[0], interleaved)
    return np.asarray(a)


def glu(act, gate, up):
    """act(gate [N]) * up [N]; act: 'silu', 'gelu_tanh', 'sigmoid', 'swiglu_oai' or 'silu_cut'."""
    cdef float[::1] g = _row(gate)
    cdef float[::1] u = _row(up, g.shape[0])
    _core.op_table().glu(_ACTS[act], &g[0], &u[0], g.shape[0], &g[0])
    return np.asarray(g)


def act(name, x, values=None):
    """act(x [N]); name: 'silu', 'gelu_tanh', 'sigmoid' or 'xielu', whose values [4] are a, b, beta and eps of csrc/ops.h."""
    cdef float[::1] a = _row(x)
    cdef float[::1] v = a if name != "xielu" else _row(values, MG_ACT_VALUES)
    _core.op_table().act(_ACTS[name], &v[0], &a[0], a.shape[0], &a[0])
    return np.asarray(a)


def dot(x, y):
    """The sum of x [N] * y [N], lane by lane."""
    cdef float[::1] a = _row(x)
    cdef float[::1] b = _row(y, a.shape[0])
    return _core.op_table().dot(&a[0], &b[0], a.shape[0])


def softcap(x, float cap):
    """cap * tanh(x [N] / cap)."""
    cdef float[::1] a = _row(x)
    _core.op_table().softcap(&a[0], cap, a.shape[0])
    return np.asarray(a)


def softmax(x):
    """Softmax of x [N]."""
    cdef float[::1] a = _row(x)
    _core.op_table().softmax(&a[0], a.shape[0])
    return np.asarray(a)


def kth_largest(const float[::1] x, int k):
    """The k-th largest of x [N], 1 <= k <= N; x holds no NaN. One pass, no sort."""
    if not 1 <= k <= x.shape[0]:
        raise BadRequest(f"kth_largest: got k {k}, expected 1 to {x.shape[0]}", "kernel-shape")
    cdef float[::1] heap = np.empty(k, np.float32)
    return _core.op_table().kth(&x[0], x.shape[0], k, &heap[0])


def attention(q, k, v, pos, float scale, int window=0, float softcap=0.0, f16=False, int cap=0, int chunk=0, float sink=-np.inf):
    """Query rows q [N, Dh] (N <= 8) at ascending positions pos [N] over one head's keys and values k, v [T, Dh] -> [N, Dh].

    chunk, sink: as mg_attn and attention_finish have them. Lays k and v out as the engine does, in a ring of `cap` positions
    (0: T rounded up to whole tiles), f16 or f32.
    """
    q, k, v = (np.ascontiguousarray(a, np.float32) for a in (q, k, v))
    cdef int n = q.shape[0], dim = q.shape[1], total = k.shape[0], pad = (dim + 15) // 16 * 16, i, first, last
    cap = cap or (total + MG_TILE - 1) // MG_TILE * MG_TILE
    if not 1 <= n <= MG_QROWS or k.shape != v.shape or k.shape[1] != dim or len(pos) != n or max(pos) >= total or cap % MG_TILE:
        raise BadRequest("attention: shapes do not fit", "kernel-shape")
    dtype = np.float16 if f16 else np.float32
    keys, values = np.zeros((cap // 16, dim, 16), dtype), np.zeros((cap, pad), dtype)
    for i in range(total):
        keys[i % cap // 16, :, i % 16] = k[i]
        values[i % cap, :dim] = v[i]
    cdef mg_attn a
    a.k, a.v = <void *><uintptr_t>keys.ctypes.data, <void *><uintptr_t>values.ctypes.data
    a.cap, a.dim, a.dim_pad, a.f32 = cap, dim, pad, not f16
    a.window, a.chunk, a.scale, a.softcap = window, chunk, scale, softcap
    a.value_dim, a.ldv, a.by_row = dim, pad, 0
    parts = np.zeros((2, MG_QROWS, MG_PART_HEAD + pad), np.float32)
    scratch, out = np.zeros(MG_QROWS * MG_SCORES, np.float32), np.zeros((n, dim), np.float32)
    cdef const float *rows[MG_QROWS]
    cdef float *into[MG_QROWS]
    cdef float *part[MG_QROWS]
    cdef int32_t at[MG_QROWS]
    for i in range(n):
        rows[i] = <const float *><uintptr_t>(q.ctypes.data + 4 * i * dim)
        into[i] = <float *><uintptr_t>(parts[0].ctypes.data + 4 * i * (MG_PART_HEAD + pad))
        part[i] = <float *><uintptr_t>(parts[1].ctypes.data + 4 * i * (MG_PART_HEAD + pad))
        at[i] = pos[i]
    first, last = mg_oldest(&a, at[0]) // MG_CHUNK, at[n - 1] // MG_CHUNK
    cdef float *s = <float *><uintptr_t>scratch.ctypes.data
    _core.op_table().attention(&a, n, rows, at, first * MG_CHUNK, into, s)
    for c in range(first + 1, last + 1):
        _core.op_table().attention(&a, n, rows, at, c * MG_CHUNK, part, s)
        for i in range(n):
            _core.op_table().attention_fold(into[i], part[i], pad)
    for i in range(n):
        _core.op_table().attention_finish(into[i], dim, sink, <float *><uintptr_t>(out.ctypes.data + 4 * i * dim))
    return out
