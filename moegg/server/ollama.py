"""Ollama's chat, generate, tags, ps and show: requests to Ask, events to objects or lines of JSON. Pure functions.

Shapes: ollama's docs/api.md. `stream` is on unless it is turned off, as there. Refuses: managing models (pull, create, delete).
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from moegg.server import stream
from moegg.server.ask import Answer, Arguments, Ask, Call, CallEnd, CallStart, Done, Event, Failed, Meta, Ping, Text
from moegg.server.fields import Fields, items
from moegg.server.openai import calls_of, content_text, function_tools, input_of, sampling, stops, variables_of
from moegg.server.problem import bad, ollama_error
from moegg.server.prompts import Prompter

EFFORTS = ("low", "medium", "high")
API = "0.15.0"              # the release of Ollama that has what is here; clients refuse old ones (VS Code Copilot: below 0.6.4)
NO_TIME = ("0", "0s", "0m", "0h", "0ms")
NEVER_S = 100 * 365 * 86400


def _common(f: Fields) -> dict[str, Any]:
    """Fields of both requests, as Ask's."""
    options = f.inner("options")
    given = f.get("format", (str, dict), "'json' or a schema", "")
    if isinstance(given, str) and given not in ("", "json"):
        raise bad(f"format: got {given!r:.40}, expected json or a schema", "format")
    think = f.get("think", (bool, str), "true, false, or low, medium, high")
    if isinstance(think, str) and think not in EFFORTS:
        raise bad(f"think: got {think!r:.40}, expected one of {', '.join(EFFORTS)}", "think")
    predict = options.whole("num_predict", -2, 2**31 - 1)
    return {"sampling": sampling(options), "stop": stops(options), "stream": f.flag("stream", True),
            "max_tokens": None if predict is None or predict < 0 else predict,
            "constraint": ("json", None) if given == "json" else ("schema", given) if given else None,
            "variables": variables_of({}, think if isinstance(think, bool) else None, think if isinstance(think, str) else None)}


def chat(body: Mapping[str, Any]) -> Ask:
    """POST /api/chat."""
    f = Fields(body)
    messages = []
    for m in items(f.array("messages"), "messages"):
        role = m.choice("role", "system", "user", "assistant", "tool")
        if role is None:
            raise bad(f"{m.where}role: got nothing, expected system, user, assistant or tool", f"{m.where}role")
        if m.array("images"):
            raise bad(f"{m.where}images: this model reads text only", f"{m.where}images", "unsupported_content")
        message: dict[str, Any] = {"role": role, "content": content_text(m.body.get("content"), f"{m.where}content")}
        if m.text("thinking"):
            message["reasoning_content"] = m.text("thinking")
        if role == "tool":
            message["name"] = m.text("tool_name") or m.text("name") or ""
        calls = calls_of(m)
        if calls and role == "assistant":
            message["tool_calls"] = calls
        messages.append(message)
    if not messages:
        raise bad("messages: got none, expected at least one", "messages")
    return Ask(messages=tuple(messages), tools=function_tools(items(f.array("tools"), "tools")), **_common(f))


def generate(body: Mapping[str, Any]) -> Ask:
    """POST /api/generate: through the chat template if there is one, unless `raw`; with `suffix` fill-in-the-middle."""
    f = Fields(body)
    if f.array("images"):
        raise bad("images: this model reads text only", "images", "unsupported_content")
    prompt, suffix = f.text("prompt", "") or "", f.text("suffix") or None
    common = _common(f)
    if f.flag("raw", False) or suffix is not None:
        return Ask(prompts=(prompt,), suffix=suffix, **common)
    system = f.text("system")
    messages = ({"role": "system", "content": system},) if system else ()
    return Ask(messages=(*messages, {"role": "user", "content": prompt}), prompts=(prompt,), **common)


# --- load and unload -------------------------------------------------------------------------------------------------------

def _loaded(f: Fields, meta: Meta, empty: dict[str, Any]) -> dict[str, Any]:
    """The model is always there: a request to load it, or with keep_alive 0 to unload it, is answered and changes nothing."""
    keep = f.get("keep_alive", (int, float, str), "a number of seconds or a duration such as 5m")
    unload = keep in NO_TIME if isinstance(keep, str) else keep == 0 and keep is not None
    return {**_head(meta), **empty, "done": True, "done_reason": "unload" if unload else "load"}


def chat_loaded(body: Mapping[str, Any], meta: Meta) -> dict[str, Any] | None:
    """The answer to POST /api/chat without messages, which asks for no text; None for all others."""
    f = Fields(body)
    return None if f.array("messages") else _loaded(f, meta, {"message": {"role": "assistant", "content": ""}})


def generate_loaded(body: Mapping[str, Any], meta: Meta) -> dict[str, Any] | None:
    """The answer to POST /api/generate without a prompt, which asks for no text; None for all others."""
    f = Fields(body)
    return None if f.text("prompt") or f.text("suffix") else _loaded(f, meta, {"response": ""})


# --- responses ---------------------------------------------------------------------------------------------------------------

def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _head(meta: Meta) -> dict[str, Any]:
    return {"model": meta.model, "created_at": _time(meta.created)}


def _end(done: Done) -> dict[str, Any]:
    """Durations in nanoseconds."""
    t, u = done.timings, done.usage
    reason = {"tool_calls": "stop"}.get(done.finish, done.finish)
    return {"done": True, "done_reason": reason, "total_duration": int((t.queue + t.prompt + t.answer) * 1e9), "load_duration": 0,
            "prompt_eval_count": u.prompt, "prompt_eval_duration": int(t.prompt * 1e9), "eval_count": u.completion,
            "eval_duration": int(t.answer * 1e9)}


def _call_shape(c: Call) -> dict[str, Any]:
    return {"id": c.id, "function": {"name": c.name, "arguments": input_of(c)}}


def chat_response(ask: Ask, meta: Meta, answers: Sequence[Answer]) -> dict[str, Any]:
    a = answers[0]
    message: dict[str, Any] = {"role": "assistant", "content": a.content}
    if a.reasoning:
        message["thinking"] = a.reasoning
    if a.calls:
        message["tool_calls"] = [_call_shape(c) for c in a.calls]
    return {**_head(meta), "message": message, **_end(a.done)}


def chat_flow(ask: Ask, meta: Meta, events: Iterable[tuple[int, Event]]) -> Iterator[bytes]:
    """A line per piece; calls come whole, as this API knows no partial ones."""
    calls: dict[int, Call] = {}
    for _, event in events:
        if isinstance(event, Text):
            part = {"content": event.text} if event.kind == "content" else {"content": "", "thinking": event.text}
            yield stream.ndjson({**_head(meta), "message": {"role": "assistant", **part}, "done": False})
        elif isinstance(event, CallStart):
            calls[event.index] = Call(event.id, event.name, "")
        elif isinstance(event, Arguments):
            call = calls[event.index]
            calls[event.index] = call._replace(arguments=call.arguments + event.delta)
        elif isinstance(event, CallEnd):
            message = {"role": "assistant", "content": "", "tool_calls": [_call_shape(calls[event.index])]}
            yield stream.ndjson({**_head(meta), "message": message, "done": False})
        elif isinstance(event, Done):
            yield stream.ndjson({**_head(meta), "message": {"role": "assistant", "content": ""}, **_end(event)})
        elif isinstance(event, Ping):       # this format has no comments
            yield stream.ndjson({**_head(meta), "message": {"role": "assistant", "content": ""}, "done": False})
        elif isinstance(event, Failed):
            yield stream.ndjson(ollama_error(event.problem))


def generate_response(ask: Ask, meta: Meta, answers: Sequence[Answer]) -> dict[str, Any]:
    a = answers[0]
    return {**_head(meta), "response": a.content, **({"thinking": a.reasoning} if a.reasoning else {}), **_end(a.done)}


def generate_flow(ask: Ask, meta: Meta, events: Iterable[tuple[int, Event]]) -> Iterator[bytes]:
    for _, event in events:
        if isinstance(event, Text):
            part = {"response": event.text} if event.kind == "content" else {"response": "", "thinking": event.text}
            yield stream.ndjson({**_head(meta), **part, "done": False})
        elif isinstance(event, Done):
            yield stream.ndjson({**_head(meta), "response": "", **_end(event)})
        elif isinstance(event, Ping):
            yield stream.ndjson({**_head(meta), "response": "", "done": False})
        elif isinstance(event, Failed):
            yield stream.ndjson(ollama_error(event.problem))


def _details(card: Mapping[str, Any]) -> dict[str, Any]:
    return {"format": "moegg", "family": card.get("arch", ""), "families": [card.get("arch", "")],
            "parameter_size": card.get("parameters", ""),
            "quantization_level": card.get("quant", "")}


def tags(card: Mapping[str, Any]) -> dict[str, Any]:
    """GET /api/tags."""
    return {"models": [{"name": card["id"], "model": card["id"], "modified_at": _time(card["created"]),
                        "size": card.get("size", 0),
                        "digest": card.get("digest", ""), "details": _details(card), "context_length": card["ctx"]}]}


def running(card: Mapping[str, Any]) -> dict[str, Any]:
    """GET /api/ps: the one model, which stays."""
    return {"models": [{**tags(card)["models"][0], "expires_at": _time(card["created"] + NEVER_S), "size_vram": 0}]}


def show(card: Mapping[str, Any], prompter: Prompter) -> dict[str, Any]:
    """POST /api/show. Editors read the context and what the model can do from it."""
    arch, template = card.get("arch", ""), prompter.talk.template()
    can = {"completion": True, "tools": template is not None, "insert": prompter.fills,
           "thinking": prompter.talk.reasons(template)}
    return {"details": _details(card), "modified_at": _time(card["created"]), "license": "", "modelfile": "",
            "parameters": f"num_ctx {card['ctx']}", "template": template or "", "capabilities": [name for name, has in can.items() if has],
            "model_info": {"general.architecture": arch, "general.basename": card["id"], f"{arch}.context_length": card["ctx"]}}
