"""Granite 3 MoE: Granite's four multipliers, experts in every layer, softmax over the chosen ones, no shared expert.

Source: transformers 5.24 models/granitemoe; experts are stored as stacks input_linear [E, 2F, D] and output_linear [E, D, F].
GGUF: llama.cpp's architecture "granitemoe"; its q and k rows are permuted for interleaved rope.
Not supported: partial_rotary_factor, activations other than silu and tanh-gelu; shared experts and hybrids are other classes.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import ConfigReader, Layer, Model, Moe, read_rope
from moegg.models._chat import GRANITE
from moegg.models._decoder import IGNORED, ROPE_TENSORS, gguf_decoder
from moegg.models._granite import gguf_multiplier_keys, gguf_multipliers
from moegg.models._moe import MoeDecoder

NAMES = {"arch": "granitemoe", "hf": ("GraniteMoeForCausalLM",), "model_type": ("granitemoe",), "gguf": ("granitemoe",),
         "gguf_config_tensors": ROPE_TENSORS, "ignore": IGNORED}
CHAT = GRANITE
_FUSED = ("block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight")


def describe(cfg: ConfigReader) -> Model:
    m = MoeDecoder(cfg, "granitemoe")
    rope = read_rope(cfg, m.head_dim, m.ctx_train, interleaved=cfg.bool("rope_interleaved", default=False))
    n, top_k, width = m.moe_sizes(("num_local_experts", "num_experts"), width="intermediate_size")
    bias = cfg.bool("attention_bias", default=False)
    scale, residual = cfg.float("attention_multiplier", default=1.0), cfg.float("residual_multiplier", default=1.0)
    layers = [Layer(m.attn_norm(i), m.attention(i, rope, scale=scale, qkv_bias=bias, o_bias=bias),
                    m.ffn_norm(i),
                    Moe(m.router(i, n, top_k, hf="block_sparse_moe.router.layer"), m.experts(i, n, width, fused=_FUSED), m.act), scale=residual)
              for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=False), embed_scale=cfg.float("embedding_multiplier", default=1.0),
                   logit_scale=1 / cfg.float("logits_scaling", default=1.0, low=1e-6))


def tiny() -> dict[str, Any]:
    return {"model_type": "granitemoe", "vocab_size": 509, "hidden_size": 60, "num_hidden_layers": 3, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 18, "intermediate_size": 44, "num_local_experts": 6, "num_experts_per_tok": 2,
            "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "embedding_multiplier": 6.0,
            "attention_multiplier": 0.125, "residual_multiplier": 0.25, "logits_scaling": 0.5, "tie_word_embeddings": True}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_decoder(meta)
    return config | gguf_multipliers(config, g) | {
        "rope_interleaved": True, "attention_bias": "blk.0.attn_q.bias" in meta["tensor_names"],
        "num_local_experts": g.int("expert_count"), "num_experts_per_tok": g.int("expert_used_count")}


def gguf_keys(model: Model) -> dict[str, Any]:
    return gguf_multiplier_keys(model)
