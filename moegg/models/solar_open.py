"""Solar Open: Llama's attention, DeepSeek-V3's router and a shared expert in every layer.

Source: transformers 5.24 models/solar_open; it knows no dense layers and no norms of q and k. GGUF: files of llama.cpp's architecture
"glm4moe" without either, nor biases. Layers for multi-token prediction are left out.
Not supported: use_qk_norm, first_k_dense_replace, part of a head turned by rope, activations other than silu and tanh-gelu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import Chat, ConfigReader, Layer, Model, read_rope
from moegg.models._decoder import IGNORED, ROPE_TENSORS, gguf_decoder
from moegg.models._moe import MoeDecoder, gguf_deepseek_moe, gguf_norm_keys

NAMES = {"arch": "solar-open", "hf": ("SolarOpenForCausalLM",), "model_type": ("solar_open",), "gguf": ("glm4moe",),
         "gguf_config_tensors": ROPE_TENSORS, "ignore": (*IGNORED, "model.layers.{n}.*", "blk.{n}.*")}
CHAT = Chat(("<|flush|>", "<|calls|>"), "solar")


def describe(cfg: ConfigReader) -> Model:
    m = MoeDecoder(cfg, "solar-open", defaults={"num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 1}, eps_default=1e-5)
    rope, bias = read_rope(cfg, m.head_dim, m.ctx_train, theta_default=1e6), cfg.bool("attention_bias", default=False)
    for key, value in (("use_qk_norm", False), ("first_k_dense_replace", 0)):
        cfg.expect(key, value)
    ffn = m.deepseek_moe()
    layers = [Layer(m.attn_norm(i), m.attention(i, rope, qkv_bias=bias), m.ffn_norm(i, "post_attention_norm"), ffn(i)) for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=False))


def tiny() -> dict[str, Any]:
    return {"model_type": "solar_open", "vocab_size": 509, "hidden_size": 60, "num_hidden_layers": 3, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 20, "moe_intermediate_size": 36, "n_routed_experts": 7, "num_experts_per_tok": 3,
            "n_shared_experts": 1, "routed_scaling_factor": 1.5, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 1e6,
            "tie_word_embeddings": False}


def gguf_own(meta: Mapping[str, Any]) -> bool:
    glm = {"blk.0.attn_q.bias", "blk.0.attn_q_norm.weight", "blk.0.ffn_gate.weight"}
    return not glm & meta["tensor_names"]


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_decoder(meta)
    g.expect("expert_gating_func", 2)
    extra = g.int("nextn_predict_layers", default=0)
    return config | gguf_deepseek_moe(meta, g) | {"num_hidden_layers": max(1, config["num_hidden_layers"] - extra)}


def gguf_keys(model: Model) -> dict[str, Any]:
    return gguf_norm_keys(model)
