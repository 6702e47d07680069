"""Lowers an arch.Model to the flat op list of kernels/csrc/exec.h: which op, which tensors, which buffers. Pure data.

Buffers are [ubatch, width] floats; their widths are the widest use over all layers. A kind of block is one function in LOWER:
it reads the buffer it is told, which it must not change, and leaves its output in Y.
"""
from dataclasses import dataclass, field
from typing import Any

from moegg.arch import (
    DeltaNet,
    Gqa,
    Indexer,
    Lightning,
    LowRank,
    Mamba,
    Mixer,
    Mla,
    Mlp,
    Model,
    Moe,
    Norm,
    PerLayerGate,
    Ple,
    Rope,
    ShortConv,
    Streams,
    Tensor,
    Xielu,
)

# residual, normed input, attention, block output, MLP halves, betas, per-layer inputs and what goes into them, how streams take an output,
# queries for latents
X, XN, Q, K, V, ATT, Y, GATE, UP, BETA, INPUTS, TOKENS, INJECT, LAT = range(14)


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
    at: int = 0
    act: str | Xielu = ""
    gate: Tensor | None = None
    scale: float = 1.0
    softcap: float = 0.0
    keep: float = 1.0
    streams: int = 1
    attn_index: int = -1
    index_of: int = -1
    moe: Moe | None = None
    moe_index: int = -1
    mixer_index: int = -1
    ple: Ple | None = None
    heads: int = 0
    head_src: int = 0
    head_dst: int = 0


@dataclass
class Program:
    """ops in order; widths: floats per buffer; attn, moe: the layers with KV state and with experts, in order; readers: all attention
    layers and whose KV state they read; mixers: layers with a float state, and the names of their buffers; lookahead: see lower()."""
    model: Model
    ops: list[Op] = field(default_factory=list)
    widths: list[int] = field(default_factory=lambda: [0] * (LAT + 1))
    attn: list[Gqa | Mla] = field(default_factory=list)
    lookahead: bool = False
    readers: list[tuple[Gqa | Mla, int]] = field(default_factory=list)
    kv_of: dict[int, int] = field(default_factory=dict)         # layer -> index in attn
    reader_of: dict[int, int] = field(default_factory=dict)     # layer -> index in readers
    moe: list[Moe] = field(default_factory=list)
    mixers: list[tuple[Mixer | Ple, dict[str, int]]] = field(default_factory=list)

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

    def choose(self, layer: int, x: Indexer, src: int, short: int) -> None:
        """What the queries of a layer see: its index keys are kept, then blocks chosen. short: the buffer that index queries come from."""
        self.project(layer, src, (x.k, BETA), *([(x.weights, ATT)] if x.weights else []))
        self.project(layer, short, (x.q, UP))
        self.add("index", layer=layer, src=UP, src2=BETA, index_of=self.reader_of[layer])
        self.add("choose", layer=layer, src=UP, src3=ATT, index_of=self.reader_of[layer])

    def read(self, layer: int, s: Streams) -> None:
        """What a block reads of the streams, into XN; the factors of its output into INJECT."""
        n, d = self.model.streams, self.model.d
        self.add("grouped_norm", layer=layer, src=X, dst=UP, norm=s.norm, n=d, streams=n)
        self.widen(n * d, UP)
        self.project(layer, UP, (s.down, ATT), *([(s.inject, INJECT)] if s.inject else []))
        self.add("squash", layer=layer, dst=ATT, n=s.down.shape[0], streams=n)
        self.project(layer, ATT, (s.up, GATE))
        self.add("mix", layer=layer, src=UP, src2=GATE, dst=XN, n=d, streams=n)

    @property
    def ngrams(self) -> list[Ple]:
        return [m for m, _ in self.mixers if isinstance(m, Ple)]

    @property
    def mixer_blocks(self) -> list[Mixer | Ple]:
        return [m for m, _ in self.mixers]

    @property
    def moe_layers(self) -> list[int]:
        return [m.experts.layer for m in self.moe]

    @property
    def ropes(self) -> list[Rope]:
        """The distinct rotary embeddings, in order of first use."""
        return list(dict.fromkeys(r for a, _ in self.readers for r in (a.rope, a.indexer and a.indexer.rope) if r))


def lower(model: Model, lookahead: bool = False) -> Program:
    """The program of one forward pass. lookahead: before the FFN of a layer, but after what it needs itself was asked for, guess which
    experts the next layer will choose."""
    p, d = Program(model, lookahead=lookahead), model.d
    p.widen(d * model.streams, X)
    p.widen(d, XN, Y)
    p.add("embed", dst=X, linears=(Linear(model.embed, None, X),), scale=model.embed_scale)
    if inputs := model.per_layer:
        n, width = inputs.proj.shape[0], inputs.norm.weight.shape[0]
        p.widen(n, TOKENS, INPUTS)
        p.add("embed", dst=TOKENS, linears=(Linear(inputs.table, None, TOKENS),), scale=width ** 0.5)
        p.add("linear", src=X, linears=(Linear(inputs.proj, None, INPUTS),))
        p.add("per_layer", src=TOKENS, dst=INPUTS, norm=inputs.norm, n=width, at=n, scale=d ** -0.5)
    if model.streams > 1:
        p.add("repeat", dst=X, n=d, streams=model.streams)
    for i, layer in enumerate(model.layers):
        if layer.ple:
            _ple(p, i, layer.ple)
        source = X
        for part, (norm, block, post) in enumerate(((layer.attn_norm, layer.attn, layer.attn_post_norm),
                                                    (layer.ffn_norm, layer.ffn, layer.ffn_post_norm))):
            if isinstance(norm, Streams):
                p.read(i, norm)
                LOWER[type(block)](p, i, block, XN)
                p.add("inject", layer=i, src=Y, src2=INJECT, dst=X, n=d, streams=model.streams)
                continue
            if part and not isinstance(block, Moe):
                _lookahead(p, i)
            normed = X if layer.normed else XN
            if norm:
                p.add("norm", layer=i, src=X, dst=normed, norm=norm, n=d)
            if not layer.parallel or part == 0:
                source = normed if norm else X
            LOWER[type(block)](p, i, block, source)
            keep, scale = layer.normed[part] if layer.normed else (1.0, layer.scale)
            p.add("add", layer=i, src=Y, dst=X, norm=post, n=d, scale=scale, keep=keep)
        if layer.per_layer:
            _per_layer(p, i, layer.per_layer)
        if layer.out_scale:
            p.add("scale", layer=i, dst=X, gate=layer.out_scale, n=d)
    final = model.final_norm
    if isinstance(final, Streams):
        p.read(-1, final)
    p.add("head", src=XN if isinstance(final, Streams) else X, dst=Y if isinstance(final, Streams) else XN,
          norm=None if isinstance(final, Streams) else final, n=d, linears=(Linear(model.head or model.embed, model.head_bias, -1),),
          softcap=model.logit_softcap, scale=model.logit_scale)
    return p


def _lookahead(p: Program, i: int) -> None:
    """The next layer's router on what the residual stream is now. Y is free until an FFN writes it, the router's results once they are
    grouped by expert."""
    layer, after = p.model.layers[i], p.model.layers[i + 1] if i + 1 < len(p.model.layers) else None
    if not p.lookahead or after is None or not isinstance(f := after.ffn, Moe) or after.normed or layer.parallel:
        return
    if isinstance(norm := f.router_norm or after.ffn_norm, Norm):
        p.add("lookahead", layer=i, src=X, dst=Y, norm=norm, n=p.model.d, moe=f, moe_index=len(p.moe) + isinstance(layer.ffn, Moe),
              scale=f.router_scale)


def _ple(p: Program, i: int, m: Ple) -> None:
    n, d = p.model.streams, p.model.d
    p.widen(m.ngram.width, ATT)
    p.add("ngram", layer=i, dst=ATT, ple=m)
    p.project(i, ATT, (m.key, GATE), (m.value, Y))
    p.widen(n * d, UP)
    p.add("ple", layer=i, src=GATE, src2=Y, src3=UP, dst=X, n=d, streams=n, ple=m)
    p.add("conv", layer=i, mixer_index=len(p.mixers))
    p.mixers.append((m, {"v": GATE}))
    for src in (UP, GATE):
        p.add("add", layer=i, src=src, dst=X, n=n * d)


def _gqa(p: Program, i: int, a: Gqa, x: int) -> None:
    """A layer that shares another's keys and values makes queries alone."""
    own = [Linear(w, b, buf) for w, b, buf in ((a.q, a.q_bias, Q), (a.k, a.k_bias, K), (a.v, a.v_bias, V)) if w]
    if a.kv_from is None:
        p.kv_of[i] = len(p.attn)
        p.attn.append(a)
    index, wide = p.reader_of.setdefault(i, len(p.readers)), a.n_head * a.head_dim
    p.readers.append((a, p.kv_of[i if a.kv_from is None else a.kv_from]))
    p.widen(wide, Q, ATT)
    p.widen(a.n_kv_head * a.head_dim, K, V)
    p.add("linear", layer=i, src=x, linears=tuple(own))
    p.add("rope_kv", layer=i, src=Q, src2=K, src3=V, attn_index=index)
    if a.indexer:
        p.choose(i, a.indexer, x, x)
        p.add("sparse", layer=i, src=Q, dst=ATT, attn_index=index, index_of=index)
    else:
        p.add("attention", layer=i, src=Q, dst=ATT, attn_index=index)
    if a.gate:
        p.widen(wide, GATE)
        p.add("linear", layer=i, src=x, linears=(Linear(a.gate, None, GATE),))
        p.add("glu", layer=i, src=GATE, src2=ATT, dst=ATT, act="sigmoid", n=wide)
    p.add("linear", layer=i, src=ATT, linears=(Linear(a.o, a.o_bias, Y),))


def _mla(p: Program, i: int, a: Mla, x: int) -> None:
    """Queries to latents by head, attention over the rows that are kept, or were chosen, the sums back to values by head, and their gate."""
    h, head, row = a.n_head, a.nope + a.rope_dim, a.kept[1]
    down = Linear(a.q_down, a.q_down_bias, V) if a.q_down else Linear(a.q, None, Q)
    p.add("linear", layer=i, src=x, linears=(down, Linear(a.kv, a.kv_bias, K), *([Linear(a.gate, None, GATE)] if a.gate else [])))
    if a.q_down:
        p.widen(a.q_down.shape[0], V)
        p.add("norm", layer=i, src=V, dst=V, norm=a.q_norm, n=a.q_down.shape[0])
        p.add("linear", layer=i, src=V, linears=(Linear(a.q, None, Q),))
    index = p.reader_of.setdefault(i, len(p.readers))
    chooser = index if a.indexer else -1 if a.seen_from is None else p.reader_of[a.seen_from]
    if a.indexer:
        p.choose(i, a.indexer, x, V)
    p.add("latent", layer=i, src=Q, src2=K, dst=LAT, attn_index=index)
    p.add("heads", layer=i, src=Q, dst=LAT, linears=(Linear(a.k_up, None, LAT),), heads=h, head_src=head, head_dst=row)
    p.add("attention" if chooser < 0 else "sparse", layer=i, src=LAT, dst=ATT, attn_index=index, index_of=chooser)
    p.add("heads", layer=i, src=ATT, dst=Q, linears=(Linear(a.v_up, None, Q),), heads=h, head_src=a.rank, head_dst=a.v_dim)
    if a.gate:
        p.widen(h, GATE)
        p.add("gate_heads", layer=i, src=GATE, dst=Q, n=a.v_dim, streams=h)
    p.add("linear", layer=i, src=Q, linears=(Linear(a.o, a.o_bias, Y),))
    p.kv_of[i] = len(p.attn)
    p.readers.append((a, len(p.attn)))
    p.attn.append(a)
    p.widen(h * max(head, a.v_dim), Q)
    p.widen(h * row, LAT)
    p.widen(h * a.rank, ATT)
    p.widen(row, K)


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
    """Route, then the shared expert while records load, then the chosen experts on top, or beside it where both have a norm."""
    d, moe = p.model.d, {"layer": i, "moe": f, "moe_index": len(p.moe)}
    p.widen(d, Q, ATT)
    if f.router_norm:
        p.add("norm", layer=i, src=X, dst=ATT, norm=f.router_norm, n=d, scale=f.router_scale)
    p.add("route", src=ATT if f.router_norm else x, **moe)
    _lookahead(p, i)
    if f.shared:
        _mlp(p, i, f.shared, x)
    if f.shared_gate:
        p.add("gate", layer=i, src=x, dst=Y, gate=f.shared_gate, n=d)
    if f.shared_post_norm:
        p.add("norm", layer=i, src=Y, dst=Q, norm=f.shared_post_norm, n=d)
    if f.norm:
        p.add("norm", layer=i, src=X, dst=ATT, norm=f.norm, n=d)
    p.add("moe", src=ATT if f.norm else x, dst=Y, **moe)
    if f.post_norm:
        p.add("norm", layer=i, src=Y, dst=Y, norm=f.post_norm, n=d)
    if f.shared_post_norm:
        p.add("add", layer=i, src=Q, dst=Y, n=d)
    p.moe.append(f)


def _per_layer(p: Program, i: int, g: PerLayerGate) -> None:
    n = g.gate.shape[0]
    p.widen(n, GATE)
    p.add("linear", layer=i, src=X, linears=(Linear(g.gate, None, GATE),))
    p.add("glu", layer=i, src=GATE, src2=INPUTS, dst=GATE, act=g.act, n=n, at=i * n)
    p.add("linear", layer=i, src=GATE, linears=(Linear(g.proj, None, Y),))
    p.add("add", layer=i, src=Y, dst=X, norm=g.post_norm, n=p.model.d)


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


LOWER = {Gqa: _gqa, Mla: _mla, Mlp: _mlp, Moe: _moe, ShortConv: _short_conv, DeltaNet: _delta_net, Lightning: _lightning, Mamba: _mamba}
