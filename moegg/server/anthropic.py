"""Anthropic's messages: requests to Ask, events to a message and its stream. Pure functions.

Shapes: docs.anthropic.com/en/api/messages and messages-streaming. What only a vendor's cloud can do (cache_control, metadata,
betas, server tools, context_management) is ignored.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from moegg import log
from moegg.server import stream
from moegg.server.ask import Answer, Arguments, Ask, CallEnd, CallStart, Done, Event, Failed, Meta, Ping, Text, Usage
from moegg.server.fields import Fields, items
from moegg.server.openai import input_of, limit, stops, tool, tool_call, variables_of
from moegg.server.problem import anthropic_error, bad

STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "stop": "end_turn", "cancelled": "end_turn"}


def request(body: Mapping[str, Any]) -> Ask:
    """POST /v1/messages and /v1/messages/count_tokens."""
    f = Fields(body)
    tools, choice, parallel = _tools(f)
    messages = (*_system(f), *_messages(f))
    thinking = f.inner("thinking").text("type")
    sampling = {"temperature": f.number("temperature", 0, 100), "top_p": f.number("top_p", 0, 1),
                "top_k": f.whole("top_k", -1, 2**31 - 1),
                "seed": f.whole("seed", -2**63, 2**64 - 1)}
    if sampling["top_k"] == -1:
        sampling["top_k"] = 0
    return Ask(messages=messages, tools=tools, tool_choice=choice, parallel_calls=parallel,
               continues=messages[-1]["role"] == "assistant",
               variables=variables_of({}, False if thinking == "disabled" else None, None), sampling=sampling,
               max_tokens=limit(f, "max_tokens"), stop=stops(f, "stop_sequences"), stream=f.flag("stream", False),
               constraint=_constraint(f))


def _constraint(f: Fields) -> tuple[str, Any] | None:
    given = f.inner("output_config").inner("format") if f.object("output_config") else f.inner("output_format")
    return ("schema", given.object("schema")) if given.text("type") == "json_schema" else None


def _system(f: Fields) -> tuple[dict[str, Any], ...]:
    value = f.get("system", (str, list), "text or an array of text blocks", "")
    blocks = [value] if isinstance(value, str) else [_text_block(b) for b in items(value, "system")]
    text = "\n\n".join(filter(None, blocks))
    return ({"role": "system", "content": text},) if text else ()


def _text_block(b: Fields) -> str:
    kind = b.text("type", "text")
    if kind != "text":
        raise bad(f"{b.where}type: got {kind!r:.40}; this model reads text only", f"{b.where}type", "unsupported_content")
    return b.text("text", "") or ""


def _messages(f: Fields) -> list[dict[str, Any]]:
    given = items(f.array("messages"), "messages")
    if not given:
        raise bad("messages: got none, expected at least one", "messages")
    out: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for m in given:
        role = m.choice("role", "user", "assistant", "system")
        if role is None:
            raise bad(f"{m.where}role: got nothing, expected user or assistant", f"{m.where}role")
        content = m.get("content", (str, list), "text or an array of blocks", "")
        if isinstance(content, str):
            out.append({"role": role, "content": content})
            continue
        blocks = items(content, f"{m.where}content")
        out += _assistant(blocks, names) if role == "assistant" else _user(role, blocks, names)
    return out


def _assistant(blocks: Sequence[Fields], names: dict[str, str]) -> list[dict[str, Any]]:
    texts, thoughts, calls = [], [], []
    for b in blocks:
        kind = b.text("type", "text")
        if kind == "thinking":
            thoughts.append(b.text("thinking", "") or "")
        elif kind == "tool_use":
            calls.append(tool_call(b.text("id"), b, b.body.get("input")))
            names[calls[-1]["id"]] = calls[-1]["function"]["name"]
        elif kind != "redacted_thinking":
            texts.append(_text_block(b))
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return [message]


def _user(role: str, blocks: Sequence[Fields], names: dict[str, str]) -> list[dict[str, Any]]:
    """A user turn; each tool result becomes a message of its own, in its place."""
    out: list[dict[str, Any]] = []
    for b in blocks:
        if b.text("type", "text") == "tool_result":
            id = b.text("tool_use_id", "") or ""
            value = b.get("content", (str, list), "text or an array of blocks", "")
            text = value if isinstance(value, str) else "\n".join(_text_block(x) for x in items(value, f"{b.where}content"))
            out.append({"role": "tool", "tool_call_id": id, "name": names.get(id, ""), "content": text})
        elif out and out[-1]["role"] == role:
            out[-1]["content"] += "\n" + _text_block(b)
        else:
            out.append({"role": role, "content": _text_block(b)})
    return out or [{"role": role, "content": ""}]


def _tools(f: Fields) -> tuple[tuple[dict[str, Any], ...], str | tuple[str, str], bool]:
    """(tools in chat completions' form, tool choice, parallel calls)."""
    tools = []
    for t in items(f.array("tools"), "tools"):
        if t.text("type", "custom") != "custom":
            log.detail(f"server: a tool of type {t.text('type')!r:.40} is skipped: it runs in a vendor's cloud only")
            continue
        name = t.text("name")
        if not name:
            raise bad(f"{t.where}name: got nothing, expected a tool's name", f"{t.where}name")
        tools.append(tool(name, t.text("description"), t.object("input_schema")))
    choice = f.inner("tool_choice")
    kind, parallel = choice.choice("type", "auto", "any", "tool", "none"), not choice.flag("disable_parallel_tool_use", False)
    if kind == "none":
        return (), "auto", parallel
    if kind == "tool":
        if choice.text("name") not in [t["function"]["name"] for t in tools]:
            raise bad("tool_choice.name: expected the name of one of the tools", "tool_choice.name")
        return tuple(tools), ("function", choice.text("name")), parallel
    if kind == "any" and not tools:
        raise bad("tool_choice: a call is required, but there are no tools", "tool_choice")
    return tuple(tools), "required" if kind == "any" else "auto", parallel


# --- responses ---------------------------------------------------------------------------------------------------------------

def usage(u: Usage) -> dict[str, Any]:
    """input_tokens are those that were evaluated; cached ones are counted apart."""
    return {"input_tokens": u.prompt - u.cached, "cache_creation_input_tokens": 0, "cache_read_input_tokens": u.cached,
            "output_tokens": u.completion}


def _stop(done: Done) -> tuple[str, str | None]:
    return ("stop_sequence", done.stop) if done.stop is not None and done.finish == "stop" else (STOP_REASONS[done.finish], None)


def _message(meta: Meta, content: list[Any], u: Usage, reason: str | None, stop: str | None) -> dict[str, Any]:
    return {"id": f"msg_{meta.id}", "type": "message", "role": "assistant", "model": meta.model, "content": content,
            "stop_reason": reason,
            "stop_sequence": stop, "usage": usage(u)}


def response(ask: Ask, meta: Meta, answers: Sequence[Answer]) -> dict[str, Any]:
    a = answers[0]
    content: list[dict[str, Any]] = []
    if a.reasoning:
        content.append({"type": "thinking", "thinking": a.reasoning, "signature": ""})
    if a.content:
        content.append({"type": "text", "text": a.content})
    content += [{"type": "tool_use", "id": c.id, "name": c.name, "input": input_of(c)} for c in a.calls]
    return _message(meta, content, a.done.usage, *_stop(a.done))


def flow(ask: Ask, meta: Meta, events: Iterable[tuple[int, Event]]) -> Iterator[bytes]:
    """message_start, blocks (start, deltas, stop) one after another, message_delta, message_stop; pings between."""
    def say(kind: str, **fields: Any) -> bytes:
        return stream.sse({"type": kind, **fields}, kind)

    index, open_kind = -1, None

    def switch(kind: str, block: dict[str, Any]) -> Iterator[bytes]:
        nonlocal index, open_kind
        if open_kind is not None:
            yield from close()
        index, open_kind = index + 1, kind
        yield say("content_block_start", index=index, content_block=block)

    def close() -> Iterator[bytes]:
        nonlocal open_kind
        if open_kind == "thinking":
            yield say("content_block_delta", index=index, delta={"type": "signature_delta", "signature": ""})
        if open_kind is not None:
            yield say("content_block_stop", index=index)
        open_kind = None

    yield say("message_start", message=_message(meta, [], Usage(meta.prompt_tokens), None, None))
    yield say("ping")
    for _, event in events:
        if isinstance(event, Text):
            kind = "text" if event.kind == "content" else "thinking"
            if open_kind != kind:
                yield from switch(kind, {"type": kind, kind: "", **({"signature": ""} if kind == "thinking" else {})})
            yield say("content_block_delta", index=index, delta={"type": f"{kind}_delta", kind: event.text})
        elif isinstance(event, CallStart):
            yield from switch("tool_use", {"type": "tool_use", "id": event.id, "name": event.name, "input": {}})
        elif isinstance(event, Arguments):
            yield say("content_block_delta", index=index, delta={"type": "input_json_delta", "partial_json": event.delta})
        elif isinstance(event, CallEnd):
            yield from close()
        elif isinstance(event, Done):
            yield from close()
            reason, stop = _stop(event)
            yield say("message_delta", delta={"stop_reason": reason, "stop_sequence": stop}, usage=usage(event.usage))
            yield say("message_stop")
        elif isinstance(event, Ping):
            yield say("ping")
        elif isinstance(event, Failed):
            yield stream.sse(anthropic_error(event.problem), "error")


