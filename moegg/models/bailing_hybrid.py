"""Ling 3.0: groups of KDA layers, each closed by a latent-attention layer whose heads are gated; DeepSeek's router and experts.

Source: transformers 5.24 models/bailing_hybrid, and the configs of inclusionAI's Ling-3.0 releases (architectures BailingMoeV3ForCausalLM).
Layers (i + 1) % layer_group_size == 0 are latent attention; its output product is `attention.dense`, KDA's `attention.o_proj`; decays
and gates of KDA are of full rank. Layers for multi-token prediction are left out.
GGUF: llama.cpp's architecture "bailingmoe3".
Not supported: a last group that is not whole (the reference takes its layers for KDA, the release's own code for latent attention),
rope scaling, biases, KV heads of their own for KDA, gates of other granularity, shared experts of another width, activations other than silu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import PAST_MAX, Chat, ConfigReader, Layer, Model, read_rope
from moegg.errors import UnsupportedModel
from moegg.models._chat import ASKED, THINK
from moegg.models._decoder import IGNORED, kv_layers
from moegg.models._delta import DIM_MAX, kda
from moegg.models._mla import Latent, gguf_latent
from moegg.models._moe import MoeDecoder, gguf_deepseek_moe, gguf_norm_keys

NAMES = {"arch": "bailing-hybrid", "hf": ("BailingMoeV3ForCausalLM", "BailingHybridForCausalLM"), "model_type": ("bailing_hybrid",),
         "gguf": ("bailingmoe3",), "ignore": (*IGNORED, "model.layers.{n}.*", "blk.{n}.*")}
CHAT = Chat(("<|role_end|>", "<|endoftext|>"), reasoning=THINK, template=(
    "{% set mode = 'off' if enable_thinking is defined and not enable_thinking else 'on' %}"
    "{% set system = messages[0].content if messages[0].role == 'system' else '' %}"
    "{{ '<role>SYSTEM</role>' + (system + '\\n' if system else '') + 'detailed thinking ' + mode + '<|role_end|>' }}"
    "{% for m in (messages[1:] if system else messages) %}{% set name = {'user': 'HUMAN'}[m.role] or m.role | upper %}"
    "{{ '<role>' + name + '</role>' + ('\\n' if m.role == 'assistant' else '') + m.content + '<|role_end|>' }}{% endfor %}"
    + ASKED + "{{ '<role>ASSISTANT</role>\\n<think>' + ('</think>' if mode == 'off' else '') }}{% endif %}"))
_ONLY = {"hidden_act": "silu", "score_function": "sigmoid", "topk_method": "noaux_tc", "router_dtype": "fp32", "linear_attention": "kda",
         "gated_attention_proj_granularity_type": "head_wise", "group_norm_size": 1, "moe_router_enable_expert_bias": True,
         "rope_interleave": True, "no_kda_lora": True, "use_bias": False, "use_qkv_bias": False, "use_nGPT": False, "use_mla_nope": False,
         "value_norm": False, "up_proj_norm": False, "scale_router_input": False, "num_kv_heads_for_linear_attn": None}


def describe(cfg: ConfigReader) -> Model:
    m = MoeDecoder(cfg, "bailing-hybrid")
    for key, value in _ONLY.items():
        cfg.expect(key, value)
    if m.n_kv_head != m.n_head:
        raise cfg.refuse("num_key_value_heads", f"latent attention has as many as query heads, {m.n_head}")
    cfg.float("routed_scaling_factor")                          # DeepSeek's default is not this class's
    cfg.expect("moe_shared_expert_intermediate_size", cfg.int("moe_intermediate_size"))
    latent = Latent(m, 0)
    if latent.nope + latent.rope_dim != cfg.int("qk_head_dim", default=latent.nope + latent.rope_dim):
        raise cfg.wrong("qk_head_dim", f"its parts are {latent.nope} and {latent.rope_dim}")
    if not cfg.has("rope_parameters"):
        cfg.float("rope_theta")                                 # as with the factor: no default to rely on
    rope = read_rope(cfg, latent.rope_dim, m.ctx_train, interleaved=True)
    if rope.scaling:
        raise cfg.refuse("rope_scaling" if cfg.has("rope_scaling") else "rope_parameters", "supported: none, the reference has no scaling here")
    group = cfg.int("layer_group_size", low=1)
    if m.n_layer % group:
        raise cfg.refuse("layer_group_size", f"supported: whole groups; sources differ on the last {m.n_layer % group} of {m.n_layer} layers")
    if m.head_dim > DIM_MAX:
        raise cfg.refuse("head_dim", f"supported: at most {DIM_MAX}")
    sizes = {"heads": m.n_head, "dim": m.head_dim, "taps": cfg.int("short_conv_kernel_size", low=2, high=PAST_MAX + 1, default=4)}
    bound = cfg.float("kda_lower_bound")
    if not cfg.bool("kda_safe_gate", default=True):
        bound = 0.0
    elif bound >= 0:
        raise cfg.wrong("kda_lower_bound", "the logarithm of a decay is negative")
    ffn = m.deepseek_moe(bias="expert_bias")
    layers = [Layer(m.attn_norm(i),
                    kda(m, i, **sizes, low_rank=False, hf="attention", bound=bound) if (i + 1) % group else
                    latent.attention(i, rope, "attention", "dense", "g_proj"),
                    m.ffn_norm(i), ffn(i))
              for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=False), embed="word_embeddings")


def tiny() -> dict[str, Any]:
    return {"model_type": "bailing_hybrid", "vocab_size": 509, "hidden_size": 72, "num_hidden_layers": 4, "num_attention_heads": 5,
            "num_key_value_heads": 5, "head_dim": 12, "intermediate_size": 104, "moe_intermediate_size": 40, "num_experts": 8,
            "num_experts_per_tok": 3, "num_shared_experts": 1, "moe_shared_expert_intermediate_size": 40, "first_k_dense_replace": 1,
            "n_group": 4, "topk_group": 2, "norm_topk_prob": True, "routed_scaling_factor": 2.5, "layer_group_size": 2,
            "kda_safe_gate": True, "kda_lower_bound": -5.0, "short_conv_kernel_size": 4, "kv_lora_rank": 32, "q_lora_rank": 22,
            "qk_nope_head_dim": 18, "qk_rope_head_dim": 10, "v_head_dim": 16, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
            "rope_theta": 1e4, "tie_word_embeddings": False}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    extra = meta.get("bailingmoe3.nextn_predict_layers", 0)
    config, g = gguf_latent(meta)
    n = config["num_hidden_layers"] - extra
    full = (kv_layers(meta) or [True] * n)[:n]
    group = full.index(True) + 1 if True in full else n + 1
    if full != [(i + 1) % group == 0 for i in range(n)]:
        raise UnsupportedModel("GGUF metadata: 'bailingmoe3.attention.head_count_kv': supported: groups of layers that end with one that is not 0",
                               "arch-unsupported")
    moe = gguf_deepseek_moe(meta, g)
    g.expect("expert_gating_func", 2)
    g.expect("kda.safe_gate", True)
    return config | moe | {
        "num_hidden_layers": n, "num_key_value_heads": config["num_attention_heads"], "head_dim": g.int("kda.head_dim"), "layer_group_size": group,
        "moe_shared_expert_intermediate_size": moe["moe_intermediate_size"], "kda_lower_bound": g.float("kda.gate_lower_bound"),
        "short_conv_kernel_size": g.int("ssm.conv_kernel")}


def gguf_keys(model: Model) -> dict[str, Any]:
    return gguf_norm_keys(model)
