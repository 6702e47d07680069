"""Writes a GGUF file: metadata with its types, tensor table, tensor data in any order; leaves a complete file or none.

Data goes to `<name>.partial`, which is renamed when it is complete. Shapes are numpy order. Refuses values that their type cannot
hold, data outside the planned tensors and, unless told to, to replace a file. Format: formats/gguf.py.
"""
import os
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from moegg.errors import FormatError, InternalError, IOFailure, MoeggError
from moegg.formats.gguf import SCALARS, TYPES
from moegg.formats.writer import check_room, check_target, refuse_existing

_KINDS = {name: (i, code) for i, (name, code) in SCALARS.items()}
_TYPE_IDS = {t.name: i for i, t in TYPES.items() if t.block_elems}
_STRING, _ARRAY = 8, 9


class GGUFWriter:
    """A context manager: put() for every byte of every tensor, then finish(). metadata: (key, kind, value) with kinds as
    GGUFFile.kinds spells them; tensors: (name, shape, type). Raises UsageError, NotFound, NoRoom, FormatError, IOFailure."""

    def __init__(self, path: Path, metadata: Iterable[tuple[str, str, Any]], tensors: Iterable[tuple[str, Sequence[int], str]], *,
                 version: int = 3, alignment: int = 32, force: bool = False):
        self.path, self.force, self.partial = path, force, path.with_name(path.name + ".partial")
        check_target(path, force)
        infos, self._spans, at = [], {}, 0
        for name, shape, kind in tensors:
            elems, size = TYPES[_TYPE_IDS[kind]][1:]
            nbytes = int(np.prod(shape, dtype=object)) // elems * size
            infos.append(_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), _TYPE_IDS[kind], at))
            self._spans[name] = at, nbytes
            at += nbytes + -nbytes % alignment
        keys = [_string(key) + _value(key, kind, value) for key, kind, value in metadata]
        head = b"GGUF" + struct.pack("<IQQ", version, len(infos), len(keys)) + b"".join(keys) + b"".join(infos)
        self._head = head + bytes(-len(head) % alignment)
        self.total_bytes, self._left, self._file = len(self._head) + at, sum(n for _, n in self._spans.values()), None

    def __enter__(self) -> Self:
        check_room(self.path, self.total_bytes)
        try:
            if os.path.lexists(self.partial):
                os.unlink(self.partial)
            self._file = open(self.partial, "xb", buffering=0)
            self._file.truncate(self.total_bytes)           # padding is never written: it reads as zero
            self._write(0, self._head)
        except BaseException as e:
            self.__exit__()
            if isinstance(e, OSError) and not isinstance(e, MoeggError):
                raise IOFailure(f"{self.path}: cannot be written: {e.strerror}", "io-write") from e
            raise
        return self

    def put(self, name: str, offset: int, data: np.ndarray) -> None:
        """uint8 `data` at byte `offset` of tensor `name`; every byte once."""
        start, nbytes = self._spans[name]
        if not 0 <= offset <= nbytes - data.nbytes:
            raise InternalError(f"{self.path}: tensor {name!r} of {nbytes} B: {data.nbytes} B at {offset}")
        self._write(len(self._head) + start + offset, data)
        self._left -= data.nbytes

    def finish(self) -> None:
        """Gives the file its name. Raises IOFailure, UsageError if a file of that name has appeared meanwhile."""
        if self._left:
            raise InternalError(f"{self.path}: {self._left} B of tensors were not put")
        refuse_existing(self.path, self.force)
        try:
            os.fsync(self._file.fileno())
            os.replace(self.partial, self.path)
        except OSError as e:
            raise IOFailure(f"{self.path}: cannot be written: {e.strerror}", "io-write") from e

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
        self.partial.unlink(missing_ok=True)

    def _write(self, offset: int, data: bytes | np.ndarray) -> None:
        view = memoryview(data).cast("B")
        while view:
            try:
                n = os.pwrite(self._file.fileno(), view[:1 << 30], offset)
            except OSError as e:
                raise IOFailure(f"{self.path}: write at byte {offset} failed: {e.strerror}", "io-write") from e
            view, offset = view[n:], offset + n


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(key: str, kind: str, value: Any) -> bytes:
    """Type and value of one key. Raises FormatError for a kind that GGUF lacks, or a value that is not of it."""
    array = kind.startswith("[")
    name = kind[1:-1] if array else kind
    try:
        if array:
            if name == "str":
                return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(_string, value))
            i, code = _KINDS[name]
            return struct.pack(f"<IIQ{len(value)}{code}", _ARRAY, i, len(value), *map(_number, value))
        if name == "str":
            return struct.pack("<I", _STRING) + _string(value)
        i, code = _KINDS[name]
        return struct.pack(f"<I{code}", i, _number(value))
    except (KeyError, TypeError, ValueError, AttributeError, struct.error, OverflowError) as e:
        raise FormatError(f"GGUF metadata: key {key!r:.100}: a {kind!r:.20} cannot be {value!r:.40}: {e}", "gguf-key") from None


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) and value in ("nan", "inf", "-inf") else value
