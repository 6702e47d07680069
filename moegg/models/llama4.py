"""Llama 4 (text): chunked attention with rope in pairs (2i, 2i+1), every fourth layer full and without rope, experts that weigh their input.

Source: transformers 5.24 models/llama4. After rope, q and k get a norm without weights (use_qk_norm); full layers scale q by position
(attn_temperature_tuning). Every interleave_moe_layer_step-th layer has experts, stored [E, D, 2F], and a shared one; the router's
weight is the sigmoid of its logit. Dense layers are intermediate_size_mlp wide.
GGUF: llama.cpp's architecture "llama4", which fixes chunks and floor_scale at 8192 and leaves the norms out for 128 experts.
Not supported: images (their tower is left out), partial_rotary_factor, activations other than silu and tanh-gelu.
"""
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from moegg.arch import Chat, ConfigReader, Experts, Gqa, Layer, Mlp, Model, Moe, Norm, Part, Rope, Src, read_rope
from moegg.models._chat import turns
from moegg.models._decoder import HARMLESS, IGNORED, ROPE_TENSORS, SIZE_MAX, gguf_decoder
from moegg.models._moe import MoeDecoder

NAMES = {
    "arch": "llama4", "hf": ("Llama4ForConditionalGeneration", "Llama4ForCausalLM"), "model_type": ("llama4", "llama4_text"),
    "gguf": ("llama4",), "gguf_config_tensors": ROPE_TENSORS, "ignore": (*IGNORED, "vision_model.*", "multi_modal_projector.*"),
}
CHAT = Chat(("<|eot|>", "<|eom|>", "<|end_of_text|>"), "llama", template=(
    "{{ bos_token }}" + turns("<|header_start|>", "<|header_end|>\\n\\n", "<|eot|>")))
_DEFAULTS = {"vocab_size": 202048, "hidden_size": 5120, "intermediate_size": 8192, "num_hidden_layers": 48, "num_attention_heads": 40,
             "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072}


def describe(cfg: ConfigReader) -> Model:
    text = cfg.path("text_config")
    m = MoeDecoder(text, "llama4", defaults=_DEFAULTS, eps_default=1e-5, roots=("language_model.model.", "model."))
    rope = read_rope(text, m.head_dim, m.ctx_train, theta_default=500000.0, interleaved=True)
    every = text.int("no_rope_layer_interval", low=1, default=4)
    turns = text.list("no_rope_layers", of=(int,), default=None) or [int((i + 1) % every != 0) for i in range(m.n_layer)]
    if len(turns) != m.n_layer:
        raise text.wrong("no_rope_layers", f"it has {len(turns)} entries for {m.n_layer} layers")
    types = text.list("layer_types", of=(str,), default=None) or ["chunked_attention" if t else "full_attention" for t in turns]
    if len(types) != m.n_layer or not set(types) <= {"chunked_attention", "full_attention"}:
        raise text.refuse("layer_types", f"supported: chunked_attention or full_attention for each of {m.n_layer} layers")
    chunk, norm = text.int("attention_chunk_size", low=1, default=8192), text.bool("use_qk_norm", default=True)
    scale, floor = text.float("attn_scale", default=0.1), text.int("floor_scale", low=1, default=8192)
    tuned = text.expect("attn_temperature_tuning", True, False, 4)
    bias = text.bool("attention_bias", default=False)
    n, top_k, width = m.moe_sizes(("num_local_experts",), width="intermediate_size")
    step, wide = text.int("interleave_moe_layer_step", low=1, default=1), text.int("intermediate_size_mlp", low=1, high=SIZE_MAX, default=16384)
    sparse = text.list("moe_layers", of=(int,), default=None) or range(step - 1, m.n_layer, step)
    text.ignore("for_llm_compressor", "router_jitter_noise")

    def layer(i: int) -> Layer:
        a = m.attention(i, rope if turns[i] else None, qkv_bias=bias, o_bias=bias)
        return Layer(m.attn_norm(i),
                     _attention(a, m.eps, chunk if types[i] == "chunked_attention" else 0, norm, (scale, floor, 1) if tuned else None),
                     m.ffn_norm(i),
                     _moe(m, i, n, top_k, width) if i in sparse else _mlp(m, i, wide))
    layers = [layer(i) for i in range(m.n_layer)]
    if text is not cfg:
        cfg.ignore(*HARMLESS, "vision_config", "boi_token_index", "eoi_token_index", "image_token_index")
        text.ignore("tie_word_embeddings")
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=False), heads=("language_model.lm_head.weight", "lm_head.weight"))


def _attention(a: Gqa, eps: float, chunk: int, norm: bool, temperature: tuple[float, int, int] | None) -> Gqa:
    turns: Rope | None = a.rope
    plain = Norm(None, eps) if turns and norm else None
    return replace(a, chunk=chunk, q_norm=plain, k_norm=plain, norm_last=True, temperature=None if turns else temperature)


def _mlp(m: MoeDecoder, i: int, width: int) -> Mlp:
    gate, up, down = (m.linear(i, f"ffn.{x}", (m.d, width) if x == "down" else (width, m.d), "dense", f"feed_forward.{x}_proj", f"ffn_{x}")[0]
                      for x in ("gate", "up", "down"))
    return Mlp(gate, up, down, m.act)


def _moe(m: MoeDecoder, i: int, n: int, top_k: int, width: int) -> Moe:
    def part(name: str, shape: tuple[int, int], stack: str, first: int | None) -> Part:
        cut = None if first is None else (first, first + width, 1)
        return Part(name, shape, tuple(Src(f"{r}layers.{i}.feed_forward.experts.{stack}", stacked=True, transpose=True, rows=cut) for r in m.roots),
                    (Src(f"blk.{i}.ffn_{name}_exps.weight", stacked=True),))
    experts = Experts(i, n, (part("gate", (width, m.d), "gate_up_proj", 0), part("up", (width, m.d), "gate_up_proj", width),
                             part("down", (m.d, width), "down_proj", None)))
    return Moe(m.router(i, n, top_k, "feed_forward.router", score="sigmoid", renormalise=False), experts, m.act, weigh_input=True,
               shared=m.shared(i, width, "feed_forward.shared_expert"))


def tiny() -> dict[str, Any]:
    return {"model_type": "llama4_text", "vocab_size": 509, "hidden_size": 60, "num_hidden_layers": 4, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 18, "intermediate_size": 36, "intermediate_size_mlp": 88, "num_local_experts": 5,
            "num_experts_per_tok": 2, "interleave_moe_layer_step": 2, "attention_chunk_size": 12, "floor_scale": 8,
            "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "tie_word_embeddings": False}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_decoder(meta)
    names, experts = meta["tensor_names"], g.int("expert_count", low=1)
    if not g.int("attention.sliding_window", default=8192):
        raise g.refuse("attention.sliding_window", "supported: chunks; files without them have rope in every layer")
    g.ignore("interleave_moe_layer_step", "expert_gating_func")
    return config | {
        "intermediate_size": g.int("expert_feed_forward_length"), "intermediate_size_mlp": config["intermediate_size"],
        "num_local_experts": experts, "num_experts_per_tok": g.int("expert_used_count"), "use_qk_norm": experts != 128,
        "no_rope_layer_interval": g.int("attention.sliding_window_pattern", default=4, low=1), "attention_chunk_size": 8192, "floor_scale": 8192,
        "moe_layers": [i for i in range(config["num_hidden_layers"]) if f"blk.{i}.ffn_gate_inp.weight" in names],
        "attention_bias": "blk.0.attn_q.bias" in names}
