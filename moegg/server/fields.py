"""Typed reading of a JSON object: null counts as absent, unknown fields do not matter, a wrong type is a 400 that names it."""
from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from moegg.server.problem import Problem, bad

MAX_DEPTH = 200
MAX_VALUES = 1 << 19        # more would take many times the bytes of the body; a prompt of ids fits
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.S)       # an open one goes on to the end


def parse_object(data: bytes) -> dict[str, Any]:
    """The JSON object in a request body. Refuses other JSON, NaN, nesting that would exhaust the stack, and values without number."""
    def constant(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")
    if len(data) > MAX_VALUES and (n := sum(map(_STRING.sub(b"", data).count, (b",", b"[", b"{")))) > MAX_VALUES:
        raise Problem(400, f"body: got about {n} values, expected at most {MAX_VALUES}", code="invalid_json")
    try:
        body = json.loads(data.decode("utf-8-sig"), parse_constant=constant)
    except RecursionError:
        raise Problem(400, "body: nested too deeply", code="invalid_json") from None
    except ValueError as e:
        raise Problem(400, f"body: not JSON: {str(e)[:200]}", code="invalid_json") from None
    if not isinstance(body, dict):
        raise Problem(400, f"body: got {_name(body)}, expected a JSON object", code="invalid_json")
    if too_deep(body):
        raise Problem(400, f"body: nested more than {MAX_DEPTH} levels deep", code="invalid_json")
    return body


def too_deep(value: Any) -> bool:
    """Whether containers nest deeper than MAX_DEPTH; walks level by level, so it cannot overflow itself."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [item for x in level if isinstance(x, (dict, list)) for item in (x.values() if isinstance(x, dict) else x)]
        if not level:
            return False
    return True


def _name(value: Any) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", str: "text", list: "an array", dict: "an object",
             type(None): "null"}
    return names.get(type(value), type(value).__name__)


class Fields:
    """A JSON object; `where` is what stands before a field's name in messages, such as 'messages[2].'"""

    def __init__(self, body: Mapping[str, Any], where: str = ""):
        self.body, self.where = body, where

    def get(self, name: str, kinds: tuple[type, ...], expected: str, default: Any = None) -> Any:
        """The value if it is one of `kinds`; a boolean is no number."""
        value = self.body.get(name)
        if value is None:
            return default
        if not isinstance(value, kinds) or isinstance(value, bool) and bool not in kinds:
            raise bad(f"{self.where}{name}: got {_name(value)}, expected {expected}", self.where + name, "invalid_type")
        return value

    def text(self, name: str, default: str | None = None) -> str | None:
        return self.get(name, (str,), "text", default)

    def flag(self, name: str, default: bool | None = None) -> bool | None:
        return self.get(name, (bool,), "true or false", default)

    def array(self, name: str) -> list[Any]:
        return self.get(name, (list,), "an array", [])

    def object(self, name: str) -> Mapping[str, Any]:
        return self.get(name, (dict,), "an object", {})

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float | None:
        """A finite number from low to high."""
        value = self.get(name, (int, float), "a number", default)
        if value is not None and not (low <= value <= high and math.isfinite(value)):
            least, most = (str(x) if isinstance(x, int) else f"{x:g}" for x in (low, high))
            raise bad(f"{self.where}{name}: got {value!r:.40}, expected {least} to {most}", self.where + name)
        return value

    def whole(self, name: str, low: int, high: int, default: int | None = None) -> int | None:
        """A whole number from low to high; 5.0 counts as one."""
        value = self.number(name, low, high, default)
        if value is not None and value != int(value):
            raise bad(f"{self.where}{name}: got {value!r:.40}, expected a whole number", self.where + name)
        return None if value is None else int(value)

    def choice(self, name: str, *words: str) -> str | None:
        value = self.text(name)
        if value is not None and value not in words:
            raise bad(f"{self.where}{name}: got {value!r:.40}, expected one of {', '.join(words)}", self.where + name)
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """One text, or an array of them."""
        value = self.get(name, (str, list), "text or an array of texts", [])
        if isinstance(value, list) and not all(isinstance(v, str) for v in value):
            raise bad(f"{self.where}{name}: expected text or an array of texts", self.where + name, "invalid_type")
        return (value,) if isinstance(value, str) else tuple(value)

    def inner(self, name: str) -> Fields:
        """The object `name`, to be read the same way."""
        return Fields(self.object(name), f"{self.where}{name}.")


def items(values: list[Any], name: str) -> list[Fields]:
    """An array of objects."""
    for n, value in enumerate(values):
        if not isinstance(value, dict):
            raise bad(f"{name}[{n}]: got {_name(value)}, expected an object", f"{name}[{n}]", "invalid_type")
    return [Fields(value, f"{name}[{n}].") for n, value in enumerate(values)]
