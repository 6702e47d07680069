"""Granite 3 (text, dense): Llama with four multipliers: on embeddings, on attention scores, on what a block adds, and on logits.

Source: transformers 5.24 models/granite; attention_multiplier replaces head_dim ** -0.5, logits are divided by logits_scaling.
GGUF: llama.cpp's architecture "granite"; its q and k rows are permuted for interleaved rope.
Not supported: partial_rotary_factor, activations other than silu and tanh-gelu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import ConfigReader, Layer, Model, read_rope
from moegg.models._chat import GRANITE
from moegg.models._decoder import IGNORED, ROPE_TENSORS, Decoder, gguf_decoder
from moegg.models._granite import gguf_multiplier_keys, gguf_multipliers

NAMES = {
    "arch": "granite", "hf": ("GraniteForCausalLM",), "model_type": ("granite",), "gguf": ("granite",),
    "gguf_config_tensors": ROPE_TENSORS, "ignore": IGNORED,
}
CHAT = GRANITE


def describe(cfg: ConfigReader) -> Model:
    m = Decoder(cfg, "granite")
    rope = read_rope(cfg, m.head_dim, m.ctx_train, interleaved=cfg.bool("rope_interleaved", default=False))
    bias, mlp_bias = cfg.bool("attention_bias", default=False), cfg.bool("mlp_bias", default=False)
    scale, residual = cfg.float("attention_multiplier", default=1.0), cfg.float("residual_multiplier", default=1.0)
    layers = [Layer(m.attn_norm(i), m.attention(i, rope, scale=scale, qkv_bias=bias, o_bias=bias),
                    m.ffn_norm(i), m.mlp(i, mlp_bias), scale=residual)
              for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=False), embed_scale=cfg.float("embedding_multiplier", default=1.0),
                   logit_scale=1 / cfg.float("logits_scaling", default=1.0, low=1e-6))


def tiny() -> dict[str, Any]:
    return {"model_type": "granite", "vocab_size": 509, "hidden_size": 72, "num_hidden_layers": 3, "num_attention_heads": 6,
            "num_key_value_heads": 2, "head_dim": 20, "intermediate_size": 104, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
            "rope_theta": 1e6, "embedding_multiplier": 6.0, "attention_multiplier": 0.125, "residual_multiplier": 0.25,
            "logits_scaling": 0.5, "tie_word_embeddings": True}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_decoder(meta)
    names = meta["tensor_names"]
    return config | gguf_multipliers(config, g) | {
        "rope_interleaved": True, "attention_bias": "blk.0.attn_q.bias" in names, "mlp_bias": "blk.0.ffn_gate.bias" in names}


def gguf_keys(model: Model) -> dict[str, Any]:
    return gguf_multiplier_keys(model)
