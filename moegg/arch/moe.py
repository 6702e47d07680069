"""Mixture of experts: which experts a token gets (Router), and what they and the shared ones make of it (Moe)."""
from __future__ import annotations

from dataclasses import dataclass

from moegg.arch.blocks import Mlp, Norm
from moegg.arch.tensors import Experts, Tensor

MAX_GROUPS = 64                     # kernels/csrc/exec.h


@dataclass(frozen=True)
class Router:
    """Logits weight x + bias of E experts -> the top_k of them and their weights. weight [E, D], bias [E].

    score: 'softmax' over all experts or 'sigmoid' of each. The largest score + select_bias are chosen (ties: lowest id), from the
    top_group of n_group groups of neighbours; a group counts as its best expert ('max') or as its two best together ('top2').
    Weights are scores without that bias; renormalise: divided by max(their sum + sum_eps, sum_min); then times scale and
    expert_scale [E]. Renormalised, the softmax over all experts is the softmax over those chosen, which is no kind of its own.
    'sparsemixer' (Phi-MoE): rank by rank the largest logit left, weighed by its softmax over the ones left that are within 2 * jitter
    of it, relative to the larger size of both.
    """
    weight: Tensor
    top_k: int
    score: str = "softmax"
    renormalise: bool = True
    scale: float = 1.0
    bias: Tensor | None = None
    select_bias: Tensor | None = None
    expert_scale: Tensor | None = None
    n_group: int = 1
    top_group: int = 1
    group_score: str = "max"
    sum_eps: float = 0.0
    sum_min: float = 0.0
    jitter: float = 0.0


@dataclass(frozen=True)
class Moe:
    """Sum of weight * expert(x) over the chosen ones, or of expert(weight * x) where weigh_input; each is an Mlp of the parts gate,
    up, down and, if there, gate_bias, up_bias, down_bias of its record. shared: one more Mlp, added; times sigmoid(shared_gate . x)
    if there is a shared_gate [D].

    Gemma 4: the router reads router_scale * router_norm(r) and the experts norm(r) of the residual stream r, and both sums have a norm
    of their own, post_norm and shared_post_norm, before they are added.
    """
    router: Router
    experts: Experts
    act: str = "silu"
    weigh_input: bool = False
    shared: Mlp | None = None
    shared_gate: Tensor | None = None
    router_norm: Norm | None = None
    router_scale: float = 1.0
    norm: Norm | None = None
    post_norm: Norm | None = None
    shared_post_norm: Norm | None = None

    @property
    def adds(self) -> bool:
        """The experts' sum is added to what the shared one gave, without norms."""
        return self.shared is not None and self.shared_post_norm is None

    @property
    def top_k(self) -> int:
        return self.router.top_k
