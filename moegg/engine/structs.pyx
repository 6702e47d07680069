"""Fills the structs of kernels/csrc/exec.h: one function per kind of block, from its description and the addresses of its weights.

Arena owns the memory behind them. Shapes have been checked (loading.py); nothing here reads a weight.
"""
import ctypes
import math
from dataclasses import dataclass, field

import numpy as np

from libc.stdint cimport int32_t, int64_t, uint8_t, uintptr_t

from moegg.kernels.exec cimport *

from moegg.arch import DeltaNet, Lightning, Mamba, Ple, ShortConv, Xielu
from moegg.engine.state import pad16
from moegg.errors import UnsupportedModel
from moegg.planner import kv_positions
from moegg.quants import QUANTS

_KINDS = {"embed": MG_OP_EMBED, "norm": MG_OP_NORM, "linear": MG_OP_LINEAR, "rope_kv": MG_OP_ROPE_KV, "attention": MG_OP_ATTENTION,
          "add": MG_OP_ADD, "glu": MG_OP_GLU, "gate": MG_OP_GATE, "scale": MG_OP_SCALE, "per_layer": MG_OP_PER_LAYER, "route": MG_OP_ROUTE,
          "moe": MG_OP_MOE, "head": MG_OP_HEAD, "lookahead": MG_OP_LOOKAHEAD, "act": MG_OP_ACT, "heads": MG_OP_HEADS, "latent": MG_OP_LATENT,
          "gate_heads": MG_OP_GATE_HEADS, "conv": MG_OP_CONV, "matrix": MG_OP_MATRIX,
          "scan": MG_OP_SCAN, "repeat": MG_OP_REPEAT, "grouped_norm": MG_OP_GROUPED_NORM, "squash": MG_OP_SQUASH, "mix": MG_OP_MIX,
          "inject": MG_OP_INJECT, "ngram": MG_OP_NGRAM, "ple": MG_OP_PLE, "index": MG_OP_INDEX, "choose": MG_OP_CHOOSE, "sparse": MG_OP_SPARSE}
_ACTS = {"silu": MG_SILU, "gelu_tanh": MG_GELU_TANH, "sigmoid": MG_SIGMOID, "swiglu_oai": MG_SWIGLU_OAI, "silu_cut": MG_SILU_CUT}
_NORMS = {"rms": MG_NORM_RMS, "layer": MG_NORM_LAYER}
_SCORES = {"softmax": MG_SCORE_SOFTMAX, "sigmoid": MG_SCORE_SIGMOID, "sparsemixer": MG_SCORE_SPARSEMIXER}


@dataclass(frozen=True)
class WeightRef:
    """Where a tensor lies in memory. rows, cols: its matrix shape (1-D: rows = 1). file_at: where a gathered table, or a matrix
    that streams and has no address, lies in the file of the store that brings it in; tally: address of its mg_tally, or 0."""
    address: int
    quant: str
    rows: int
    cols: int
    gather: bool = False
    file_at: int = -1
    tally: int = 0


@dataclass(frozen=True)
class MoeRef:
    """Where the expert records of one layer lie, unless a store brings them in. slot: int32 [n]; parts: name ->
    (quant, rows, cols, offset); tallies: name -> address of its mg_tally, of those that have one."""
    base: int
    stride: int
    slot: np.ndarray
    parts: dict[str, tuple[str, int, int, int]]
    tallies: dict[str, int] = field(default_factory=dict)


class Arena:
    """Zeroed, 64-byte aligned memory that lives as long as its owner."""

    def __init__(self):
        self._keep = []
        self.nbytes = 0

    def take(self, nbytes: int) -> int:
        a = np.zeros(int(nbytes) + 64, np.uint8)
        self._keep.append(a)
        self.nbytes += int(nbytes)
        return (a.ctypes.data + 63) & ~63

    def keep(self, array: np.ndarray) -> int:
        self._keep.append(array)
        self.nbytes += array.nbytes
        return array.ctypes.data


def pad32(n: int) -> int:
    return -(-n // 32) * 32


cdef const float *vector(dict weights, tensor) except NULL:
    return <const float *><uintptr_t>weights[tensor.name].address


cdef int fill_norm(mg_norm *m, norm, dict weights) except -1:
    if norm is not None:
        m.kind, m.eps = _NORMS[norm.kind], norm.eps
        if norm.weight is not None:
            m.w = vector(weights, norm.weight)
        if norm.bias is not None:
            m.b = vector(weights, norm.bias)


cdef int fill_op(arena, mg_op *m, op, dict weights) except -1:
    """All but the pointers to layer structs."""
    m.kind, m.layer = _KINDS[op.kind], op.layer
    m.src, m.src2, m.src3, m.dst = op.src, op.src2, op.src3, op.dst
    m.n_mats = len(op.linears)
    for j, lin in enumerate(op.linears):
        m.mat_dst[j] = lin.dst
        fill_mat(&m.mat[j], weights, lin.weight, lin.bias)
    m.n, m.at, m.scale, m.softcap, m.keep, m.streams = op.n, op.at, op.scale, op.softcap, op.keep, op.streams
    fill_norm(&m.norm, op.norm, weights)
    if op.gate is not None:
        m.norm.w = vector(weights, op.gate)
    if op.heads:                                # the matrices of the heads follow one another
        m.heads, m.head_src, m.head_dst = op.heads, op.head_src, op.head_dst
        m.mat[0].rows //= op.heads
    if isinstance(op.act, Xielu):
        m.act, m.norm.w = MG_XIELU, xielu(arena, op.act, weights)
    elif op.act:
        m.act = _ACTS[op.act]


cdef float scalar(dict weights, tensor) except? -1:
    return (<const float *><uintptr_t>weights[tensor.name].address)[0]


cdef const float *xielu(arena, x, dict weights) except NULL:
    """a, b, beta and eps of csrc/ops.h: softplus in libm's doubles, each value rounded once, so the same everywhere."""
    beta = scalar(weights, x.beta)
    values = (softplus(scalar(weights, x.alpha_p)), beta + softplus(scalar(weights, x.alpha_n)), beta, scalar(weights, x.eps))
    return <const float *><uintptr_t>arena.keep(np.array(values, np.float32))


cdef double softplus(double x):
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


cdef int fill_mat(mg_mat *m, dict weights, weight, bias) except -1:
    ref = weights[weight.name]
    m.w, m.quant = <const uint8_t *><uintptr_t>ref.address, QUANTS[ref.quant].id
    m.rows, m.cols, m.gather, m.file_at = ref.rows, ref.cols, ref.gather, ref.file_at
    m.tally = <mg_tally *><uintptr_t>ref.tally
    if bias is not None:
        m.bias = vector(weights, bias)


cdef int fill_rope(arena, mg_rope *r, rope, int ctx) except -1:
    regimes = rope.regimes()
    r.n, r.half, r.interleaved = len(regimes), rope.dim // 2, rope.interleaved
    for i, (limit, inv, factor) in enumerate(regimes):
        # float32 angles as transformers computes them: position * inv_freq rounded once
        angle = np.arange(ctx, dtype=np.float32)[:, None] * np.asarray(inv, np.float32)[None, :]
        r.limit[i] = limit
        r.cosine[i] = <const float *><uintptr_t>arena.keep(np.ascontiguousarray(np.cos(angle) * np.float32(factor), np.float32))
        r.sine[i] = <const float *><uintptr_t>arena.keep(np.ascontiguousarray(np.sin(angle) * np.float32(factor), np.float32))


cdef bint wide(norm, int head_dim):
    return norm is not None and norm.weight is not None and norm.weight.shape[0] != head_dim


cdef int fill_attn(mg_attn_layer *l, a, int index, dict weights, kv, int ctx, int ubatch) except -1:
    l.n_head, l.n_kv, l.kv_index = a.n_head, a.n_kv_head, index
    l.shape.cap = kv_positions(a, ctx, ubatch)
    l.shape.dim, l.shape.dim_pad, l.shape.f32 = a.head_dim, pad16(a.head_dim), kv == "f32"
    l.shape.value_dim, l.shape.ldv = a.head_dim, l.shape.dim_pad
    l.shape.window, l.shape.chunk, l.shape.scale, l.shape.softcap = a.window, a.chunk, a.scale, a.softcap
    l.q_wide, l.k_wide = wide(a.q_norm, a.head_dim), wide(a.k_norm, a.head_dim)
    fill_norm(&l.q_norm, a.q_norm, weights)
    fill_norm(&l.k_norm, a.k_norm, weights)
    fill_norm(&l.v_norm, a.v_norm, weights)
    l.norm_last, l.k_is_v, l.shared = a.norm_last, a.v is None and a.k is not None, a.kv_from is not None
    if a.sinks is not None:
        l.sinks = vector(weights, a.sinks)


cdef int fill_latent(mg_attn_layer *l, a, int index, dict weights, kv, int ctx, int ubatch) except -1:
    """One row [c | kr] per position for all heads: keys by position, whose first values are the values."""
    l.n_head, l.n_kv, l.kv_index, l.nope, l.rope_dim = a.n_head, 1, index, a.nope, a.rope_dim
    l.shape.cap, l.shape.f32, l.shape.scale, l.shape.by_row = kv_positions(a, ctx, ubatch), kv == "f32", a.scale, 1
    l.shape.dim = l.shape.ldv = a.kept[1]
    l.shape.dim_pad = l.shape.value_dim = a.rank
    fill_norm(&l.k_norm, a.kv_norm, weights)


cdef const float *temperature(arena, tuple table, int ctx) except NULL:
    """Factors on q by position, [ctx]: 1 + a log(1 + (i + first) // n)."""
    a, n, first = table
    factors = (1 + a * np.log1p((np.arange(ctx) + first) // n)).astype(np.float32)
    return <const float *><uintptr_t>arena.keep(factors)


cdef int fill_indexer(mg_indexer *x, i, int index, dict weights, kv, int ctx) except -1:
    x.index, x.n_head, x.dim, x.budget, x.ratio = index, i.n_head, i.dim, i.budget, i.ratio
    x.weighed, x.f32, x.scale = i.weights is not None, i.ratio > 1 or kv == "f32", i.scale
    fill_norm(&x.q_norm, i.q_norm, weights)
    fill_norm(&x.k_norm, i.k_norm, weights)
    x.max_blocks = pad16(ctx // i.ratio + 1)


cdef int fill_ngram(arena, mg_ngram *g, m, dict weights) except -1:
    n = m.ngram
    first = weights[n.shards[0].name]
    g.size, g.heads, g.eos = len(n.multipliers), len(n.moduli) // (len(n.multipliers) - 1), n.eos
    g.quant, g.shard_rows, g.dim = QUANTS[first.quant].id, first.rows, first.cols
    if len({weights[t.name].quant for t in n.shards}) > 1:
        raise UnsupportedModel(f"{n.shards[0].name}: its shards have several quants; supported: one", "arch-unsupported")
    for i, x in enumerate(n.multipliers):
        g.multiplier[i] = x
    g.modulus = <const int64_t *><uintptr_t>arena.keep(np.array(n.moduli, np.int64))
    g.offset = <const int64_t *><uintptr_t>arena.keep(np.array(n.offsets, np.int64))
    g.shard = <const uint8_t *const *><uintptr_t>arena.keep(np.array([weights[t.name].address for t in n.shards], np.uintp))
    fill_norm(&g.norm_key, m.norm_key, weights)
    fill_norm(&g.norm_query, m.norm_query, weights)
    fill_norm(&g.norm_conv, m.norm_conv, weights)


cdef int fill_conv(mg_conv *v, conv, int buf, int64_t at, dict weights) except -1:
    v.w, v.buf, v.at = vector(weights, conv.weight), buf, at
    v.channels, v.taps, v.dilation, v.silu = conv.weight.shape[0], conv.weight.shape[1], conv.dilation, conv.silu
    if conv.bias is not None:
        v.bias = vector(weights, conv.bias)


cdef int fill_mixer(arena, mg_mixer_layer *l, m, int index, dict weights, dict buffers) except -1:
    """buffers: program.py's names of this mixer's buffers."""
    l.index, l.floats, l.pre, l.post = index, m.state_floats, buffers.get("pre", -1), buffers.get("post", -1)
    l.q, l.k, l.v, l.gate_buf = (buffers.get(name, -1) for name in ("q", "k", "v", "gate"))
    convs = (m.q_conv, m.k_conv, m.v_conv) if isinstance(m, DeltaNet) else () if isinstance(m, Lightning) else (m.conv,)
    for i, conv in enumerate(convs):
        fill_conv(&l.conv[i], conv, (l.q, l.k, l.v)[i] if len(convs) > 1 else l.v, l.matrix_at, weights)
        l.matrix_at += conv.state_floats
    l.n_conv = len(convs)
    if isinstance(m, (ShortConv, Ple)):
        return 0
    if isinstance(m, Mamba):
        l.dv, l.states = m.a_log.shape
        l.a_log, l.d = vector(weights, m.a_log), vector(weights, m.d)
        l.b, l.c, l.dt = buffers["b"], buffers["c"], buffers["dt"]
        return 0
    l.n_head, l.norm, l.eps = m.n_head, vector(weights, m.norm.weight), m.norm.eps
    if isinstance(m, Lightning):
        l.n_key_head, l.dk, l.dv, l.whole_norm = m.n_head, m.head_dim, m.head_dim, 1
        l.fixed_decay = <const float *><uintptr_t>arena.keep(np.array(m.decays, np.float32))
        return 0
    l.n_key_head, l.dk, l.dv, l.delta, l.per_key = m.n_key_head, m.key_dim, m.value_dim, 1, m.decays > m.n_head
    l.tiled = m.tiled
    l.gate_silu, l.bounded, l.bound, l.q_scale = m.gate_act == "silu", m.bound != 0, m.bound, m.key_dim ** -0.5
    l.decay_buf, l.beta_buf, l.decay_bias = buffers["decay"], buffers["beta"], vector(weights, m.decay_bias)
    a_log = (ctypes.c_float * m.n_head).from_address(weights[m.a_log.name].address)
    rate = np.array([math.exp(min(a, 80.0)) for a in a_log], np.float32)     # libm's doubles, rounded once: the same everywhere
    l.decay_rate = <const float *><uintptr_t>arena.keep(np.repeat(rate, m.decays // m.n_head))


cdef int fill_moe(arena, mg_moe_layer *l, m, int index, dict weights, ref) except -1:
    r = m.router
    l.layer, l.index, l.n_expert, l.top_k = m.experts.layer, index, m.experts.n, r.top_k
    l.width, l.act, l.weigh_input, l.adds = m.experts.width, _ACTS[m.act], m.weigh_input, m.adds
    l.score, l.renormalise, l.scale, l.jitter = _SCORES[r.score], r.renormalise, r.scale, r.jitter
    l.n_group, l.top_group, l.group_sum, l.sum_eps, l.sum_min = r.n_group, r.top_group, r.group_score == "top2", r.sum_eps, r.sum_min
    fill_mat(&l.router, weights, r.weight, r.bias)
    if r.select_bias is not None:
        l.select_bias = vector(weights, r.select_bias)
    if r.expert_scale is not None:
        l.expert_scale = vector(weights, r.expert_scale)
    for i, name in enumerate(("gate", "up", "down")):
        quant, l.part[i].rows, l.part[i].cols, l.part_offset[i] = ref.parts[name]
        l.part[i].quant = QUANTS[quant].id
        l.bias_offset[i] = ref.parts[f"{name}_bias"][3] if f"{name}_bias" in ref.parts else 0
        l.part[i].tally = <mg_tally *><uintptr_t>ref.tallies.get(name, 0)
    l.base, l.stride = <const uint8_t *><uintptr_t>ref.base, ref.stride
    l.slot = <const int32_t *><uintptr_t>arena.keep(np.ascontiguousarray(ref.slot, np.int32))
