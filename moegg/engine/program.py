"""Lowers an arch.Model to the flat op list of kernels/csrc/exec.h: which op, which tensors, which buffers. Pure data.

Buffers are [ubatch, width] floats; their widths are the widest use over all layers.
"""
from dataclasses import dataclass, field

from moegg.arch import Gqa, Model, Moe, Norm, Rope, Tensor

X, XN, Q, K, V, ATT, Y, GATE, UP = range(9)          # residual, normed input, attention, block output, MLP halves


@dataclass(frozen=True)
class Linear:
    """One product of an op: weight, optional bias, destination buffer."""
    weight: Tensor
    bias: Tensor | None
    dst: int


@dataclass(frozen=True)
class Op:
    """kind: a name of exec.h's enum without MG_OP_, lower case. Fields that a kind does not use stay at their defaults."""
    kind: str
    layer: int = -1
    src: int = 0
    src2: int = 0
    src3: int = 0
    dst: int = 0
    linears: tuple[Linear, ...] = ()
    norm: Norm | None = None
    n: int = 0
    act: str = ""
    scale: float = 1.0
    softcap: float = 0.0
    attn: Gqa | None = None
    kv_index: int = -1
    moe: Moe | None = None
    moe_index: int = -1


@dataclass
class Program:
    """ops in order; widths: floats per buffer; attn, moe: the layers with KV state and with experts, in order."""
    model: Model
    ops: list[Op] = field(default_factory=list)
    widths: list[int] = field(default_factory=lambda: [0] * (UP + 1))
    attn: list[Gqa] = field(default_factory=list)
    moe: list[Moe] = field(default_factory=list)

    @property
    def moe_layers(self) -> list[int]:
        return [m.experts.layer for m in self.moe]

    @property
    def ropes(self) -> list[Rope]:
        """The distinct rotary embeddings, in order of first use."""
        return list(dict.fromkeys(a.rope for a in self.attn if a.rope))


def lower(model: Model, lookahead: bool = False) -> Program:
    """The program of one forward pass. lookahead: before the attention of a layer with experts, guess which ones it will choose."""
    p = Program(model)

    def add(kind: str, **kw) -> None:
        p.ops.append(Op(kind, **kw))

    def widen(buf: int, width: int) -> None:
        p.widths[buf] = max(p.widths[buf], width)

    for buf in (X, XN, Y):
        widen(buf, model.d)
    add("embed", dst=X, linears=(Linear(model.embed, None, X),), scale=model.embed_scale)
    for i, layer in enumerate(model.layers):
        a, f = layer.attn, layer.ffn
        if lookahead and p.moe and isinstance(f, Moe):
            add("lookahead", layer=i, src=X, dst=XN, norm=layer.ffn_norm, n=model.d, moe=f, moe_index=len(p.moe))
        add("norm", layer=i, src=X, dst=XN, norm=layer.attn_norm, n=model.d)
        add("linear", layer=i, src=XN, linears=(Linear(a.q, a.q_bias, Q), Linear(a.k, a.k_bias, K), Linear(a.v, a.v_bias, V)))
        add("rope_kv", layer=i, src=Q, src2=K, src3=V, attn=a, kv_index=len(p.attn))
        add("attention", layer=i, src=Q, dst=ATT, attn=a, kv_index=len(p.attn))
        p.attn.append(a)
        for buf, heads in ((Q, a.n_head), (K, a.n_kv_head), (V, a.n_kv_head), (ATT, a.n_head)):
            widen(buf, heads * a.head_dim)
        add("linear", layer=i, src=ATT, linears=(Linear(a.o, a.o_bias, Y),))
        add("add", layer=i, src=Y, dst=X, norm=layer.attn_post_norm, n=model.d)
        add("norm", layer=i, src=X, dst=XN, norm=layer.ffn_norm, n=model.d)
        if isinstance(f, Moe):
            add("moe", layer=i, src=XN, dst=Y, moe=f, moe_index=len(p.moe))
            p.moe.append(f)
        else:
            width = f.gate.shape[0]
            widen(GATE, width)
            widen(UP, width)
            add("linear", layer=i, src=XN, linears=(Linear(f.gate, f.gate_bias, GATE), Linear(f.up, f.up_bias, UP)))
            add("glu", layer=i, src=GATE, src2=UP, dst=GATE, act=f.act, n=width)
            add("linear", layer=i, src=GATE, linears=(Linear(f.down, f.down_bias, Y),))
        add("add", layer=i, src=Y, dst=X, norm=layer.ffn_post_norm, n=model.d)
    add("head", src=X, dst=XN, norm=model.final_norm, n=model.d, linears=(Linear(model.head or model.embed, None, -1),),
        softcap=model.logit_softcap)
    return p
