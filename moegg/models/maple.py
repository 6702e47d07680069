"""Maple: sliding layers with rope on half of each head, full layers without positions; RMS norms on q and k, experts in every layer.

Source: deepgrove-ai/mlx-lm-deepgrove, mlx_lm/models/maple.py. Gate values are cut at 7 from above, up values at both sides; router
weights are divided by their sum plus 1e-20. Read: the bf16 layout with one tensor per expert, and the
2-bit MLX layout with stacked experts. GGUF: llama.cpp's architecture "maple". Not supported: rope_scaling, biases, shared experts, dense layers,
MTP layers, flash_head (the plain head is used), tied embeddings.
"""
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from moegg.arch import Chat, ConfigReader, Experts, Layer, Model, Moe, Src, read_rope
from moegg.models._chat import OPEN, QWEN, THINK, chatml
from moegg.models._decoder import IGNORED, gguf_decoder
from moegg.models._moe import MoeDecoder, gguf_moe

NAMES = {"arch": "maple", "hf": ("MapleForCausalLM",), "model_type": ("maple",), "gguf": ("maple",), "ignore": (*IGNORED, "lm_head_flash.*")}
CHAT = Chat(QWEN.ends, reasoning=THINK, template=chatml(OPEN))


def describe(cfg: ConfigReader) -> Model:
    m = MoeDecoder(cfg, "maple")
    cfg.expect("hidden_act", "silu")
    for key, value in (("use_qk_norm", True), ("use_bias", False), ("first_k_dense_replace", 0), ("num_shared_experts", 0),
                       ("num_nextn_predict_layers", 0), ("rope_scaling", None), ("tie_word_embeddings", False)):
        cfg.expect(key, value)
    cfg.ignore("flash_head", "router_dtype", "use_sliding_window")
    rope = read_rope(cfg, m.head_dim, m.ctx_train, partial=0.5)
    window = cfg.int("sliding_window", low=1, default=512)
    windows = m.windows(window, ["full_attention" if i % 4 == 3 else "sliding_attention" for i in range(m.n_layer)])
    n, top_k, width = m.moe_sizes(("num_experts",))
    renormalise = cfg.bool("norm_topk_prob", default=True)
    layers = [Layer(m.attn_norm(i),
                    m.attention(i, rope if windows[i] else None, window=windows[i], qk_norm=True),
                    m.ffn_norm(i),
                    Moe(m.router(i, n, top_k, renormalise=renormalise, sum_eps=1e-20), _experts(m, i, n, width), "silu_cut"))
              for i in range(m.n_layer)]
    whole = m.model(layers, tied=False)
    return replace(whole, embed=replace(whole.embed, hf=(Src("model.word_embeddings.weight"),)))


def _experts(m: MoeDecoder, i: int, n: int, width: int) -> Experts:
    experts = m.experts(i, n, width)
    stacks = [Src(f"model.layers.{i}.mlp.switch_mlp.{p.name}_proj.weight", stacked=True) for p in experts.parts]
    return replace(experts, parts=tuple(replace(p, hf=(*p.hf, s)) for p, s in zip(experts.parts, stacks, strict=True)))


def tiny() -> dict[str, Any]:
    return {"model_type": "maple", "vocab_size": 509, "hidden_size": 72, "num_hidden_layers": 4, "num_attention_heads": 6,
            "num_key_value_heads": 2, "head_dim": 20, "intermediate_size": 104, "moe_intermediate_size": 40, "num_experts": 7,
            "num_experts_per_tok": 3, "sliding_window": 11, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
            "partial_rotary_factor": 0.5, "tie_word_embeddings": False}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_decoder(meta, partial=True)
    n, cuts = config["num_hidden_layers"], g.floats("swiglu_clamp_exp", default=[7.0])
    slides = g.list("attention.sliding_window_pattern", of=(bool,))
    if set(cuts) != {7.0}:
        raise g.refuse("swiglu_clamp_exp", "supported: 7")
    if len(slides) != n:
        raise g.wrong("attention.sliding_window_pattern", f"there are {n} layers")
    experts = gguf_moe(meta, g, norm=True)
    del experts["mlp_only_layers"]
    return config | experts | {"sliding_window": g.int("attention.sliding_window", low=1),
                               "rope_theta": g.float("rope.freq_base_swa", default=config["rope_theta"]),
                               "layer_types": ["sliding_attention" if s else "full_attention" for s in slides]}


def gguf_keys(model: Model) -> dict[str, Any]:
    return {"attention.sliding_window_pattern": [x.attn.window > 0 for x in model.layers], "swiglu_clamp_exp": [7.0] * len(model.layers)}
