"""OLMo 2 (text, dense): norms after attention and MLP only, RMS norms over the whole width of q and k, gated MLP.

Source: transformers 5.24 models/olmo2. GGUF: llama.cpp's architecture "olmo2".
Not supported: partial_rotary_factor, sliding windows (OLMo 3 is another class), activations other than silu and tanh-gelu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import Chat, ConfigReader, Model, read_rope
from moegg.models._decoder import IGNORED, ROPE_TENSORS, Decoder, gguf_decoder
from moegg.models._post_norm import layer

NAMES = {
    "arch": "olmo2", "hf": ("Olmo2ForCausalLM",), "model_type": ("olmo2",), "gguf": ("olmo2",),
    "gguf_config_tensors": ROPE_TENSORS, "ignore": IGNORED,
}
CHAT = Chat(("<|endoftext|>",))


def describe(cfg: ConfigReader) -> Model:
    m = Decoder(cfg, "olmo2", eps_default=1e-5)
    rope = read_rope(cfg, m.head_dim, m.ctx_train)
    bias = cfg.bool("attention_bias", default=False)
    layers = [layer(m, i, m.attention(i, rope, qkv_bias=bias, o_bias=bias, wide_norm=True)) for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=False))


def tiny() -> dict[str, Any]:
    return {"model_type": "olmo2", "vocab_size": 509, "hidden_size": 72, "num_hidden_layers": 3, "num_attention_heads": 6,
            "num_key_value_heads": 2, "head_dim": 20, "intermediate_size": 104, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
            "rope_theta": 5e5, "tie_word_embeddings": False}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_decoder(meta)
    g.expect("attention.sliding_window", 0)
    return config
