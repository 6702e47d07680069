"""Qwen3-MoE (text): pre-norm GQA with RMS norms on each q and k head, softmax router, top-k experts, no shared expert.

Source: transformers 5.24 models/qwen3_moe. GGUF: llama.cpp's architecture "qwen3moe", which always renormalises.
A layer is dense if it is in mlp_only_layers, or (layer + 1) is not a multiple of decoder_sparse_step. With use_sliding_window
every layer has the window. Not supported: shared experts, partial_rotary_factor, activations other than silu and tanh-gelu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import ConfigReader, Layer, Model, Moe, read_rope
from moegg.models._chat import QWEN_THINKING
from moegg.models._decoder import IGNORED, ROPE_TENSORS, gguf_decoder
from moegg.models._moe import MoeDecoder, gguf_moe

NAMES = {
    "arch": "qwen3-moe", "hf": ("Qwen3MoeForCausalLM",), "model_type": ("qwen3_moe",), "gguf": ("qwen3moe",),
    "gguf_config_tensors": ROPE_TENSORS, "ignore": IGNORED,
}
CHAT = QWEN_THINKING


def describe(cfg: ConfigReader) -> Model:
    m = MoeDecoder(cfg, "qwen3-moe", defaults={"intermediate_size": 6144})
    rope = read_rope(cfg, m.head_dim, m.ctx_train)
    bias = cfg.bool("attention_bias", default=False)
    window = 0
    if cfg.bool("use_sliding_window", default=False):
        window = cfg.int("sliding_window", low=1, default=0 if cfg.given("sliding_window") else 4096)
    cfg.ignore("sliding_window", "max_window_layers", "layer_types")
    n, top_k, width = m.moe_sizes(("num_experts", "num_local_experts"), least=0)
    renormalise = cfg.bool("norm_topk_prob", default=False)
    sparse = m.sparse_layers(n)
    cfg.expect("shared_expert_intermediate_size", 0)
    cfg.expect("qkv_bias", bias)
    cfg.expect("use_qk_norm", True)
    layers = [Layer(m.attn_norm(i),
                    m.attention(i, rope, window=window, qkv_bias=bias, o_bias=bias, qk_norm=True),
                    m.ffn_norm(i),
                    Moe(m.router(i, n, top_k, renormalise=renormalise), m.experts(i, n, width), m.act) if sparse[i] else m.mlp(i))
              for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=False))


def tiny() -> dict[str, Any]:
    return {"model_type": "qwen3_moe", "vocab_size": 509, "hidden_size": 72, "num_hidden_layers": 4, "num_attention_heads": 6,
            "num_key_value_heads": 2, "head_dim": 20, "intermediate_size": 104, "moe_intermediate_size": 40, "num_experts": 7,
            "num_experts_per_tok": 3, "norm_topk_prob": True, "mlp_only_layers": [1], "max_position_embeddings": 512,
            "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": False}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_decoder(meta)
    return config | gguf_moe(meta, g, norm=True) | {"attention_bias": "blk.0.attn_q.bias" in meta["tensor_names"]}
