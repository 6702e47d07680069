"""Random tiny checkpoints of any registered architecture, from its own description: a Hugging Face folder and a GGUF file.

Both hold the same weights for the same arch, seed and changes. All values are bf16 values, so that BF16 and F32 files agree; the
tokenizer is that of tests/fixtures/oracles (500 entries). Uses the gguf package to write, never moegg's own formats.
"""
import json
import zlib

import numpy as np

from moegg import registry
from moegg.arch import ConfigReader, Gqa, Mla, Mlp, Moe, ShortConv
from tests import oracle


def config(arch, **changes):
    """The architecture's tiny() config with `changes` on top; a change to None removes the key."""
    merged = registry.find(arch=arch).tiny() | changes
    return {k: v for k, v in merged.items() if v is not None}


def describe(arch, **changes):
    return registry.find(arch=arch).describe(ConfigReader(config(arch, **changes)))


def weights(model, seed=0):
    """{name in the file: f32}, experts as 'layers.{l}.experts.{e}.{part}'; every tensor has a stream of its own."""
    def draw(name, shape, role):
        x = np.random.default_rng(zlib.crc32(f"{seed}:{name}".encode())).standard_normal(shape, np.float32)
        if role == "norm":
            return 1 + np.round(np.clip(x * 25, -90, 90)) / np.float32(128)      # exact in bf16, and so is w - 1
        return _round(x * (0.2 if role == "bias" else 0.4 if role in ("embed", "head") else 1.3 / shape[-1] ** 0.5))
    out = {t.name: draw(t.name, t.shape, t.role) for t in model.tensors()}
    return out | {name: draw(name, part.shape, "expert") for name, part in _expert_parts(model)}


def hf(folder, arch, *, seed=0, dtype="BF16", shards=1, **changes):
    """Write config.json, tokenizer and safetensors into `folder`; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    module, cfg = registry.find(arch=arch), config(arch, **changes)
    model = module.describe(ConfigReader(cfg))
    stored = {"architectures": [module.NAMES["hf"][0]], **cfg, "bos_token_id": 1, "eos_token_id": 2}
    (folder / "config.json").write_text(json.dumps(stored, indent=1))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": [2, 4]}))
    oracle.copy_tokenizer(folder)
    oracle.write_shards(folder, to_source(model, weights(model, seed), "hf"), dtype, shards)
    return folder


def gguf(path, arch, *, seed=0, qtype="F32", tokenizer=True, **changes):
    """Write a GGUF file; returns its path. qtype: of matrices whose rows fit its blocks, others are F16; norms and biases F32."""
    import gguf as package
    module = registry.find(arch=arch)
    name, model = _gguf_name(module, config(arch, **changes)), describe(arch, **changes)
    tensors, meta = to_source(model, weights(model, seed), "gguf"), gguf_metadata(model, name)
    if name in ("llama", "smollm3", "granite", "granitemoe", "mistral3"):
        tensors = {k: _interleave(model, v) if k.endswith(_PERMUTED) else v for k, v in tensors.items()}
    rope = _main(model).rope
    scaling = dict(rope.scaling)
    match scaling.get("rope_type"):
        case "llama3" | "factors":
            plain = rope.theta ** (-2.0 * np.arange(rope.dim // 2) / rope.dim)
            tensors["rope_freqs.weight"] = (plain / rope.regimes()[0][1]).astype(np.float32)
        case "longrope":
            tensors |= {f"rope_factors_{k}.weight": np.array(scaling[f"{k}_factor"], np.float32) for k in ("long", "short")}
            meta |= {"rope.scaling.attn_factor": rope.regimes()[0][2]}
            meta |= {} if name == "phi3" else {"rope.scaling.type": "longrope"}
        case "linear" | "yarn" as kind:
            meta |= {"rope.scaling.type": kind, "rope.scaling.factor": scaling["factor"]}
    if "original_max_position_embeddings" in scaling and any(k.startswith("rope.scaling") for k in meta):
        meta["rope.scaling.original_context_length"] = scaling["original_max_position_embeddings"]
    writer = package.GGUFWriter(path, name)
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
    for key, value in meta.items():
        add[type(value)](f"{name}.{key}", value)
    for key in module.NAMES.get("gguf_weight_keys", ()):
        writer.add_array(key, tensors.pop(key).tolist())
    if tokenizer:
        _add_tokenizer(writer, model.vocab)
    kind = package.GGMLQuantizationType[qtype]
    for key, x in tensors.items():
        fits = x.shape[-1] % package.GGML_QUANT_SIZES[kind][0] == 0
        t = package.GGMLQuantizationType.F32 if x.ndim == 1 else kind if fits else package.GGMLQuantizationType.F16
        writer.add_tensor(key, package.quantize(x, t), raw_dtype=t)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    return path


def to_source(model, files, kind):
    """The inverse of a description's Src steps: {name in the file: array} -> {name in the source: array}. kind: 'hf', 'gguf'."""
    whole, stacks, turned = {}, {}, {}
    def put(node, x, e=None):
        src = getattr(node, kind)[0]
        x = x - np.float32(src.add)
        name = src.name.format(e=e)
        slot = stacks.setdefault(name, {}).setdefault(e, {}) if src.stacked else whole.setdefault(name, {})
        x = x[:, None] if src.squeeze and x.ndim == 2 else x
        if src.turn:
            x = x.reshape(src.groups, -1, x.shape[-1]).swapaxes(1, 2).reshape(-1, len(x) // src.groups)
        slot[src.rows and (*src.rows, src.groups or 1)] = x
        turned[name] = src.transpose
    for t in model.tensors():
        put(t, files[t.name])
    for name, part in _expert_parts(model):
        put(part, files[name], int(name.split(".")[3]))
    out = {n: _join(x) for n, x in whole.items()} | {n: np.stack([_join(x[e]) for e in sorted(x)]) for n, x in stacks.items()}
    return {n: x.swapaxes(-1, -2) if turned[n] else x for n, x in out.items()}


def gguf_metadata(model, name):
    """'<arch>.*' keys as llama.cpp's converter would write them, without the prefix."""
    attn, ffns = [layer.attn for layer in model.layers if isinstance(layer.attn, (Gqa, Mla))], [layer.ffn for layer in model.layers]
    first, full, local = attn[0], _main(model), next((a for a in attn if getattr(a, "window", 0)), None)
    eps = "attention.layer_norm_epsilon" if model.final_norm.kind == "layer" and name != "phimoe" else "attention.layer_norm_rms_epsilon"
    meta = {"block_count": len(model.layers), "context_length": model.ctx_train, "embedding_length": model.d,
            "attention.head_count": first.n_head,
            eps: model.final_norm.eps, "rope.freq_base": full.rope.theta,
            "rope.dimension_count": full.rope.dim, "vocab_size": model.vocab}
    if isinstance(first, Mla):
        meta |= {"attention.head_count_kv": 1, "attention.key_length": first.rank + first.rope_dim, "attention.value_length": first.rank,
                 "attention.key_length_mla": first.nope + first.rope_dim, "attention.value_length_mla": first.v_dim,
                 "attention.kv_lora_rank": first.rank}
        meta |= {"attention.q_lora_rank": first.q_down.shape[0]} if first.q_down else {}
        if x := first.indexer:
            meta |= {"attention.indexer.head_count": x.n_head, "attention.indexer.key_length": x.dim, "attention.indexer.top_k": x.budget}
        if "mscale_all_dim" in (scaling := dict(first.rope.scaling)):
            meta["rope.scaling.yarn_log_multiplier"] = 0.1 * scaling["mscale_all_dim"]
    else:
        meta |= {"attention.head_count_kv": first.n_kv_head, "attention.key_length": first.head_dim, "attention.value_length": first.head_dim}
    if any(isinstance(ffn, Moe) for ffn in ffns):
        meta["leading_dense_block_count"] = next(i for i, ffn in enumerate(ffns) if isinstance(ffn, Moe))
    for ffn in ffns:
        if isinstance(ffn, Mlp):
            meta["feed_forward_length"] = ffn.up.shape[0]
        if isinstance(ffn, Moe):
            r, width = ffn.router, ffn.experts.width
            meta |= {"expert_count": ffn.experts.n, "expert_used_count": r.top_k, "expert_weights_norm": r.renormalise,
                     "expert_feed_forward_length": width, "expert_group_count": r.n_group, "expert_group_used_count": r.top_group,
                     "expert_gating_func": 2 if r.score == "sigmoid" else 1}
            meta |= {"expert_weights_scale": r.scale} if r.scale != 1 else {}
            if ffn.shared:
                shared = ffn.shared.gate.shape[0]
                meta |= {"expert_shared_feed_forward_length": shared, "expert_shared_count": max(1, shared // width)}
    if convs := [layer.attn for layer in model.layers if isinstance(layer.attn, ShortConv)]:
        meta |= {"shortconv.l_cache": convs[0].conv.weight.shape[1],
                 "attention.head_count_kv": [getattr(layer.attn, "n_kv_head", 0) for layer in model.layers]}
    if name in ("gemma2", "cohere2", "gpt-oss", "olmo2", "exaone4") and local:
        meta["attention.sliding_window"] = local.window
    if name == "mistral3":
        meta |= {"attention.temperature_scale": first.temperature[0], "rope.scaling.yarn_log_multiplier": dict(full.rope.scaling)["mscale_all_dim"]}
    if name == "gemma2":
        meta |= {"attn_logit_softcapping": local.softcap, "final_logit_softcapping": model.logit_softcap}
    if name == "cohere2":
        meta["logit_scale"] = model.logit_scale
    if name in ("granite", "granitemoe"):
        meta |= {"attention.scale": first.scale, "embedding_scale": model.embed_scale, "residual_scale": model.layers[0].scale,
                 "logit_scale": 1 / model.logit_scale}
    if name == "gemma3":
        meta |= {"attention.sliding_window": local.window, "rope.freq_base_swa": local.rope.theta, "attention.scale": local.scale,
                 "attention.sliding_window_pattern": 1 + next(i for i, x in enumerate(model.layers) if not x.attn.window),
                 "attn_logit_softcapping": local.softcap, "final_logit_softcapping": model.logit_softcap}
    return meta


def _gguf_name(module, cfg):
    """general.architecture: the module's only one, or the one named like the config's model_type."""
    names = module.NAMES["gguf"]
    return cfg["model_type"] if cfg["model_type"] in names else names[0]


def _main(model):
    """The attention that says what a GGUF's main rope is: of a layer without window, if any of those has a rope."""
    return min((x.attn for x in model.layers if getattr(x.attn, "rope", None)), key=lambda a: getattr(a, "window", 0) > 0)


_PERMUTED = ("attn_q.weight", "attn_k.weight", "attn_q.bias", "attn_k.bias")


def _interleave(model, x):
    """llama.cpp's row order for its "llama": in each head, rows i and i + dim/2 become neighbours."""
    dim = model.layers[0].attn.head_dim
    return x.reshape(-1, 2, dim // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def _join(pieces):
    if None in pieces:
        return pieces[None]
    groups, first = next(iter(pieces))[3], next(iter(pieces.values()))
    out = np.zeros((groups, max(stop for _, stop, _, _ in pieces), *first.shape[1:]), np.float32)
    for (start, stop, step, _), x in pieces.items():
        out[:, start:stop:step] = x.reshape(groups, -1, *x.shape[1:])
    return out.reshape(-1, *first.shape[1:])


def _expert_parts(model):
    return [(f"layers.{x.layer}.experts.{e}.{p.name}", p) for x in model.experts() for e in range(x.n) for p in x.parts]


def _round(x):
    return (oracle.bf16(x).astype(np.uint32) << 16).view(np.float32)


def _add_tokenizer(writer, vocab):
    data = json.loads((oracle.TOKENIZER / "tokenizer.json").read_text())
    tokens = {i: t for t, i in data["model"]["vocab"].items()} | {t["id"]: t["content"] for t in data["added_tokens"]}
    special = {t["id"] for t in data["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([tokens.get(i, f"[PAD{i}]") for i in range(vocab)])
    writer.add_token_types([3 if i in special else 1 if i in tokens else 5 for i in range(vocab)])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in data["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template((oracle.TOKENIZER / "chat_template.jinja").read_text())
