"""What LFM2's dense and MoE models share: short convolutions, attention, the dense MLP and their names in sources. No architecture.

The final norm is `embedding_norm`; gate, up and down are w1, w3 and w2. Refuses conv_bias.
"""
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from moegg.arch import PAST_MAX, Conv, Gqa, Layer, Mlp, Model, Moe, Rope, ShortConv, Src, Tensor, read_rope
from moegg.models._decoder import Decoder, kv_layers

DEFAULTS = {"vocab_size": 65536, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 128000}
UNUSED = ("conv_dim", "conv_dim_out", "conv_use_xavier_init", "block_dim", "block_mlp_init_scale", "block_norm_eps", "block_out_init_scale",
          "block_use_swiglu", "block_use_xavier_init", "num_heads", "use_pos_enc", "theta")       # of released configs; nothing reads them


def model(m: Decoder, types: list[str], ffn: Callable[[int], Mlp | Moe]) -> Model:
    """A decoder whose layers are of `types`; ffn(layer) -> Mlp or Moe."""
    if len(types) != m.n_layer:
        raise m.cfg.wrong("layer_types", f"it has {len(types)} entries for {m.n_layer} layers")
    if not set(types) <= {"full_attention", "conv"}:
        raise m.cfg.refuse("layer_types", "supported: full_attention, conv")
    rope = read_rope(m.cfg, m.head_dim, m.ctx_train, theta_default=1e6)
    m.cfg.expect("conv_bias", False)
    taps = m.cfg.int("conv_L_cache", low=2, high=PAST_MAX + 1, default=3)
    layers = [Layer(m.norm(i, "attn_norm", "operator_norm", "attn_norm"),
                    attention(m, i, rope) if types[i] == "full_attention" else short_conv(m, i, taps),
                    m.norm(i, "ffn_norm", "ffn_norm", "ffn_norm"), ffn(i)) for i in range(m.n_layer)]
    m.cfg.ignore(*UNUSED)
    whole = m.model(layers, tied=m.cfg.bool("tie_embedding", "tie_word_embeddings", default=True))
    final = replace(whole.final_norm.weight, hf=(Src("model.embedding_norm.weight"),),
                    gguf=(Src("token_embd_norm.weight"), Src("output_norm.weight")))
    return replace(whole, final_norm=replace(whole.final_norm, weight=final))


def short_conv(m: Decoder, i: int, taps: int) -> ShortConv:
    def third(name: str, n: int) -> Tensor:
        rows = (n * m.d, (n + 1) * m.d, 1)
        return Tensor(f"layers.{i}.conv.{name}", (m.d, m.d), "attn", (Src(f"model.layers.{i}.conv.in_proj.weight", rows=rows),),
                      (Src(f"blk.{i}.shortconv.in_proj.weight", rows=rows),), i)
    taps_ = Tensor(f"layers.{i}.conv.taps", (m.d, taps), "aux", (Src(f"model.layers.{i}.conv.conv.weight", squeeze=True),),
                   (Src(f"blk.{i}.shortconv.conv.weight", squeeze=True),), i)
    out = m.tensor(i, "conv.o", (m.d, m.d), "attn", "conv.out_proj.weight", "shortconv.out_proj.weight")
    return ShortConv(third("b", 0), third("c", 1), third("u", 2), out, Conv(taps_, silu=False))


def attention(m: Decoder, i: int, rope: Rope) -> Gqa:
    wide, narrow, dim = m.n_head * m.head_dim, m.n_kv_head * m.head_dim, m.head_dim
    q, k, v = (m.tensor(i, f"attn.{x}", (n, m.d), "attn", f"self_attn.{x}_proj.weight", f"attn_{x}.weight")
               for x, n in (("q", wide), ("k", narrow), ("v", narrow)))
    o = m.tensor(i, "attn.o", (m.d, wide), "attn", "self_attn.out_proj.weight", "attn_output.weight")
    return Gqa(m.n_head, m.n_kv_head, dim, dim ** -0.5, q, k, v, o, rope,
               q_norm=m.norm(i, "attn.q_norm", "self_attn.q_layernorm", "attn_q_norm", dim),
               k_norm=m.norm(i, "attn.k_norm", "self_attn.k_layernorm", "attn_k_norm", dim))


def mlp(m: Decoder, i: int, width: int) -> Mlp:
    gate, up, down = (m.tensor(i, f"ffn.{name}", shape, "dense", f"feed_forward.{w}.weight", f"ffn_{name}.weight")
                      for name, w, shape in (("gate", "w1", (width, m.d)), ("up", "w3", (width, m.d)), ("down", "w2", (m.d, width))))
    return Mlp(gate, up, down, "silu")


# --- GGUF ---------------------------------------------------------------------------------------------------------------

def kv_types(meta: Mapping[str, Any]) -> list[str] | None:
    """layer_types by the KV heads of each layer; None: all layers are attention."""
    full = kv_layers(meta)
    return full and ["full_attention" if f else "conv" for f in full]
