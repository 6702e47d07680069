"""Qwen2-MoE (Qwen1.5-MoE, Qwen2-57B-A14B): biases on q, k, v; softmax router; one shared expert behind a sigmoid gate.

Source: transformers 5.24 models/qwen2_moe. GGUF: llama.cpp's architecture "qwen2moe", which never renormalises.
A layer is dense if it is in mlp_only_layers, or (layer + 1) is not a multiple of decoder_sparse_step. With use_sliding_window every
second layer below max_window_layers has the window, unless layer_types says otherwise.
Not supported: partial_rotary_factor, activations other than silu and tanh-gelu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import ConfigReader, Layer, Model, Moe, read_rope
from moegg.models._chat import QWEN
from moegg.models._decoder import IGNORED, ROPE_TENSORS, gguf_decoder
from moegg.models._moe import MoeDecoder, gguf_moe

NAMES = {"arch": "qwen2-moe", "hf": ("Qwen2MoeForCausalLM",), "model_type": ("qwen2_moe",), "gguf": ("qwen2moe",),
         "gguf_config_tensors": ROPE_TENSORS, "ignore": IGNORED}
CHAT = QWEN


def describe(cfg: ConfigReader) -> Model:
    m = MoeDecoder(cfg, "qwen2-moe", defaults={"intermediate_size": 5632, "num_key_value_heads": 16})
    rope, bias = read_rope(cfg, m.head_dim, m.ctx_train), cfg.bool("qkv_bias", default=True)
    windows = _windows(cfg, m)
    n, top_k, width = m.moe_sizes(("num_experts", "num_local_experts"), least=0)
    shared = cfg.int("shared_expert_intermediate_size", low=1, default=5632)
    sparse, renormalise = m.sparse_layers(n), cfg.bool("norm_topk_prob", default=False)

    def moe(i: int) -> Moe:
        return Moe(m.router(i, n, top_k, renormalise=renormalise), m.experts(i, n, width), m.act,
                   shared=m.shared(i, shared, "mlp.shared_expert"), shared_gate=m.shared_gate(i))
    layers = [Layer(m.attn_norm(i), m.attention(i, rope, window=windows[i], qkv_bias=bias),
                    m.ffn_norm(i), moe(i) if sparse[i] else m.mlp(i))
              for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=False))


def _windows(cfg: ConfigReader, m: MoeDecoder) -> list[int]:
    window = cfg.int("sliding_window", low=1, default=0 if cfg.given("sliding_window") else 4096)
    last = cfg.int("max_window_layers", default=28)
    window = window if cfg.bool("use_sliding_window", default=False) else 0
    return m.windows(window, ["sliding_attention" if window and i % 2 == 0 and i < last else "full_attention" for i in range(m.n_layer)])


def tiny() -> dict[str, Any]:
    return {"model_type": "qwen2_moe", "vocab_size": 509, "hidden_size": 72, "num_hidden_layers": 4, "num_attention_heads": 6,
            "num_key_value_heads": 2, "head_dim": 20, "intermediate_size": 104, "moe_intermediate_size": 40,
            "shared_expert_intermediate_size": 56, "num_experts": 7, "num_experts_per_tok": 3, "norm_topk_prob": False,
            "mlp_only_layers": [2], "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": False}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_decoder(meta)
    return config | gguf_moe(meta, g, norm=False) | {
        "shared_expert_intermediate_size": g.int("expert_shared_feed_forward_length"), "qkv_bias": "blk.0.attn_q.bias" in meta["tensor_names"]}
