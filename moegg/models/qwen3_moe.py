"""Qwen3-MoE (text): pre-norm GQA with RMS norms on each q and k head, softmax router, top-k experts, no shared expert.

Source: transformers 5.24 models/qwen3_moe. GGUF: llama.cpp's architecture "qwen3moe", which always renormalises.
A layer is dense if it is in mlp_only_layers, or (layer + 1) is not a multiple of decoder_sparse_step. With use_sliding_window
every layer has the window. Not supported: shared experts, partial_rotary_factor, activations other than silu and tanh-gelu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import ConfigReader, Layer, Model, read_rope
from moegg.models._decoder import IGNORED, ROPE_TENSORS, Decoder, gguf_decoder

NAMES = {
    "arch": "qwen3-moe", "hf": ("Qwen3MoeForCausalLM",), "model_type": ("qwen3_moe",), "gguf": ("qwen3moe",),
    "gguf_config_tensors": ROPE_TENSORS, "ignore": IGNORED,
}


def describe(cfg: ConfigReader) -> Model:
    m = Decoder(cfg, "qwen3-moe", defaults={"intermediate_size": 6144})
    rope = read_rope(cfg, m.head_dim, m.ctx_train)
    bias = cfg.bool("attention_bias", default=False)
    window = 0
    if cfg.bool("use_sliding_window", default=False):
        window = cfg.int("sliding_window", low=1, default=0 if cfg.given("sliding_window") else 4096)
    cfg.ignore("sliding_window", "max_window_layers", "layer_types")
    n = cfg.int("num_experts", "num_local_experts", high=1 << 16)
    width, top_k = cfg.int("moe_intermediate_size", low=1, high=1 << 24), cfg.int("num_experts_per_tok", low=1)
    renormalise = cfg.bool("norm_topk_prob", default=False)
    step, dense = cfg.int("decoder_sparse_step", low=1, default=1), set(cfg.list("mlp_only_layers", of=(int,), default=[]))
    cfg.expect("shared_expert_intermediate_size", 0)
    cfg.expect("qkv_bias", bias)
    cfg.expect("use_qk_norm", True)
    if n and top_k > n:
        raise cfg.wrong("num_experts_per_tok", f"there are {n} experts")
    sparse = [n > 0 and i not in dense and (i + 1) % step == 0 for i in range(m.n_layer)]
    layers = [Layer(m.norm(i, "attn_norm", "input_layernorm", "attn_norm"),
                    m.attention(i, rope, window=window, qkv_bias=bias, o_bias=bias, qk_norm=True),
                    m.norm(i, "ffn_norm", "post_attention_layernorm", "ffn_norm"),
                    m.moe(i, n, top_k, width, renormalise) if sparse[i] else m.mlp(i))
              for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=False))


def tiny() -> dict[str, Any]:
    return {"model_type": "qwen3_moe", "vocab_size": 509, "hidden_size": 72, "num_hidden_layers": 4, "num_attention_heads": 6,
            "num_key_value_heads": 2, "head_dim": 20, "intermediate_size": 104, "moe_intermediate_size": 40, "num_experts": 7,
            "num_experts_per_tok": 3, "norm_topk_prob": True, "mlp_only_layers": [1], "max_position_embeddings": 512,
            "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": False}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_decoder(meta)
    g.expect("expert_weights_scale", 0.0, 1.0)
    names, layers = meta["tensor_names"], range(config["num_hidden_layers"])
    return config | {
        "moe_intermediate_size": g.int("expert_feed_forward_length"), "num_experts": g.int("expert_count"),
        "num_experts_per_tok": g.int("expert_used_count"), "norm_topk_prob": g.bool("expert_weights_norm", default=True),
        "mlp_only_layers": [i for i in layers if f"blk.{i}.ffn_gate.weight" in names],
        "attention_bias": "blk.0.attn_q.bias" in names}
