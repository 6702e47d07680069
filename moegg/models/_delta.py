"""The delta-rule mixers that several families share: where their sources keep them. No architecture.

Gated DeltaNet: `linear_attn.*`, q, k and v convolved by one conv1d over [q | k | v] channels, projections fused per key head (qkvz, ba)
or apart. KDA: every projection and convolution apart, decays per key channel.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import PAST_MAX, ConfigReader, Conv, DeltaNet, LowRank, Norm, Src, Tensor
from moegg.models._decoder import HEAD_MAX, SIZE_MAX, Decoder

DIM_MAX = 1 << 12


class DeltaSizes:
    """Heads and dims of Gated DeltaNet layers, by Qwen's keys. fused_ba: GGUF has decay and beta as one tensor, unless a file says otherwise."""

    def __init__(self, cfg: ConfigReader, *, fused_ba: bool = False, **defaults: int):
        def size(key: str, high: int) -> int:
            return cfg.int(key, low=1, high=high, **({"default": defaults[key]} if key in defaults else {}))
        self.keys, self.values = size("linear_num_key_heads", HEAD_MAX), size("linear_num_value_heads", HEAD_MAX)
        self.key_dim, self.value_dim = size("linear_key_head_dim", DIM_MAX), size("linear_value_head_dim", DIM_MAX)
        self.taps = cfg.int("linear_conv_kernel_dim", low=2, high=PAST_MAX + 1, default=4)
        self.tiled, self.fused_ba = cfg.bool("linear_value_heads_tiled", default=False), fused_ba
        if self.values % self.keys:
            raise cfg.wrong("linear_num_value_heads", f"{self.keys} key heads cannot share {self.values} value heads")

    def layer_types(self, m: Decoder, full: str = "full_attention") -> list[bool]:
        """Per layer: is it full attention? From layer_types, or every full_attention_interval-th."""
        interval = m.cfg.int("full_attention_interval", low=1, default=4)
        types = m.cfg.list("layer_types", of=(str,), default=[full if (i + 1) % interval == 0 else "linear_attention"
                                                             for i in range(m.n_layer)])
        if len(types) != m.n_layer:
            raise m.cfg.wrong("layer_types", f"it has {len(types)} entries for {m.n_layer} layers")
        if not set(types) <= {full, "full_attention", "linear_attention"}:
            raise m.cfg.refuse("layer_types", f"supported: linear_attention, {full}")
        return [t != "linear_attention" for t in types]


def gated_delta(m: Decoder, i: int, s: DeltaSizes, gate_act: str = "silu") -> DeltaNet:
    """Layer i's linear_attn, its projections fused per key head (in_proj_qkvz, in_proj_ba) or apart."""
    k_rows, v_rows, each = s.keys * s.key_dim, s.values * s.value_dim, s.values // s.keys
    wide = each * s.value_dim

    def find(name: str, shape: tuple[int, ...], role: str, *srcs: tuple[str, dict], gguf: tuple[Src, ...] = ()) -> Tensor:
        own = tuple(Src(f"{r}layers.{i}.linear_attn.{src}", **steps) for src, steps in srcs for r in m.roots)
        return Tensor(f"layers.{i}.mix.{name}", shape, role, own, gguf, i)

    def part(name: str, rows: int, first: int, fused_first: int, fused_rows: int) -> Tensor:
        gguf = (Src(f"blk.{i}.attn_gate.weight"),) if name == "gate" else (Src(f"blk.{i}.attn_qkv.weight", rows=(first, first + rows, 1)),)
        apart = ("in_proj_z.weight", {}) if name == "gate" else ("in_proj_qkv.weight", {"rows": (first, first + rows, 1)})
        each_key = {"rows": (fused_first, fused_first + fused_rows, 1), "groups": s.keys}
        return find(name, (rows, m.d), "attn", apart, ("in_proj_qkvz.weight", each_key), gguf=(*gguf, Src(f"blk.{i}.ssm_in.weight", **each_key)))

    def per_head(name: str, apart: str, first: int, gguf: str) -> Tensor:
        fused = ("in_proj_ba.weight", {"rows": (first, first + each, 1), "groups": s.keys})
        own, ba = Src(f"blk.{i}.{gguf}.weight"), Src(f"blk.{i}.ssm_ba.weight", rows=(first, first + each, 1), groups=s.keys)
        return find(name, (s.values, m.d), "attn", (f"{apart}.weight", {}), fused, gguf=(ba, own) if s.fused_ba else (own, ba))

    def taps(name: str, rows: int, first: int) -> Conv:
        steps = {"rows": (first, first + rows, 1), "squeeze": True}
        return Conv(find(f"{name}_taps", (rows, s.taps), "aux", ("conv1d.weight", steps), gguf=(Src(f"blk.{i}.ssm_conv1d.weight", **steps),)))

    norm = find("norm", (s.value_dim,), "norm", ("norm.weight", {}), gguf=(Src(f"blk.{i}.ssm_norm.weight"),))
    return DeltaNet(
        s.values, s.keys, s.key_dim, s.value_dim,
        part("q", k_rows, 0, 0, s.key_dim), part("k", k_rows, k_rows, s.key_dim, s.key_dim),
        part("v", v_rows, 2 * k_rows, 2 * s.key_dim, wide),
        taps("q", k_rows, 0), taps("k", k_rows, k_rows), taps("v", v_rows, 2 * k_rows),
        decay=per_head("decay", "in_proj_a", each, "ssm_alpha"), beta=per_head("beta", "in_proj_b", 0, "ssm_beta"),
        gate=part("gate", v_rows, 0, 2 * s.key_dim + wide, wide),
        decay_bias=find("decay_bias", (s.values,), "bias", ("dt_bias", {}), gguf=(Src(f"blk.{i}.ssm_dt.bias"),)),
        a_log=find("a_log", (s.values,), "aux", ("A_log", {}), gguf=(Src(f"blk.{i}.ssm_a", log=-1),)), norm=Norm(norm, m.eps),
        o=find("o", (m.d, v_rows), "attn", ("out_proj.weight", {}), gguf=(Src(f"blk.{i}.ssm_out.weight"),)), gate_act=gate_act,
        tiled=s.tiled)


def gguf_delta(meta: Mapping[str, Any], g: ConfigReader) -> dict[str, Any]:
    """Qwen's keys of Gated DeltaNet from '<arch>.ssm.*' of GGUF metadata; which layers it is, tensors say."""
    values = g.int("ssm.time_step_rank", low=1, high=HEAD_MAX)
    inner = g.int("ssm.inner_size", low=1, high=SIZE_MAX)
    if inner % values:
        raise g.wrong("ssm.inner_size", f"it is not a multiple of 'ssm.time_step_rank', {values}")
    full = [f"blk.{i}.attn_q.weight" in meta["tensor_names"] for i in range(g.int("block_count"))]
    return {"linear_num_key_heads": g.int("ssm.group_count", low=1), "linear_num_value_heads": values, "linear_value_head_dim": inner // values,
            "linear_key_head_dim": g.int("ssm.state_size", low=1), "linear_conv_kernel_dim": g.int("ssm.conv_kernel", low=1),
            "layer_types": ["full_attention" if f else "linear_attention" for f in full]}


def kda(m: Decoder, i: int, *, heads: int, dim: int, taps: int, low_rank: bool, hf: str, bound: float = 0.0) -> DeltaNet:
    """Layer i's KDA: heads of `dim` keys and values; low_rank: decay and gate go through [dim, D]. hf: its name in the layer."""
    wide = heads * dim

    def find(name: str, shape: tuple[int, ...], role: str, src: str, gguf: str, ones: tuple[int, ...] = (), log: int = 0) -> Tensor:
        return Tensor(f"layers.{i}.mix.{name}", shape, role, tuple(Src(f"{r}layers.{i}.{hf}.{src}", squeeze=bool(ones)) for r in m.roots),
                      (Src(f"blk.{i}.{gguf}", squeeze=bool(ones), ones=ones, log=log),), i)

    def factor(name: str, letter: str) -> Tensor | LowRank:
        if not low_rank:
            return find(name, (wide, m.d), "attn", f"{letter}_proj.weight", f"ssm_{letter}_a.weight")
        return LowRank(find(f"{name}_down", (dim, m.d), "attn", f"{letter}_a_proj.weight", f"ssm_{letter}_a.weight"),
                       find(f"{name}_up", (wide, dim), "attn", f"{letter}_b_proj.weight", f"ssm_{letter}_b.weight"))

    q, k, v = (find(x, (wide, m.d), "attn", f"{x}_proj.weight", f"attn_{x}.weight") for x in "qkv")
    convs = [Conv(find(f"{x}_taps", (wide, taps), "aux", f"{x}_conv1d.weight", f"ssm_conv1d_{x}.weight", ones=(0, 2))) for x in "qkv"]
    beta, bias = find("beta", (heads, m.d), "attn", "b_proj.weight", "ssm_beta.weight"), find("decay_bias", (wide,), "bias", "dt_bias", "ssm_dt.bias")
    return DeltaNet(heads, heads, dim, dim, q, k, v, *convs, decay=factor("decay", "f"), beta=beta, gate=factor("gate", "g"), decay_bias=bias,
                    a_log=find("a_log", (heads,), "aux", "A_log", "ssm_a", ones=(0, 1, 3), log=1 if bound else -1),
                    norm=Norm(find("norm", (dim,), "norm", "o_norm.weight", "ssm_norm.weight"), m.eps),
                    o=find("o", (m.d, wide), "attn", "o_proj.weight", "attn_output.weight"), gate_act="sigmoid", bound=bound)
