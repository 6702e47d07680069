"""Qwen3.5 (text, dense): Qwen3-Next's layers with separate projections and a plain gated MLP in each.

Source: transformers 5.24 models/qwen3_5. The text part of Qwen3_5ForConditionalGeneration; vision and MTP tensors are left out.
GGUF: llama.cpp's architecture "qwen35", whose value heads stand as in qwen35moe's files. Not supported: images, attention_bias, attn_output_gate
false, activations other than silu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import ConfigReader, Model
from moegg.models._chat import QWEN_OPEN
from moegg.models._decoder import IGNORED, ROPE_TENSORS
from moegg.models._qwen_hybrid import gguf_hybrid, gguf_mrope_keys, qwen3_5, tiled

NAMES = {
    "arch": "qwen3-5", "hf": ("Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM"), "model_type": ("qwen3_5", "qwen3_5_text"),
    "gguf": ("qwen35",), "gguf_config_tensors": ROPE_TENSORS, "ignore": (*IGNORED, "mtp.*", "model.visual.*", "blk.{n}.*"),
}
CHAT = QWEN_OPEN
_DEFAULTS = {"vocab_size": 248320, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32, "num_attention_heads": 16,
             "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 32768}


def describe(cfg: ConfigReader) -> Model:
    return qwen3_5(cfg, "qwen3-5", lambda m: m.mlp, _DEFAULTS)


def tiny() -> dict[str, Any]:
    return {"model_type": "qwen3_5_text", "vocab_size": 509, "hidden_size": 72, "num_hidden_layers": 4, "num_attention_heads": 6,
            "num_key_value_heads": 2, "head_dim": 20, "intermediate_size": 104, "linear_num_key_heads": 3, "linear_num_value_heads": 6,
            "linear_key_head_dim": 12, "linear_value_head_dim": 20, "linear_conv_kernel_dim": 4, "full_attention_interval": 2,
            "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "partial_rotary_factor": 0.5, "tie_word_embeddings": False}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, _ = gguf_hybrid(meta)
    return config | tiled(config)


def gguf_keys(model: Model) -> dict[str, Any]:
    return gguf_mrope_keys(model)
