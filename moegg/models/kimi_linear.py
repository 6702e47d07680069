"""Kimi Linear: KDA layers with a latent-attention layer now and then, neither of which knows positions; DeepSeek's router and experts.

Source: transformers 5.24 models/kimi_linear. linear_attn_config lists full_attn_layers and kda_layers from 1; decays and gates of KDA are of
low rank; dense layers are `mlp.*`, layers with experts `block_sparse_moe.*`. Rope keys change nothing.
GGUF: llama.cpp's architecture "kimi-linear".
Not supported: attention_bias, mla_use_nope false, moe_layer_freq other than 1, activations other than silu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import MAX_GROUPS, PAST_MAX, ConfigReader, Layer, Model, Moe
from moegg.models._chat import KIMI
from moegg.models._decoder import HEAD_MAX, IGNORED, kv_layers
from moegg.models._delta import DIM_MAX, kda
from moegg.models._mla import Latent, gguf_latent
from moegg.models._moe import MIXTRAL, MoeDecoder, gguf_deepseek_moe

NAMES = {"arch": "kimi-linear", "hf": ("KimiLinearForCausalLM",), "model_type": ("kimi_linear",), "gguf": ("kimi-linear",),
         "ignore": (*IGNORED, "*.mtp.*")}
CHAT = KIMI
_DEFAULTS = {"vocab_size": 163840, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 27, "num_attention_heads": 32,
             "rms_norm_eps": 1e-5}


def describe(cfg: ConfigReader) -> Model:
    ctx = cfg.int("model_max_length", "max_position_embeddings", low=1, high=1 << 30, default=1048576)
    m = MoeDecoder(cfg, "kimi-linear", defaults=_DEFAULTS | {"max_position_embeddings": ctx})
    m.ctx_train = ctx
    cfg.expect("hidden_act", "silu")
    cfg.expect("mla_use_nope", True)
    cfg.expect("attention_bias", False)
    cfg.expect("moe_layer_freq", 1)
    cfg.expect("moe_router_activation_func", "sigmoid")
    cfg.ignore("rope_theta", "rope_scaling", "rope_parameters", "num_nextn_predict_layers", "use_grouped_topk", "num_key_value_heads")
    latent, full, sizes = Latent(m, 0), *_linear(cfg, m)
    n, top_k, width = m.moe_sizes(("num_experts", "num_local_experts"), ("num_experts_per_token", "num_experts_per_tok"))
    dense, shared = cfg.int("first_k_dense_replace", default=1), cfg.int("num_shared_experts", "n_shared_experts", default=1, high=64)
    groups = cfg.int("num_expert_group", "n_group", low=1, default=1, high=MAX_GROUPS)
    kept = cfg.int("topk_group", low=1, default=1)
    if n % groups or kept > groups or top_k > kept * (n // groups) or groups > 1 and n // groups < 2:
        raise cfg.wrong("num_expert_group", f"{top_k} of {n} experts cannot come from {kept} of its groups")
    rules = {"score": "sigmoid", "group_score": "top2", "sum_eps": 1e-20, "n_group": groups, "top_group": kept,
             "renormalise": cfg.bool("moe_renormalize", "norm_topk_prob", default=True),
             "scale": cfg.float("routed_scaling_factor", default=2.446)}

    def moe(i: int) -> Moe:
        return Moe(m.router(i, n, top_k, "block_sparse_moe.gate", "block_sparse_moe.gate.e_score_correction_bias", **rules),
                   m.experts(i, n, width, **MIXTRAL), m.act, shared=m.shared(i, width * shared, "block_sparse_moe.shared_experts"))
    layers = [Layer(m.attn_norm(i),
                    latent.attention(i, None) if full[i] else kda(m, i, **sizes, low_rank=True, hf="self_attn"),
                    m.ffn_norm(i), m.mlp(i) if i < dense else moe(i))
              for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=False))


def _linear(cfg: ConfigReader, m: MoeDecoder) -> tuple[list[bool], dict[str, int]]:
    """(which layers are full attention, sizes of KDA) of linear_attn_config."""
    own = cfg.child("linear_attn_config")
    full, linear = (own.list(key, of=(int,)) for key in ("full_attn_layers", "kda_layers"))
    if sorted([*full, *linear]) != list(range(1, m.n_layer + 1)):
        raise own.wrong("kda_layers", f"with 'full_attn_layers' they are not the {m.n_layer} layers, counted from 1")
    return [i + 1 in full for i in range(m.n_layer)], {
        "heads": own.int("num_heads", low=1, high=HEAD_MAX), "dim": own.int("head_dim", low=1, high=DIM_MAX),
        "taps": own.int("short_conv_kernel_size", low=2, high=PAST_MAX + 1, default=4)}


def tiny() -> dict[str, Any]:
    return {"model_type": "kimi_linear", "vocab_size": 509, "hidden_size": 72, "num_hidden_layers": 4, "num_attention_heads": 3,
            "num_key_value_heads": 3, "head_dim": 20, "intermediate_size": 104, "moe_intermediate_size": 40, "num_experts": 7,
            "num_experts_per_token": 3, "num_shared_experts": 1, "first_k_dense_replace": 1, "kv_lora_rank": 32, "q_lora_rank": None,
            "qk_nope_head_dim": 12, "qk_rope_head_dim": 6, "v_head_dim": 16, "routed_scaling_factor": 2.446, "model_max_length": 512,
            "linear_attn_config": {"full_attn_layers": [2], "kda_layers": [1, 3, 4], "head_dim": 12, "num_heads": 5,
                                   "short_conv_kernel_size": 4}, "rms_norm_eps": 1e-5, "tie_word_embeddings": False}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_latent(meta)
    g.expect("expert_gating_func", 2, 0)
    moe, full = gguf_deepseek_moe(meta, g), kv_layers(meta) or [True] * config["num_hidden_layers"]
    return config | {
        "model_max_length": config.pop("max_position_embeddings"), "num_experts": moe["n_routed_experts"],
        "num_experts_per_token": moe["num_experts_per_tok"],
        "moe_intermediate_size": moe["moe_intermediate_size"], "num_shared_experts": moe["n_shared_experts"],
        "first_k_dense_replace": moe["first_k_dense_replace"], "num_expert_group": moe["n_group"], "topk_group": moe["topk_group"],
        "routed_scaling_factor": moe["routed_scaling_factor"], "moe_renormalize": g.bool("expert_weights_norm", default=True),
        "linear_attn_config": {"full_attn_layers": [i + 1 for i, f in enumerate(full) if f],
                               "kda_layers": [i + 1 for i, f in enumerate(full) if not f],
                               "num_heads": config["num_attention_heads"], "head_dim": g.int("kda.head_dim"),
                               "short_conv_kernel_size": g.int("ssm.conv_kernel")}}
