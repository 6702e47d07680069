"""Qwen2 and Qwen2.5 (text, dense): pre-norm GQA with biases on q, k and v, gated MLP, sliding window in the upper layers. And MiMo-7B.

Source: transformers 5.24 models/qwen2. GGUF: llama.cpp's architecture "qwen2", which reads no sliding window.
MiMo-7B (Xiaomi) is Qwen2 with layers that predict several tokens, which are left out: its configuration_mimo.py derives from Qwen2Config, vLLM's
mimo.py from its Qwen2, mlx-lm's mimo.py has the same blocks and drops the same layers. GGUF files of it are Qwen2's.
Not supported: partial_rotary_factor, multimodal rope, activations other than silu and tanh-gelu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import Chat, ConfigReader, Layer, Model, read_rope
from moegg.models._chat import QWEN, THINK
from moegg.models._decoder import IGNORED, ROPE_TENSORS, Decoder, gguf_decoder

NAMES = {
    "arch": "qwen2", "hf": ("Qwen2ForCausalLM", "MiMoForCausalLM"), "model_type": ("qwen2", "mimo"), "gguf": ("qwen2",),
    "gguf_config_tensors": ROPE_TENSORS, "ignore": (*IGNORED, "model.mtp_layers.*"),
}
CHAT = (Chat(QWEN.ends, reasoning=THINK, template=QWEN.template, marks=THINK), QWEN)        # vocabularies of those that reason have its tags


def describe(cfg: ConfigReader) -> Model:
    m = Decoder(cfg, "qwen2")
    rope = read_rope(cfg, m.head_dim, m.ctx_train)
    cfg.expect("use_mrope", False)
    cfg.ignore("attention_bias", "num_nextn_predict_layers")        # q, k and v have biases whatever that says
    windows = m.upper_windows()
    layers = [Layer(m.attn_norm(i),
                    m.attention(i, rope, window=windows[i], qkv_bias=True),
                    m.ffn_norm(i), m.mlp(i))
              for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=False))


def tiny() -> dict[str, Any]:
    return {"model_type": "qwen2", "vocab_size": 509, "hidden_size": 60, "num_hidden_layers": 3, "num_attention_heads": 6,
            "num_key_value_heads": 3, "intermediate_size": 88, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
            "rope_theta": 1e6, "tie_word_embeddings": True}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    return gguf_decoder(meta)[0]
