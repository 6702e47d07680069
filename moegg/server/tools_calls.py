"""Calls in the notations that several families share: JSON objects, Python calls, lists of either, `{name: {...}}`, and `call:name{...}`.

Owns Draft, which collects what one block of a model's text calls. A reader adds whole calls and raises Malformed where the text
breaks off: half a call is never handed out, since a client would run it; whole ones before it stand.
"""
from __future__ import annotations

import json
import re
from collections.abc import Iterable

from moegg.server.tools_text import (
    BLANK,
    MAX_NAME,
    NAME,
    PYTHON,
    Malformed,
    Steps,
    Style,
    Text,
    at_once,
    members,
    string,
    value,
)
from moegg.server.tools_types import Signatures

# keys of a call; an object without a marker around it must have no other
CALL_KEYS = frozenset(("name", "arguments", "parameters", "type", "id", "function"))
GEMMA = Style(quotes=('<|"|>', "<escape>", '"'), raw=('<|"|>', "<escape>"), bare_key=re.compile(r"[^:,{}\[\]]*"),
              word=re.compile(r"[^,{}\[\]]*"), bare_word=True)


class Draft:
    """The calls of one block, in order, and text of it that belongs to none."""

    def __init__(self, t: Text, signatures: Signatures):
        self.signatures = signatures
        self.calls: list[tuple[str, str, str]] = []     # (name, arguments as JSON text, the model's own id or '')
        self.left = ""                              # malformed elements of sound calls; shown as content
        self.end = t.at                             # behind the last whole call and its punctuation
        self._text = t

    def add(self, name: str, pairs: Iterable[tuple[str, str]], own: str = "") -> None:
        """A whole call, just read, with (parameter, JSON value) pairs and the id that the model gave it."""
        self.calls.append((name, self.signatures.arguments(name, pairs), own))
        self.end = self._text.at


def call_object(t: Text, draft: Draft, bare: bool = False) -> Steps[None]:
    """{"name" or "tool_name": ..., "arguments" or "parameters": {...}} whose '{' was read; also {"function": {...}} around the two.

    Without arguments the call has none. One '}' too few is forgiven where the arguments are whole and nothing else follows.
    bare: no marker said that this is a call, so it must have arguments and no foreign key.
    """
    call: dict[str, str] = {}
    while True:
        yield from t.space()
        key = yield from string(t)
        if bare and key not in CALL_KEYS:
            raise Malformed
        yield from t.space()
        yield from t.expect(":")
        call[key] = yield from value(t)
        yield from t.space()
        if (word := (yield from t.accept(",", "}"))) != ",":
            break
    if not word and (yield from t.peek()) not in ("", "<", "]", "`"):
        raise Malformed
    if call.get("function", "").startswith("{"):
        call |= dict(_pairs(call["function"]))
    elif "function" in call:
        call.setdefault("name", call["function"])
    arguments = call.get("arguments", call.get("parameters"))
    name = _text(call.get("name", call.get("tool_name", "")))
    if len(name) > MAX_NAME or not name or not NAME.fullmatch(name) or arguments is None and (bare or not word):
        raise t.malformed()
    draft.add(name, _pairs(arguments or "{}"))


def named_call(t: Text, draft: Draft) -> Steps[None]:
    """{"name": {arguments}} whose '{' was read; with several names there are as many calls."""
    while True:
        yield from t.space()
        name = yield from string(t)
        if len(name) > MAX_NAME or not name or not NAME.fullmatch(name):
            raise t.malformed()
        yield from t.space()
        yield from t.expect(":")
        draft.add(name, _pairs((yield from value(t))))
        yield from t.space()
        if (yield from t.expect(",", "}")) == "}":
            draft.end = t.at
            return


def _text(literal: str) -> str:
    """Of a JSON string; empty for other values."""
    return json.loads(literal) if literal.startswith('"') else ""


def _pairs(literal: str) -> list[tuple[str, str]]:
    """Members of an object: JSON text, or JSON text in a string, as some models write arguments."""
    literal = _text(literal).strip(BLANK) or literal
    if literal in ("null", '""'):
        return []

    def read(t: Text) -> Steps[list[tuple[str, str]]]:
        yield from t.expect("{")
        return (yield from members(t))
    return at_once(read, literal)


def python_call(t: Text, draft: Draft, style: Style = PYTHON) -> Steps[None]:
    """name(key=value, ...): literals only, and no positional arguments, whose names nobody knows."""
    name = yield from t.name()
    yield from t.expect("(")
    pairs: list[tuple[str, str]] = []
    while True:
        yield from t.space()
        if (yield from t.accept(")")):
            break
        key = yield from t.name()
        yield from t.space()
        yield from t.expect("=")
        pairs.append((key, (yield from value(t, style))))
        yield from t.space()
        if (yield from t.expect(",", ")")) == ")":
            break
    draft.add(name, pairs)


def call_list(t: Text, draft: Draft, style: Style = PYTHON, bare: bool = False) -> Steps[None]:
    """Calls between '[' (read already) and ']', as JSON objects or in Python."""
    while True:
        yield from t.space()
        if (yield from t.accept("]")):
            return
        if (yield from t.accept("{")):
            yield from call_object(t, draft, bare)
        else:
            yield from python_call(t, draft, style)
        yield from t.space()
        if (yield from t.expect(",", "]")) == "]":
            return
        draft.end = t.at


def gemma_call(t: Text, draft: Draft) -> Steps[None]:
    """call:name{key:value, ...} with Gemma's own quotes."""
    yield from t.space()
    yield from t.expect("call:")
    name = yield from t.name()
    yield from t.expect("{")
    draft.add(name, (yield from members(t, GEMMA)))
