"""Layer and Model: how blocks make a decoder, and what can be derived from that alone (tensor order, parameter counts)."""
from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from moegg.arch.blocks import Gqa, Mlp, Norm, PerLayerGate, PerLayerInputs
from moegg.arch.mixers import Mixer
from moegg.arch.mla import Mla
from moegg.arch.moe import Moe
from moegg.arch.rope import Rope
from moegg.arch.streams import Ple, Streams
from moegg.arch.tensors import Experts, Tensor


@dataclass(frozen=True)
class Layer:
    """x += scale * post(attn(norm(x))); then the same with ffn. Without a norm the block reads x, or, if the layer is parallel, ffn reads
    what attn did. The post norms are optional. Then come per_layer and x *= out_scale [1], if there.

    normed ((alpha, beta) of attn, of ffn): x = norm(x); x = alpha x + beta attn(x); and so on. With Streams in place of norms, x is
    several streams that they read and write; `ple` is added to them first.
    """
    attn_norm: Norm | Streams | None
    attn: Gqa | Mla | Mixer
    ffn_norm: Norm | Streams | None
    ffn: Mlp | Moe
    attn_post_norm: Norm | None = None
    ffn_post_norm: Norm | None = None
    scale: float = 1.0
    parallel: bool = False
    per_layer: PerLayerGate | None = None
    out_scale: Tensor | None = None
    normed: tuple[tuple[float, float], tuple[float, float]] | None = None
    ple: Ple | None = None


@dataclass(frozen=True)
class Model:
    """A whole decoder. head None: tied to the embedding. Logits are multiplied by logit_scale, then softcapped unless that is 0.
    streams: copies of the embedding that the residual begins with; then final_norm reads them."""
    arch: str
    d: int
    vocab: int
    ctx_train: int
    embed: Tensor
    layers: tuple[Layer, ...]
    final_norm: Norm | Streams
    head: Tensor | None = None
    embed_scale: float = 1.0
    logit_softcap: float = 0.0
    logit_scale: float = 1.0
    per_layer: PerLayerInputs | None = None
    streams: int = 1
    head_bias: Tensor | None = None

    def tensors(self) -> list[Tensor]:
        """All tensors outside expert records, in execution order: embedding, layers in field order, final norm, head."""
        out: list[Tensor] = [self.embed, *(walk(self.per_layer) if self.per_layer else ())]
        for layer in self.layers:
            out += walk(layer)
        out += walk(self.final_norm)
        return out + [t for t in (self.head, self.head_bias) if t]

    def experts(self) -> list[Experts]:
        return [layer.ffn.experts for layer in self.layers if isinstance(layer.ffn, Moe)]

    def parameter_count(self) -> int:
        n = sum(math.prod(t.shape) for t in self.tensors())
        return n + sum(e.n * math.prod(p.shape) for e in self.experts() for p in e.parts)

    def active_count(self) -> int:
        """Parameters that one token touches: everything but a gathered embedding and the experts not chosen."""
        n = sum(math.prod(t.shape) for t in self.tensors() if not t.gather)
        return n + sum(layer.ffn.top_k * math.prod(p.shape) for layer in self.layers if isinstance(layer.ffn, Moe)
                       for p in layer.ffn.experts.parts)


def walk(node: Any) -> Iterator[Tensor]:
    """Tensors below a block, in field order; expert records are not tensors."""
    if isinstance(node, Tensor):
        yield node
    elif is_dataclass(node) and not isinstance(node, (Experts, Rope)):
        for f in fields(node):
            yield from walk(getattr(node, f.name))
    elif isinstance(node, tuple):
        for item in node:
            yield from walk(item)
