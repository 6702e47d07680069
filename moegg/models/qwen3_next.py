"""Qwen3-Next: Gated DeltaNet layers with a gated GQA layer now and then, experts and a gated shared expert in every layer.

Source: transformers 5.24 models/qwen3_next. GGUF: llama.cpp's architecture "qwen3next", in which q, k, v and z are apart (older files:
ssm_in). MTP tensors are left out. Not supported: dense layers (mlp_only_layers, decoder_sparse_step), use_sliding_window,
attention_bias, activations other than silu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import ConfigReader, Model, read_rope
from moegg.models._chat import QWEN_THINKING
from moegg.models._decoder import IGNORED, ROPE_TENSORS
from moegg.models._delta import DeltaSizes
from moegg.models._moe import MoeDecoder
from moegg.models._qwen_hybrid import DELTA_DEFAULTS, experts, gguf_experts, gguf_hybrid, gguf_hybrid_keys, layers

NAMES = {"arch": "qwen3-next", "hf": ("Qwen3NextForCausalLM",), "model_type": ("qwen3_next",), "gguf": ("qwen3next",),
         "gguf_config_tensors": ROPE_TENSORS, "ignore": (*IGNORED, "mtp.*", "blk.{n}.*")}
CHAT = QWEN_THINKING
_DEFAULTS = {"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 48, "num_attention_heads": 16,
             "num_key_value_heads": 2, "head_dim": 256, "max_position_embeddings": 32768}


def describe(cfg: ConfigReader) -> Model:
    m = MoeDecoder(cfg, "qwen3-next", plus_one=True, defaults=_DEFAULTS)
    cfg.expect("hidden_act", "silu")
    cfg.expect("use_sliding_window", False)
    cfg.expect("mlp_only_layers", [])
    cfg.expect("decoder_sparse_step", 1)
    sizes = DeltaSizes(cfg, fused_ba=True, **DELTA_DEFAULTS)
    rope = read_rope(cfg, m.head_dim, m.ctx_train, partial=0.25)
    all_layers = layers(m, rope, sizes.layer_types(m), sizes, experts(m, cfg.bool("norm_topk_prob", default=True)))
    return m.model(all_layers, tied=cfg.bool("tie_word_embeddings", default=False))


def tiny() -> dict[str, Any]:
    return {"model_type": "qwen3_next", "vocab_size": 509, "hidden_size": 72, "num_hidden_layers": 4, "num_attention_heads": 6,
            "num_key_value_heads": 2, "head_dim": 20, "intermediate_size": 104, "moe_intermediate_size": 40, "num_experts": 7,
            "num_experts_per_tok": 3, "norm_topk_prob": True, "shared_expert_intermediate_size": 24, "linear_num_key_heads": 2,
            "linear_num_value_heads": 6, "linear_key_head_dim": 12, "linear_value_head_dim": 20, "linear_conv_kernel_dim": 4,
            "full_attention_interval": 3, "partial_rotary_factor": 0.5, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
            "rope_theta": 1e6, "tie_word_embeddings": False}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_hybrid(meta)
    moe, norm = gguf_experts(meta, g)
    return config | moe | {"norm_topk_prob": norm}


def gguf_keys(model: Model) -> dict[str, Any]:
    return gguf_hybrid_keys(model)
