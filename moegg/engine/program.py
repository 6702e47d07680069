"""Lowers an arch.Model to the flat op list of kernels/csrc/exec.h: which op, which tensors, which buffers. Pure data.

Buffers are [ubatch, width] floats; their widths are the widest use over all layers. A kind of block is one function in LOWER:
it reads the buffer it is told, which it must not change, and leaves its output in Y.
"""
from dataclasses import dataclass, field
from typing import Any

from moegg.arch import DeltaNet, Gqa, Lightning, LowRank, Mamba, Mixer, Mlp, Model, Moe, Norm, Rope, ShortConv, Tensor

X, XN, Q, K, V, ATT, Y, GATE, UP, BETA = range(10)   # residual, normed input, attention, block output, MLP halves, betas


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
    gate: Tensor | None = None
    scale: float = 1.0
    softcap: float = 0.0
    attn: Gqa | None = None
    kv_index: int = -1
    moe: Moe | None = None
    moe_index: int = -1
    mixer_index: int = -1


@dataclass
class Program:
    """ops in order; widths: floats per buffer; attn, moe: the layers with KV state and with experts, in order; mixers: those with a
    float state, and the names of their buffers."""
    model: Model
    ops: list[Op] = field(default_factory=list)
    widths: list[int] = field(default_factory=lambda: [0] * (BETA + 1))
    attn: list[Gqa] = field(default_factory=list)
    moe: list[Moe] = field(default_factory=list)
    mixers: list[tuple[Mixer, dict[str, int]]] = field(default_factory=list)

    def add(self, kind: str, **fields: Any) -> None:
        self.ops.append(Op(kind, **fields))

    def widen(self, width: int, *buffers: int) -> None:
        for b in buffers:
            self.widths[b] = max(self.widths[b], width)

    def mix(self, layer: int, mixer: Mixer, kinds: tuple[str, ...], out: int, **buffers: int) -> None:
        """The ops `kinds` of one mixer on these buffers, the last of which leave their result in `out`; then its output product."""
        for kind in kinds:
            self.add(kind, layer=layer, mixer_index=len(self.mixers))
        self.mixers.append((mixer, buffers))
        self.project(layer, out, (mixer.o, Y))

    def project(self, layer: int, src: int, *products: tuple[Tensor, int]) -> None:
        """Products of one buffer without biases: (weight, destination)."""
        self.add("linear", layer=layer, src=src, linears=tuple(Linear(w, None, dst) for w, dst in products))
        for w, dst in products:
            self.widen(w.shape[0], dst)

    @property
    def mixer_blocks(self) -> list[Mixer]:
        return [m for m, _ in self.mixers]

    @property
    def moe_layers(self) -> list[int]:
        return [m.experts.layer for m in self.moe]

    @property
    def ropes(self) -> list[Rope]:
        """The distinct rotary embeddings, in order of first use."""
        return list(dict.fromkeys(a.rope for a in self.attn if a.rope))


def lower(model: Model, lookahead: bool = False) -> Program:
    """The program of one forward pass. lookahead: before the attention of a layer with experts, guess which ones it will choose."""
    p, d = Program(model), model.d
    p.widen(d, X, XN, Y)
    p.add("embed", dst=X, linears=(Linear(model.embed, None, X),), scale=model.embed_scale)
    for i, layer in enumerate(model.layers):
        if lookahead and p.moe and isinstance(layer.ffn, Moe) and layer.ffn_norm:
            p.add("lookahead", layer=i, src=X, dst=XN, norm=layer.ffn_norm, n=d, moe=layer.ffn, moe_index=len(p.moe))
        source = X
        for norm, block, post in ((layer.attn_norm, layer.attn, layer.attn_post_norm), (layer.ffn_norm, layer.ffn, layer.ffn_post_norm)):
            if norm:
                p.add("norm", layer=i, src=X, dst=XN, norm=norm, n=d)
            if not layer.parallel or block is layer.attn:
                source = XN if norm else X
            LOWER[type(block)](p, i, block, source)
            p.add("add", layer=i, src=Y, dst=X, norm=post, n=d, scale=layer.scale)
    p.add("head", src=X, dst=XN, norm=model.final_norm, n=d, linears=(Linear(model.head or model.embed, None, -1),),
          softcap=model.logit_softcap, scale=model.logit_scale)
    return p


def _gqa(p: Program, i: int, a: Gqa, x: int) -> None:
    p.add("linear", layer=i, src=x, linears=(Linear(a.q, a.q_bias, Q), Linear(a.k, a.k_bias, K), Linear(a.v, a.v_bias, V)))
    p.add("rope_kv", layer=i, src=Q, src2=K, src3=V, attn=a, kv_index=len(p.attn))
    p.add("attention", layer=i, src=Q, dst=ATT, attn=a, kv_index=len(p.attn))
    if a.gate:
        p.widen(a.n_head * a.head_dim, GATE)
        p.add("linear", layer=i, src=x, linears=(Linear(a.gate, None, GATE),))
        p.add("glu", layer=i, src=GATE, src2=ATT, dst=ATT, act="sigmoid", n=a.n_head * a.head_dim)
    p.add("linear", layer=i, src=ATT, linears=(Linear(a.o, a.o_bias, Y),))
    p.attn.append(a)
    p.widen(a.n_head * a.head_dim, Q, ATT)
    p.widen(a.n_kv_head * a.head_dim, K, V)


def _mlp(p: Program, i: int, f: Mlp, x: int) -> None:
    width = f.up.shape[0]
    p.widen(width, GATE, UP)
    up = Linear(f.up, f.up_bias, UP)
    p.add("linear", layer=i, src=x, linears=(Linear(f.gate, f.gate_bias, GATE), up) if f.gate else (up,))
    if f.gate:
        p.add("glu", layer=i, src=GATE, src2=UP, dst=UP, act=f.act, n=width)
    else:
        p.add("act", layer=i, src=UP, dst=UP, act=f.act, n=width)
    p.add("linear", layer=i, src=UP, linears=(Linear(f.down, f.down_bias, Y),))


def _moe(p: Program, i: int, f: Moe, x: int) -> None:
    """Route, then the shared expert while records load, then the chosen experts on top."""
    p.add("route", layer=i, src=x, moe=f, moe_index=len(p.moe))
    if f.shared:
        _mlp(p, i, f.shared, x)
    if f.shared_gate:
        p.add("gate", layer=i, src=x, dst=Y, gate=f.shared_gate, n=p.model.d)
    p.add("moe", layer=i, src=x, dst=Y, moe=f, moe_index=len(p.moe))
    p.moe.append(f)


def _short_conv(p: Program, i: int, m: ShortConv, x: int) -> None:
    p.project(i, x, (m.b, Q), (m.c, K), (m.u, V))
    p.mix(i, m, ("conv",), V, v=V, pre=Q, post=K)


def _delta_net(p: Program, i: int, m: DeltaNet, x: int) -> None:
    p.project(i, x, (m.q, Q), (m.k, K), (m.v, V))
    p.project(i, x, (m.beta, BETA))
    for weight, dst in ((m.decay, UP), (m.gate, GATE)):
        if isinstance(weight, LowRank):
            p.project(i, x, (weight.down, ATT))
            p.project(i, ATT, (weight.up, dst))
        else:
            p.project(i, x, (weight, dst))
    p.mix(i, m, ("conv", "matrix"), V, q=Q, k=K, v=V, decay=UP, beta=BETA, gate=GATE)


def _lightning(p: Program, i: int, m: Lightning, x: int) -> None:
    p.project(i, x, (m.q, Q), (m.k, K), (m.v, V))
    p.project(i, x, (m.gate, GATE))
    p.mix(i, m, ("matrix",), V, q=Q, k=K, v=V, gate=GATE)


def _mamba(p: Program, i: int, m: Mamba, x: int) -> None:
    p.project(i, x, (m.x, V), (m.z, GATE))
    p.add("conv", layer=i, mixer_index=len(p.mixers))
    p.project(i, V, (m.dt, Q), (m.b, K), (m.c, ATT))
    for norm, buf in ((m.dt_norm, Q), (m.b_norm, K), (m.c_norm, ATT)):
        p.add("norm", layer=i, src=buf, dst=buf, norm=norm, n=norm.weight.shape[0])
    p.add("linear", layer=i, src=Q, linears=(Linear(m.dt_up, m.dt_bias, UP),))
    p.widen(m.dt_up.shape[0], UP)
    p.mix(i, m, ("scan",), V, v=V, dt=UP, b=K, c=ATT, gate=GATE)


LOWER = {Gqa: _gqa, Mlp: _mlp, Moe: _moe, ShortConv: _short_conv, DeltaNet: _delta_net, Lightning: _lightning, Mamba: _mamba}
