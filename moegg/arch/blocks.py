"""Kinds of blocks a layer is made of: norms, attention, feed-forward nets. Each is a kernel, a reference and, with state, a rule."""
from __future__ import annotations

from dataclasses import dataclass

from moegg.arch.rope import Rope
from moegg.arch.tensors import Tensor


@dataclass(frozen=True)
class Norm:
    """In f32: y = x / sqrt(mean(x^2) + eps) * w; kind 'layer': the same of x - mean(x), then + bias. weight None: w = 1."""
    weight: Tensor | None
    eps: float
    kind: str = "rms"
    bias: Tensor | None = None


@dataclass(frozen=True)
class Indexer:
    """Chooses the keys that a query sees: blocks of `ratio` neighbours, of the complete ones the budget / ratio best (ties: lowest), and
    the incomplete one. score = scale * sum over heads h of w_h relu(iq_h . ik), w = weights x, or 1; iq = rope(norm(q y)), ik =
    rope(norm(mean of k x)) at the block's first position. y: x, or the short query of latent attention. q [n_head dim, D or that],
    k [dim, D], weights [n_head, D]."""
    n_head: int
    dim: int
    budget: int
    ratio: int
    scale: float
    q: Tensor
    k: Tensor
    q_norm: Norm | None
    k_norm: Norm
    rope: Rope
    weights: Tensor | None = None

    @property
    def most(self) -> int:
        """Keys that a query sees at most."""
        return self.budget + self.ratio - 1


@dataclass(frozen=True)
class Gqa:
    """Grouped-query attention, causal. Query i sees keys j <= i; with a window W those of i-W < j, with a chunk C those of j // C == i // C.

    Norms of q and k come before rope (norm_last: after it) and are over each head, or over all of them if their weight is that wide;
    that of v is over each head. sinks [H]: a logit per head that joins its softmax and has no value. gate: the result times
    sigmoid(gate x). temperature (a, n, first): q of position i times 1 + a log(1 + (i + first) // n). v None: values are keys before norm and rope.
    kv_from: k and v are None, and the keys and values are those of that earlier layer.
    """
    n_head: int
    n_kv_head: int
    head_dim: int
    scale: float
    q: Tensor
    k: Tensor | None
    v: Tensor | None
    o: Tensor
    rope: Rope | None
    window: int = 0
    q_bias: Tensor | None = None
    k_bias: Tensor | None = None
    v_bias: Tensor | None = None
    o_bias: Tensor | None = None
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    softcap: float = 0.0
    chunk: int = 0
    sinks: Tensor | None = None
    gate: Tensor | None = None
    v_norm: Norm | None = None
    norm_last: bool = False
    temperature: tuple[float, int, int] | None = None
    kv_from: int | None = None
    indexer: Indexer | None = None

    def oldest(self, i: int) -> int:
        """The first position that query i sees."""
        return i - i % self.chunk if self.chunk else max(0, i - self.window + 1) if self.window else 0

    @property
    def span(self) -> int:
        """Positions that a query sees at most; 0: all before it."""
        return self.chunk or self.window

    @property
    def kept(self) -> tuple[int, int, int]:
        """(heads, values of a key, values of a value, padded to whole vectors) kept per position."""
        return self.n_kv_head, self.head_dim, -(-self.head_dim // 16) * 16

    @property
    def value_dim(self) -> int:
        """Values that attention sums up per head."""
        return self.head_dim


@dataclass(frozen=True)
class Xielu:
    """xIELU (arXiv 2411.13010) with values of its own, [1] each: a x^2 + beta x where x > 0, elsewhere b (exp(min(x, eps)) - 1 - x) + beta x,
    with a = softplus(alpha_p) and b = beta + softplus(alpha_n)."""
    alpha_p: Tensor
    alpha_n: Tensor
    beta: Tensor
    eps: Tensor


@dataclass(frozen=True)
class Mlp:
    """down(act(gate x) * up x), or down(act(up x)) without gate. act: 'silu', 'gelu_tanh', or, with g = gate x cut
    at 7 from above and u = up x at both sides, 'swiglu_oai' (gpt-oss): g sigmoid(1.702 g) (u + 1), and 'silu_cut' (maple): silu(g) u;
    without gate also one that has learned values."""
    gate: Tensor | None
    up: Tensor
    down: Tensor
    act: str | Xielu = "silu"
    gate_bias: Tensor | None = None
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None


@dataclass(frozen=True)
class PerLayerInputs:
    """Gemma's second embedding: one vector per layer and token, (norm(proj x / sqrt(D)) + table[token] sqrt(P)) / sqrt(2), where x is
    the embedded token, proj [L P, D], table [V, L P], norm [P]."""
    table: Tensor
    proj: Tensor
    norm: Norm


@dataclass(frozen=True)
class PerLayerGate:
    """What a layer makes of its vector v at its end: x += post_norm(proj(act(gate x) * v)); gate [P, D], proj [D, P]."""
    gate: Tensor
    proj: Tensor
    post_norm: Norm
    act: str = "gelu_tanh"
