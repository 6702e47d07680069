"""LFM2-MoE (LFM2-8B-A1B, LFM2.5-8B-A1B): LFM2 with experts after the first num_dense_layers; sigmoid router with a bias for the choice.

Source: transformers 5.24 models/lfm2_moe; GGUF: llama.cpp's architecture "lfm2moe". Weights of the chosen experts are divided by their
sum plus 1e-6 if norm_topk_prob, then times routed_scaling_factor. Not supported: conv_bias.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import ConfigReader, Model, Moe
from moegg.models._chat import LFM
from moegg.models._decoder import IGNORED, ROPE_TENSORS, gguf_decoder, one_kv_count
from moegg.models._lfm2 import DEFAULTS, kv_types, mlp, model
from moegg.models._moe import MoeDecoder

NAMES = {
    "arch": "lfm2-moe", "hf": ("Lfm2MoeForCausalLM",), "model_type": ("lfm2_moe",), "gguf": ("lfm2moe",),
    "gguf_config_tensors": ROPE_TENSORS, "ignore": IGNORED,
}
CHAT = LFM
_DEFAULTS = DEFAULTS | {"hidden_size": 2048, "intermediate_size": 7168, "num_hidden_layers": 32}


def describe(cfg: ConfigReader) -> Model:
    m = MoeDecoder(cfg, "lfm2-moe", defaults=_DEFAULTS)
    m.eps = cfg.float("norm_eps", default=1e-5, low=0)
    types = cfg.list("layer_types", of=(str,), default=["full_attention"] * m.n_layer)
    n, top_k, width = m.moe_sizes(("num_experts",))
    dense = cfg.int("num_dense_layers", default=2)
    bias = "feed_forward.expert_bias" if cfg.bool("use_expert_bias", default=True) else ""
    rules = {"score": "sigmoid", "renormalise": cfg.bool("norm_topk_prob", default=True), "sum_eps": 1e-6,
             "scale": cfg.float("routed_scaling_factor", default=1.0)}

    def moe(i: int) -> Moe:
        return Moe(m.router(i, n, top_k, "feed_forward.gate", bias, **rules),
                   m.experts(i, n, width, "feed_forward.experts", ("w1", "w3", "w2"),
                             ("feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj")))
    return model(m, types, lambda i: mlp(m, i, m.width) if i < dense else moe(i))


def tiny() -> dict[str, Any]:
    return {"model_type": "lfm2_moe", "vocab_size": 509, "hidden_size": 72, "intermediate_size": 104, "num_hidden_layers": 4,
            "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 20, "max_position_embeddings": 512, "norm_eps": 1e-5,
            "rope_theta": 1e6, "conv_L_cache": 3, "tie_word_embeddings": True, "num_dense_layers": 1, "num_experts": 7,
            "num_experts_per_tok": 3, "moe_intermediate_size": 40, "layer_types": ["full_attention", "conv", "conv", "full_attention"]}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_decoder(one_kv_count(meta))
    g.expect("expert_gating_func", 2)           # sigmoid
    return config | {
        "norm_eps": config["rms_norm_eps"], "conv_L_cache": g.int("shortconv.l_cache", low=2), "layer_types": kv_types(meta),
        "num_dense_layers": g.int("leading_dense_block_count"), "num_experts": g.int("expert_count"),
        "num_experts_per_tok": g.int("expert_used_count"), "moe_intermediate_size": g.int("expert_feed_forward_length"),
        "use_expert_bias": any(n.endswith("exp_probs_b.bias") for n in meta["tensor_names"])}
