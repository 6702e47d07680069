"""GGUF's tokenizer keys of a tokenizer.json: byte-level BPE, and BPE that is SentencePiece's (Gemma, Llama 2), proved by reading them back.

SentencePiece merges the pair whose union has the best score, so a token's score is the place of the first merge that gives it; merges that
no scores give are refused. Refuses other kinds of tokenizers and pre-tokenizers without a name. Keys: llama.cpp, gguf-py constants.py.
"""
import json
import re
from collections.abc import Mapping
from typing import Any

from moegg.converters.gguf_tokenizer import CONTROL, NORMAL, PRE_TOKENIZERS, UNKNOWN, USER_DEFINED, tokenizer_from_gguf
from moegg.errors import UnsupportedModel
from moegg.formats.container import Container
from moegg.formats.sections import section_json

UNUSED, BYTE = 5, 6
UNMERGED = -1e6                 # the score of tokens that no merge gives; f32 counts merges exactly
Entry = tuple[str, str, Any]    # key, type, value


def tokenizer_entries(container: Container, vocab: int, kind: str | None = None) -> list[Entry]:
    """tokenizer.ggml.* and the templates; nothing if the file has no tokenizer. kind: the name of a SentencePiece-like one.

    Raises UnsupportedModel; KeyError, TypeError, ValueError, AttributeError or IndexError if it is no tokenizer.
    """
    if "tokenizer" not in container.sections:
        return []
    document = section_json(container, "tokenizer") if container.sections["tokenizer"].media == "application/json" else {}
    config = section_json(container, "tokenizer_config")
    model = document.get("model") or {}
    pre, front = _pre_name(document), _front(document)
    if model.get("type") != "BPE" or (pre is None and front is None):
        raise other(container, "its tokenizer is no BPE that GGUF has a name for")
    tokens, types = [f"[PAD{i}]" for i in range(vocab)], [UNUSED] * vocab
    for text, i in model["vocab"].items():
        tokens[i], types[i] = text, BYTE if pre is None and re.fullmatch("<0x[0-9A-F]{2}>", text) else NORMAL
    for added in document.get("added_tokens") or ():
        if added["id"] < vocab:
            tokens[added["id"]] = added["content"]
            types[added["id"]] = CONTROL if added.get("special") else USER_DEFINED
    pairs = [m.split(" ", 1) if isinstance(m, str) else list(m) for m in model["merges"]]
    merges = [" ".join(pair) for pair in pairs]
    out: list[Entry] = [("tokenizer.ggml.tokens", "[str]", tokens), ("tokenizer.ggml.token_type", "[i32]", types)]
    if pre is not None:
        out += [("tokenizer.ggml.model", "str", "gpt2"), ("tokenizer.ggml.pre", "str", pre),
                ("tokenizer.ggml.merges", "[str]", merges)]
    else:
        if (unknown := model.get("unk_token")) in tokens:
            types[tokens.index(unknown)] = UNKNOWN
        ranks: dict[str, int] = {}
        for pair in pairs:
            ranks.setdefault("".join(pair), len(ranks))
        scores = [float(-ranks[t]) if t in ranks else UNMERGED for t in tokens]
        out += [("tokenizer.ggml.model", "str", kind or "llama"), ("tokenizer.ggml.scores", "[f32]", scores),
                ("tokenizer.ggml.add_space_prefix", "bool", bool(front))]
        out += [("tokenizer.ggml.merges", "[str]", merges)] if kind else []
    for key, name in (("bos", "bos_token"), ("eos", "eos_token"), ("unknown", "unk_token"), ("padding", "pad_token")):
        text = config.get(name)
        text = text.get("content") if isinstance(text, Mapping) else text
        if isinstance(text, str) and text in tokens:
            out.append((f"tokenizer.ggml.{key}_token_id", "u32", tokens.index(text)))
    out.append(("tokenizer.ggml.add_bos_token", "bool", bool(config.get("add_bos_token", False))))
    for name, text in section_json(container, "chat_template").items():
        out.append(("tokenizer.chat_template" if name == "default" else f"tokenizer.chat_template.{name}", "str", text))
    back = json.loads(tokenizer_from_gguf({k: v for k, _, v in out})[0])
    if pairs != [list(m) for m in back["model"]["merges"]]:
        raise other(container, "its tokenizer has merges that GGUF cannot spell")
    return out


def other(container: Container, what: str) -> UnsupportedModel:
    """The error of what GGUF cannot say."""
    return UnsupportedModel(f"{container.path}: {what}; expected a file made from a GGUF", "export-source")


def _pre_name(document: Mapping[str, Any]) -> str | None:
    """The name of llama.cpp for the normalizer and the expressions of a byte-level tokenizer.json."""
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


def _front(document: Mapping[str, Any]) -> str | None:
    """What is put before a text whose spaces become ▁; None if that is not how it works. A split at spaces comes too late to find any."""
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    late = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    model, normalizer = document.get("model") or {}, document.get("normalizer")
    if document.get("pre_tokenizer") not in (None, late) or not model.get("byte_fallback"):
        return None
    if normalizer == space:
        return ""
    return "▁" if normalizer == {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, space]} else None
