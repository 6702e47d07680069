"""What a request's tools say of their parameters, and arguments typed by it.

The rule (known_failures C7): text becomes what the schema asks for where that loses nothing: "True" a boolean, "12" an integer,
"[1]" an array. Where the schema allows a string, says nothing or does not fit, text stays text. Values that the model has
typed already are left alone. Schemas come from clients: whatever they hold, nothing here raises.
"""
from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from moegg.server.tools_text import BLANK, JSON, NUMBER, PYTHON, Malformed, at_once, join, value

MAX_REFS = 16       # references and alternatives followed below one parameter
_KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object", type(None): "null"}


class Signatures:
    """The functions a request offers; OpenAI's two forms of a tool and Anthropic's."""

    def __init__(self, tools: Sequence[Any] | None):
        self._schemas = dict(_signature(tool) for tool in tools or () if isinstance(tool, Mapping))

    def __contains__(self, name: str) -> bool:
        return name in self._schemas

    def parameters(self, name: str) -> Mapping[str, Any]:
        """Schema by parameter; empty if not known."""
        return _mapping(self._schemas.get(name, {}).get("properties"))

    def complete(self, name: str, given: Iterable[str]) -> bool:
        """Whether every required parameter is among `given`."""
        required = _list(self._schemas.get(name, {}).get("required"))
        return {r for r in required if isinstance(r, str)} <= set(given)

    def arguments(self, name: str, pairs: Iterable[tuple[str, str]]) -> str:
        """The JSON object of (parameter, JSON value) pairs, typed by the schema. The last of a repeated name counts."""
        root, known = self._schemas.get(name, {}), self.parameters(name)
        return join({key: _typed(text, _kinds(known.get(key), root)) for key, text in pairs})


def _signature(tool: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    inner = _mapping(tool.get("function")) or tool
    name = inner.get("name")
    return name if isinstance(name, str) else "", _mapping(inner.get("parameters") or inner.get("input_schema"))


def _mapping(thing: Any) -> Mapping[str, Any]:
    return thing if isinstance(thing, Mapping) else {}


def _list(thing: Any) -> list[Any]:
    return thing if isinstance(thing, list) else []


def _kinds(schema: Any, root: Mapping[str, Any], depth: int = 0) -> set[str]:
    """JSON type names that `schema` allows; empty: anything."""
    if not isinstance(schema, Mapping) or depth > MAX_REFS:
        return set()
    if isinstance(ref := schema.get("$ref"), str):
        return _kinds(_target(ref, root), root, depth + 1)
    kind = schema.get("type")
    kinds = {k.lower() for k in (kind, *_list(kind)) if isinstance(k, str)}
    if not kinds:
        for part in _list(schema.get("allOf"))[:MAX_REFS]:
            kinds |= _kinds(part, root, depth + 6)
        for part in (*_list(schema.get("anyOf")), *_list(schema.get("oneOf")))[:MAX_REFS]:
            kinds |= _kinds(part, root, depth + 6) or {"string"}        # an alternative that says nothing allows strings
    if not kinds:
        values = (*_list(schema.get("enum")), *([schema["const"]] if "const" in schema else ()))
        kinds = {_KINDS.get(type(v), "string") for v in values}
    return kinds | {"null"} if kinds and schema.get("nullable") is True else kinds


def _target(ref: str, root: Mapping[str, Any]) -> Any:
    node: Any = root
    for part in ref.removeprefix("#/").split("/"):
        node = _mapping(node).get(part)
    return node


def _typed(text: str, kinds: set[str]) -> str:
    """A JSON value; a string among them becomes another type if it may not be a string."""
    if not text.startswith('"') or not kinds:
        return text
    word = json.loads(text).strip(BLANK)
    if "null" in kinds and word in ("null", "None"):
        return "null"
    if "string" in kinds:
        return text
    if "boolean" in kinds and word.lower() in ("true", "false"):
        return word.lower()
    if NUMBER.fullmatch(word) and ("number" in kinds or "integer" in kinds and float(word).is_integer()):
        return word
    kind = {"[": "array", "{": "object"}.get(word[:1])
    for style in (JSON, PYTHON) if kind in kinds else ():
        try:
            return at_once(lambda t, style=style: value(t, style), word)
        except Malformed:
            continue
    return text
