"""OpenAI's chat completions and completions: requests to Ask, events to responses and chunks. Pure functions.

Shapes: platform.openai.com/docs/api-reference (chat, completions), with llama.cpp's extras (timings, prompt_progress, sampling
fields). Unknown fields are ignored; a field whose meaning is not supported is a 400. Images and audio are refused by name.
"""
from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from moegg import log
from moegg.server import stream
from moegg.server.ask import (
    Answer,
    Arguments,
    Ask,
    Call,
    CallStart,
    Done,
    Event,
    Failed,
    Meta,
    Ping,
    Progress,
    Text,
    TokenLog,
    Usage,
    total,
)
from moegg.server.fields import Fields, items
from moegg.server.problem import bad, openai_error
from moegg.server.talk import REASONING_SWITCHES

MAX_N, MAX_STOPS, MAX_STOP_LENGTH, MAX_BIASES = 128, 64, 1024, 4096
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


# --- what several dialects share -------------------------------------------------------------------------------------------

def sampling(f: Fields) -> dict[str, Any]:
    """Sampling fields under SamplingParams' names; OpenAI's, llama.cpp's and vLLM's spellings."""
    top_k = f.whole("top_k", -1, 2**31 - 1)
    seed = f.whole("seed", -2**63, 2**64 - 1)
    repeat = f.number("repeat_penalty", 0.01, 100)
    return {"temperature": f.number("temperature", 0, 100), "top_p": f.number("top_p", 0, 1), "min_p": f.number("min_p", 0, 1),
            "top_k": 0 if top_k == -1 else top_k, "seed": None if seed == -1 else seed,
            "repeat_penalty": f.number("repetition_penalty", 0.01, 100) if repeat is None else repeat,
            "presence_penalty": f.number("presence_penalty", -100, 100),
            "frequency_penalty": f.number("frequency_penalty", -100, 100),
            "logit_bias": _logit_bias(f)}


def _logit_bias(f: Fields) -> dict[int, float] | None:
    value = f.get("logit_bias", (dict, list), "an object of token ids and numbers")
    if not value:
        return None
    pairs = value.items() if isinstance(value, dict) else [p if isinstance(p, list) and len(p) == 2 else (None, None)
                                                           for p in value]
    if len(value) > MAX_BIASES:
        raise bad(f"logit_bias: got {len(value)} tokens, expected at most {MAX_BIASES}", "logit_bias")
    out: dict[int, float] = {}
    for key, bias in pairs:
        text = str(key)
        if isinstance(key, bool) or not (text.isascii() and text.isdigit() and len(text) < 12):
            raise bad(f"logit_bias: got {str(key)[:40]!r}, expected a token id", "logit_bias")
        if bias is False:               # llama.cpp: never
            bias = float("-inf")
        elif isinstance(bias, bool) or not isinstance(bias, (int, float)) or not -1e6 <= bias <= 1e6:
            raise bad(f"logit_bias: token {key}: got {str(bias)[:40]}, expected a number", "logit_bias")
        out[int(key)] = float(bias)
    return out


def limit(f: Fields, *names: str, low: int = 1) -> int | None:
    """max_tokens under any of its names, the first that is there; -1 means no limit, as in llama.cpp."""
    for name in names:
        value = f.whole(name, -1, 2**31 - 1)
        if value is not None:
            if value < low and value != -1:
                raise bad(f"{name}: got {value}, expected at least {low}", f.where + name)
            return None if value == -1 else value
    return None


def stops(f: Fields, name: str = "stop") -> tuple[str, ...]:
    """Stop strings; empty ones are dropped, as clients send them to mean none."""
    given = tuple(s for s in f.texts(name) if s)
    if len(given) > MAX_STOPS or any(len(s) > MAX_STOP_LENGTH for s in given):
        raise bad(f"{name}: expected at most {MAX_STOPS} texts of at most {MAX_STOP_LENGTH} characters", name)
    return given


def variables_of(chosen: Mapping[str, Any], think: bool | None, effort: str | None) -> dict[str, Any]:
    """Template variables for switches of reasoning, under the names that known templates read."""
    think = False if think is None and effort == "none" else think
    given = {"reasoning_effort": effort} | dict.fromkeys(REASONING_SWITCHES, think)
    return {name: value for name, value in given.items() if value is not None} | dict(chosen)


def content_text(value: Any, where: str) -> str:
    """The text of a message's content: text, null, or an array of text parts. Raises Problem for images and sound."""
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        raise bad(f"{where}: expected text or an array of parts", where, "invalid_type")
    texts = []
    for n, part in enumerate(value):
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in TEXT_PARTS:
            raise bad(f"{where}[{n}]: got a part of type {str(kind)[:40]!r}; this model reads text only", f"{where}[{n}]",
                      "unsupported_content")
        text = part.get("text", part.get("refusal"))
        if not isinstance(text, str):
            raise bad(f"{where}[{n}].text: expected text", f"{where}[{n}].text", "invalid_type")
        texts.append(text)
    return "\n".join(texts)


def function_tools(values: Sequence[Fields]) -> tuple[dict[str, Any], ...]:
    """The function tools among `values`; other kinds, which only a vendor's cloud can run, are skipped."""
    out = []
    for f in values:
        kind = f.text("type", "function")
        if kind != "function":
            log.detail(f"server: a tool of type {kind!r:.40} is skipped: only functions can be called")
            continue
        inner = f.inner("function") if "function" in f.body else f
        name = inner.text("name")
        if not name:
            raise bad(f"{inner.where}name: got nothing, expected a function's name", f"{inner.where}name")
        out.append(tool(name, inner.text("description"), inner.object("parameters")))
    return tuple(out)


def tool(name: str, description: str | None, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A tool as templates want it."""
    parameters = dict(parameters) or {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": name, "description": description or "", "parameters": parameters}}


def tool_call(id: str | None, f: Fields, arguments: Any) -> dict[str, Any]:
    """An earlier call as templates want it; `f` holds its name."""
    name = f.text("name")
    if not name:
        raise bad(f"{f.where}name: got nothing, expected a function's name", f"{f.where}name")
    return {"id": id or "", "type": "function", "function": {"name": name, "arguments": parsed_arguments(arguments)}}


def choose_tools(f: Fields, tools: tuple[dict[str, Any], ...]) -> tuple[tuple[dict[str, Any], ...], str | tuple[str, str]]:
    """(tools that remain, 'auto' | 'required' | ('function', name)) after tool_choice."""
    value = f.get("tool_choice", (str, dict), "text or an object", "auto")
    if isinstance(value, dict):
        choice = Fields(value, "tool_choice.")
        kind = choice.choice("type", "function", "allowed_tools", "auto", "none", "required")
        if kind == "allowed_tools":
            inner = choice.inner("allowed_tools") if "allowed_tools" in value else choice
            names = {t.inner("function").text("name") if "function" in t.body else t.text("name")
                     for t in items(inner.array("tools"), "tools")}
            return tuple(t for t in tools if t["function"]["name"] in names), inner.choice("mode", "auto", "required") or "auto"
        if kind == "function":
            name = (choice.inner("function") if "function" in value else choice).text("name")
            if name not in [t["function"]["name"] for t in tools]:
                raise bad(f"tool_choice: got {name!r:.60}, expected the name of one of the tools", "tool_choice")
            return tools, ("function", name)
        value = kind or "auto"
    if value not in ("auto", "none", "required", "any"):
        raise bad(f"tool_choice: got {value!r:.40}, expected auto, none, required or a function", "tool_choice")
    if value == "none":
        return (), "auto"
    if value in ("required", "any"):
        if not tools:
            raise bad("tool_choice: a call is required, but there are no tools", "tool_choice")
        return tools, "required"
    return tools, "auto"


def parsed_arguments(text: Any) -> Any:
    """A call's arguments as templates want them: an object; what is not one stays as it is."""
    if not isinstance(text, str):
        return text if isinstance(text, dict) else {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def input_of(call: Call) -> dict[str, Any]:
    """The arguments that a model wrote, for APIs that want an object."""
    value = parsed_arguments(call.arguments or "{}")
    return value if isinstance(value, dict) else {"text": value}


# --- requests --------------------------------------------------------------------------------------------------------------

def chat(body: Mapping[str, Any]) -> Ask:
    """POST /v1/chat/completions."""
    f = Fields(body)
    if f.array("functions"):
        raise bad("functions: this older form is not supported; use tools", "functions", "unsupported")
    _refuse_media(f)
    messages = chat_messages(f)
    tools, choice = choose_tools(f, function_tools(items(f.array("tools"), "tools")))
    wants, alternatives = f.flag("logprobs", False), f.whole("top_logprobs", 0, 20)
    options = f.inner("stream_options")
    variables = variables_of(f.object("chat_template_kwargs"), f.flag("enable_thinking"), f.choice("reasoning_effort", *EFFORTS))
    return Ask(messages=messages, tools=tools, tool_choice=choice, parallel_calls=f.flag("parallel_tool_calls", True),
               variables=variables,
               continues=_continues(f, messages), sampling=sampling(f), ignore_eos=f.flag("ignore_eos", False),
               max_tokens=limit(f, "max_completion_tokens", "max_tokens", "n_predict"), stop=stops(f),
               n=f.whole("n", 1, MAX_N, 1),
               logprobs=(alternatives or 0) if wants or alternatives else None, constraint=_constraint(f),
               split_reasoning=f.choice("reasoning_format", "none", "auto", "deepseek", "deepseek-legacy") != "none",
               stream=f.flag("stream", False), include_usage=options.flag("include_usage", False),
               timings=True, progress=f.flag("return_progress", False))


def _continues(f: Fields, messages: tuple[Mapping[str, Any], ...]) -> bool:
    wanted = f.flag("continue_final_message", False)
    if wanted and messages[-1]["role"] != "assistant":
        raise bad("continue_final_message: the last message is not the assistant's", "continue_final_message")
    return wanted


def _refuse_media(f: Fields) -> None:
    if any(m != "text" for m in f.array("modalities")):
        raise bad("modalities: this model writes text only", "modalities", "unsupported_content")
    if f.object("audio"):
        raise bad("audio: this model writes text only", "audio", "unsupported_content")


def chat_messages(f: Fields) -> tuple[dict[str, Any], ...]:
    """`messages`, checked, with text content and parsed tool calls, in the order given."""
    given = items(f.array("messages"), "messages")
    if not given:
        raise bad("messages: got none, expected at least one", "messages")
    out, names = [], {}
    for m in given:
        role = m.choice("role", *ROLES)
        if role is None:
            raise bad(f"{m.where}role: got nothing, expected one of {', '.join(ROLES)}", f"{m.where}role")
        role = {"developer": "system", "function": "tool"}.get(role, role)
        text = content_text(m.body.get("content"), f"{m.where}content")
        message: dict[str, Any] = {"role": role, "content": text}
        for key in ("name", "tool_call_id"):
            if m.text(key) is not None:
                message[key] = m.text(key)
        reasoning = m.text("reasoning_content") or m.text("reasoning")
        if reasoning:
            message["reasoning_content"] = reasoning
        calls = calls_of(m) if role == "assistant" else []
        if calls:
            message["tool_calls"] = calls
            names.update({c["id"]: c["function"]["name"] for c in calls})
        if role == "tool":
            message.setdefault("name", names.get(message.get("tool_call_id"), ""))
        out.append(message)
    return tuple(out)


def calls_of(m: Fields) -> list[dict[str, Any]]:
    """A message's tool_calls."""
    given = [(c.text("id"), c.inner("function")) for c in items(m.array("tool_calls"), f"{m.where}tool_calls")]
    return [tool_call(id, f, f.body.get("arguments")) for id, f in given]


def _constraint(f: Fields) -> tuple[str, Any] | None:
    given = f.inner("response_format")
    kind = given.choice("type", "text", "json_object", "json_schema")
    if kind == "json_schema":
        holder = given.inner("json_schema") if "json_schema" in given.body else given
        schema = holder.object("schema")
        if not isinstance(holder.body.get("schema"), dict):
            raise bad("response_format: got no schema, expected json_schema.schema", "response_format")
        return "schema", schema
    if kind == "json_object":
        return ("schema", given.object("schema")) if given.object("schema") else ("json", None)
    if f.object("json_schema"):
        return "schema", f.object("json_schema")
    if f.text("grammar"):
        raise bad("grammar: GBNF grammars are not supported; use response_format json_schema", "grammar", "unsupported")
    return None


def completion(body: Mapping[str, Any]) -> Ask:
    """POST /v1/completions."""
    f = Fields(body)
    prompts = _prompts(f.body.get("prompt"))
    n, best_of = f.whole("n", 1, MAX_N, 1), f.whole("best_of", 1, MAX_N)
    if best_of not in (None, n):
        raise bad("best_of: not supported; leave it out, or use n", "best_of", "unsupported")
    logprobs, echo = f.whole("logprobs", 0, 20), f.flag("echo", False)
    if echo and logprobs is not None:
        raise bad("echo: log-probabilities of the prompt are not supported", "echo", "unsupported")
    return Ask(prompts=prompts, suffix=f.text("suffix") or None, echo=echo, sampling=sampling(f),
               ignore_eos=f.flag("ignore_eos", False),
               max_tokens=limit(f, "max_tokens", "max_completion_tokens", "n_predict", low=0), stop=stops(f), n=n,
               logprobs=logprobs,
               constraint=_constraint(f), stream=f.flag("stream", False),
               include_usage=f.inner("stream_options").flag("include_usage", False),
               timings=True, progress=f.flag("return_progress", False))


def _prompts(value: Any) -> tuple[str | tuple[int, ...], ...]:
    """Text, token ids, or an array of either."""
    def ids(v: Any) -> bool:
        return isinstance(v, list) and bool(v) and all(isinstance(i, int) and not isinstance(i, bool) for i in v)
    if isinstance(value, str):
        return (value,)
    if ids(value):
        return (tuple(value),)
    if isinstance(value, list) and value and all(isinstance(v, str) or ids(v) for v in value):
        return tuple(v if isinstance(v, str) else tuple(v) for v in value)
    raise bad("prompt: expected text, token ids, or an array of them", "prompt")


# --- responses ---------------------------------------------------------------------------------------------------------------

def usage(u: Usage) -> dict[str, Any]:
    return {"prompt_tokens": u.prompt, "completion_tokens": u.completion, "total_tokens": u.prompt + u.completion,
            "prompt_tokens_details": {"cached_tokens": u.cached}, "completion_tokens_details": {"reasoning_tokens": u.reasoning}}


def timings(done: Done) -> dict[str, Any]:
    """llama.cpp's numbers, which chat UIs show."""
    u, t = done.usage, done.timings
    read, wrote = u.prompt - u.cached, u.completion
    return {"cache_n": u.cached, "prompt_n": read, "prompt_ms": round(t.prompt * 1e3, 3),
            "prompt_per_second": _rate(read, t.prompt),
            "predicted_n": wrote, "predicted_ms": round(t.answer * 1e3, 3), "predicted_per_second": _rate(wrote - 1, t.answer)}


def _rate(n: int, seconds: float) -> float:
    return round(n / seconds, 3) if n > 0 and seconds > 0 else 0.0


def _head(meta: Meta, prefix: str, kind: str) -> dict[str, Any]:
    return {"id": f"{prefix}-{meta.id}", "object": kind, "created": meta.created, "model": meta.model,
            "system_fingerprint": meta.build}


def _token(log_: TokenLog, top: bool = True) -> dict[str, Any]:
    out: dict[str, Any] = {"token": log_.data.decode("utf-8", "replace"), "logprob": log_.logprob, "bytes": list(log_.data)}
    if top:
        out["top_logprobs"] = [_token(TokenLog(data, p), False) for data, p in log_.top]
    return out


def chat_logprobs(logs: Sequence[TokenLog]) -> dict[str, Any]:
    return {"content": [_token(entry) for entry in logs], "refusal": None}


def call_shape(c: Call) -> dict[str, Any]:
    return {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments or "{}"}}


def chat_response(ask: Ask, meta: Meta, answers: Sequence[Answer]) -> dict[str, Any]:
    choices = []
    for n, a in enumerate(answers):
        message: dict[str, Any] = {"role": "assistant", "content": a.content if a.content or not a.calls else None,
                                   "refusal": None}
        if a.reasoning:
            message["reasoning_content"] = a.reasoning
        if a.calls:
            message["tool_calls"] = [call_shape(c) for c in a.calls]
        choices.append({"index": n, "message": message, "logprobs": None if ask.logprobs is None else chat_logprobs(a.logs),
                        "finish_reason": a.done.finish})
    dones = [a.done for a in answers]
    return {**_head(meta, "chatcmpl", "chat.completion"), "choices": choices, "usage": usage(total(dones)),
            "timings": timings(dones[-1])}


def chat_stream(ask: Ask, meta: Meta, events: Iterable[tuple[int, Event]]) -> Iterator[bytes]:
    """Chunks: the role, deltas, one chunk with the finish_reason per answer; usage if asked for; [DONE]."""
    head = _head(meta, "chatcmpl", "chat.completion.chunk")
    extra = {"usage": None} if ask.include_usage else {}

    def chunk(n: int, delta: dict[str, Any], finish: str | None = None, logs: Sequence[TokenLog] = (), **more: Any) -> bytes:
        shape = chat_logprobs(logs) if logs and ask.logprobs is not None else None
        choice = {"index": n, "delta": delta, "logprobs": shape, "finish_reason": finish}
        return stream.sse({**head, "choices": [choice], **extra, **more})

    for n in range(ask.n):
        yield chunk(n, {"role": "assistant", "content": ""})
    dones: list[Done] = []
    for n, event in events:
        if isinstance(event, Text):
            yield chunk(n, {"content" if event.kind == "content" else "reasoning_content": event.text}, logs=event.logs)
        elif isinstance(event, CallStart):
            call = {"index": event.index, "id": event.id, "type": "function", "function": {"name": event.name, "arguments": ""}}
            yield chunk(n, {"tool_calls": [call]})
        elif isinstance(event, Arguments):
            yield chunk(n, {"tool_calls": [{"index": event.index, "function": {"arguments": event.delta}}]})
        elif isinstance(event, Done):
            dones.append(event)
            yield chunk(n, {}, event.finish, timings=timings(event))
        elif isinstance(event, Progress):
            if ask.progress:
                yield chunk(n, {}, prompt_progress={"total": event.total, "cache": event.cached, "processed": event.done})
        elif isinstance(event, Ping):
            yield stream.SSE_PING
        elif isinstance(event, Failed):
            yield stream.sse(openai_error(event.problem))
            return
    if len(dones) == ask.n:
        if ask.include_usage:
            yield stream.sse({**head, "choices": [], "usage": usage(total(dones)), "timings": timings(dones[-1])})
        yield stream.SSE_DONE


def _plain_logprobs(logs: Sequence[TokenLog], start: int) -> dict[str, Any]:
    """The legacy form: parallel arrays; offsets in characters from `start`."""
    out: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for entry in logs:
        text = entry.data.decode("utf-8", "replace")
        out["tokens"].append(text)
        out["token_logprobs"].append(entry.logprob)
        top: dict[str, float] = {}
        for data, p in entry.top:
            top.setdefault(data.decode("utf-8", "replace"), p)
        out["top_logprobs"].append(top)
        out["text_offset"].append(start)
        start += len(text)
    return out


def _echoed(ask: Ask, n: int, decode: Any) -> str:
    if not ask.echo:
        return ""
    prompt = ask.prompts[n // ask.n]
    return prompt if isinstance(prompt, str) else decode(prompt)


def completion_response(ask: Ask, meta: Meta, answers: Sequence[Answer], decode: Any) -> dict[str, Any]:
    choices = []
    for n, a in enumerate(answers):
        echo = _echoed(ask, n, decode)
        choices.append({"index": n, "text": echo + a.content, "finish_reason": a.done.finish,
                        "logprobs": None if ask.logprobs is None else _plain_logprobs(a.logs, len(echo))})
    dones = [a.done for a in answers]
    return {**_head(meta, "cmpl", "text_completion"), "choices": choices, "usage": usage(_over_prompts(ask, dones)),
            "timings": timings(dones[-1])}


def _over_prompts(ask: Ask, dones: Sequence[Done]) -> Usage:
    """Several prompts: the n answers of each share its tokens."""
    parts = [total(dones[k:k + ask.n]) for k in range(0, len(dones), ask.n)]
    return Usage(*(sum(getattr(p, name) for p in parts) for name in ("prompt", "cached", "completion", "reasoning")))


def completion_stream(ask: Ask, meta: Meta, events: Iterable[tuple[int, Event]], decode: Any) -> Iterator[bytes]:
    head = _head(meta, "cmpl", "text_completion")
    extra = {"usage": None} if ask.include_usage else {}
    count = len(ask.prompts) * ask.n
    offsets = [0] * count

    def chunk(n: int, text: str, finish: str | None = None, logs: Sequence[TokenLog] = (), **more: Any) -> bytes:
        shape = _plain_logprobs(logs, offsets[n]) if logs and ask.logprobs is not None else None
        offsets[n] += len(text)
        choice = {"index": n, "text": text, "logprobs": shape, "finish_reason": finish}
        return stream.sse({**head, "choices": [choice], **extra, **more})

    for n in range(count if ask.echo else 0):
        yield chunk(n, _echoed(ask, n, decode))
    dones: dict[int, Done] = {}
    for n, event in events:
        if isinstance(event, Text):
            yield chunk(n, event.text, logs=event.logs)
        elif isinstance(event, Done):
            dones[n] = event
            yield chunk(n, "", event.finish, timings=timings(event))
        elif isinstance(event, Progress):
            if ask.progress:
                yield chunk(n, "", prompt_progress={"total": event.total, "cache": event.cached, "processed": event.done})
        elif isinstance(event, Ping):
            yield stream.SSE_PING
        elif isinstance(event, Failed):
            yield stream.sse(openai_error(event.problem))
            return
    if len(dones) == count:
        if ask.include_usage:
            yield stream.sse({**head, "choices": [], "usage": usage(_over_prompts(ask, [dones[k] for k in range(count)]))})
        yield stream.SSE_DONE


def models(id: str, created: int, ctx: int, meta: Mapping[str, Any]) -> dict[str, Any]:
    """GET /v1/models; `models` is what Codex and Ollama-like clients look for."""
    return {"object": "list", "data": [model(id, created, ctx, meta)],
            "models": [{"slug": id, "name": id, "model": id, "display_name": id, "context_window": ctx,
                        "capabilities": ["completion"]}]}


def model(id: str, created: int, ctx: int, meta: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": id, "object": "model", "created": created, "owned_by": "moegg", "context_length": ctx, "max_model_len": ctx,
            "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]}, "meta": dict(meta)}
