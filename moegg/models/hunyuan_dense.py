"""Hunyuan 0.5B to 7B (text, dense): Llama with norms of q and k heads after rope.

Source: transformers 5.24 models/hunyuan_v1_dense. GGUF: llama.cpp's architecture "hunyuan-dense", whose files hold the stretched base of rope.
Not supported: cross-layer attention (use_cla), activations other than silu and tanh-gelu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import Chat, ConfigReader, Layer, Model
from moegg.models._chat import THINK
from moegg.models._decoder import IGNORED, ROPE_TENSORS, Decoder, gguf_decoder
from moegg.models._hunyuan import attention, common_keys, read_alpha_rope

NAMES = {"arch": "hunyuan-dense", "hf": ("HunYuanDenseV1ForCausalLM",), "model_type": ("hunyuan_v1_dense",), "gguf": ("hunyuan-dense",),
         "gguf_config_tensors": ROPE_TENSORS, "ignore": IGNORED}
CHAT = Chat(("<｜hy_place▁holder▁no▁2｜>", "<|eos|>"), reasoning=THINK, answer=("<answer>", "</answer>"))


def describe(cfg: ConfigReader) -> Model:
    m = Decoder(cfg, "hunyuan-dense", eps_default=1e-5)
    rope, bias = read_alpha_rope(cfg, m), cfg.bool("attention_bias", default=False)
    common_keys(cfg)
    layers = [Layer(m.attn_norm(i), attention(m, i, rope, bias), m.ffn_norm(i), m.mlp(i)) for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=False))


def tiny() -> dict[str, Any]:
    return {"model_type": "hunyuan_v1_dense", "vocab_size": 509, "hidden_size": 72, "num_hidden_layers": 3, "num_attention_heads": 6,
            "num_key_value_heads": 2, "head_dim": 20, "intermediate_size": 104, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
            "rope_theta": 1e4, "tie_word_embeddings": True}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    return gguf_decoder(meta)[0]
