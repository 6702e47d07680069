"""Helium 1 (text, dense): Llama with rope in pairs (2i, 2i+1).

Source: transformers 5.24 models/helium, whose output product is square: heads are as wide together as the hidden size.
Not supported: GGUF (llama.cpp has no name for it), partial_rotary_factor, activations other than silu and tanh-gelu.
"""
from typing import Any

from moegg.arch import Chat, ConfigReader, Layer, Model, read_rope
from moegg.models._decoder import IGNORED, Decoder

NAMES = {"arch": "helium", "hf": ("HeliumForCausalLM",), "model_type": ("helium",), "ignore": IGNORED}
CHAT = Chat(("</s>",))


def describe(cfg: ConfigReader) -> Model:
    m = Decoder(cfg, "helium", defaults={"head_dim": 128, "num_key_value_heads": 20}, eps_default=1e-8)
    rope, bias = read_rope(cfg, m.head_dim, m.ctx_train, interleaved=True), cfg.bool("attention_bias", default=False)
    if m.head_dim * m.n_head != m.d:
        raise cfg.refuse("head_dim", f"supported: hidden_size / num_attention_heads, {m.d} / {m.n_head}")
    mlp_bias = cfg.bool("mlp_bias", default=False)
    layers = [Layer(m.attn_norm(i), m.attention(i, rope, qkv_bias=bias), m.ffn_norm(i), m.mlp(i, mlp_bias)) for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=False))


def tiny() -> dict[str, Any]:
    return {"model_type": "helium", "vocab_size": 509, "hidden_size": 72, "num_hidden_layers": 3, "num_attention_heads": 6,
            "num_key_value_heads": 3, "head_dim": 12, "intermediate_size": 104, "max_position_embeddings": 512, "rms_norm_eps": 1e-8,
            "rope_theta": 1e5, "tie_word_embeddings": False}
