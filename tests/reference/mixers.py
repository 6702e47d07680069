"""Mixers that carry a state from token to token, in f32 numpy, one token at a time: the formulas as they are, nothing chunked.

Shapes: T tokens, C channels, H value heads, Hk key heads, Dk and Dv their dims, N states per channel. Every function takes the state
that earlier tokens left (None before the first) and returns it with the result.
"""
import numpy as np

from moegg.arch import DeltaNet, Lightning, LowRank, Mamba, ShortConv
from tests.reference.blocks import act, linear, rms_norm

F32 = np.float32


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softplus(x):
    """log(1 + exp(x)) without overflow."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def unit(x):
    """x [..., N] / sqrt(sum x^2 + 1e-6)."""
    return x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + F32(1e-6))


def conv(x, w, bias, silu, past, dilation=1):
    """x [T, C], w [C, taps]: y[t] = bias + sum_j w[:, j] x[t - (taps - 1 - j) * dilation], zeros before the start.
    past [(taps - 1) * dilation, C] -> y [T, C], past."""
    taps = w.shape[1]
    n = (taps - 1) * dilation
    past = np.zeros((n, x.shape[1]), F32) if past is None else past
    rows = np.concatenate([past, x])
    y = sum(rows[j * dilation:j * dilation + len(x)] * w[:, j] for j in range(taps))
    y = y if bias is None else y + bias
    return (act("silu", y) if silu else y), rows[len(rows) - n:]


def delta_rule(q, k, v, decay, beta, state, tiled=False):
    """q, k [T, Hk, Dk], v [T, H, Dv], decay [T, H, Dk or 1], beta [T, H] -> o [T, H, Dv], state [H, Dk, Dv].
    S = decay S; S += k (beta (v - S^T k))^T; o = S^T q / sqrt(Dk), with unit q and k. H / Hk value heads share a key head:
    neighbours, or, tiled, those that are Hk apart."""
    each = v.shape[1] // q.shape[1]
    q, k = (np.tile(unit(x), (1, each, 1)) if tiled else np.repeat(unit(x), each, axis=1) for x in (q, k))
    q = q * F32(q.shape[-1] ** -0.5)
    s = np.zeros((v.shape[1], q.shape[2], v.shape[2]), F32) if state is None else state
    out = np.zeros_like(v)
    for t in range(len(v)):
        s = s * decay[t][..., None]
        d = (v[t] - np.einsum("hkv,hk->hv", s, k[t])) * beta[t][:, None]
        s = s + k[t][..., None] * d[:, None]
        out[t] = np.einsum("hkv,hk->hv", s, q[t])
    return out, s


def lightning(q, k, v, decay, state):
    """q, k, v [T, H, D], decay [H] -> o [T, H, D], state [H, D, D]: S = decay S + k v^T; o = S^T q."""
    s = np.zeros((q.shape[1], q.shape[2], v.shape[2]), F32) if state is None else state
    out = np.zeros_like(v)
    for t in range(len(v)):
        s = s * np.asarray(decay, F32)[:, None, None] + k[t][..., None] * v[t][:, None]
        out[t] = np.einsum("hkv,hk->hv", s, q[t])
    return out, s


def selective_scan(x, dt, b, c, a_log, d, state):
    """x, dt [T, C], b, c [T, N], a_log [C, N], d [C] -> y [T, C], state [C, N]:
    h = exp(-dt exp(a_log)) h + dt b x; y = h c + d x. dt is positive."""
    h = np.zeros_like(a_log) if state is None else state
    out = np.zeros_like(x)
    for t in range(len(x)):
        h = np.exp(-dt[t][:, None] * np.exp(a_log)) * h + (dt[t] * x[t])[:, None] * b[t]
        out[t] = h @ c[t] + d * x[t]
    return out, h


def gated_norm(o, norm, eps, gate, name):
    """o, gate [..., N]: rms norm, then times silu or sigmoid of the gate."""
    return rms_norm(o, norm, eps) * (act("silu", gate) if name == "silu" else sigmoid(gate))


# --- whole blocks of moegg.arch -------------------------------------------------------------------------------------------

def mix(block, weights, x, state):
    """x [T, D] (normed) -> the block's output [T, D] and its state."""
    return _BLOCKS[type(block)](block, weights, x, state or {})


def _project(x, weights, weight):
    if isinstance(weight, LowRank):
        return _project(_project(x, weights, weight.down), weights, weight.up)
    return linear(x, weights[weight.name])


def _conv(c, weights, x, past):
    return conv(x, weights[c.weight.name], weights[c.bias.name] if c.bias else None, c.silu, past, c.dilation)


def _norm(n, weights, x):
    return rms_norm(x, weights[n.weight.name], n.eps)


def _short_conv(m, weights, x, state):
    b, c, u = (_project(x, weights, t) for t in (m.b, m.c, m.u))
    y, past = _conv(m.conv, weights, b * u, state.get("past"))
    return _project(c * y, weights, m.o), {"past": past}


def _delta_net(m, weights, x, state):
    new, parts = {}, []
    for name, heads, dim in (("q", m.n_key_head, m.key_dim), ("k", m.n_key_head, m.key_dim), ("v", m.n_head, m.value_dim)):
        y, new[name] = _conv(getattr(m, f"{name}_conv"), weights, _project(x, weights, getattr(m, name)), state.get(name))
        parts.append(y.reshape(len(x), heads, dim))
    f = (_project(x, weights, m.decay) + weights[m.decay_bias.name]).reshape(len(x), m.n_head, -1)
    rate = np.exp(weights[m.a_log.name])[:, None]
    decay = np.exp(F32(m.bound) * sigmoid(rate * f)) if m.bound else np.exp(-rate * softplus(f))
    o, new["s"] = delta_rule(*parts, decay, sigmoid(_project(x, weights, m.beta)), state.get("s"), m.tiled)
    gate = _project(x, weights, m.gate).reshape(o.shape)
    o = gated_norm(o, weights[m.norm.weight.name], m.norm.eps, gate, m.gate_act)
    return _project(o.reshape(len(x), -1), weights, m.o), new


def _lightning(m, weights, x, state):
    q, k, v = (act("silu", _project(x, weights, t)).reshape(len(x), m.n_head, m.head_dim) for t in (m.q, m.k, m.v))
    o, s = lightning(q, k, v, m.decays, state.get("s"))
    o = _norm(m.norm, weights, o.reshape(len(x), -1)) * sigmoid(_project(x, weights, m.gate))
    return _project(o, weights, m.o), {"s": s}


def _mamba(m, weights, x, state):
    u, past = _conv(m.conv, weights, _project(x, weights, m.x), state.get("past"))
    dt, b, c = (_norm(n, weights, _project(u, weights, t)) for t, n in ((m.dt, m.dt_norm), (m.b, m.b_norm), (m.c, m.c_norm)))
    dt = softplus(linear(dt, weights[m.dt_up.name], weights[m.dt_bias.name]))
    y, h = selective_scan(u, dt, b, c, weights[m.a_log.name], weights[m.d.name], state.get("h"))
    return _project(y * act("silu", _project(x, weights, m.z)), weights, m.o), {"past": past, "h": h}


_BLOCKS = {ShortConv: _short_conv, DeltaNet: _delta_net, Lightning: _lightning, Mamba: _mamba}
