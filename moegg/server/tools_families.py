"""Readers of the families that mark calls with words of their own: Mistral, DeepSeek, Kimi, Solar Open, LFM2, Gemma, GLM-4, Llama, OLMo, Apertus,
and JSON between markers.

A reader starts behind the opener that was found, adds the calls of one block to a Draft, and stops behind the block.
Sources: the families' chat templates; FunctionGemma's formatting guide (ai.google.dev); vLLM's documentation of tool parsers (Kimi).
"""
from __future__ import annotations

import re
from collections.abc import Callable

from moegg.server.tools_calls import Draft, call_list, call_object, gemma_call, named_call, python_call
from moegg.server.tools_text import NAME, PYTHON, Steps, Text, members

MISTRAL, MISTRAL_ID, MISTRAL_ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")
KIMI = ("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>")
SOLAR_CALLS = ("<|tool_calls|>", "<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:end|>", "<|calls|>")
SOLAR_ARGS = "<|tool_call:args|>"
LFM, LFM_END = "<|tool_call_start|>", "<|tool_call_end|>"
GEMMA_ENDS = {"<|tool_call>": "<tool_call|>", "<start_function_call>": "<end_function_call>"}
PYTHON_TAG, PYTHON_START, PYTHON_END = "<|python_tag|>", "<|python_start|>", "<|python_end|>"
PYTHON_CALLS, PYTHON_CALLS_END = "<function_calls>", "</function_calls>"
APERTUS, APERTUS_END = "<|tools_prefix|>", "<|tools_suffix|>"
FENCE, FENCE_CODE, FENCE_JSON = "```", "```tool_code", "```json"
# Granite and Phi-4-mini; Jamba, Hunyuan and MiniMax-M1; Command R7B; InternLM
MARKED = {"<|tool_call|>": "<|/tool_call|>", "<tool_calls>": "</tool_calls>", "<|START_ACTION|>": "<|END_ACTION|>",
          "<|action_start|>": "<|action_end|>"}

# LFM2's template writes strings in single quotes and escapes nothing: a quote ends an argument only if the next one, or the end
# of the call, follows
_LFM = PYTHON._replace(behind=re.compile(r"\s*(?:,\s*[A-Za-z_]\w*\s*=|\)\s*(?:\]|,\s*[\w.]+\s*\(|\Z))"))


def mistral(t: Text, opener: str, draft: Draft) -> Steps[None]:
    """[TOOL_CALLS][{...}, ...], or [TOOL_CALLS]name[ARGS]{...} with the marker in front of every call."""
    yield from t.space()
    if (yield from t.accept("[")):
        return (yield from call_list(t, draft))
    name = yield from t.name()
    if (yield from t.accept(MISTRAL_ID, MISTRAL_ARGS)) == MISTRAL_ID:
        yield from t.run(NAME)
        yield from t.accept(MISTRAL_ARGS)
    yield from _arguments(t, name, draft)


def _arguments(t: Text, name: str, draft: Draft, own: str = "") -> Steps[None]:
    yield from t.space()
    yield from t.expect("{")
    draft.add(name, (yield from members(t)), own)


def deepseek(t: Text, opener: str, draft: Draft) -> Steps[None]:
    """Calls as V3.1 writes them, name<sep>{...}, or as V3 does, function<sep>name and fenced JSON."""
    def one() -> Steps[None]:
        name = yield from t.name()
        yield from t.expect(DEEPSEEK[2])
        if not (yield from t.ahead(t.at, "{")):
            name = yield from t.name()
            yield from t.space()
            yield from t.accept(FENCE_JSON)
        yield from _arguments(t, name, draft)
        yield from _skip(t, FENCE)
    yield from _section(t, opener, draft, DEEPSEEK, one)


def kimi(t: Text, opener: str, draft: Draft) -> Steps[None]:
    """Calls as functions.name:N and their arguments. The first part is the call's id too: the model counts its own."""
    def one() -> Steps[None]:
        own = yield from t.name()
        yield from t.space()
        yield from t.expect(KIMI[2])
        name, _, count = own.removeprefix("functions.").rpartition(":")
        yield from _arguments(t, name if name and count.isdecimal() else own, draft, own)
    yield from _section(t, opener, draft, KIMI, one)


def solar(t: Text, opener: str, draft: Draft) -> Steps[None]:
    """Solar Open's calls: an id, which may be missing, a name and arguments."""
    def one() -> Steps[None]:
        own = yield from t.run(NAME)
        yield from t.expect(SOLAR_CALLS[2])
        name = yield from t.name()
        yield from t.expect(SOLAR_ARGS)
        yield from _arguments(t, name, draft, own)
    yield from _section(t, opener, draft, SOLAR_CALLS, one)


def _section(t: Text, opener: str, draft: Draft, marks: tuple[str, ...], one: Callable[[], Steps[None]]) -> Steps[None]:
    """Calls, each between two marks, all between two more; the outer ones may be missing. `one` reads what is inside."""
    begin, end, end_all = marks[1], marks[3], marks[4]
    inside = opener == begin
    while True:
        if not inside:
            if not (yield from t.ahead(t.at, begin)):
                break
            yield from t.space()
            yield from t.expect(begin)
        inside = False
        yield from t.space()
        yield from one()
        yield from _skip(t, end)
        draft.end = t.at
    yield from _skip(t, end_all)


def marked(t: Text, opener: str, draft: Draft) -> Steps[None]:
    """JSON between two markers: a list of calls, or calls one after the other."""
    yield from t.space()
    yield from t.accept("<|plugin|>")
    while (yield from t.ahead(t.at, "{", "[")):
        yield from t.space()
        yield from (call_object if (yield from t.expect("{", "[")) == "{" else call_list)(t, draft)
        draft.end = t.at
    yield from _skip(t, MARKED[opener])


def _skip(t: Text, word: str) -> Steps[None]:
    """Moves behind blank space and `word` if it comes next."""
    if (yield from t.ahead(t.at, word)):
        yield from t.space()
        yield from t.expect(word)


def lfm(t: Text, opener: str, draft: Draft) -> Steps[None]:
    """[name(key='value'), ...] or JSON calls in a list."""
    yield from t.space()
    yield from t.expect("[")
    yield from call_list(t, draft, _LFM)
    yield from _skip(t, LFM_END)


def gemma(t: Text, opener: str, draft: Draft) -> Steps[None]:
    """Gemma 4's and FunctionGemma's call:name{...}."""
    yield from gemma_call(t, draft)
    yield from _skip(t, GEMMA_ENDS[opener])


def line(t: Text, opener: str, draft: Draft) -> Steps[None]:
    """GLM-4's name, a line break, and {...}, up to whose '{' was read; nothing says where the call ends but the end of the turn."""
    draft.add(opener.partition("\n")[0].strip(), (yield from members(t)))


def prompted(t: Text, opener: str, draft: Draft) -> Steps[None]:
    """What models write that were only told how: Gemma 3 and Llama 3. Bare JSON or Python, fenced, or behind a tag."""
    if opener == FENCE_CODE:
        return (yield from _code(t, draft, FENCE))
    first = opener
    if opener not in ("{", "["):
        yield from t.space()
        first = yield from t.expect("{", "[")
    bare = opener not in (PYTHON_TAG, PYTHON_START)
    if first == "{":
        yield from call_object(t, draft, bare)
    else:
        yield from call_list(t, draft, bare=bare)
    if opener in (FENCE_JSON, PYTHON_START):
        yield from _skip(t, FENCE if opener == FENCE_JSON else PYTHON_END)


def apertus(t: Text, opener: str, draft: Draft) -> Steps[None]:
    """[{"name": {...}}, ...]: the name is the key of the arguments."""
    yield from t.space()
    yield from t.expect("[")
    while True:
        yield from t.space()
        yield from t.expect("{")
        yield from named_call(t, draft)
        yield from t.space()
        if (yield from t.expect(",", "]")) == "]":
            break
    yield from _skip(t, APERTUS_END)


def python(t: Text, opener: str, draft: Draft) -> Steps[None]:
    """OLMo 3's lines of Python calls between two tags."""
    yield from _code(t, draft, PYTHON_CALLS_END)


def _code(t: Text, draft: Draft, closer: str) -> Steps[None]:
    """Lines of calls, each alone, in print(...) or in a list, up to `closer`."""
    while True:
        yield from t.space()
        wrapped = yield from t.accept("print(", "[", closer)
        if wrapped == closer or not wrapped and not (yield from t.peek()) and draft.calls:
            return
        if wrapped == "[":
            yield from call_list(t, draft)
            continue
        yield from t.space()
        yield from python_call(t, draft)
        if wrapped:
            yield from t.space()
            yield from t.expect(")")
