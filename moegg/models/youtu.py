"""Youtu-LLM (text, dense): latent attention with a plain gated MLP in each layer.

Source: transformers 5.24 models/youtu. GGUF: files of llama.cpp's architecture "deepseek2" without experts.
Not supported: biases of the MLP, in GGUF a scaled rope, activations other than silu and tanh-gelu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import Chat, ConfigReader, Layer, Model, read_rope
from moegg.models._chat import THINK
from moegg.models._decoder import IGNORED, ROPE_TENSORS, Decoder
from moegg.models._mla import Latent, gguf_latent

NAMES = {"arch": "youtu", "hf": ("YoutuForCausalLM",), "model_type": ("youtu", "youtu_llm"), "gguf": ("deepseek2",),
         "gguf_config_tensors": ROPE_TENSORS, "ignore": IGNORED}
CHAT = Chat(("<|end_of_text|>",), reasoning=THINK)


def describe(cfg: ConfigReader) -> Model:
    m = Decoder(cfg, "youtu", defaults={"num_key_value_heads": 16, "head_dim": 64})     # head_dim: of rotated keys, which Latent reads
    if m.n_kv_head != m.n_head:
        raise cfg.refuse("num_key_value_heads", f"latent attention has as many as query heads, {m.n_head}")
    latent = Latent(m, q_rank=1536)
    if cfg.int("qk_head_dim", default=latent.nope + latent.rope_dim) != latent.nope + latent.rope_dim:
        raise cfg.wrong("qk_head_dim", f"its parts are {latent.nope} and {latent.rope_dim}")
    rope = read_rope(cfg, latent.rope_dim, m.ctx_train, interleaved=cfg.bool("rope_interleave", default=True))
    cfg.expect("mlp_bias", False)
    cfg.ignore("embedding_initializer_range")
    layers = [Layer(m.attn_norm(i), latent.attention(i, rope), m.ffn_norm(i), m.mlp(i)) for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=True))


def tiny() -> dict[str, Any]:
    return {"model_type": "youtu", "vocab_size": 509, "hidden_size": 60, "num_hidden_layers": 3, "num_attention_heads": 5,
            "num_key_value_heads": 5, "q_lora_rank": 22, "kv_lora_rank": 32, "qk_nope_head_dim": 18, "qk_rope_head_dim": 10, "v_head_dim": 16,
            "intermediate_size": 104, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 1.6e6, "tie_word_embeddings": False}


def gguf_own(meta: Mapping[str, Any]) -> bool:
    return not meta.get("deepseek2.expert_count")


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_latent(meta)
    if "rope_scaling" in config:
        raise g.refuse("rope.scaling.type", "supported without experts: none")
    g.expect("leading_dense_block_count", config["num_hidden_layers"])
    return config


def gguf_keys(model: Model) -> dict[str, Any]:
    return {"leading_dense_block_count": len(model.layers), "expert_feed_forward_length": model.layers[0].ffn.up.shape[0],
            "expert_shared_count": 0}
