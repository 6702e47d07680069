"""Residual streams, n-gram embeddings and sparse attention, in f32 numpy, from the formulas.

Shapes: T tokens, B streams of D, X [T, B D].
"""
import numpy as np

from tests.reference.blocks import act, linear, rms_norm
from tests.reference.mixers import conv, sigmoid

F32 = np.float32


def grouped_norm(norm, weights, x, d):
    """Each D values of x [T, B D] normed apart, times the weights [B D]."""
    shape = x.shape
    return rms_norm(x.reshape(len(x), -1, d), weights[norm.weight.name].reshape(-1, d), norm.eps).reshape(shape)


def read(s, weights, x, d):
    """-> the block's input [T, D], and the factors [T, B] of its result (None without inject)."""
    n = grouped_norm(s.norm, weights, x, d)
    b = x.shape[1] // d
    gates = sigmoid(linear(act("silu", linear(n, weights[s.down.name]) / F32(b)), weights[s.up.name]))
    factors = F32(2) * sigmoid(linear(n, weights[s.inject.name]) / F32(b)) if s.inject else None
    return (gates * n).reshape(len(x), b, d).mean(1), factors


def write(x, y, factors):
    return x + (factors[:, :, None] * y[:, None, :]).reshape(x.shape)


def ngram_rows(g, ids, t):
    """The table rows of position t of the whole sequence `ids`."""
    def token(s):
        for k in range(1, s + 1):
            if t - k < 0 or (k < s and ids[t - k] == g.eos):
                return g.eos
        return ids[t - s]
    heads, mix, out = len(g.moduli) // (len(g.multipliers) - 1), int(ids[t]) * g.multipliers[0], []
    for n in range(2, len(g.multipliers) + 1):
        mix ^= int(token(n - 1)) * g.multipliers[n - 1]
        first = (n - 2) * heads
        out += [mix % g.moduli[h] + g.offsets[h] for h in range(first, first + heads)]
    return out


def ple(p, weights, x, d, ids, past):
    """X [T, B D] of the last T tokens of `ids` -> what is added to X, and the convolution's past."""
    table = np.concatenate([weights[t.name] for t in p.ngram.shards])
    e = np.stack([table[ngram_rows(p.ngram, ids, t)].reshape(-1) for t in range(len(ids) - len(x), len(ids))])
    key = grouped_norm(p.norm_key, weights, linear(e, weights[p.key.name]), d)
    product = (key * grouped_norm(p.norm_query, weights, x, d)).reshape(len(x), -1, d).sum(-1) / F32(np.sqrt(d))
    gate = np.sign(product) * np.sqrt(np.maximum(np.abs(product), F32(1e-6)))
    g = (sigmoid(gate)[:, :, None] * linear(e, weights[p.value.name])[:, None, :]).reshape(x.shape)
    y, past = conv(grouped_norm(p.norm_conv, weights, g, d), weights[p.conv.weight.name], None, True, past, p.conv.dilation)
    return g + y, past


def best(scores, k):
    """The k largest scores; ties go to the lowest index."""
    return np.argsort(-scores, kind="stable")[:k]


def chosen(scores, t, budget, ratio):
    """The keys that position t sees, as a mask over 0..t. scores: of the complete blocks."""
    n = (t + 1) // ratio
    seen = np.zeros(t + 1, bool)
    for b in best(scores[:n], min(budget // ratio, n)):
        seen[b * ratio:(b + 1) * ratio] = True
    seen[n * ratio:] = True
    return seen
