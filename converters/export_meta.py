"""GGUF metadata for a file that was not made from a GGUF: sizes from its config, the tokenizer from its tokenizer.json.

Only what can be proved is exported: the metadata is read back as a conversion would read it, and has to describe the same model
and the same tokenizer, floats rounded to f32. So there is no list of architectures here. Refuses all that GGUF says otherwise
(Llama's permuted q and k rows), and tokenizers other than byte-level BPE. Keys: llama.cpp, gguf-py constants.py.
"""
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from moegg import registry
from moegg.arch import ConfigReader, Model
from moegg.converters.gguf_tokenizer import CONTROL, NORMAL, PRE_TOKENIZERS, USER_DEFINED, tokenizer_from_gguf
from moegg.converters.source import SourceTensor
from moegg.errors import FormatError, MoeggError, UnsupportedModel
from moegg.formats.container import Container

UNUSED = 5
# GGUF key below the architecture -> (type, keys of config.json; the first that is there)
KEYS = {
    "block_count": ("u32", "num_hidden_layers"), "context_length": ("u32", "max_position_embeddings"),
    "embedding_length": ("u32", "hidden_size"), "feed_forward_length": ("u32", "intermediate_size"),
    "attention.head_count": ("u32", "num_attention_heads"), "attention.head_count_kv": ("u32", "num_key_value_heads"),
    "attention.key_length": ("u32", "head_dim"), "attention.value_length": ("u32", "head_dim"),
    "attention.layer_norm_rms_epsilon": ("f32", "rms_norm_eps"),
    "attention.layer_norm_epsilon": ("f32", "layer_norm_eps", "norm_epsilon"), "rope.freq_base": ("f32", "rope_theta"),
    "vocab_size": ("u32", "vocab_size"), "attention.sliding_window": ("u32", "sliding_window"),
    "attn_logit_softcapping": ("f32", "attn_logit_softcapping"), "final_logit_softcapping": ("f32", "final_logit_softcapping"),
    "expert_count": ("u32", "num_experts", "num_local_experts", "n_routed_experts"),
    "expert_used_count": ("u32", "num_experts_per_tok"), "expert_feed_forward_length": ("u32", "moe_intermediate_size"),
    "expert_weights_norm": ("bool", "norm_topk_prob"),
}
ROPE = {"rope.scaling.type": ("str", "rope_type", "type"), "rope.scaling.factor": ("f32", "factor"),
        "rope.scaling.original_context_length": ("u32", "original_max_position_embeddings"),
        "rope.scaling.yarn_beta_fast": ("f32", "beta_fast"), "rope.scaling.yarn_beta_slow": ("f32", "beta_slow")}
Entry = tuple[str, str, Any]


def make_metadata(container: Container) -> tuple[dict[str, SourceTensor], list[Entry]]:
    """(GGUF tensors by name, metadata). Raises UnsupportedModel where GGUF would say something else."""
    module = registry.find(arch=container.arch)
    model = module.describe(ConfigReader(container.config))
    names = module.NAMES.get("gguf", ())
    if not names or not hasattr(module, "gguf_config"):
        raise _other(container, f"architecture {container.arch!r} has no GGUF names")
    arch = names if isinstance(names, str) else names[0]
    tensors = _tensors(container, model)
    entries: list[Entry] = [("general.architecture", "str", arch), ("general.type", "str", "model"),
                            ("general.name", "str", container.name), ("general.quantization_version", "u32", 2)]
    config = container.config
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    entries += _given(arch, KEYS, {**(scaling if isinstance(scaling, Mapping) else {}), **config})
    if isinstance(scaling, Mapping) and scaling.get("rope_type", scaling.get("type")) not in (None, "default"):
        entries += _given(arch, ROPE, scaling)
    _prove_model(container, module, model, entries, tensors)
    try:
        return tensors, entries + _tokenizer(container, model.vocab)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as e:
        if isinstance(e, MoeggError):
            raise
        raise FormatError(f"{container.path}: section 'tokenizer': not a tokenizer: {type(e).__name__} {str(e):.60}",
                          "tokenizer-json") from None


def _other(container: Container, what: str) -> UnsupportedModel:
    return UnsupportedModel(f"{container.path}: {what}; expected a file made from a GGUF", "export-source")


def _given(arch: str, keys: Mapping[str, tuple[str, ...]], config: Mapping[str, Any]) -> list[Entry]:
    out = []
    for key, (kind, *names) in keys.items():
        value = next((config[n] for n in names if config.get(n) is not None), None)
        if value is not None:
            out.append((f"{arch}.{key}", kind, float(np.float32(value)) if kind == "f32" else value))
    return out


def _tensors(container: Container, model: Model) -> dict[str, SourceTensor]:
    parts = {layer.layer: {p.name: p for p in layer.parts} for layer in container.layers}
    items = [(t.gguf, t.shape, container.tensors.get(t.name)) for t in model.tensors()]
    items += [(p.gguf, (e.n, *p.shape), parts.get(e.layer, {}).get(p.name)) for e in model.experts() for p in e.parts]
    out = {}
    for srcs, shape, info in items:
        src = srcs[0] if srcs else None
        plain = src is not None and not (src.rows or src.transpose or src.add or src.squeeze) and src.stacked == (len(shape) == 3)
        if not plain or info is None or src.name in out:
            raise _other(container, f"{container.arch!r} keeps {src.name if src else 'a tensor'!r} in another form than GGUF")
        out[src.name] = SourceTensor(src.name, shape, info.quant, info.quant)
    return out


def _prove_model(container: Container, module: Any, model: Model, entries: list[Entry], tensors: dict[str, SourceTensor]) -> None:
    """Reads the metadata as a conversion does, and compares."""
    def rounded(value: Any) -> Any:
        if isinstance(value, float):
            return float(np.float32(value))
        if isinstance(value, Mapping):
            return {k: rounded(v) for k, v in value.items()}
        return [rounded(v) for v in value] if isinstance(value, list) else value

    try:
        given = {k: v for k, _, v in entries} | {"tensor_names": frozenset(tensors)}
        back = module.describe(ConfigReader(module.gguf_config(given)))
        same = back == module.describe(ConfigReader(rounded(container.config)))
    except (MoeggError, KeyError):
        same = False
    if not same:
        raise _other(container, f"the metadata of a GGUF would describe another model than this {model.arch}")


# --- tokenizer ----------------------------------------------------------------------------------------------------------

def _tokenizer(container: Container, vocab: int) -> list[Entry]:
    """tokenizer.ggml.* of a byte-level BPE, and the templates; nothing if the file has no tokenizer."""
    if "tokenizer" not in container.sections:
        return []
    document = _object(container, "tokenizer") if container.sections["tokenizer"].media == "application/json" else {}
    config = _object(container, "tokenizer_config")
    model = document.get("model") or {}
    pre = _pre_name(document)
    if model.get("type") != "BPE" or pre is None:
        raise _other(container, "its tokenizer is no byte-level BPE that GGUF has a name for")
    tokens, types = [f"[PAD{i}]" for i in range(vocab)], [UNUSED] * vocab
    for text, i in model["vocab"].items():
        tokens[i], types[i] = text, NORMAL
    for added in document.get("added_tokens") or ():
        if added["id"] < vocab:
            tokens[added["id"]] = added["content"]
            types[added["id"]] = CONTROL if added.get("special") else USER_DEFINED
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    out: list[Entry] = [("tokenizer.ggml.model", "str", "gpt2"), ("tokenizer.ggml.pre", "str", pre),
                        ("tokenizer.ggml.tokens", "[str]", tokens), ("tokenizer.ggml.token_type", "[i32]", types),
                        ("tokenizer.ggml.merges", "[str]", merges)]
    for key, name in (("bos", "bos_token"), ("eos", "eos_token"), ("unknown", "unk_token"), ("padding", "pad_token")):
        text = config.get(name)
        text = text.get("content") if isinstance(text, Mapping) else text
        if isinstance(text, str) and text in tokens:
            out.append((f"tokenizer.ggml.{key}_token_id", "u32", tokens.index(text)))
    out.append(("tokenizer.ggml.add_bos_token", "bool", bool(config.get("add_bos_token", False))))
    for name, text in (_object(container, "chat_template") if "chat_template" in container.sections else {}).items():
        out.append(("tokenizer.chat_template" if name == "default" else f"tokenizer.chat_template.{name}", "str", text))
    back = json.loads(tokenizer_from_gguf({k: v for k, _, v in out})[0])
    if [m.split(" ", 1) if isinstance(m, str) else m for m in merges] != back["model"]["merges"]:
        raise _other(container, "its tokenizer has merges that GGUF cannot spell")
    return out


def _pre_name(document: Mapping[str, Any]) -> str | None:
    """The name of llama.cpp for the normalizer and the expressions of a tokenizer.json."""
    normalizer, step = document.get("normalizer"), document.get("pre_tokenizer") or {}
    steps = step.get("pretokenizers", [step])
    plain = all(s.get("type") == "Split" and s.get("behavior") == "Isolated" for s in steps[:-1])
    if not steps or steps[-1].get("type") != "ByteLevel" or not plain or normalizer not in (None, {"type": "NFC"}):
        return None
    splits = tuple(s["pattern"].get("Regex") for s in steps[:-1])
    if steps[-1].get("use_regex", True):
        splits += PRE_TOKENIZERS["gpt-2"].splits
    wanted = splits, normalizer is not None, bool((document.get("model") or {}).get("ignore_merges"))
    return next((name for name, p in PRE_TOKENIZERS.items() if (p.splits, p.nfc, p.whole_first) == wanted), None)


def _object(container: Container, name: str) -> dict[str, Any]:
    value = json.loads(container.read_section(name)) if name in container.sections else {}
    return value if isinstance(value, dict) else {}
