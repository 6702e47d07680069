"""GGUF keys of a Model: what llama.cpp's loaders read, and the tensors in which it keeps ropes. Written from the description alone.

What single families need on top, or otherwise, their modules say (gguf_keys, moegg/models/README.md). Nobody need trust these lists:
export_meta.py reads what they give back as a conversion would, and refuses a file that would be another model. What a loader fixes by
itself (chunks, some scales and windows) has no key, so such models are refused there. Keys: llama.cpp, gguf-py constants.py and src/models.
"""
from typing import Any

from moegg.arch import DeltaNet, Gqa, Layer, Mamba, Mla, Mlp, Model, Moe, Rope, ShortConv

Keys = dict[str, Any]


def model_keys(model: Model) -> tuple[Keys, dict[str, list[float]]]:
    """({key without '<arch>.': value}, {rope tensor: values}). Integers are u32, floats f32, lists of either or of booleans arrays."""
    main = main_attention(model)
    local = next((x.attn for x in model.layers if getattr(x.attn, "window", 0)), None)
    mixer = next((x.attn for x in model.layers if isinstance(x.attn, (DeltaNet, Mamba, ShortConv))), None)
    eps = "layer_norm_epsilon" if model.final_norm.kind == "layer" else "layer_norm_rms_epsilon"
    keys: Keys = {"block_count": len(model.layers), "context_length": model.ctx_train, "embedding_length": model.d,
                  "vocab_size": model.vocab, f"attention.{eps}": model.final_norm.eps}
    if local:
        keys["attention.sliding_window"] = local.window
    if model.logit_softcap:
        keys["final_logit_softcapping"] = model.logit_softcap
    if getattr(main, "softcap", 0):
        keys["attn_logit_softcapping"] = main.softcap
    scaling, tensors = _rope(main.rope) if main.rope else ({}, {})
    return keys | _attention(model, main) | _ffn(model) | scaling | (_mixer(mixer) if mixer else {}), tensors


def main_attention(model: Model) -> Gqa | Mla:
    """The attention that says what a GGUF's main rope and head size are: one without a window that has a rope, if there is one."""
    found = [x.attn for x in model.layers if isinstance(x.attn, (Gqa, Mla))]
    return min(found, key=lambda a: (a.rope is None, getattr(a, "window", 0) > 0))


def _attention(model: Model, main: Gqa | Mla) -> Keys:
    counts = [(1 if isinstance(x.attn, Mla) else getattr(x.attn, "n_kv_head", 0)) for x in model.layers]
    keys: Keys = {"attention.head_count": main.n_head, "attention.head_count_kv": counts if len({*counts}) > 1 else counts[0]}
    if main.rope:
        keys |= {"rope.freq_base": main.rope.theta, "rope.dimension_count": main.rope.dim}
    if isinstance(main, Gqa):
        return keys | {"attention.key_length": main.head_dim, "attention.value_length": main.head_dim}
    keys |= {"attention.key_length": main.rank + main.rope_dim, "attention.value_length": main.rank,
             "attention.kv_lora_rank": main.rank,
             "attention.key_length_mla": main.nope + main.rope_dim, "attention.value_length_mla": main.v_dim,
             "rope.dimension_count": main.rope_dim}
    return keys | ({"attention.q_lora_rank": main.q_down.shape[0]} if main.q_down else {})


def _ffn(model: Model) -> Keys:
    widths = [_width(x) for x in model.layers]
    dense = [w for w in widths if w]
    moes = [(i, x.ffn) for i, x in enumerate(model.layers) if isinstance(x.ffn, Moe)]
    keys: Keys = {"feed_forward_length": (widths if len({*dense}) > 1 else dense[0]) if dense else moes[0][1].experts.width}
    if not moes:
        return keys
    first, moe = moes[0]
    r, width, step = moe.router, moe.experts.width, moes[1][0] - first if len(moes) > 1 else 1
    keys |= {"expert_count": moe.experts.n, "expert_used_count": r.top_k, "expert_feed_forward_length": width,
             "expert_gating_func": 2 if r.score == "sigmoid" else 1, "leading_dense_block_count": first,
             "interleave_moe_layer_step": step}
    if r.n_group > 1:
        keys |= {"expert_group_count": r.n_group, "expert_group_used_count": r.top_group}
    if r.scale != 1:
        keys["expert_weights_scale"] = r.scale
    if moe.adds:
        wide = moe.shared.up.shape[0]
        keys |= {"expert_shared_feed_forward_length": wide, "expert_shared_count": max(1, wide // width)}
    return keys


def _width(layer: Layer) -> int:
    """Of a dense MLP, also of one beside experts; 0: there is none."""
    ffn = layer.ffn
    beside = ffn.shared if isinstance(ffn, Moe) and ffn.shared and not ffn.adds else None
    return (ffn if isinstance(ffn, Mlp) else beside).up.shape[0] if isinstance(ffn, Mlp) or beside else 0


def _rope(rope: Rope) -> tuple[Keys, dict[str, list[float]]]:
    """(rope.scaling.*, rope tensors)."""
    s = dict(rope.scaling)
    plain = [rope.theta ** (-2.0 * i / rope.dim) for i in range(rope.dim // 2)]
    _, inv, attention = rope.regimes()[0]
    match s.get("rope_type"):
        case "llama3" | "factors":
            return {}, {"rope_freqs.weight": [p / f for p, f in zip(plain, inv, strict=True)]}
        case "proportional":
            return {}, {"rope_freqs.weight": [1.0 if f else 1e30 for f in inv]}
        case "longrope":
            return ({"rope.scaling.original_context_length": s["original_max_position_embeddings"],
                     "rope.scaling.attn_factor": attention},
                    {f"rope_factors_{x}.weight": list(s[f"{x}_factor"]) for x in ("long", "short")})
        case "linear":
            return {"rope.scaling.type": "linear", "rope.scaling.factor": s["factor"]}, {}
        case "yarn":
            keys: Keys = {"rope.scaling.type": "yarn", "rope.scaling.factor": s["factor"],
                          "rope.scaling.yarn_beta_fast": s["beta_fast"],
                          "rope.scaling.yarn_beta_slow": s["beta_slow"],
                          "rope.scaling.original_context_length": s["original_max_position_embeddings"]}
            usual = Rope(rope.dim, rope.theta, tuple({**s, "attention_factor": None, "mscale": 0.0}.items())).regimes()[0][2]
            return keys | ({"rope.scaling.attn_factor": attention / usual} if abs(attention / usual - 1) > 1e-6 else {}), {}
    return {}, {}


def _mixer(m: DeltaNet | Mamba | ShortConv) -> Keys:
    match m:
        case ShortConv():
            return {"shortconv.l_cache": m.conv.weight.shape[1]}
        case Mamba():
            return {"ssm.conv_kernel": m.conv.weight.shape[1], "ssm.inner_size": m.a_log.shape[0],
                    "ssm.state_size": m.a_log.shape[1],
                    "ssm.time_step_rank": m.dt.shape[0]}
        case DeltaNet() if m.decays > m.n_head:
            bound = {"kda.gate_lower_bound": m.bound, "kda.safe_gate": True} if m.bound else {}
            return {"ssm.conv_kernel": m.q_conv.weight.shape[1], "kda.head_dim": m.key_dim} | bound
        case _:
            return {"ssm.conv_kernel": m.q_conv.weight.shape[1], "ssm.state_size": m.key_dim, "ssm.group_count": m.n_key_head,
                    "ssm.time_step_rank": m.n_head, "ssm.inner_size": m.n_head * m.value_dim}
