"""gpt-oss: GQA with biases and attention sinks, every other layer with a window, experts with biases and a clamped SwiGLU.

Source: transformers 5.24 models/gpt_oss. GGUF: llama.cpp's architecture "gpt-oss". Experts are stored [E, D, 2F], gate and up columns
taking turns, or as MXFP4 blocks by output rows. The softmax over the chosen logits is the renormalised one over all. GGUF does not say
that yarn's ramp is not rounded here; it is not, as in the reference.
Not supported: partial_rotary_factor, swiglu_limit other than 7, activations other than this one.
"""
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from moegg.arch import Chat, ConfigReader, Experts, Layer, Model, Moe, Part, Src, read_rope
from moegg.models._chat import ASKED
from moegg.models._decoder import IGNORED, ROPE_TENSORS, gguf_decoder
from moegg.models._moe import MoeDecoder

NAMES = {"arch": "gpt-oss", "hf": ("GptOssForCausalLM",), "model_type": ("gpt_oss",), "gguf": ("gpt-oss",),
         "gguf_config_tensors": ROPE_TENSORS, "ignore": IGNORED}
CHAT = Chat(("<|return|>", "<|call|>", "<|endoftext|>"), "harmony", template=(
    "{{ '<|start|>system<|message|>Reasoning: ' + (reasoning_effort or 'medium') }}"
    "{{ '\\n\\n# Valid channels: analysis, commentary, final. Channel must be included for every message.<|end|>' }}"
    "{% for m in messages %}{% set name = {'system': 'developer', 'assistant': 'assistant<|channel|>final'}[m.role] or m.role %}"
    "{{ '<|start|>' + name + '<|message|>' + ('# Instructions\\n\\n' if m.role == 'system' else '') + m.content + '<|end|>' }}{% endfor %}"
    + ASKED + "{{ '<|start|>assistant' }}{% endif %}"))


def describe(cfg: ConfigReader) -> Model:
    m = MoeDecoder(cfg, "gpt-oss", defaults={"head_dim": 64, "num_key_value_heads": 8}, eps_default=1e-5)
    rope, bias = read_rope(cfg, m.head_dim, m.ctx_train, theta_default=150000.0), cfg.bool("attention_bias", default=True)
    window = cfg.int("sliding_window", low=1, default=0 if cfg.given("sliding_window") else 128)
    windows = m.windows(window, ["full_attention" if i % 2 else "sliding_attention" for i in range(m.n_layer)])
    n, top_k, width = m.moe_sizes(("num_local_experts", "num_experts"), ("num_experts_per_tok", "experts_per_token"), "intermediate_size")
    cfg.expect("swiglu_limit", 7.0)
    cfg.expect("hidden_act", "silu")
    cfg.ignore("initial_context_length")

    def attention(i: int) -> Any:
        sinks = m.tensor(i, "attn.sinks", (m.n_head,), "bias", "self_attn.sinks", "attn_sinks.weight")
        return replace(m.attention(i, rope, window=windows[i], qkv_bias=bias, o_bias=bias), sinks=sinks)

    def ffn(i: int) -> Moe:
        router = m.router(i, n, top_k, "mlp.router", renormalise=True,
                          bias=m.tensor(i, "ffn.router_bias", (n,), "bias", "mlp.router.bias", "ffn_gate_inp.bias"))
        return Moe(router, _experts(m, i, n, width), "swiglu_oai")
    layers = [Layer(m.attn_norm(i), attention(i),
                    m.ffn_norm(i, "post_attention_norm"), ffn(i))
              for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=False))


def _experts(m: MoeDecoder, layer: int, n: int, width: int) -> Experts:
    root = f"model.layers.{layer}.mlp.experts."

    def part(name: str, rows: int, cols: int, stack: str, first: int | None) -> tuple[Part, Part]:
        cut = None if first is None else (first, 2 * width, 2)
        gguf = f"blk.{layer}.ffn_{name}_exps."
        weight = Part(name, (rows, cols), (Src(f"{root}{stack}", stacked=True, transpose=True, rows=cut),
                                           Src(f"{root}{stack}_blocks", stacked=True, rows=cut)), (Src(f"{gguf}weight", stacked=True),))
        return weight, Part(f"{name}_bias", (rows,), (Src(f"{root}{stack}_bias", stacked=True, rows=cut),), (Src(f"{gguf}bias", stacked=True),))
    pairs = (part("gate", width, m.d, "gate_up_proj", 0), part("up", width, m.d, "gate_up_proj", 1), part("down", m.d, width, "down_proj", None))
    return Experts(layer, n, (*(weight for weight, _ in pairs), *(bias for _, bias in pairs)))


def tiny() -> dict[str, Any]:
    return {"model_type": "gpt_oss", "vocab_size": 509, "hidden_size": 72, "num_hidden_layers": 4, "num_attention_heads": 6,
            "num_key_value_heads": 2, "head_dim": 20, "intermediate_size": 40, "num_local_experts": 5, "num_experts_per_tok": 2,
            "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 1.5e5, "sliding_window": 11, "tie_word_embeddings": False,
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "truncate": False}}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_decoder(meta)
    if "rope_scaling" in config and config["rope_scaling"]["rope_type"] == "yarn":
        config["rope_scaling"] |= {"truncate": False}
    return config | {
        "intermediate_size": g.int("expert_feed_forward_length"), "num_local_experts": g.int("expert_count"),
        "num_experts_per_tok": g.int("expert_used_count"), "sliding_window": g.int("attention.sliding_window", low=1),
        "attention_bias": "blk.0.attn_q.bias" in meta["tensor_names"]}
