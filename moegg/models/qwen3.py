"""Qwen3 (text, dense): pre-norm GQA with RMS norms on each q and k head, gated MLP, sliding window in the upper layers.

Source: transformers 5.24 models/qwen3. GGUF: llama.cpp's architecture "qwen3", which reads no sliding window.
Not supported: partial_rotary_factor, activations other than silu and tanh-gelu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import ConfigReader, Layer, Model, read_rope
from moegg.models._chat import QWEN_THINKING
from moegg.models._decoder import IGNORED, ROPE_TENSORS, Decoder, gguf_decoder

NAMES = {
    "arch": "qwen3", "hf": ("Qwen3ForCausalLM",), "model_type": ("qwen3",), "gguf": ("qwen3",),
    "gguf_config_tensors": ROPE_TENSORS, "ignore": IGNORED,
}
CHAT = QWEN_THINKING


def describe(cfg: ConfigReader) -> Model:
    m = Decoder(cfg, "qwen3", defaults={"head_dim": 128})
    rope = read_rope(cfg, m.head_dim, m.ctx_train)
    bias = cfg.bool("attention_bias", default=False)
    windows = m.upper_windows()
    layers = [Layer(m.attn_norm(i),
                    m.attention(i, rope, window=windows[i], qkv_bias=bias, o_bias=bias, qk_norm=True),
                    m.ffn_norm(i), m.mlp(i))
              for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=False))


def tiny() -> dict[str, Any]:
    return {"model_type": "qwen3", "vocab_size": 509, "hidden_size": 56, "num_hidden_layers": 3, "num_attention_heads": 5,
            "num_key_value_heads": 1, "head_dim": 18, "intermediate_size": 100, "max_position_embeddings": 512,
            "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": True, "rope_scaling": {
                "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, _ = gguf_decoder(meta)
    return config | {"attention_bias": "blk.0.attn_q.bias" in meta["tensor_names"]}
