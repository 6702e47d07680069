"""Mixtral: pre-norm GQA without biases, experts in every layer, softmax over the chosen ones. A sliding window holds for all layers.

Source: transformers 5.24 models/mixtral. GGUF: a file of llama.cpp's architecture "llama" that has experts; its q and k rows are
permuted for interleaved rope. Not supported: partial_rotary_factor, activations other than silu and tanh-gelu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import Chat, ConfigReader, Layer, Model, Moe, read_rope
from moegg.models._chat import MISTRAL
from moegg.models._decoder import IGNORED, ROPE_TENSORS, gguf_decoder
from moegg.models._moe import MIXTRAL, MoeDecoder

NAMES = {"arch": "mixtral", "hf": ("MixtralForCausalLM",), "model_type": ("mixtral",), "gguf": ("llama",),
         "gguf_config_tensors": ROPE_TENSORS, "ignore": IGNORED}
CHAT = Chat(MISTRAL.ends, MISTRAL.calls, MISTRAL.reasoning)


def describe(cfg: ConfigReader) -> Model:
    m = MoeDecoder(cfg, "mixtral", eps_default=1e-5)
    rope = read_rope(cfg, m.head_dim, m.ctx_train, interleaved=cfg.bool("rope_interleaved", default=False))
    window = cfg.int("sliding_window", low=1, default=0)
    cfg.ignore("router_jitter_noise")
    n, top_k, width = m.moe_sizes(("num_local_experts", "num_experts"), width="intermediate_size")
    layers = [Layer(m.attn_norm(i), m.attention(i, rope, window=window),
                    m.ffn_norm(i),
                    Moe(m.router(i, n, top_k, hf="block_sparse_moe.gate"), m.experts(i, n, width, **MIXTRAL), m.act))
              for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=False))


def tiny() -> dict[str, Any]:
    return {"model_type": "mixtral", "vocab_size": 509, "hidden_size": 60, "num_hidden_layers": 3, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 18, "intermediate_size": 44, "num_local_experts": 5, "num_experts_per_tok": 2,
            "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": False}


def gguf_own(meta: Mapping[str, Any]) -> bool:
    return bool(meta.get("llama.expert_count"))


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_decoder(meta)
    return config | {"rope_interleaved": True, "num_local_experts": g.int("expert_count"), "num_experts_per_tok": g.int("expert_used_count")}
