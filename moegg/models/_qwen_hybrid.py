"""What Qwen's hybrids share: gated attention, layers of Gated DeltaNet between them, an MLP or experts with a gated shared one. No architecture.

Norm weights are stored as w - 1 (in GGUF as w), but for the one inside linear_attn. q_proj holds per head [q | gate]; the result of
attention is times sigmoid(gate); rope turns the first quarter of a head unless the config says otherwise. Text positions are equal on
all mrope axes, so that mrope is plain rope.
"""
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from moegg.arch import ConfigReader, Gqa, Layer, Mlp, Model, Moe, Rope, read_rope
from moegg.models._decoder import HARMLESS, gguf_decoder
from moegg.models._delta import DeltaSizes, gated_delta, gguf_delta
from moegg.models._moe import MoeDecoder, gguf_moe

DELTA_DEFAULTS = {"linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128}
MROPE = ("mrope_section", "mrope_interleaved")


def gated_attention(m: MoeDecoder, i: int, rope: Rope, bias: bool) -> Gqa:
    """GQA whose q_proj holds q and the gate of the result, head by head."""
    a, dim = m.attention(i, rope, qkv_bias=bias, o_bias=bias, qk_norm=True), m.head_dim

    def half(name: str, t, first: int):
        if t is None:
            return None
        steps = {"rows": (first, first + dim, 1), "groups": m.n_head}
        return replace(t, name=name, hf=tuple(replace(s, **steps) for s in t.hf), gguf=tuple(replace(s, **steps) for s in t.gguf))
    return replace(a, q=half(a.q.name, a.q, 0), q_bias=half(f"{a.q.name}_bias", a.q_bias, 0),
                   gate=half(f"layers.{i}.attn.gate", a.q, dim))


def experts(m: MoeDecoder, renormalise: bool) -> Callable[[int], Moe]:
    """The FFN of layer i: experts with a gated shared one."""
    n, top_k, width = m.moe_sizes(("num_experts", "num_local_experts"))
    shared = m.cfg.int("shared_expert_intermediate_size", low=1, default=512)
    return lambda i: Moe(m.router(i, n, top_k, renormalise=renormalise), m.experts(i, n, width), m.act,
                         shared=m.shared(i, shared, "mlp.shared_expert"), shared_gate=m.shared_gate(i))


def layers(m: MoeDecoder, rope: Rope, full: list[bool], sizes: DeltaSizes, ffn: Callable[[int], Mlp | Moe], gate_act: str = "silu") -> list[Layer]:
    """All layers: attention or Gated DeltaNet, then ffn(i)."""
    bias = m.cfg.expect("attention_bias", False)
    return [Layer(m.attn_norm(i),
                  gated_attention(m, i, rope, bias) if full[i] else gated_delta(m, i, sizes, gate_act),
                  m.ffn_norm(i, "post_attention_norm"), ffn(i)) for i in range(m.n_layer)]


def qwen3_5(cfg: ConfigReader, arch: str, ffn: Callable[[MoeDecoder], Callable[[int], Mlp | Moe]], defaults: dict[str, Any]) -> Model:
    """A Qwen3.5, alone or inside a vision wrapper; ffn(m): its FFN by layer number."""
    text, wrapped = cfg.path("text_config"), cfg.has("text_config")
    m = MoeDecoder(text, arch, plus_one=True, defaults=defaults, roots=("model.language_model.",) if wrapped else ("model.",))
    text.expect("hidden_act", "silu")
    text.expect("attn_output_gate", True)
    text.expect("mlp_only_layers", [])
    text.ignore("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mamba_ssm_dtype")
    text.child("rope_parameters").ignore(*MROPE)
    sizes = DeltaSizes(text, **DELTA_DEFAULTS)
    rope = read_rope(text, m.head_dim, m.ctx_train, partial=0.25)
    all_layers = layers(m, rope, sizes.layer_types(m), sizes, ffn(m))
    if wrapped:
        cfg.ignore(*HARMLESS, "vision_config", "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
        text.ignore("tie_word_embeddings")
    return m.model(all_layers, tied=cfg.bool("tie_word_embeddings", default=False))


# --- GGUF ---------------------------------------------------------------------------------------------------------------

def gguf_hybrid(meta: Mapping[str, Any]) -> tuple[dict[str, Any], ConfigReader]:
    """(config, g) as gguf_decoder() gives, of what all hybrids share; layers for multi-token prediction are not counted."""
    arch = meta["general.architecture"]
    blocks, extra = (ConfigReader(meta, where="GGUF metadata").int(f"{arch}.{k}", default=0) for k in ("block_count", "nextn_predict_layers"))
    config, g = gguf_decoder({**meta, f"{arch}.block_count": blocks - extra}, partial=True)
    g.ignore("rope.dimension_sections", "full_attention_interval", "nextn_predict_layers")
    return config | gguf_delta(meta, g), g


def gguf_experts(meta: Mapping[str, Any], g: ConfigReader) -> tuple[dict[str, Any], bool]:
    """(the keys of a hybrid's experts, are router weights renormalised)."""
    moe = gguf_moe(meta, g, norm=True)
    del moe["mlp_only_layers"]
    norm = moe.pop("norm_topk_prob")
    return moe | {"shared_expert_intermediate_size": g.int("expert_shared_feed_forward_length", low=1)}, norm


def tiled(config: dict[str, Any]) -> dict[str, bool]:
    """Qwen3.5's files have their value heads apart by the number of key heads, where those differ."""
    return {"linear_value_heads_tiled": config["linear_num_key_heads"] != config["linear_num_value_heads"]}


def gguf_hybrid_keys(model: Model) -> dict[str, Any]:
    """The keys of all hybrids: which layers are attention is an interval, not an array of KV heads."""
    at, full = next((i, x.attn) for i, x in enumerate(model.layers) if isinstance(x.attn, Gqa))
    return {"full_attention_interval": at + 1, "attention.head_count_kv": full.n_kv_head}


def gguf_mrope_keys(model: Model) -> dict[str, Any]:
    """Those, and Qwen3.5's sections of pairs, by axes whose positions are equal in text."""
    pairs = next(x.attn for x in model.layers if isinstance(x.attn, Gqa)).rope.dim // 2
    return gguf_hybrid_keys(model) | {"rope.dimension_sections": [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3, 0]}
