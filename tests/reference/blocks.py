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


def softplus(x):
    return np.logaddexp(0, x, dtype=np.float64)


def xielu(x, alpha_p, alpha_n, beta, eps):
    """a x^2 + beta x above 0, b (expm1(min(x, eps)) - x) + beta x below, with a = softplus(alpha_p), b = beta + softplus(alpha_n)."""
    a, b = F32(softplus(alpha_p)), F32(beta + softplus(alpha_n))
    return np.where(x > 0, a * x * x + beta * x, b * (np.expm1(np.minimum(x, eps)) - x) + beta * x)


def act(name, x):
    """'silu', 'sigmoid', 'gelu_tanh': 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), or ('xielu', its four values)."""
    if isinstance(name, tuple):
        return xielu(x, *name[1])
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


def attention(q, k, v, scale, window=0, softcap=0.0, chunk=0, sinks=None, seen=None):
    """q [T, H, Dh] are the last T of S positions, k and v [S, G, ...] -> [T, H * Dv]. Causal; window W: keys i-W < j <= i;
    chunk C: keys of the query's own chunk; sinks [H]: logits that join the softmax and have no value;
    seen [T, S]: a mask of its own."""
    (t, heads, dim), (s, groups, _) = q.shape, k.shape
    scores = np.einsum("tgrd,sgd->grts", q.reshape(t, groups, heads // groups, dim), k) * F32(scale)
    if softcap:
        scores = F32(softcap) * np.tanh(scores / F32(softcap))
    i, j = np.arange(s - t, s)[:, None], np.arange(s)[None, :]
    visible = (j <= i) & (j > i - window) if window else (j <= i) & (j // chunk == i // chunk) if chunk else j <= i
    visible = visible if seen is None else visible & seen
    scores = np.where(visible, scores, F32(-np.inf))
    if sinks is not None:
        sink = np.broadcast_to(sinks.reshape(groups, -1, 1, 1), (*scores.shape[:3], 1))
        scores = np.concatenate([scores, sink], axis=-1)
    p = softmax(scores)[..., :s]
    return np.einsum("grts,sgd->tgrd", p, v).reshape(t, -1)


def index_scores(q, k, w, scale):
    """q [T, H, Dh], k [N, Dh], w [T, H] -> scale * sum over heads of w * relu(q . k), [T, N]."""
    return F32(scale) * np.einsum("thn,th->tn", np.maximum(np.einsum("thd,nd->thn", q, k), 0), w)


def gate_heads(y, g):
    """y [T, H * Dv], what each head gave, times sigmoid(g), g [T, H]."""
    return (y.reshape(*g.shape, -1) * sigmoid(g)[..., None]).reshape(y.shape)


def temperature(positions, a, n, first):
    """Factors on q [T]: 1 + a log(1 + floor((i + first) / n))."""
    return (1 + a * np.log(1 + (positions + first) // n)).astype(F32)


def gated(name, g, u):
    """act(g) * u; 'silu_cut' (maple) and 'swiglu_oai' (gpt-oss) cut both at 7, the latter counts u from -1."""
    if name not in ("swiglu_oai", "silu_cut"):
        return act(name, g) * u
    g, u = np.minimum(g, F32(7)), np.clip(u, F32(-7), F32(7))
    if name == "silu_cut":
        return act("silu", g) * u
    return g * sigmoid(F32(1.702) * g) * (u + 1)


def mlp(x, gate, up, down, name, gate_bias=None, up_bias=None, down_bias=None):
    """down(act(gate x) * up x), without gate down(act(up x))."""
    h = linear(x, up, up_bias)
    h = act(name, h) if gate is None else gated(name, linear(x, gate, gate_bias), h)
    return linear(h, down, down_bias)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def largest(x, k):
    """Indices of the k largest of the last axis, descending; ties to the lowest."""
    return np.argsort(-x, axis=-1, kind="stable")[..., :k]


def within_groups(choice, n_group, top_group, two):
    """choice [T, E], -inf outside the top_group groups of E / n_group experts with the largest maximum, or sum of the two largest."""
    groups = choice.reshape(len(choice), n_group, -1)
    score = np.sort(groups, axis=-1)[..., -2 if two else -1:].sum(axis=-1)
    kept = np.zeros(score.shape, bool)
    np.put_along_axis(kept, largest(score, top_group), True, axis=-1)
    return np.where(kept[..., None], groups, F32(-np.inf)).reshape(choice.shape)


def sparsemixer(logits, top_k, jitter):
    """Phi-MoE: rank by rank the largest logit left, weighed by its softmax over those left within a relative margin of 2 jitter."""
    left, ids, weights = logits.copy(), [], []
    for _ in range(top_k):
        best = largest(left, 1)
        top = np.take_along_axis(left, best, -1)
        near = (top - logits) / np.maximum(np.abs(logits), top) <= F32(2 * jitter)
        weights.append(np.take_along_axis(softmax(np.where(near, left, F32(-np.inf))), best, -1))
        np.put_along_axis(left, best, F32(-np.inf), -1)
        ids.append(best)
    return np.concatenate(ids, -1), np.concatenate(weights, -1)


def route(logits, top_k, *, score="softmax", select_bias=None, n_group=1, top_group=1, group_score="max", renormalise=False,
          sum_eps=0.0, sum_min=0.0, scale=1.0, expert_scale=None, jitter=0.0):
    """logits [T, E] -> ids [T, K] by descending choice, weights [T, K]. The bias counts for the choice, not for the weights."""
    if score == "sparsemixer":
        ids, w = sparsemixer(logits, top_k, jitter)
    else:
        p = softmax(logits) if score == "softmax" else sigmoid(logits)
        if select_bias is None and n_group == 1:
            ids = largest(logits, top_k)
        else:
            choice = p if select_bias is None else p + select_bias
            ids = largest(choice if n_group == 1 else within_groups(choice, n_group, top_group, group_score == "top2"), top_k)
        w = np.take_along_axis(p, ids, axis=-1)
    if renormalise:
        w = w / np.maximum(w.sum(axis=-1, keepdims=True) + F32(sum_eps), F32(sum_min))
    w = w * F32(scale)
    return ids, w if expert_scale is None else w * expert_scale[ids]


def moe(x, ids, weights, expert, name, weigh_input=False):
    """Sum over the K chosen experts of weight * mlp(x), or mlp(weight * x); expert(e) -> (gate, up, down[, their biases])."""
    y = np.zeros_like(x)
    for e in np.unique(ids):
        rows, ranks = np.nonzero(ids == e)
        gate, up, down, *biases = expert(e)
        w = weights[rows, ranks, None]
        y[rows] += mlp(w * x[rows], gate, up, down, name, *biases) if weigh_input else w * mlp(x[rows], gate, up, down, name, *biases)
    return y
