"""llama.cpp-style endpoints: models, props, tokenize, detokenize. Shapes: tools/server/README.md of llama.cpp."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moegg import __version__
from moegg.sampler import SamplingParams
from moegg.server.fields import Fields
from moegg.server.problem import bad
from moegg.server.prompts import Prompter

MAX_CONTENT = 1 << 20       # characters of a text to be tokenised, which takes a hundred times their memory and more


def models(card: Mapping[str, Any]) -> dict[str, Any]:
    """GET /models."""
    return {"object": "list",
            "data": [{"id": card["id"], "object": "model", "created": card["created"], "status": {"value": "loaded"},
                                        "meta": {"n_ctx": card["ctx"]}}]}


def props(card: Mapping[str, Any], slots: int, prompter: Prompter) -> dict[str, Any]:
    """GET /props."""
    p = SamplingParams.from_generation_config(prompter.generation)
    named = prompter.tokenizer.named
    params = {"temperature": p.temperature, "top_k": p.top_k, "top_p": p.top_p, "min_p": p.min_p,
              "repeat_penalty": p.repeat_penalty,
              "presence_penalty": p.presence_penalty, "frequency_penalty": p.frequency_penalty, "n_predict": -1}
    return {"default_generation_settings": {"n_ctx": card["ctx"], "params": params}, "total_slots": slots,
            "model_path": card["id"],
            "model_alias": card["id"], "chat_template": prompter.talk.template() or "",
            "bos_token": named.get("bos_token", ""),
            "eos_token": named.get("eos_token", ""), "build_info": f"moegg {__version__}",
            "modalities": {"vision": False, "audio": False},
            "endpoint_slots": True, "endpoint_props": False, "endpoint_metrics": True, "is_sleeping": False}


def tokenize(body: Mapping[str, Any], prompter: Prompter) -> dict[str, Any]:
    """POST /tokenize {content, add_special, parse_special, with_pieces}."""
    f = Fields(body)
    text = f.text("content", "") or ""
    if len(text) > MAX_CONTENT:
        raise bad(f"content: got {len(text)} characters, expected at most {MAX_CONTENT}; send a text in parts", "content")
    ids = prompter.tokenizer.encode(text, special=f.flag("parse_special", True), add_bos=f.flag("add_special", False))
    if not f.flag("with_pieces", False):
        return {"tokens": ids}
    return {"tokens": [{"id": i, "piece": _piece(prompter.tokenizer.token_bytes(i))} for i in ids]}


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


def detokenize(body: Mapping[str, Any], prompter: Prompter) -> dict[str, Any]:
    """POST /detokenize {tokens}."""
    tokens = Fields(body).array("tokens")
    if not all(isinstance(t, int) and not isinstance(t, bool) and 0 <= t < prompter.vocab for t in tokens):
        raise bad(f"tokens: expected ids from 0 to {prompter.vocab - 1}", "tokens")
    return {"content": prompter.tokenizer.decode(tokens)}
