"""Multi-head latent attention as DeepSeek's checkpoints store it: sizes from a config, tensors by layer. No architecture.

GGUF keeps kv_b whole (older files), or as attn_k_b, transposed by head, and attn_v_b. The norms of latents have eps 1e-6 whatever the
config says (transformers 5.24). Refuses ranks and value sizes that are not multiples of 16.
"""
import math
from collections.abc import Mapping
from typing import Any

from moegg.arch import ConfigReader, Mla, Model, Norm, Rope, Src, Tensor
from moegg.models._decoder import HEAD_MAX, SIZE_MAX, Decoder, gguf_decoder

NORM_EPS = 1e-6


class Latent:
    """Sizes of the latent attention of one model, and its blocks by layer number. q_rank: the class default of q_lora_rank."""

    def __init__(self, m: Decoder, q_rank: int):
        cfg = m.cfg
        self.m, self.bias = m, cfg.bool("attention_bias", default=False)
        self.q_rank = cfg.int("q_lora_rank", low=1, high=SIZE_MAX, default=0 if cfg.given("q_lora_rank") else q_rank)
        self.rank, self.v_dim = cfg.int("kv_lora_rank", low=1, high=SIZE_MAX, default=512), cfg.int("v_head_dim", low=1, high=HEAD_MAX, default=128)
        self.nope = cfg.int("qk_nope_head_dim", low=1, high=HEAD_MAX, default=128)
        self.rope_dim = cfg.int("qk_rope_head_dim", low=2, high=HEAD_MAX, default=64)
        for key, value in (("kv_lora_rank", self.rank), ("v_head_dim", self.v_dim)):
            if value % 16:
                raise cfg.refuse(key, "supported: multiples of 16")
        if self.rope_dim % 2:
            raise cfg.wrong("qk_rope_head_dim", f"rope needs an even head dimension, got {self.rope_dim}")

    def scale(self, rope: Rope | None) -> float:
        """1 / sqrt(head dim), times m^2 of yarn: m = 0.1 mscale_all_dim ln factor + 1."""
        s = dict(rope.scaling) if rope else {}
        m = 0.1 * s.get("mscale_all_dim", 0.0) * math.log(max(s.get("factor", 1.0), 1.0)) + 1
        return (self.nope + self.rope_dim) ** -0.5 * m * m

    def attention(self, layer: int, rope: Rope | None, hf: str = "self_attn", out: str = "o_proj",
                  gate: str = "") -> Mla:
        """The block of one layer; hf: its name in the layer, out, gate: those of its output product and of its heads' gate, '' for none."""
        m, h, d = self.m, self.m.n_head, self.m.d
        head = self.nope + self.rope_dim

        def linear(name: str, shape: tuple[int, int], own: str, gguf: str, bias: bool) -> tuple[Tensor, Tensor | None]:
            return m.linear(layer, f"attn.{name}", shape, "attn", f"{hf}.{own}", gguf, bias)

        def half(name: str, shape: tuple[int, int], rows: tuple[int, int, int], gguf: str) -> Tensor:
            cut = {"rows": rows, "groups": h, "turn": name == "k_up"}
            own = tuple(Src(f"{r}layers.{layer}.{hf}.kv_b_proj.weight", **cut) for r in m.roots)
            return Tensor(f"layers.{layer}.attn.{name}", shape, "attn", own,
                          (Src(f"blk.{layer}.{gguf}.weight", flat=h), Src(f"blk.{layer}.attn_kv_b.weight", **cut)), layer)

        def norm(name: str, own: str, gguf: str, width: int) -> Norm:
            return Norm(m.tensor(layer, f"attn.{name}", (width,), "norm", f"{hf}.{own}.weight", f"{gguf}.weight"), NORM_EPS)

        q_down, q_down_bias, q_norm, source, name = None, None, None, d, ("q_proj", "attn_q")
        if self.q_rank:
            q_down, q_down_bias = linear("q_down", (self.q_rank, d), "q_a_proj", "attn_q_a", self.bias)
            q_norm, source, name = norm("q_norm", "q_a_layernorm", "attn_q_a_norm", self.q_rank), self.q_rank, ("q_b_proj", "attn_q_b")
        q, _ = linear("q", (h * head, source), *name, False)
        kv, kv_bias = linear("kv", (self.rank + self.rope_dim, d), "kv_a_proj_with_mqa", "attn_kv_a_mqa", self.bias)
        o, o_bias = linear("o", (d, h * self.v_dim), out, "attn_output", self.bias)
        gated = linear("gate", (h, d), gate, "attn_gate", False)[0] if gate else None
        return Mla(h, self.nope, self.rope_dim, self.rank, self.v_dim, self.scale(rope), q, kv,
                   norm("kv_norm", "kv_a_layernorm", "attn_kv_a_norm", self.rank),
                   half("k_up", (h * self.rank, self.nope), (0, self.nope, 1), "attn_k_b"),
                   half("v_up", (h * self.v_dim, self.rank), (self.nope, self.nope + self.v_dim, 1), "attn_v_b"),
                   o, rope, q_down, q_norm, q_down_bias, kv_bias, o_bias, gated)


# --- GGUF ---------------------------------------------------------------------------------------------------------------

def gguf_latent(meta: Mapping[str, Any]) -> tuple[dict[str, Any], ConfigReader]:
    """(config, g) as gguf_decoder() gives, with DeepSeek's keys of latent attention instead of head_dim."""
    arch = meta["general.architecture"]
    g = ConfigReader({k.partition(".")[2]: v for k, v in meta.items() if k.startswith(f"{arch}.")}, f"{arch}.", "GGUF metadata")
    rank, turned = g.int("attention.kv_lora_rank", low=1), g.int("rope.dimension_count", low=2)
    head, v_dim = (g.int(f"attention.{x}_length_mla", f"attention.{x}_length", low=1) for x in ("key", "value"))
    # the rest as for any decoder whose heads are as wide as what turns
    config, g = gguf_decoder({**meta, f"{arch}.attention.head_count_kv": g.int("attention.head_count", low=1),
                              f"{arch}.attention.key_length": turned, f"{arch}.attention.value_length": turned})
    del config["head_dim"]
    return config | {"q_lora_rank": g.int("attention.q_lora_rank", default=None), "kv_lora_rank": rank, "qk_rope_head_dim": turned,
                     "qk_nope_head_dim": head - turned, "v_head_dim": v_dim}, g


def gguf_yarn_config(config: dict[str, Any], g: ConfigReader) -> dict[str, Any]:
    """The config with DeepSeek's yarn, where cos and sin stay as they are and scores get the factor."""
    if config.get("rope_scaling", {}).get("rope_type") != "yarn":
        return config
    m = 10 * g.float("rope.scaling.yarn_log_multiplier", default=0.0)
    return config | {"rope_scaling": config["rope_scaling"] | ({"mscale": m, "mscale_all_dim": m} if m else {})}


def gguf_yarn_keys(model: Model) -> dict[str, Any]:
    """The way back."""
    scaling = dict(model.layers[0].attn.rope.scaling)
    if scaling.get("rope_type") != "yarn":
        return {}
    m = scaling["mscale_all_dim"]
    return {"rope.scaling.attn_factor": None, "rope.scaling.yarn_log_multiplier": 0.1 * m if m else None}
