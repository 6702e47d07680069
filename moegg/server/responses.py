"""OpenAI's responses: requests to Ask, events to a response and its stream. Pure functions; nothing is stored between requests.

Shapes: platform.openai.com/docs/api-reference/responses and responses-streaming. Tools and items that only a vendor's cloud can
run are skipped; previous_response_id and item references need a store and are refused. Reasoning is an item with its text in
`content`.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from moegg import log
from moegg.server import stream
from moegg.server.ask import Answer, Arguments, Ask, CallEnd, CallStart, Done, Event, Failed, Meta, Ping, Text, TokenLog, Usage
from moegg.server.fields import Fields, items
from moegg.server.openai import (
    EFFORTS,
    chat_logprobs,
    choose_tools,
    content_text,
    function_tools,
    limit,
    sampling,
    stops,
    tool_call,
    variables_of,
)
from moegg.server.problem import bad

ROLES = ("system", "developer", "user", "assistant")


def request(body: Mapping[str, Any]) -> Ask:
    """POST /v1/responses and /v1/responses/input_tokens."""
    f = Fields(body)
    for name in ("previous_response_id", "conversation"):
        if body.get(name) is not None:
            raise bad(f"{name}: this server stores no responses; send the whole conversation as input", name, "unsupported")
    if f.flag("background", False):
        raise bad("background: not supported", "background", "unsupported")
    tools, choice = choose_tools(f, function_tools(items(f.array("tools"), "tools")))
    effort = f.inner("reasoning").choice("effort", *EFFORTS)
    include = f.array("include")
    wants = "message.output_text.logprobs" in include
    top = f.whole("top_logprobs", 0, 20)
    return Ask(messages=_messages(f), tools=tools, tool_choice=choice, parallel_calls=f.flag("parallel_tool_calls", True),
               variables=variables_of(f.object("chat_template_kwargs"), None, effort), sampling=sampling(f), stop=stops(f),
               max_tokens=limit(f, "max_output_tokens", "max_tokens"), logprobs=(top or 0) if wants or top else None,
               constraint=_constraint(f), stream=f.flag("stream", False))


def _constraint(f: Fields) -> tuple[str, Any] | None:
    form = f.inner("text").inner("format")
    kind = form.choice("type", "text", "json_object", "json_schema")
    if kind == "json_schema":
        if not isinstance(form.body.get("schema"), dict):
            raise bad("text.format.schema: got nothing, expected a JSON schema", "text.format.schema")
        return "schema", form.object("schema")
    return ("json", None) if kind == "json_object" else None


def _messages(f: Fields) -> tuple[dict[str, Any], ...]:
    out: list[dict[str, Any]] = []
    if f.text("instructions"):
        out.append({"role": "system", "content": f.text("instructions")})
    given = f.get("input", (str, list), "text or an array of items", "")
    if isinstance(given, str):
        return (*out, {"role": "user", "content": given})
    names: dict[str, str] = {}
    thoughts = ""
    for item in items(given, "input"):
        kind = item.text("type", "message")
        if kind == "message":
            role = item.choice("role", *ROLES)
            if role is None:
                raise bad(f"{item.where}role: got nothing, expected one of {', '.join(ROLES)}", f"{item.where}role")
            text = content_text(item.body.get("content"), f"{item.where}content")
            message: dict[str, Any] = {"role": "system" if role == "developer" else role, "content": text}
            if role == "assistant" and thoughts:
                message["reasoning_content"], thoughts = thoughts, ""
            out.append(message)
        elif kind == "function_call":
            _add_call(item, out, names, thoughts)
            thoughts = ""
        elif kind == "function_call_output":
            id, value = item.text("call_id", "") or "", item.body.get("output")
            out.append({"role": "tool", "tool_call_id": id, "name": names.get(id, ""),
                        "content": content_text(value, f"{item.where}output")})
        elif kind == "reasoning":
            thoughts = content_text([{"type": "text", "text": p.text("text", "") or ""}
                                     for p in items(item.array("content"), f"{item.where}content")], "")
        elif kind == "item_reference":
            raise bad(f"{item.where}type: this server stores no items; send them whole", f"{item.where}type", "unsupported")
        else:
            log.detail(f"server: an input item of type {kind!r:.40} is skipped")
    return tuple(out) if any(m["role"] != "system" for m in out) else (*out, {"role": "user", "content": ""})


def _add_call(item: Fields, out: list[dict[str, Any]], names: dict[str, str], thoughts: str) -> None:
    """A call joins the assistant's message before it."""
    call = tool_call(item.text("call_id"), item, item.body.get("arguments"))
    names[call["id"]] = call["function"]["name"]
    if not out or out[-1]["role"] != "assistant":
        out.append({"role": "assistant", "content": "", **({"reasoning_content": thoughts} if thoughts else {})})
    out[-1].setdefault("tool_calls", []).append(call)


# --- responses ---------------------------------------------------------------------------------------------------------------

def usage(u: Usage) -> dict[str, Any]:
    return {"input_tokens": u.prompt, "input_tokens_details": {"cached_tokens": u.cached}, "output_tokens": u.completion,
            "output_tokens_details": {"reasoning_tokens": u.reasoning}, "total_tokens": u.prompt + u.completion}


def counted(n: int) -> dict[str, Any]:
    """The answer of /v1/responses/input_tokens."""
    return {"object": "response.input_tokens", "input_tokens": n}


def _shape(ask: Ask, meta: Meta, status: str, output: Sequence[Any], done: Done | None = None,
           error: Any = None) -> dict[str, Any]:
    forced = ask.tool_choice
    tools = [{"type": "function", "strict": None, **t["function"]} for t in ask.tools]
    return {"id": f"resp_{meta.id}", "object": "response", "created_at": meta.created, "status": status, "error": error,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None, "instructions": None,
            "max_output_tokens": ask.max_tokens, "model": meta.model, "output": list(output),
            "parallel_tool_calls": ask.parallel_calls,
            "previous_response_id": None, "store": False, "temperature": ask.sampling.get("temperature"),
            "top_p": ask.sampling.get("top_p"),
            "tool_choice": forced if isinstance(forced, str) else {"type": "function", "name": forced[1]}, "tools": tools,
            "truncation": "disabled", "metadata": {}, "usage": None if done is None else usage(done.usage)}


def _status(done: Done) -> str:
    return {"length": "incomplete", "cancelled": "cancelled"}.get(done.finish, "completed")


def _part(ask: Ask, text: str, logs: Sequence[TokenLog] = ()) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": _logprobs(ask, logs)}


def _logprobs(ask: Ask, logs: Sequence[TokenLog]) -> list[Any]:
    return [] if ask.logprobs is None else chat_logprobs(logs)["content"]


def _reasoning_item(meta: Meta, n: int, text: str, status: str) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}] if text else []
    return {"id": f"rs_{meta.id}_{n}", "type": "reasoning", "summary": [], "content": content, "encrypted_content": None,
            "status": status}


def _message_item(meta: Meta, n: int, parts: Sequence[Any], status: str) -> dict[str, Any]:
    return {"id": f"msg_{meta.id}_{n}", "type": "message", "role": "assistant", "status": status, "content": list(parts)}


def _call_item(meta: Meta, n: int, id: str, name: str, arguments: str, status: str) -> dict[str, Any]:
    return {"id": f"fc_{meta.id}_{n}", "type": "function_call", "call_id": id, "name": name, "arguments": arguments,
            "status": status}


def response(ask: Ask, meta: Meta, answers: Sequence[Answer]) -> dict[str, Any]:
    a = answers[0]
    status = _status(a.done)
    own = "completed" if status == "completed" else "incomplete"
    output: list[dict[str, Any]] = []
    if a.reasoning:
        output.append(_reasoning_item(meta, 0, a.reasoning, own))
    if a.content or not a.calls:
        output.append(_message_item(meta, len(output), [_part(ask, a.content, a.logs)], own))
    for c in a.calls:
        output.append(_call_item(meta, len(output), c.id, c.name, c.arguments or "{}", own))
    return _shape(ask, meta, status, output, a.done)


class _Flow:
    """The stream's state: finished items, and the one that is open."""

    def __init__(self, ask: Ask, meta: Meta):
        self.ask, self.meta = ask, meta
        self.output: list[dict[str, Any]] = []
        self.kind: str | None = None
        self.text, self.logs = "", []
        self.call: CallStart | None = None
        self.sequence = -1

    def say(self, kind: str, **fields: Any) -> bytes:
        self.sequence += 1
        return stream.sse({"type": kind, "sequence_number": self.sequence, **fields}, kind)

    def _item(self, status: str) -> dict[str, Any]:
        n = len(self.output)
        if self.kind == "reasoning":
            return _reasoning_item(self.meta, n, self.text, status)
        if self.kind == "content":
            return _message_item(self.meta, n, [_part(self.ask, self.text, self.logs)] if status != "in_progress" else [], status)
        return _call_item(self.meta, n, self.call.id, self.call.name, self.text, status)

    def _where(self) -> dict[str, Any]:
        return {"item_id": self._item("in_progress")["id"], "output_index": len(self.output)}

    def open(self, kind: str, call: CallStart | None = None) -> Iterator[bytes]:
        yield from self.close()
        self.kind, self.call, self.text, self.logs = kind, call, "", []
        yield self.say("response.output_item.added", output_index=len(self.output), item=self._item("in_progress"))
        if kind == "content":
            yield self.say("response.content_part.added", **self._where(), content_index=0, part=_part(self.ask, ""))

    def add(self, text: str, logs: Sequence[TokenLog] = ()) -> bytes:
        self.text += text
        if self.kind == "reasoning":
            return self.say("response.reasoning_text.delta", **self._where(), content_index=0, delta=text)
        if self.kind == "content":
            self.logs += logs
            return self.say("response.output_text.delta", **self._where(), content_index=0, delta=text,
                            logprobs=_logprobs(self.ask, logs))
        return self.say("response.function_call_arguments.delta", **self._where(), delta=text)

    def close(self, status: str = "completed") -> Iterator[bytes]:
        if self.kind is None:
            return
        where = self._where()
        if self.kind == "reasoning":
            yield self.say("response.reasoning_text.done", **where, content_index=0, text=self.text)
        elif self.kind == "content":
            yield self.say("response.output_text.done", **where, content_index=0, text=self.text,
                           logprobs=_logprobs(self.ask, self.logs))
            yield self.say("response.content_part.done", **where, content_index=0, part=_part(self.ask, self.text, self.logs))
        else:
            self.text = self.text or "{}"
            yield self.say("response.function_call_arguments.done", **where, arguments=self.text, name=self.call.name)
        item = self._item(status)
        yield self.say("response.output_item.done", output_index=len(self.output), item=item)
        self.output.append(item)
        self.kind = None


def flow(ask: Ask, meta: Meta, events: Iterable[tuple[int, Event]]) -> Iterator[bytes]:
    """created, in_progress, items one after another, then completed, incomplete or failed."""
    f = _Flow(ask, meta)
    yield f.say("response.created", response=_shape(ask, meta, "in_progress", []))
    yield f.say("response.in_progress", response=_shape(ask, meta, "in_progress", []))
    for _, event in events:
        if isinstance(event, Text):
            if f.kind != event.kind:
                yield from f.open(event.kind)
            yield f.add(event.text, event.logs)
        elif isinstance(event, CallStart):
            yield from f.open("call", event)
        elif isinstance(event, Arguments):
            yield f.add(event.delta)
        elif isinstance(event, CallEnd):
            yield from f.close()
        elif isinstance(event, Done):
            status = _status(event)
            if not f.output and f.kind is None:
                yield from f.open("content")
            yield from f.close("completed" if status == "completed" else "incomplete")
            kind = {"incomplete": "response.incomplete"}.get(status, "response.completed")
            yield f.say(kind, response=_shape(ask, meta, status, f.output, event))
        elif isinstance(event, Ping):
            yield stream.SSE_PING
        elif isinstance(event, Failed):
            error = {"code": "server_error", "message": event.problem.message}
            yield f.say("response.failed", response=_shape(ask, meta, "failed", f.output, error=error))
