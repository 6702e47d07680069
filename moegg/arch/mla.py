"""Multi-head latent attention: keys and values of all heads are made from one short vector per position, which alone is kept."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from moegg.arch.blocks import Indexer, Norm
from moegg.arch.rope import Rope
from moegg.arch.tensors import Tensor


@dataclass(frozen=True)
class Mla:
    """Causal attention over latents c [rank] and one rotated key kr [rope_dim] that all heads share: [c | kr] = kv x, c normed.

    A head's query is [nope | rope_dim] of q x, or of q norm(q_down x). Its keys are [K c | kr] and its values V c, with its [nope, rank]
    and [v_dim, rank] parts K and V of DeepSeek's kv_b. Absorbed, which is the one form here: scores (K^T q_nope) . c + q_rope . kr, and V
    is applied to the sum of latents. k_up [H * rank, nope] is K^T by head, v_up [H * v_dim, rank] is V by head.
    gate [H, D]: what head h gives times sigmoid((gate x)_h), before o. indexer: chooses what queries see; seen_from: they see what the
    indexer of that earlier layer chose.
    """
    n_head: int
    nope: int
    rope_dim: int
    rank: int
    v_dim: int
    scale: float
    q: Tensor
    kv: Tensor
    kv_norm: Norm
    k_up: Tensor
    v_up: Tensor
    o: Tensor
    rope: Rope | None
    q_down: Tensor | None = None
    q_norm: Norm | None = None
    q_down_bias: Tensor | None = None
    kv_bias: Tensor | None = None
    o_bias: Tensor | None = None
    gate: Tensor | None = None
    indexer: Indexer | None = None
    seen_from: int | None = None
    temperature: ClassVar[None] = None         # what only Gqa has
    kv_from: ClassVar[None] = None

    def oldest(self, i: int) -> int:
        """The first position that query i sees."""
        return 0

    @property
    def span(self) -> int:
        """Positions that a query sees at most; 0: all before it."""
        return 0

    @property
    def kept(self) -> tuple[int, int, int]:
        """(heads, values of a key, values of a value) kept per position: the row [c | kr], padded to whole vectors, is both."""
        return 1, -(-(self.rank + self.rope_dim) // 16) * 16, 0

    @property
    def value_dim(self) -> int:
        """Values that attention sums up per head."""
        return self.rank
