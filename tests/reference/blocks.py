"""One function per kind of block of moegg/arch, in f32 numpy, written from the formulas and independent of the engine.

Shapes: T tokens, S >= T keys, D hidden size, H/G query/KV heads, Dh head dim. Clarity before speed; no caching, no blocking.
"""
import numpy as np

F32 = np.float32


def rms_norm(x, w, eps):
    """x [..., N] -> x / sqrt(mean(x^2) + eps) * w; w None: 1."""
    y = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + F32(eps))
    return y if w is None else y * w


def layer_norm(x, w, b, eps):
    """x [..., N] -> (x - mean) / sqrt(variance + eps) * w + b; None: 1 and 0."""
    y = rms_norm(x - x.mean(axis=-1, keepdims=True), w, eps)
    return y if b is None else y + b


def linear(x, w, bias=None):
    """x [T, K], w [N, K] -> [T, N]."""
    y = x @ w.T
    return y if bias is None else y + bias


def act(name, x):
    """'silu', 'sigmoid', or 'gelu_tanh': 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    if name in ("silu", "sigmoid"):
        return (x if name == "silu" else 1) / (1 + np.exp(-x))
    assert name == "gelu_tanh", name
    return F32(0.5) * x * (1 + np.tanh(F32(np.sqrt(2 / np.pi)) * (x + F32(0.044715) * x * x * x)))


def rope(x, positions, inv_freq, factor, interleaved):
    """x [T, H, Dh]: rotate pair i of the first 2 * len(inv_freq) dimensions by positions * inv_freq[i]; scale by factor."""
    half = len(inv_freq)
    angle = positions.astype(F32)[:, None] * np.asarray(inv_freq, F32)
    cos, sin = (F32(factor) * f(angle)[:, None, :] for f in (np.cos, np.sin))
    first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(0, half), slice(half, 2 * half))
    a, b, out = x[..., first], x[..., second], x.copy()
    out[..., first], out[..., second] = a * cos - b * sin, b * cos + a * sin
    return out


def softmax(x):
    """Over the last axis."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def attention(q, k, v, scale, window=0, softcap=0.0, chunk=0, sinks=None):
    """q [T, H, Dh] are the last T of S positions, k and v [S, G, Dh] -> [T, H * Dh]. Causal; window W: keys i-W < j <= i;
    chunk C: keys of the query's own chunk; sinks [H]: logits that join the softmax and have no value."""
    (t, heads, dim), (s, groups, _) = q.shape, k.shape
    scores = np.einsum("tgrd,sgd->grts", q.reshape(t, groups, heads // groups, dim), k) * F32(scale)
    if softcap:
        scores = F32(softcap) * np.tanh(scores / F32(softcap))
    i, j = np.arange(s - t, s)[:, None], np.arange(s)[None, :]
    visible = (j <= i) & (j > i - window) if window else (j <= i) & (j // chunk == i // chunk) if chunk else j <= i
    scores = np.where(visible, scores, F32(-np.inf))
    if sinks is not None:
        sink = np.broadcast_to(sinks.reshape(groups, -1, 1, 1), (*scores.shape[:3], 1))
        scores = np.concatenate([scores, sink], axis=-1)
    p = softmax(scores)[..., :s]
    return np.einsum("grts,sgd->tgrd", p, v).reshape(t, heads * dim)


def temperature(positions, a, n):
    """Factors on q [T]: 1 + a log(1 + floor((i + 1) / n))."""
    return (1 + a * np.log(1 + (positions + 1) // n)).astype(F32)


def mlp(x, gate, up, down, name, gate_bias=None, up_bias=None, down_bias=None):
    """down(act(gate x) * up x), without gate down(act(up x))."""
    h = linear(x, up, up_bias)
    h = act(name, h) if gate is None else act(name, linear(x, gate, gate_bias)) * h
    return linear(h, down, down_bias)


def route(x, router, top_k, renormalise, scale=1.0):
    """x [T, D], router [E, D] -> ids [T, K] by descending weight (ties: lowest id), weights [T, K]. Softmax over all E."""
    p = softmax(linear(x, router))
    ids = np.argsort(-p, axis=-1, kind="stable")[:, :top_k]
    w = np.take_along_axis(p, ids, axis=-1)
    return ids, (w / w.sum(axis=-1, keepdims=True) if renormalise else w) * F32(scale)


def moe(x, ids, weights, expert, name):
    """Sum over the K chosen experts of weight * mlp; expert(e) -> (gate, up, down)."""
    y = np.zeros_like(x)
    for e in np.unique(ids):
        rows, ranks = np.nonzero(ids == e)
        y[rows] += weights[rows, ranks, None] * mlp(x[rows], *expert(e), name)
    return y
