"""OLMoE: RMS norms over the whole width of q and k, experts in every layer, softmax router that is not renormalised.

Source: transformers 5.24 models/olmoe. GGUF: llama.cpp's architecture "olmoe".
Not supported: clip_qkv, partial_rotary_factor, activations other than silu and tanh-gelu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import Chat, ConfigReader, Layer, Model, Moe, read_rope
from moegg.models._decoder import IGNORED, ROPE_TENSORS, gguf_decoder
from moegg.models._moe import MoeDecoder

NAMES = {"arch": "olmoe", "hf": ("OlmoeForCausalLM",), "model_type": ("olmoe",), "gguf": ("olmoe",),
         "gguf_config_tensors": ROPE_TENSORS, "ignore": IGNORED}
CHAT = Chat(("<|endoftext|>",))


def describe(cfg: ConfigReader) -> Model:
    m = MoeDecoder(cfg, "olmoe", eps_default=1e-5)
    rope, bias = read_rope(cfg, m.head_dim, m.ctx_train), cfg.bool("attention_bias", default=False)
    n, top_k, width = m.moe_sizes(("num_experts", "num_local_experts"), width="intermediate_size")
    renormalise = cfg.bool("norm_topk_prob", default=False)
    cfg.expect("clip_qkv", None)
    layers = [Layer(m.attn_norm(i),
                    m.attention(i, rope, qkv_bias=bias, o_bias=bias, wide_norm=True),
                    m.ffn_norm(i),
                    Moe(m.router(i, n, top_k, renormalise=renormalise), m.experts(i, n, width), m.act))
              for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=False))


def tiny() -> dict[str, Any]:
    return {"model_type": "olmoe", "vocab_size": 509, "hidden_size": 60, "num_hidden_layers": 3, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 18, "intermediate_size": 44, "num_experts": 7, "num_experts_per_tok": 3,
            "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": False}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_decoder(meta)
    return config | {"num_experts": g.int("expert_count"), "num_experts_per_tok": g.int("expert_used_count"),
                     "norm_topk_prob": g.bool("expert_weights_norm", default=False)}
