"""Kinds of blocks a layer is made of: norms, attention, feed-forward nets. Each is a kernel, a reference and, with state, a rule."""
from __future__ import annotations

from dataclasses import dataclass

from moegg.arch.rope import Rope
from moegg.arch.tensors import Experts, Tensor


@dataclass(frozen=True)
class Norm:
    """y = x / sqrt(mean(x^2) + eps) * w in f32."""
    weight: Tensor
    eps: float


@dataclass(frozen=True)
class Gqa:
    """Grouped-query attention, causal; window W: query i sees keys i-W < j <= i (0 = all). Head norms before rope."""
    n_head: int
    n_kv_head: int
    head_dim: int
    scale: float
    q: Tensor
    k: Tensor
    v: Tensor
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


@dataclass(frozen=True)
class Mlp:
    """down(act(gate x) * up x). act: 'silu' or 'gelu_tanh'."""
    gate: Tensor
    up: Tensor
    down: Tensor
    act: str = "silu"
    gate_bias: Tensor | None = None
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None


@dataclass(frozen=True)
class Moe:
    """Routed experts. score: 'softmax' over all experts, then the top_k largest (ties: lowest id); renormalise: their
    weights are divided by their sum; then multiplied by `scale`. Each expert is an Mlp of `experts.parts` gate, up, down.
    """
    router: Tensor
    experts: Experts
    top_k: int
    act: str = "silu"
    score: str = "softmax"
    renormalise: bool = True
    scale: float = 1.0
