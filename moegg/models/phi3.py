"""Phi-3, Phi-3.5 and Phi-4 (text, dense): pre-norm GQA and gated MLP, with q, k, v and gate, up stored as one tensor each.

Source: transformers 5.24 models/phi3. GGUF: llama.cpp's architecture "phi3", which keeps the fused tensors, switches sliding windows off,
and has the divisors of longrope as tensors.
A sliding window is in every layer; rope may turn a part of each head (Phi-4-mini). Beyond original_max_position_embeddings longrope has
other frequencies for the whole sequence.
Not supported: biases, images (Phi-3-vision), mixtures (PhiMoE is another class), activations other than silu and tanh-gelu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import Chat, ConfigReader, Layer, Model, read_rope
from moegg.models._chat import PHI, turns
from moegg.models._decoder import IGNORED, ROPE_TENSORS, Decoder, gguf_decoder

NAMES = {
    "arch": "phi3", "hf": ("Phi3ForCausalLM",), "model_type": ("phi3",), "gguf": ("phi3",),
    "gguf_config_tensors": ROPE_TENSORS, "ignore": IGNORED,
}
CHAT = (Chat(PHI.ends, "marked", template=turns("<|", "|>", "<|end|>"), marks=("<|tool|>",)), PHI)        # Phi-4-mini; Phi-3


def describe(cfg: ConfigReader) -> Model:
    m = Decoder(cfg, "phi3", eps_default=1e-5)
    rope = read_rope(cfg, m.head_dim, m.ctx_train, partial=1.0)
    window = cfg.int("sliding_window", low=1, default=0)
    for key in ("attention_bias", "mlp_bias"):
        cfg.expect(key, False)
    cfg.expect("lm_head_bias", False)
    cfg.ignore("embd_pdrop", "resid_pdrop", "original_max_position_embeddings", "full_attn_mod", "interpolate_factor")
    layers = [Layer(m.attn_norm(i), m.attention(i, rope, window=window, fused=True),
                    m.ffn_norm(i), m.mlp(i, fused=True))
              for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=False))


def tiny() -> dict[str, Any]:
    return {"model_type": "phi3", "vocab_size": 509, "hidden_size": 72, "num_hidden_layers": 3, "num_attention_heads": 6,
            "num_key_value_heads": 2, "head_dim": 20, "intermediate_size": 104, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
            "rope_theta": 1e4, "partial_rotary_factor": 0.6, "tie_word_embeddings": False, "original_max_position_embeddings": 64,
            "rope_scaling": {"type": "longrope", "short_factor": [1.0 + i / 9 for i in range(6)],
                             "long_factor": [1.0 + i for i in range(6)]}}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_decoder(meta, partial=True)
    g.ignore("attention.sliding_window")
    return config
