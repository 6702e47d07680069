"""dots.llm1: RMS norms on each q and k head, DeepSeek-V3's router (sigmoid, corrected choice), shared experts, dense first layers.

Source: transformers 5.24 models/dots1. GGUF: llama.cpp's architecture "dots1".
Layers from max_window_layers on have the window, unless layer_types says otherwise.
Not supported: partial_rotary_factor, activations other than silu and tanh-gelu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import Chat, ConfigReader, Layer, Model, read_rope
from moegg.models._chat import ASKED
from moegg.models._decoder import IGNORED, ROPE_TENSORS, gguf_decoder
from moegg.models._moe import MoeDecoder, gguf_deepseek_moe, gguf_norm_keys

NAMES = {"arch": "dots1", "hf": ("Dots1ForCausalLM",), "model_type": ("dots1",), "gguf": ("dots1",),
         "gguf_config_tensors": ROPE_TENSORS, "ignore": IGNORED}
CHAT = Chat(("<|endofresponse|>", "<|endoftext|>"), template=(
    "{% for m in messages %}{% set name = {'user': 'userprompt', 'assistant': 'response'}[m.role] or m.role %}"
    "{{ '<|' + name + '|>' + m.content + '<|endof' + name + '|>' }}{% endfor %}" + ASKED + "{{ '<|response|>' }}{% endif %}"))


def describe(cfg: ConfigReader) -> Model:
    m = MoeDecoder(cfg, "dots1", defaults={"num_key_value_heads": 32})
    rope, bias = read_rope(cfg, m.head_dim, m.ctx_train), cfg.bool("attention_bias", default=False)
    window = cfg.int("sliding_window", low=1, default=0 if cfg.given("sliding_window") else 4096)
    first, ffn = cfg.int("max_window_layers", default=62), m.deepseek_moe(renormalise=False)
    windows = m.windows(window, ["sliding_attention" if window and i >= first else "full_attention" for i in range(m.n_layer)])
    cfg.expect("scoring_func", "noaux_tc", "sigmoid")
    cfg.expect("topk_method", "noaux_tc")
    layers = [Layer(m.attn_norm(i),
                    m.attention(i, rope, window=windows[i], qkv_bias=bias, o_bias=bias, qk_norm=True),
                    m.ffn_norm(i), ffn(i))
              for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=False))


def tiny() -> dict[str, Any]:
    return {"model_type": "dots1", "vocab_size": 509, "hidden_size": 60, "num_hidden_layers": 3, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 18, "intermediate_size": 104, "moe_intermediate_size": 36, "n_routed_experts": 6,
            "num_experts_per_tok": 3, "n_shared_experts": 2, "first_k_dense_replace": 1, "n_group": 3, "topk_group": 2,
            "norm_topk_prob": True, "routed_scaling_factor": 2.5, "scoring_func": "noaux_tc", "max_position_embeddings": 512,
            "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": False}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_decoder(meta)
    g.expect("expert_gating_func", 2)
    return config | gguf_deepseek_moe(meta, g) | {"sliding_window": None}


def gguf_keys(model: Model) -> dict[str, Any]:
    return gguf_norm_keys(model)
