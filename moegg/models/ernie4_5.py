"""ERNIE 4.5 (text, dense): Llama with rope in pairs (2i, 2i+1).

Source: transformers 5.24 models/ernie4_5; use_bias stands for all of a layer's products. GGUF: llama.cpp's architecture "ernie4_5", whose
q and k rows are those of the checkpoint. Not supported: partial_rotary_factor, activations other than silu and tanh-gelu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import Chat, ConfigReader, Layer, Model, read_rope
from moegg.models._decoder import IGNORED, ROPE_TENSORS, Decoder, gguf_decoder

NAMES = {
    "arch": "ernie4-5", "hf": ("Ernie4_5ForCausalLM",), "model_type": ("ernie4_5",), "gguf": ("ernie4_5",),
    "gguf_config_tensors": ROPE_TENSORS, "ignore": IGNORED,
}
CHAT = Chat(("</s>", "<|end_of_sentence|>"))


def describe(cfg: ConfigReader) -> Model:
    m = Decoder(cfg, "ernie4-5", defaults={"head_dim": 128, "num_key_value_heads": 2}, eps_default=1e-5)
    rope, bias = read_rope(cfg, m.head_dim, m.ctx_train, theta_default=5e5, interleaved=True), cfg.bool("use_bias", default=False)
    layers = [Layer(m.attn_norm(i), m.attention(i, rope, qkv_bias=bias, o_bias=bias), m.ffn_norm(i), m.mlp(i, bias))
              for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=True))


def tiny() -> dict[str, Any]:
    return {"model_type": "ernie4_5", "vocab_size": 509, "hidden_size": 72, "num_hidden_layers": 3, "num_attention_heads": 6,
            "num_key_value_heads": 2, "head_dim": 20, "intermediate_size": 104, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
            "rope_theta": 5e5, "tie_word_embeddings": False}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, _ = gguf_decoder(meta)
    return config | {"use_bias": "blk.0.attn_q.bias" in meta["tensor_names"]}
