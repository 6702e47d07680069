"""A checkpoint folder as a GGUF, by the rules of llama.cpp's converter: written for the tests, apart from moegg's descriptions.

Tensor names come from the gguf package's own map (TensorNameMap), keys are those of its constants; what a converter does to values
(permuted rows, 1 + w, -exp(A_log), split kv_b, stacked experts, reordered heads) is stated here, family by family. Values are F32.
Source of the rules: ggml-org/llama.cpp conversion/*.py and src/models/*.cpp.
"""
import json
import re

import gguf
import numpy as np

from tests import tiny
from tests.reference.weights import read_safetensors

ARCH = {"mistral": "llama", "internlm3": "llama", "mixtral": "llama", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe",
        "gemma3_text": "gemma3",
        "gemma4_text": "gemma4", "glm": "chatglm", "glm4_moe": "glm4moe", "glm4_moe_lite": "deepseek2",
        "deepseek_v2": "deepseek2",
        "deepseek_v3": "deepseek2", "deepseek_v32": "deepseek32", "glm_moe_dsa": "glm-dsa",
        "gpt_oss": "gpt-oss", "lfm2_moe": "lfm2moe", "minimax_m2": "minimax-m2",
        "ernie4_5_moe": "ernie4_5-moe",
        "hunyuan_v1_moe": "hunyuan-moe", "hunyuan_v1_dense": "hunyuan-dense",
        "kimi_linear": "kimi-linear", "llama4_text": "llama4", "qwen3_next": "qwen3next",
        "qwen3_5_moe": "qwen35moe",
        "qwen3_5_moe_text": "qwen35moe", "qwen3_5": "qwen35", "qwen3_5_text": "qwen35", "bailing_hybrid": "bailingmoe3",
        "ministral3": "mistral3", "olmo3": "olmo2", "solar_open": "glm4moe", "youtu": "deepseek2"}
# llama.cpp knows them, the gguf package does not yet
NAMED_LIKE = {"maple": "qwen3moe", "bailingmoe3": "kimi-linear", "deepseek32": "glm-dsa"}
PERMUTED = ("llama", "granite", "granitemoe", "smollm3", "mistral3")
PLUS_ONE = ("gemma2", "gemma3", "qwen3next", "qwen35", "qwen35moe")
KDA = ("kimi-linear", "bailingmoe3")
LAYER_NORM = ("cohere2", "stablelm", "starcoder2")
EXPERT = re.compile(r"(.*layers\.(\d+)\..*)\.experts\.(\d+)\.(gate_proj|up_proj|down_proj|w1|w2|w3)\.weight")
PART = {"gate_proj": "gate", "w1": "gate", "up_proj": "up", "w3": "up", "down_proj": "down", "w2": "down"}
LEFT_OUT = ("vision_tower", "multi_modal_projector", "embed_vision", "vision_model", "model.visual", "mtp.", "model.mtp")


def convert(folder, path):
    """Writes the GGUF `path` of the checkpoint in `folder`; returns it."""
    config = json.loads((folder / "config.json").read_text())
    config = {**config, **config.get("text_config", {})} | {k: config[k] for k in ("tie_word_embeddings",) if k in config}
    arch = "mistral3" if "Mistral3ForConditionalGeneration" in config["architectures"] else ARCH.get(config["model_type"], config["model_type"])
    tensors, meta = tensors_of(config, arch, read_safetensors(folder)), metadata(config, arch)
    extra, more = rope_tensors(config, arch)
    writer = gguf.GGUFWriter(path, arch)
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string,
           list: writer.add_array}
    for key, value in (meta | more).items():
        add[type(value)](f"{arch}.{key}", value)
    for key in [n for n in tensors if n.startswith("xielu.")]:
        writer.add_array(key, tensors.pop(key))
    tiny._add_tokenizer(writer, config["vocab_size"])
    for name, x in (tensors | extra).items():
        writer.add_tensor(name, np.ascontiguousarray(x, np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    return path


# --- tensors --------------------------------------------------------------------------------------------------------------

def tensors_of(config, arch, arrays):
    n = config["num_hidden_layers"]
    names = gguf.get_tensor_name_map({v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}[NAMED_LIKE.get(arch, arch)], n)
    out, experts = {}, {}
    for name, x in arrays.items():
        if any(part in name for part in LEFT_OUT) or re.match(rf"model\.layers\.{n}\.", name) or name.endswith("inv_freq"):
            continue
        name = name.replace("model.language_model.", "model.").replace("language_model.model.",
                                                                       "model.").replace("language_model.lm_head", "lm_head")
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        if ".act_fn." in name:                                                      # a key of the metadata, one number per layer
            layer, value = int(name.split(".")[2]), float(x.reshape(()))
            out.setdefault(f"xielu.{name.rsplit('.', 1)[1]}", [0.0] * n)[layer] = value
            continue
        if found := EXPERT.fullmatch(name):
            experts.setdefault((found[2], PART[found[4]]), {})[int(found[3])] = x
            continue
        for new, y in modify(config, arch, name, x):
            mapped = new if new.startswith("blk.") else names.get_name(new, try_suffixes=(".weight", ".bias"))
            assert mapped, f"{arch}: {name} has no GGUF name"
            out[mapped] = y
    for (layer, part), each in experts.items():
        out[f"blk.{layer}.ffn_{part}_exps.weight"] = np.stack([each[e] for e in sorted(each)])
    return out


def modify(config, arch, name, x):
    """[(name, values)] of what a converter makes of one tensor; names for the map, or 'blk.*' where a converter names it itself."""
    found = re.search(r"layers\.(\d+)\.", name)
    blk = f"blk.{found[1]}." if found else ""
    if arch in PLUS_ONE and name.endswith("norm.weight") and "linear_attn.norm" not in name:
        x = x + np.float32(1)
    if arch in PERMUTED and (proj := re.search(r"\.([qk])_proj\.", name)):
        heads = config["num_attention_heads"] if proj[1] == "q" else config.get("num_key_value_heads") or config["num_attention_heads"]
        x = x.reshape(heads, 2, -1, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)
    if arch in ("qwen35", "qwen35moe") and "linear_attn." in name:
        x = tile_value_heads(config, name, x)
    if name.endswith("A_log"):
        x = np.exp(x) if arch == "bailingmoe3" else -np.exp(x)
    if arch == "bailingmoe3":
        full = (int(found[1]) + 1) % config["layer_group_size"] == 0 if found else False
        if full and ".g_proj" in name:
            return [(f"{blk}attn_gate.weight", x)]
        for own, new in ((".attention.", ".self_attn."), (".dense.", ".o_proj."), (".f_proj.", ".f_a_proj."),
                         (".g_proj.", ".g_a_proj.")):
            name = name.replace(own, new)
    if "conv" in name and x.ndim == 3 and arch not in KDA:
        x = x.squeeze(1)
    if arch in KDA:
        x = x.reshape(1, x.shape[0], 1, x.shape[-1]) if "conv1d" in name else x.reshape(1, 1, -1,
                                                                                        1) if name.endswith("A_log") else x
    name = name.replace(".dt_bias", ".dt_proj.bias").replace("e_score_correction_bias",
                                                             "e_score_correction.bias").replace(".expert_bias",
                                                                                                ".expert_bias.bias")
    if "e_score_correction" in name:
        x = x.reshape(-1)
    if name.endswith("self_attn.sinks"):
        name += ".weight"
    if name.endswith("in_proj_qkvz.weight"):
        qkv, z = split_qkvz(config, x)
        return [(f"{blk}attn_qkv.weight", qkv), (f"{blk}attn_gate.weight", z)]
    if name.endswith("kv_b_proj.weight"):
        kv = x.reshape(config["num_attention_heads"], -1, x.shape[-1])
        cut = config["qk_nope_head_dim"]
        return [(f"{blk}attn_k_b.weight", kv[:, :cut].swapaxes(1, 2)), (f"{blk}attn_v_b.weight", kv[:, cut:])]
    if arch == "gemma4":
        for own, new in (("router.scale", "ffn_gate_inp.scale"), ("router.per_expert_scale", "ffn_down_exps.scale"),
                         ("layer_scalar", "layer_output_scale.weight"), ("experts.gate_up_proj", "ffn_gate_up_exps.weight"),
                         ("experts.down_proj", "ffn_down_exps.weight")):
            if name.endswith(own):
                return [(blk + new, x)]
    if stacked := re.search(r"(experts\.(gate_up|down)_proj(_bias|_blocks)?$)|(block_sparse_moe\.(input|output)_linear\.weight$)",
                            name):
        return stacks(arch, blk, stacked[0], x)
    return [(name, x)]


def stacks(arch, blk, name, x):
    """Experts in one tensor: [E, rows, cols], llama4's and gpt-oss's [E, cols, rows]; gpt-oss's gate and up rows take turns."""
    kind = "bias" if name.endswith("_bias") else "weight"
    if arch in ("llama4", "gpt-oss") and kind == "weight" and not name.endswith("_blocks"):
        x = x.swapaxes(1, 2)
    if "down" in name or "output" in name:
        return [(f"{blk}ffn_down_exps.{kind}", x)]
    half = x.shape[1] // 2
    gate, up = (x[:, ::2], x[:, 1::2]) if arch == "gpt-oss" else (x[:, :half], x[:, half:])
    return [(f"{blk}ffn_gate_exps.{kind}", gate), (f"{blk}ffn_up_exps.{kind}", up)]


def split_qkvz(config, x):
    """[q | k | v | z] per key head -> ([q of all | k of all | v of all], z of all)."""
    heads, key, value = config["linear_num_key_heads"], config["linear_key_head_dim"], config["linear_value_head_dim"]
    wide = value * config["linear_num_value_heads"] // heads
    parts = np.split(x.reshape(heads, -1, x.shape[-1]), np.cumsum([key, key, wide]), 1)
    q, k, v, z = (p.reshape(-1, x.shape[-1]) for p in parts)
    return np.concatenate([q, k, v]), z


def tile_value_heads(config, name, x):
    """Value heads grouped by key head become tiled: head k * per + r moves to r * keys + k."""
    keys, value = config["linear_num_key_heads"], config["linear_value_head_dim"]
    per = config["linear_num_value_heads"] // keys

    def tile(x, dim):
        return x.reshape(keys, per, dim, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)
    own = 2 * keys * config["linear_key_head_dim"]
    if "in_proj_qkv." in name or "conv1d" in name:
        return np.concatenate([x[:own], tile(x[own:], value)])
    if "in_proj_z." in name:
        return tile(x, value)
    if "out_proj." in name:
        return tile(x.T, value).T
    return x if name.endswith("norm.weight") else tile(x, 1)


# --- metadata -------------------------------------------------------------------------------------------------------------

def metadata(config, arch):
    def get(*keys, default=None):
        return next((config[k] for k in keys if config.get(k) is not None), default)
    heads = config["num_attention_heads"]
    theta = get("rope_theta") or (get("rope_parameters", default={}).get("rope_theta"))
    out = {"block_count": config["num_hidden_layers"], "context_length": get("max_position_embeddings", "model_max_length"),
           "embedding_length": config["hidden_size"],
           "feed_forward_length": get("intermediate_size", "moe_intermediate_size"), "attention.head_count": heads,
           "vocab_size": config["vocab_size"],
           "attention.head_count_kv": get("num_key_value_heads", default=heads)}
    out["context_length"] = out["context_length"] or 131072
    eps = float(get("rms_norm_eps", "norm_eps", "layer_norm_eps", "norm_epsilon", default=1e-5))
    out["attention.layer_norm_epsilon" if arch in LAYER_NORM else "attention.layer_norm_rms_epsilon"] = eps
    head_dim = get("head_dim", "attention_head_dim", default=config["hidden_size"] // heads)
    if arch != "jamba":
        out |= {"attention.key_length": head_dim, "attention.value_length": head_dim, "rope.dimension_count": head_dim}
        out["rope.freq_base"] = float(theta or 10000.0)
    partial = get("partial_rotary_factor") or get("rope_parameters", "rope_scaling", default={}).get("partial_rotary_factor") or {
        "chatglm": 0.5, "glm4": 0.5, "glm4moe": 0.5, "stablelm": 0.25,
        "qwen3next": 0.25, "qwen35": 0.25, "qwen35moe": 0.25, "maple": 0.5}.get(arch, 1.0)
    if arch == "minimax-m2":
        out["rope.dimension_count"] = config["rotary_dim"]
    elif partial != 1.0:
        out["rope.dimension_count"] = int(head_dim * partial)
    experts = get("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    if experts:
        out |= {"expert_count": experts,
                "expert_used_count": one(get("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk",
                                             "top_k_experts"))}
        for key, value in (("expert_feed_forward_length", get("moe_intermediate_size")),
                           ("leading_dense_block_count", get("first_k_dense_replace", "num_dense_layers")),
                           ("expert_shared_count", get("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")),
                           ("expert_weights_scale", get("routed_scaling_factor")),
                           ("expert_weights_norm", get("norm_topk_prob", "moe_renormalize")),
                           ("expert_group_count", get("n_group", "num_expert_group")),
                           ("expert_group_used_count", get("topk_group"))):
            if value is not None:
                out[key] = one(value) if key != "expert_weights_scale" else float(value)
        if arch in ("deepseek2", "deepseek32", "glm-dsa", "glm4moe", "dots1", "minimax-m2", "lfm2moe", *KDA):
            out["expert_gating_func"] = 1 if config["model_type"] == "deepseek_v2" else 2
    return out | family(config, arch, out)


def one(value):
    return value[0] if isinstance(value, list) else value


def family(config, arch, out):
    """What single families write on top."""
    types, kv = config.get("layer_types"), out["attention.head_count_kv"]
    match arch:
        case "gemma2" | "gemma3":
            scale = {"attention.scale": config["query_pre_attn_scalar"] ** -0.5} if arch == "gemma3" else {}
            caps = {k: float(config[k]) for k in ("attn_logit_softcapping", "final_logit_softcapping") if config.get(k)}
            pattern = {"attention.sliding_window_pattern": config["sliding_window_pattern"]} if arch == "gemma3" else {}
            local = {"rope.freq_base_swa": float(config.get("rope_local_base_freq", 10000)),
                     "rope.freq_base": float(config.get("rope_theta", 1e6))} if arch == "gemma3" else {}
            return scale | caps | pattern | local | {"attention.sliding_window": config["sliding_window"]}
        case "olmo2" | "exaone4" if config.get("sliding_window"):
            slides = [t == "sliding_attention" for t in types] if types else [(i + 1) % 4 > 0 for i in range(config["num_hidden_layers"])]
            return {"attention.sliding_window": config["sliding_window"], "attention.sliding_window_pattern": slides}
        case "mistral3" if config["model_type"] == "ministral3":
            return {"attention.temperature_scale": config["rope_parameters"]["llama_4_scaling_beta"]}
        case "gemma4":
            slides, shared, ropes = [t == "sliding_attention"
                                     for t in types], config.get("num_kv_shared_layers") or 0, config["rope_parameters"]
            full, own = config["global_head_dim"], config["head_dim"]
            more = {"attention.shared_kv_layers": shared,
                    "embedding_length_per_layer_input": config.get("hidden_size_per_layer_input") or 0,
                    "attention.sliding_window_pattern": slides, "attention.key_length": full, "attention.value_length": full,
                    "attention.key_length_swa": own, "attention.value_length_swa": own, "rope.dimension_count": full,
                    "rope.dimension_count_swa": own,
                    "rope.freq_base": float(ropes["full_attention"]["rope_theta"]),
                    "rope.freq_base_swa": float(ropes["sliding_attention"]["rope_theta"]),
                    "attention.sliding_window": config["sliding_window"]}
            if config.get("final_logit_softcapping"):
                more["final_logit_softcapping"] = float(config["final_logit_softcapping"])
            if config.get("use_double_wide_mlp"):
                f, first = config["intermediate_size"], len(types) - shared
                more["feed_forward_length"] = [f * (1 if i < first else 2) for i in range(len(types))]
            if config.get("num_global_key_value_heads"):
                more["attention.head_count_kv"] = [kv if s else config["num_global_key_value_heads"] for s in slides]
            return more
        case "llama4":
            return {"interleave_moe_layer_step": config["interleave_moe_layer_step"],
                    "expert_feed_forward_length": config["intermediate_size"],
                    "feed_forward_length": config["intermediate_size_mlp"]}
        case "jamba":
            full = [kv if i % config["attn_layer_period"] == config["attn_layer_offset"] else 0
                    for i in range(out["block_count"])]
            rank = config.get("mamba_dt_rank", "auto")
            return {"attention.head_count_kv": full, "ssm.conv_kernel": config.get("mamba_d_conv", 4),
                    "ssm.inner_size": config["mamba_expand"] * config["hidden_size"],
                    "ssm.state_size": config["mamba_d_state"], "ssm.time_step_rank": -(-config["hidden_size"] // 16)
                    if rank == "auto" else rank}
        case "qwen3next" | "qwen35" | "qwen35moe":
            more = {"ssm.conv_kernel": config["linear_conv_kernel_dim"], "ssm.state_size": config["linear_key_head_dim"],
                    "ssm.group_count": config["linear_num_key_heads"],
                    "ssm.time_step_rank": config["linear_num_value_heads"],
                    "ssm.inner_size": config["linear_value_head_dim"] * config["linear_num_value_heads"],
                    "full_attention_interval": config.get("full_attention_interval", 4)}
            more |= {} if arch == "qwen35" else {"expert_shared_feed_forward_length": config["shared_expert_intermediate_size"]}
            return more | ({} if arch == "qwen3next" else {"rope.dimension_sections": [2, 1, 1, 0]})
        case "deepseek2" | "deepseek32" | "glm-dsa" | "kimi-linear" | "bailingmoe3":
            rank, turned = config["kv_lora_rank"], config["qk_rope_head_dim"]
            more = {"attention.head_count_kv": 1, "attention.key_length": rank + turned, "attention.value_length": rank,
                    "attention.kv_lora_rank": rank,
                    "attention.key_length_mla": config["qk_nope_head_dim"] + turned,
                    "attention.value_length_mla": config["v_head_dim"], "rope.dimension_count": turned}
            more |= {"attention.q_lora_rank": config["q_lora_rank"]} if config.get("q_lora_rank") else {}
            more |= {} if "expert_count" in out else {"leading_dense_block_count": out["block_count"], "expert_shared_count": 0,
                                                      "expert_feed_forward_length": config["intermediate_size"]}
            if arch in ("deepseek32", "glm-dsa"):
                more |= {"attention.indexer.head_count": config["index_n_heads"], "attention.indexer.key_length": config["index_head_dim"],
                         "attention.indexer.top_k": config["index_topk"]}
            if "shared" in config.get("indexer_types", ()):
                more["attention.indexer.types"] = [int(t == "full") for t in config["indexer_types"]]
            if arch == "kimi-linear":
                own = config["linear_attn_config"]
                more |= {"attention.head_count_kv": [int(i + 1 in own["full_attn_layers"]) for i in range(out["block_count"])],
                         "ssm.conv_kernel": own["short_conv_kernel_size"], "kda.head_dim": own["head_dim"]}
            if arch == "bailingmoe3":
                more |= {"attention.head_count_kv": [int((i + 1) % config["layer_group_size"] == 0)
                                                     for i in range(out["block_count"])],
                         "ssm.conv_kernel": config["short_conv_kernel_size"], "kda.head_dim": config["head_dim"],
                         "kda.gate_lower_bound": config["kda_lower_bound"],
                         "kda.safe_gate": True,
                         "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"]}
            return more
        case "maple":
            return {"attention.sliding_window": config["sliding_window"],
                    "attention.sliding_window_pattern": [t == "sliding_attention" for t in types],
                    "swiglu_clamp_exp": [7.0] * len(types)}
        case "lfm2" | "lfm2moe":
            return {"shortconv.l_cache": config["conv_L_cache"],
                    "attention.head_count_kv": [kv if t == "full_attention" else 0 for t in types]}
        case "granite" | "granitemoe":
            return {"attention.scale": config["attention_multiplier"], "embedding_scale": config["embedding_multiplier"],
                    "residual_scale": config["residual_multiplier"], "logit_scale": config["logits_scaling"]}
        case "cohere2":
            return {"attention.sliding_window": config["sliding_window"], "logit_scale": config["logit_scale"]}
        case "gpt-oss":
            return {"attention.sliding_window": config["sliding_window"],
                    "expert_feed_forward_length": config["intermediate_size"]}
        case "minimax-m2" | "hunyuan-moe":
            return {"expert_feed_forward_length": config["intermediate_size"], "expert_shared_count": 1}
        case "qwen2moe":
            return {"expert_shared_feed_forward_length": config["shared_expert_intermediate_size"]}
        case "ernie4_5-moe":
            start, step = config.get("moe_layer_start_index", 1), config.get("moe_layer_interval", 1)
            return {"leading_dense_block_count": start, "interleave_moe_layer_step": step,
                    "expert_shared_feed_forward_length": config["moe_intermediate_size"] * config["moe_num_shared_experts"]}
        case "phi3":
            return {"attention.sliding_window": config.get("sliding_window") or config["max_position_embeddings"]}
        case "stablelm":
            return {"use_parallel_residual": config.get("use_parallel_residual", False)}
    return {}


def rope_tensors(config, arch):
    """(tensors that GGUF keeps of a rope, keys of its scaling)."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    if arch == "gemma4":
        full = scaling["full_attention"]
        half, turning = config["global_head_dim"] // 2, int(config["global_head_dim"] * full["partial_rotary_factor"] / 2)
        return {"rope_freqs.weight": np.array([1.0] * turning + [1e30] * (half - turning), "f4")}, {}
    kind = scaling.get("rope_type", scaling.get("type"))
    orig = config.get("original_max_position_embeddings") or scaling.get("original_max_position_embeddings")
    match kind:
        case "llama3":
            inv = config["rope_theta"] ** (-np.arange(0, dim, 2) / dim)
            low, high, turns = scaling["low_freq_factor"], scaling["high_freq_factor"], orig * inv / (2 * np.pi)
            kept = np.clip((turns - low) / (high - low), 0, 1)
            return {"rope_freqs.weight": 1 / ((1 - kept) / scaling["factor"] + kept)}, {}
        case "longrope":
            factor = config["max_position_embeddings"] / orig
            scale = float(scaling.get("short_mscale") or (np.sqrt(1 + np.log(factor) / np.log(orig)) if factor > 1 else 1.0))
            return ({f"rope_factors_{k}.weight": np.array(scaling[f"{k}_factor"], "f4") for k in ("long", "short")},
                    {"rope.scaling.original_context_length": orig, "rope.scaling.attn_factor": scale})
        case "linear" | "yarn":
            more = {"rope.scaling.type": kind, "rope.scaling.factor": float(scaling["factor"])}
            more |= {"rope.scaling.original_context_length": orig} if orig else {}
            if scaling.get("mscale_all_dim"):
                more |= {"rope.scaling.yarn_log_multiplier": (1.0 if arch == "mistral3" else 0.1) * scaling["mscale_all_dim"]}
            return {}, more
    if alpha := scaling.get("alpha"):
        return {}, {"rope.freq_base": float(config["rope_theta"] * alpha ** (dim / (dim - 2)))}
    return {}, {}
