"""The <tool_call> families: JSON (Hermes, Qwen), <function=...> (Qwen3-Coder, Qwen3.5, Seed-OSS), <arg_key> (GLM, Ling) and <invoke> (MiniMax-M2).

One reader for all: what follows the tag tells which it is, so a model that slips into its neighbour's notation is understood.

Where a value ends (known_failures C2, C3), for `<parameter=a>value</parameter>` and `<arg_value>value</arg_value>` alike: at the
first closing tag that is followed, apart from blank space, by the next parameter, by the end of the call or by the end of the
output. Any other closing tag is part of the value. If the closing tag is missing, the value ends where the next parameter begins
(one not given yet, and of the tool where its schema is known) or where the call ends. Braces and quotes mean nothing (C5).
A parameter with a malformed name is no argument; its text stays as content (C4).
"""
from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from moegg.server.tools_calls import Draft, call_object
from moegg.server.tools_text import Malformed, Steps, Text, dump

CALL, CALL_END, FUNCTION, FUNCTION_END = "<tool_call>", "</tool_call>", "<function=", "</function>"
SEED, SEED_END = "<seed:tool_call>", "</seed:tool_call>"
MINIMAX, MINIMAX_END, INVOKE, INVOKE_END = "<minimax:tool_call>", "</minimax:tool_call>", '<invoke name="', "</invoke>"


class _Tags(NamedTuple):
    begin: str          # of a parameter
    named: str          # behind its name
    value: str          # in front of its value
    end: str            # of its value
    ends: tuple[str, ...]       # of the call
    behind: tuple[str, ...] = (CALL_END, SEED_END, CALL, SEED, FUNCTION)        # what may follow the end of the call


_QWEN = _Tags("<parameter=", ">", "", "</parameter>", (FUNCTION_END, CALL_END, SEED_END))
_GLM = _Tags("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", (CALL_END,))
_MINIMAX = _Tags('<parameter name="', '">', "", "</parameter>", (INVOKE_END, MINIMAX_END), (MINIMAX_END, MINIMAX, INVOKE))


def tool_call(t: Text, opener: str, draft: Draft) -> Steps[None]:
    """One block behind <tool_call> or MiniMax's, or behind <function= where a model leaves the outer tag away."""
    if opener == MINIMAX:
        return (yield from _invocations(t, draft))
    if opener == FUNCTION or not (yield from t.ahead(t.at, "{")):
        yield from _tagged(t, opener, draft)
    else:
        yield from _objects(t, draft)
    if (yield from t.ahead(t.at, CALL_END, SEED_END)):
        yield from t.space()
        yield from t.expect(CALL_END, SEED_END)


def _objects(t: Text, draft: Draft) -> Steps[None]:
    """JSON calls; models sometimes put several between one pair of tags."""
    while (yield from t.ahead(t.at, "{")):
        yield from t.space()
        yield from t.expect("{")
        yield from call_object(t, draft)


def _invocations(t: Text, draft: Draft) -> Steps[None]:
    while (yield from t.ahead(t.at, INVOKE)):
        yield from t.space()
        yield from t.expect(INVOKE)
        name = yield from t.name()
        yield from t.expect(_MINIMAX.named)
        yield from _parameters(t, name, _MINIMAX, draft)
    if (yield from t.ahead(t.at, MINIMAX_END)):
        yield from t.space()
        yield from t.expect(MINIMAX_END)


def _tagged(t: Text, opener: str, draft: Draft) -> Steps[None]:
    yield from t.space()
    qwen = opener == FUNCTION or bool((yield from t.accept(FUNCTION)))
    name = yield from t.name()
    if qwen:
        yield from t.expect(">")
    yield from _parameters(t, name, _QWEN if qwen else _GLM, draft)


def _parameters(t: Text, name: str, tags: _Tags, draft: Draft) -> Steps[None]:
    """The rest of a call of `name`, from its first parameter on; adds the call."""
    known = draft.signatures.parameters(name)
    pairs: dict[str, str] = {}
    left = ""
    while True:
        yield from t.space()
        start = t.at
        word = yield from t.accept(tags.begin, *tags.ends)
        if word != tags.begin:
            break
        key = yield from _parameter_name(t, tags)
        text = yield from _value(t, tags, lambda other, key=key: other not in (key, *pairs) and (not known or other in known))
        if not key:
            left += t.buffer[start:t.at]
        elif tags is _QWEN:
            pairs[key] = dump(text.removeprefix("\n").removesuffix("\n"))       # the template's own line breaks
        else:
            pairs[key] = dump(text)
    if not word and not (pairs and t.ended and t.at == len(t.buffer) and draft.signatures.complete(name, pairs)):
        raise t.malformed()
    draft.add(name, pairs.items())
    draft.left += left


def _parameter_name(t: Text, tags: _Tags) -> Steps[str]:
    """The name, read up to the value; empty, and no move, if it is malformed."""
    start = t.at
    try:
        name = yield from t.name()
        yield from t.expect(tags.named)
        if tags.value:
            yield from t.space()
            yield from t.expect(tags.value)
    except Malformed:
        t.at = start
        return ""
    return name


def _value(t: Text, tags: _Tags, expected: Callable[[str], bool]) -> Steps[str]:
    """Text up to where the value ends; moves behind its closing tag if it has one. `expected`: names that may come next."""
    start = scan = t.at
    while True:
        at, word = yield from t.find(scan, tags.end, tags.begin, *tags.ends)
        scan = at + len(word)
        if word == tags.end:
            ends = (yield from t.ahead(scan, tags.begin, *tags.ends)) is not None
        elif word == tags.begin:
            ends = yield from _begins(t, scan, tags, expected)
        else:
            ends = (yield from t.ahead(scan, *tags.behind)) is not None
        if ends:
            t.at = scan if word == tags.end else at
            return t.buffer[start:at]


def _begins(t: Text, start: int, tags: _Tags, expected: Callable[[str], bool]) -> Steps[bool]:
    """Whether an expected parameter begins whose name starts at `start`."""
    back, t.at = t.at, start
    name = yield from _parameter_name(t, tags)
    t.at = back
    return bool(name) and expected(name)
