"""Seed-OSS (text, dense): Llama with biases on q, k and v, and a key of its own for that on the output product.

Source: transformers 5.24 models/seed_oss. GGUF: llama.cpp's architecture "seed_oss", which calls the norm before the MLP post_attention_norm.
Not supported: partial_rotary_factor, activations other than silu and tanh-gelu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import Chat, ConfigReader, Layer, Model, read_rope
from moegg.models._decoder import IGNORED, ROPE_TENSORS, Decoder, gguf_decoder

NAMES = {
    "arch": "seed-oss", "hf": ("SeedOssForCausalLM",), "model_type": ("seed_oss",), "gguf": ("seed_oss",),
    "gguf_config_tensors": ROPE_TENSORS, "ignore": IGNORED,
}
CHAT = Chat(("<seed:eos>",), "function", ("<seed:think>", "</seed:think>"))


def describe(cfg: ConfigReader) -> Model:
    m = Decoder(cfg, "seed-oss", defaults={"head_dim": 128, "num_key_value_heads": 8})
    rope = read_rope(cfg, m.head_dim, m.ctx_train)
    qkv_bias, o_bias = cfg.bool("attention_bias", default=True), cfg.bool("attention_out_bias", default=False)
    mlp_bias = cfg.bool("mlp_bias", default=False)
    cfg.ignore("residual_dropout")
    layers = [Layer(m.attn_norm(i), m.attention(i, rope, qkv_bias=qkv_bias, o_bias=o_bias),
                    m.ffn_norm(i, "post_attention_norm"), m.mlp(i, mlp_bias))
              for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=False))


def tiny() -> dict[str, Any]:
    return {"model_type": "seed_oss", "vocab_size": 509, "hidden_size": 72, "num_hidden_layers": 3, "num_attention_heads": 6,
            "num_key_value_heads": 2, "head_dim": 20, "intermediate_size": 104, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
            "rope_theta": 1e7, "attention_bias": True, "attention_out_bias": False, "tie_word_embeddings": False}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, _ = gguf_decoder(meta)
    return config | {"attention_bias": "blk.0.attn_q.bias" in meta["tensor_names"]}
