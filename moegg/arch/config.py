"""ConfigReader: the only way an architecture module reads its config, so that no key is dropped in silence."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moegg.errors import FormatError, UnsupportedModel

_MISSING = object()
I32_MAX = (1 << 31) - 1
F32_MIN, F32_MAX = 2.0 ** -126, (2 - 2.0 ** -23) * 2.0 ** 127      # normal numbers: what kernels compute with


def fits_f32(x: Any) -> bool:
    """True for 0 and numbers that are finite and normal in f32. A JSON integer may be larger than any float."""
    return isinstance(x, (int, float)) and not isinstance(x, bool) and (x == 0 or F32_MIN <= abs(x) <= F32_MAX)


class ConfigReader:
    """Typed reads of a config.json-like mapping that remember which keys were read.

    Every read takes alternative key names, the first that is present counts; null counts as absent, except for given().
    Numbers are those that i32 and f32 hold, which is what kernels get.
    `used()` is the canonical config that goes into the file's first 64 KiB, values as read: it describes the same Model.
    `unused()` names the keys nobody read.
    """

    def __init__(self, data: Mapping[str, Any], path: str = "", where: str = "config.json"):
        self._data, self._path, self._where = data, path, where
        self._read: dict[str, Any] = {}
        self._children: dict[str, ConfigReader] = {}

    def _get(self, keys: tuple[str, ...], default: Any) -> tuple[str, Any]:
        found = [k for k in keys if self._data.get(k) is not None]
        for k in keys:
            if k in self._data and (not found or k == found[0]) and self._read.get(k, _MISSING) is _MISSING:
                self._read[k] = self._data[k]
        self.ignore(*found[1:])
        if found:
            return found[0], self._data[found[0]]
        if default is _MISSING:
            names = " or ".join(repr(self._path + k) for k in keys)
            raise FormatError(f"{self._where}: missing key: got none, expected {names}", "config-missing")
        return keys[0], default

    def _typed(self, keys: tuple[str, ...], default: Any, kind: str, ok, cast) -> Any:
        k, v = self._get(keys, default)
        if v is default:
            return v
        if not ok(v):
            raise FormatError(f"{self._where}: {self._path + k!r}: got {v!r:.80}, expected {kind}", "config-type")
        self._read[k] = cast(v)
        return self._read[k]

    def int(self, *keys: str, default: Any = _MISSING, low: int = 0, high: int = I32_MAX) -> int:
        def ok(v):
            return isinstance(v, (int, float)) and not isinstance(v, bool) and low <= v <= high and v == int(v)
        return self._typed(keys, default, f"a whole number from {low} to {high}", ok, int)

    def float(self, *keys: str, default: Any = _MISSING, low: float = -F32_MAX) -> float:
        kind = "a finite number" + (f" of at least {low}" if low > -F32_MAX else "") + ", within f32"
        return self._typed(keys, default, kind, lambda v: fits_f32(v) and v >= low, float)

    def floats(self, *keys: str, default: Any = _MISSING) -> list[float]:
        def ok(v):
            return isinstance(v, list) and all(map(fits_f32, v))
        return self._typed(keys, default, "a list of finite numbers, within f32", ok, lambda v: [*map(float, v)])

    def bool(self, *keys: str, default: Any = _MISSING) -> bool:
        return self._typed(keys, default, "true or false", lambda v: isinstance(v, bool), bool)

    def str(self, *keys: str, default: Any = _MISSING) -> str:
        return self._typed(keys, default, "a string", lambda v: isinstance(v, str), str)

    def list(self, *keys: str, of: tuple[type, ...] = (), default: Any = _MISSING) -> list:
        def ok(v):
            return isinstance(v, list) and all((not of or type(x) in of) and (type(x) is not int or abs(x) <= I32_MAX) for x in v)
        return self._typed(keys, default, f"a list of {' or '.join(t.__name__ for t in of) or 'values'}", ok, list)

    def dict(self, *keys: str, default: Any = _MISSING) -> dict:
        return self._typed(keys, default, "an object", lambda v: isinstance(v, Mapping), dict)

    def has(self, key: str) -> bool:
        """True if the key is present and not null; counts as read."""
        return self._get((key,), None)[1] is not None

    def given(self, key: str) -> bool:
        """True if the key is present, null included: for classes whose default differs from null. Counts as read."""
        return self.has(key) or key in self._data

    def child(self, key: str) -> ConfigReader:
        """The nested object under `key`, with its own bookkeeping; an empty one if the key is absent or null."""
        if key not in self._children:
            sub = self.dict(key, default=None)
            if sub is None:
                return ConfigReader({}, f"{self._path}{key}.", self._where)
            self._children[key] = ConfigReader(sub, f"{self._path}{key}.", self._where)
        return self._children[key]

    def path(self, key: str) -> ConfigReader:
        """The nested object under `key` (text_config), with its own bookkeeping; this reader itself if the key is absent."""
        return self.child(key) if self.has(key) else self

    def expect(self, key: str, *allowed: Any, default: Any = _MISSING) -> Any:
        """The value of `key`, which must be one of `allowed`. Raises UnsupportedModel naming the key otherwise."""
        k, v = self._get((key,), allowed[0] if default is _MISSING else default)
        if v not in allowed:
            raise UnsupportedModel(f"{self._where}: {self._path + k!r} is {v!r:.80}; supported: "
                                   f"{', '.join(repr(a) for a in allowed)}", "arch-unsupported")
        return v

    def refuse(self, key: str, why: str) -> UnsupportedModel:
        """An error to raise for a key whose value this architecture module cannot honour."""
        return UnsupportedModel(f"{self._where}: {self._path + key!r} is {self._data.get(key)!r:.80}; {why}", "arch-unsupported")

    def wrong(self, key: str, why: str) -> FormatError:
        """An error to raise for a key whose value contradicts other keys."""
        return FormatError(f"{self._where}: {self._path + key!r} is {self._data.get(key)!r:.80}; {why}", "config-value")

    def ignore(self, *keys: str) -> None:
        """Keys known to change nothing in a text forward pass (dropout, cache switches, training losses)."""
        for k in keys:
            self._read.setdefault(k, _MISSING)

    def used(self) -> dict[str, Any]:
        out = {k: v for k, v in self._read.items() if v is not _MISSING}
        out.update({k: c.used() for k, c in self._children.items()})
        return out

    def unused(self) -> list[str]:
        out = [self._path + k for k in self._data if k not in self._read and k not in self._children]
        return out + [u for c in self._children.values() for u in c.unused()]
