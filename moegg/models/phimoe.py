"""Phi-3.5-MoE: LayerNorms with biases, biases on every projection of attention and on the head, sparsemixer routing, longrope.

Source: transformers 5.24 models/phimoe; short_mscale and long_mscale replace longrope's own factor on cos and sin. Beyond the original
length the long factors hold, as for longrope elsewhere; this reference keeps the short ones there. GGUF: llama.cpp's architecture
"phimoe", which itself routes by a plain softmax. Not supported: other than 2 experts per token, mscales that differ, windows shorter
than the trained length, partial_rotary_factor, activations other than silu and tanh-gelu.
"""
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from moegg.arch import ConfigReader, Layer, Model, Moe, Rope, Tensor, read_rope
from moegg.arch.tensors import Src
from moegg.models._chat import PHI
from moegg.models._decoder import IGNORED, ROPE_TENSORS, gguf_decoder
from moegg.models._moe import MIXTRAL, MoeDecoder

NAMES = {"arch": "phimoe", "hf": ("PhimoeForCausalLM", "PhiMoEForCausalLM"), "model_type": ("phimoe",), "gguf": ("phimoe",),
         "gguf_config_tensors": ROPE_TENSORS, "ignore": IGNORED}
CHAT = PHI


def describe(cfg: ConfigReader) -> Model:
    m = MoeDecoder(cfg, "phimoe", defaults={"num_key_value_heads": 8}, eps_default=1e-5, layer_norm=True, norm_bias=True)
    rope, bias = _rope(cfg, m), cfg.bool("attention_bias", default=False)
    n, top_k, width = m.moe_sizes(("num_local_experts", "num_experts"), width="intermediate_size")
    jitter = cfg.float("router_jitter_noise", default=0.01, low=0)
    if top_k != 2:
        raise cfg.refuse("num_experts_per_tok", "supported: 2")
    if cfg.int("sliding_window", low=1, default=m.ctx_train) < m.ctx_train:
        raise cfg.refuse("sliding_window", f"supported: at least 'max_position_embeddings', {m.ctx_train}")
    cfg.ignore("input_jitter_noise")
    biased = cfg.bool("lm_head_bias", default=False)
    head_bias = Tensor("head_bias", (m.vocab,), "bias", (Src("lm_head.bias"),), (Src("output.bias"),)) if biased else None
    layers = [Layer(m.attn_norm(i), m.attention(i, rope, qkv_bias=bias, o_bias=bias),
                    m.ffn_norm(i),
                    Moe(m.router(i, n, top_k, "block_sparse_moe.gate", score="sparsemixer", renormalise=False, jitter=jitter),
                        m.experts(i, n, width, **MIXTRAL), m.act))
              for i in range(m.n_layer)]
    return replace(m.model(layers, tied=cfg.bool("tie_word_embeddings", default=False)), head_bias=head_bias)


def _rope(cfg: ConfigReader, m: MoeDecoder) -> Rope:
    rope, params = read_rope(cfg, m.head_dim, m.ctx_train), cfg.child("rope_scaling" if cfg.has("rope_scaling") else "rope_parameters")
    if dict(rope.scaling).get("rope_type") != "longrope" or params.has("attention_factor"):      # which GGUF has
        return rope
    short, long = params.float("short_mscale", low=1e-3), params.float("long_mscale", low=1e-3)
    if short != long:
        raise params.refuse("long_mscale", "supported: equal to 'short_mscale'")
    return replace(rope, scaling=tuple(sorted((dict(rope.scaling) | {"attention_factor": short}).items())))


def tiny() -> dict[str, Any]:
    return {"model_type": "phimoe", "vocab_size": 509, "hidden_size": 60, "num_hidden_layers": 3, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 18, "intermediate_size": 44, "num_local_experts": 6, "num_experts_per_tok": 2,
            "attention_bias": True, "lm_head_bias": True, "router_jitter_noise": 0.01, "max_position_embeddings": 512,
            "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": False}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_decoder(meta)
    g.ignore("attention.sliding_window")
    names = meta["tensor_names"]
    return config | {"num_local_experts": g.int("expert_count"), "num_experts_per_tok": g.int("expert_used_count"),
                     "attention_bias": "blk.0.attn_q.bias" in names, "lm_head_bias": "output.bias" in names}


def gguf_keys(model: Model) -> dict[str, Any]:
    return {"attention.layer_norm_epsilon": None, "attention.layer_norm_rms_epsilon": model.final_norm.eps}
