"""Jamba: Mamba blocks with an attention layer now and then, none of which knows positions; every second MLP is a mixture of experts.

Source: transformers 5.24 models/jamba. Layer i is attention if i % attn_layer_period == attn_layer_offset, and has experts if
i % expert_layer_period == expert_layer_offset. RMS norms on dt, B and C inside the Mamba block; router weights are plain softmax.
GGUF: llama.cpp's architecture "jamba", whose layers are told apart by their tensors and numbers of KV heads.
Not supported: mamba_proj_bias, sliding_window, activations other than silu.
"""
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from moegg.arch import PAST_MAX, SCAN_MAX, Chat, ConfigReader, Conv, Layer, Mamba, Mlp, Model, Moe, Norm, Src, Tensor
from moegg.errors import FormatError, UnsupportedModel
from moegg.models._chat import ASKED
from moegg.models._decoder import IGNORED, gguf_decoder, kv_layers, one_kv_count
from moegg.models._moe import MoeDecoder

NAMES = {"arch": "jamba", "hf": ("JambaForCausalLM",), "model_type": ("jamba",), "gguf": ("jamba",), "ignore": IGNORED}
CHAT = Chat(("<|eom|>", "<|endoftext|>"), "marked", template=(
    "{{ bos_token }}{% if messages[0].role != 'system' %}{{ '<|bom|><|system|> <|eom|>' }}{% endif %}"
    "{% for m in messages %}{{ '<|bom|><|' + m.role + '|> ' + m.content + '<|eom|>' }}{% endfor %}"
    + ASKED + "{{ '<|bom|><|assistant|>' }}{% endif %}"))
_DEFAULTS = {"vocab_size": 65536, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
             "num_key_value_heads": 8, "max_position_embeddings": 262144}


def describe(cfg: ConfigReader) -> Model:
    m = MoeDecoder(cfg, "jamba", defaults=_DEFAULTS)
    cfg.expect("hidden_act", "silu")
    cfg.expect("sliding_window", None)
    cfg.expect("mamba_proj_bias", False)
    cfg.ignore("rope_theta", "rope_scaling", "rope_parameters", "use_mamba_kernels",
               "use_mambapy", "use_associative_scan", "num_logits_to_keep", "calc_logits_for_entire_prompt",
               "mamba_inner_layernorms", "router_jitter_noise")
    full, sparse = _every(m, "attn_layer", 8, 4), _every(m, "expert_layer", 2, 1)
    n = cfg.int("num_experts", "num_local_experts", low=1, high=1 << 16, default=16)
    top_k = cfg.int("num_experts_per_tok", low=1, default=2)
    if n > 1 and top_k > n:
        raise cfg.wrong("num_experts_per_tok", f"there are {n} experts")
    sizes = (m.d * cfg.int("mamba_expand", low=1, high=64, default=2), cfg.int("mamba_d_state", low=1, high=SCAN_MAX, default=16),
             cfg.int("mamba_d_conv", low=2, high=PAST_MAX + 1, default=4), _rank(cfg, m.d))
    conv_bias = cfg.bool("mamba_conv_bias", default=True)

    def ffn(i: int):
        if n == 1 or not sparse[i]:
            return _mlp(m, i)
        return Moe(m.router(i, n, top_k, hf="feed_forward.router", renormalise=False),
                   m.experts(i, n, m.width, hf="feed_forward.experts"), m.act)
    layers = [Layer(m.attn_norm(i),
                    m.attention(i, None) if full[i] else _mamba(m, i, *sizes, conv_bias),
                    m.norm(i, "ffn_norm", "pre_ff_layernorm", "ffn_norm"), ffn(i)) for i in range(m.n_layer)]
    whole = m.model(layers, tied=cfg.bool("tie_word_embeddings", default=False))
    final = replace(whole.final_norm.weight, hf=(Src("model.final_layernorm.weight"),))
    return replace(whole, final_norm=replace(whole.final_norm, weight=final))


def _mlp(m: MoeDecoder, i: int) -> Mlp:
    gate, up, down = (m.linear(i, f"ffn.{x}", (m.d, m.width) if x == "down" else (m.width, m.d), "dense", f"feed_forward.{x}_proj",
                               f"ffn_{x}")[0] for x in ("gate", "up", "down"))
    return Mlp(gate, up, down, m.act)


def _every(m: MoeDecoder, key: str, period: int, offset: int) -> list[bool]:
    period, offset = m.cfg.int(f"{key}_period", low=1, default=period), m.cfg.int(f"{key}_offset", default=offset)
    if offset >= period:
        raise m.cfg.wrong(f"{key}_offset", f"'{key}_period' is {period}")
    return [i % period == offset for i in range(m.n_layer)]


def _rank(cfg: ConfigReader, d: int) -> int:
    auto = -(-d // 16)
    try:
        return cfg.int("mamba_dt_rank", low=1, high=d, default=auto)
    except FormatError:
        cfg.expect("mamba_dt_rank", "auto")         # refuses what is neither
        return auto


def _mamba(m: MoeDecoder, i: int, channels: int, states: int, taps: int, rank: int, conv_bias: bool) -> Mamba:
    def find(name: str, shape: tuple[int, ...], role: str, src: str, gguf: str, first: int = -1, squeeze: bool = False, log: int = 0) -> Tensor:
        rows = (first, first + shape[0], 1) if first >= 0 else None
        return Tensor(f"layers.{i}.mix.{name}", shape, role, (Src(f"model.layers.{i}.mamba.{src}", rows=rows, squeeze=squeeze),),
                      (Src(f"blk.{i}.ssm_{gguf}", rows=rows, squeeze=squeeze, log=log),), i)

    def norm(name: str, width: int) -> Norm:
        return Norm(find(f"{name}_norm", (width,), "norm", f"{name}_layernorm.weight", f"{name}_norm.weight"), m.eps)
    taps_ = find("taps", (channels, taps), "aux", "conv1d.weight", "conv1d.weight", squeeze=True)
    return Mamba(
        x=find("x", (channels, m.d), "attn", "in_proj.weight", "in.weight", 0),
        z=find("z", (channels, m.d), "attn", "in_proj.weight", "in.weight", channels),
        conv=Conv(taps_, find("taps_bias", (channels,), "bias", "conv1d.bias", "conv1d.bias") if conv_bias else None),
        dt=find("dt", (rank, channels), "attn", "x_proj.weight", "x.weight", 0),
        b=find("b", (states, channels), "attn", "x_proj.weight", "x.weight", rank),
        c=find("c", (states, channels), "attn", "x_proj.weight", "x.weight", rank + states),
        dt_norm=norm("dt", rank), b_norm=norm("b", states), c_norm=norm("c", states),
        dt_up=find("dt_up", (channels, rank), "attn", "dt_proj.weight", "dt.weight"),
        dt_bias=find("dt_bias", (channels,), "bias", "dt_proj.bias", "dt.bias"),
        a_log=find("a_log", (channels, states), "aux", "A_log", "a", log=-1), d=find("d", (channels,), "aux", "D", "d"),
        o=find("o", (m.d, channels), "attn", "out_proj.weight", "out.weight"))


def tiny() -> dict[str, Any]:
    return {"model_type": "jamba", "vocab_size": 509, "hidden_size": 72, "num_hidden_layers": 4, "num_attention_heads": 6,
            "num_key_value_heads": 2, "head_dim": 20, "intermediate_size": 40, "num_experts": 7, "num_experts_per_tok": 3, "attn_layer_period": 3,
            "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1, "mamba_d_state": 5, "mamba_expand": 2,
            "mamba_dt_rank": 7, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "tie_word_embeddings": False}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_decoder(one_kv_count(meta))
    names, d, layers = meta["tensor_names"], config["hidden_size"], range(config["num_hidden_layers"])
    inner = g.int("ssm.inner_size", low=1)
    if inner % d:
        raise g.wrong("ssm.inner_size", f"it is not a multiple of 'embedding_length', {d}")
    g.ignore("attention.layer_norm_epsilon", "expert_feed_forward_length")
    experts = g.int("expert_count", default=1) or 1
    return config | _period("attn_layer", kv_layers(meta) or [True for _ in layers]) | {
        "mamba_expand": inner // d, "mamba_d_state": g.int("ssm.state_size"), "mamba_d_conv": g.int("ssm.conv_kernel"),
        "mamba_dt_rank": g.int("ssm.time_step_rank"), "mamba_conv_bias": any(n.endswith("ssm_conv1d.bias") for n in names),
        "num_experts": experts, "num_experts_per_tok": g.int("expert_used_count", default=1),
    } | (_period("expert_layer", [f"blk.{i}.ffn_gate_inp.weight" in names for i in layers]) if experts > 1 else {})


def _period(key: str, there: list[bool]) -> dict[str, int]:
    """Jamba's two keys for layers that come at equal distances."""
    at = [i for i, yes in enumerate(there) if yes] or [len(there)]
    period, offset = at[1] - at[0] if len(at) > 1 else max(len(there), at[0] + 1), at[0]
    if there != [i % period == offset for i in range(len(there))]:
        raise UnsupportedModel(f"GGUF metadata: layers of '{key}' are {at}; supported: equal distances", "arch-unsupported")
    return {f"{key}_period": period, f"{key}_offset": offset}
