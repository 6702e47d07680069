"""A GGUF model in one file or in the parts that llama-gguf-split writes, NAME-00001-of-00003.gguf, as one set of tensors.

Any part may be named; all must lie in the same folder. The metadata is the first part's, without the keys of the split.
Refuses missing parts, parts that say they are others, and tensors in two parts.
"""
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from moegg.errors import FormatError, NotFound
from moegg.formats.gguf import GGUFFile, GGUFTensor
from moegg.formats.rawfile import RawFile

NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.S)
KEYS = ("split.no", "split.count", "split.tensors.count")


class GGUFSet:
    """The open parts as one. stem: the name without part number and suffix; files: base name -> bytes; paths in order."""

    def __init__(self, stem: str, parts: list[GGUFFile]):
        self.stem, self._parts, first = stem, parts, parts[0]
        self.paths = [Path(p.path) for p in parts]
        self.files = {path.name: p.size for path, p in zip(self.paths, parts, strict=True)}
        self.version, self.alignment = first.version, first.alignment
        self.metadata = {k: v for k, v in first.metadata.items() if k not in KEYS}
        self.kinds = {k: v for k, v in first.kinds.items() if k not in KEYS}
        self.tensors: dict[str, GGUFTensor] = {}
        self._home: dict[str, GGUFFile] = {}
        for part in parts:
            for name, t in part.tensors.items():
                if name in self.tensors:
                    raise FormatError(f"{part.path}: tensor {name!r:.100} is also in {self._home[name].path}", "gguf-split")
                self.tensors[name], self._home[name] = t, part

    @classmethod
    def open(cls, path: str | os.PathLike, opened: Callable[[Path], RawFile] = RawFile) -> "GGUFSet":
        """Opens the file, or all parts of its model; `opened` makes the reader of each. Raises NotFound, IOFailure, FormatError."""
        path = Path(path)
        given = GGUFFile.open(path, opened)
        n = _number(given, "split.count", 1)
        if n <= 1:
            return cls(path.name.removesuffix(".gguf"), [given])
        m = NAME.fullmatch(path.name)
        if m is None or int(m[3]) != n:
            raise FormatError(f"{path}: is one of {n} parts of a model; expected a name like NAME-00001-of-{n:05d}.gguf, by "
                              "which the others are found", "gguf-split")
        parts = []
        for i in range(n):
            name = path.with_name(f"{m[1]}-{i + 1:05d}-of-{n:05d}.gguf")
            if not name.exists():
                raise NotFound(f"{path}: is one of {n} parts of a model, and {name.name} is missing; put all parts into one "
                               "folder", "gguf-split")
            parts.append(given if name == path else GGUFFile.open(name, opened))
            if (_number(parts[-1], "split.no", -1), _number(parts[-1], "split.count", 0)) != (i, n):
                said = [parts[-1].metadata.get(key) for key in KEYS[:2]]
                raise FormatError(f"{name}: says that it is another part: got split.no {said[0]!r:.20} of {said[1]!r:.20}, "
                                  f"expected {i} of {n}", "gguf-split")
        whole = cls(m[1], parts)
        total = _number(parts[0], "split.tensors.count", len(whole.tensors))
        if total != len(whole.tensors):
            raise FormatError(f"{path}: the parts hold {len(whole.tensors)} tensors, expected {total}", "gguf-split")
        return whole

    def read(self, name: str, start_row: int | None = None, stop_row: int | None = None) -> np.ndarray:
        """Raw bytes of rows, as GGUFFile.read. Raises NotFound, IOFailure."""
        return self._home.get(name, self._parts[0]).read(name, start_row, stop_row)

    def close(self) -> None:
        for part in self._parts:
            part.close()


def _number(file: GGUFFile, key: str, default: int) -> int:
    value: Any = file.metadata.get(key, default)
    if type(value) is not int or not -1 <= value <= 99_999_999 or (key == "split.count" and value > 99_999):
        raise FormatError(f"{file.path}: key {key!r}: got {value!r:.60}, expected a small whole number", "gguf-split")
    return value
