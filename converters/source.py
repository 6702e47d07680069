"""What a conversion reads: the Source protocol, and View, one matrix of a source after its Src steps.

A View knows its shape and quant before anything is read, and reads by rows: as raw blocks where the steps leave blocks whole
(slices of experts and of rows), as floats always. Rows are those of the matrix [out, in] that is written; a vector is one row.
"""
import math
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from moegg import kernels
from moegg.arch import Src
from moegg.errors import FormatError
from moegg.quants import QUANTS


@dataclass(frozen=True)
class SourceTensor:
    """shape: numpy order. dtype: as the source spells it. quant: the row of moegg.quants with these values, or None."""
    name: str
    shape: tuple[int, ...]
    dtype: str
    quant: str | None


class Source(Protocol):
    """A model to convert. Opening one reads headers and small files, never weights."""
    kind: str                                       # "safetensors" or "gguf"; chooses Tensor.hf or Tensor.gguf
    name: str                                       # of the model, as shown and stored
    stem: str                                       # of the default output file
    paths: list[Path]                               # every file it reads or has read; some may not exist
    files: dict[str, int]                           # base name -> bytes of the files that hold weights
    config: dict[str, Any]                          # in the spelling of a Hugging Face config.json
    module: ModuleType                              # the architecture module
    tensors: dict[str, SourceTensor]
    sections: dict[str, tuple[str, bytes]]          # container section -> (media type, content)
    provenance: dict[str, Any]
    warnings: list[str]
    default_quant: str                              # the recipe where none is asked for
    scratch: int                                    # bytes of disk that reading it takes beside the output

    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """Rows [start:stop] of a tensor with leading axes flattened: uint8 [n, row_bytes]."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class View:
    """One matrix [rows, cols] or vector [n] of a source. first: its first row among the flattened rows of the tensor."""
    source: Source
    tensor: SourceTensor
    src: Src
    expert: int | None
    shape: tuple[int, ...]
    first: int

    @property
    def n_rows(self) -> int:
        return self.shape[0] if len(self.shape) > 1 else 1

    @property
    def stored(self) -> tuple[int, ...]:
        """The tensor's shape, axes of size 1 left out if the source asks for it."""
        return _stored(self.tensor, self.src)

    @property
    def unsliced(self) -> int:
        """Rows of the matrix (elements of the vector) that Src.rows takes some of."""
        return self.stored[-1] if self.src.transpose or len(self.shape) == 1 else self.stored[-2]

    @property
    def whole(self) -> bool:
        """True if rows cannot be read apart: a transposed matrix, a slice of a vector."""
        return self.src.transpose or self.src.turn or (self.src.rows is not None and len(self.shape) == 1)

    @property
    def taken(self) -> int:
        """How many of the `unsliced` this view is made of."""
        return self.src.groups * self.shape[1] if self.src.turn else self.shape[0]

    @property
    def exact(self) -> bool:
        """True if blocks() can be written as they are: nothing is added, transposed or cut inside a row."""
        return not self.whole and not self.src.add and not self.src.log

    @property
    def kept(self) -> str:
        """The quant that has just these values: the stored one, unless its blocks do not survive what is done to them."""
        return self.tensor.quant if self.exact or QUANTS[self.tensor.quant].block_elems == 1 else "f32"

    def blocks(self, start: int, stop: int) -> np.ndarray:
        """Rows [start:stop] as stored: uint8 [n, row_bytes]. Only where `exact`."""
        at = self.places(np.arange(start, stop))
        x = self._read(self.first + int(at[0]), self.first + int(at[-1]) + 1)
        return np.ascontiguousarray(x if len(at) == len(x) else x[at - at[0]])

    @property
    def reversible(self) -> bool:
        """True if places() say where the stored bytes of this view are: nothing is added or transposed."""
        return not (self.src.transpose or self.src.turn or self.src.add)

    @property
    def first_place(self) -> int:
        """The stored row (element, of vectors) of the tensor that places() counts from."""
        return self.first * (self.stored[-1] if len(self.shape) == 1 else 1)

    def places(self, i: np.ndarray) -> np.ndarray:
        """Which rows of the stored matrix (elements of the vector) the i-th of this view are, ascending."""
        first, stop, step = self.src.rows or (0, self.shape[0], 1)
        groups = self.src.groups or 1
        per = self.shape[0] // groups
        return i // per * (self.unsliced // groups) + first + i % per * step

    def _read(self, start: int, stop: int) -> np.ndarray:
        """Stored rows: uint8 [n, row_bytes]."""
        each = self.stored[-1] // math.prod(self.tensor.shape[-1:]) if self.src.squeeze else 1
        return self.source.rows(self.tensor.name, start * each, stop * each).reshape(stop - start, -1)

    def floats(self, start: int, stop: int) -> np.ndarray:
        """Rows [start:stop] as f32 [n, cols], all steps applied; all rows at once where `whole`."""
        if self.src.turn:
            x = self._decode(self._read(self.first, self.first + self.unsliced), self.stored[-1])
            x = x.reshape(self.src.groups, -1, self.stored[-1])[:, slice(*self.src.rows)].swapaxes(1, 2)
            x = np.ascontiguousarray(x.reshape(self.shape)[start:stop])
        elif self.whole:
            n = self.stored[-2] if self.src.transpose else 1
            x = self._decode(self._read(self.first, self.first + n), self.stored[-1])
            if self.src.transpose:
                x = x.T
            if self.src.rows:
                at = self.places(np.arange(self.shape[0]))
                x = x[at] if len(self.shape) > 1 else x[:, at]
            x = np.ascontiguousarray(x[start:stop])
        else:
            x = self._decode(self.blocks(start, stop), self.stored[-1])
        if self.src.log:
            return self._log(x * self.src.log)
        return x + np.float32(self.src.add) if self.src.add else x

    def _log(self, x: np.ndarray) -> np.ndarray:
        if not (x > 0).all():
            sign, form = ("negative", "-exp(A_log)") if self.src.log < 0 else ("positive", "exp(A_log)")
            raise FormatError(
                f"{self.source.name}: tensor {self.tensor.name!r}: holds {self.src.log * x[~(x > 0)][0]}, expected {sign} values, {form}",
                              "gguf-tensor")
        return np.log(x.astype(np.float64)).astype(np.float32)

    def _decode(self, data: np.ndarray, cols: int) -> np.ndarray:
        return data.view("<f4") if self.tensor.quant == "f32" else kernels.dequantize(self.tensor.quant, data, cols)

    def element(self, row: int, col: int) -> str:
        """The place in the source tensor of element (row, col) of this view: 'name[3, 17]'."""
        if len(self.shape) == 1:
            place = [int(self.places(np.array([col]))[0])]
        elif self.src.turn:
            first, _, step = self.src.rows
            group, within = divmod(row, self.stored[-1])
            place = [group * (self.unsliced // self.src.groups) + first + col * step, within]
        else:
            place = [int(self.places(np.array([row]))[0]), col]
            if self.src.transpose:
                place.reverse()
        if self.src.stacked:
            place.insert(0, self.expert)
        if self.src.flat:
            place[:-1] = map(int, np.unravel_index(place[0], self.tensor.shape[:-1]))
        if self.src.squeeze:
            left = iter(place)
            place = [0 if n == 1 else next(left) for n in self.tensor.shape]
        return f"{self.tensor.name}[{', '.join(map(str, place))}]" if place else self.tensor.name


def find_view(source: Source, srcs: tuple[Src, ...], expert: int | None = None, n_experts: int = 0) -> View | None:
    """The first of the alternatives that the source has, or None. Raises FormatError if the steps do not fit its axes."""
    for src in srcs:
        tensor = source.tensors.get(source_name(src, expert))
        if tensor is None:
            continue
        shape, first = _stored(tensor, src), 0
        if src.stacked:
            if len(shape) < 2 or shape[0] != n_experts:
                raise FormatError(f"{source.name}: tensor {tensor.name!r}: shape is {list(shape)}, expected a stack of "
                                  f"{n_experts} experts", "arch-shape")
            shape = shape[1:]
            first = expert * (shape[0] if len(shape) > 1 else 1)
        if len(shape) not in (1, 2) or (src.transpose and len(shape) != 2):
            raise FormatError(f"{source.name}: tensor {tensor.name!r}: shape is {list(tensor.shape)}, expected "
                              f"{'a stack of matrices' if src.stacked else 'a vector or a matrix'}", "arch-shape")
        if src.transpose:
            shape = shape[::-1]
        if src.rows:
            start, stop, step = src.rows
            groups = src.groups or 1
            if shape[0] % groups:
                raise FormatError(f"{source.name}: tensor {tensor.name!r}: shape is {list(tensor.shape)}, expected rows in {groups} "
                                  "equal groups", "arch-shape")
            per = len(range(start, min(stop, shape[0] // groups), step))
            shape = (groups * shape[1], per) if src.turn else (groups * per, *shape[1:])
        return View(source, tensor, src, expert, shape, first)
    return None


def _stored(tensor: SourceTensor, src: Src) -> tuple[int, ...]:
    if src.flat:
        return math.prod(tensor.shape[:-1]), tensor.shape[-1]
    return tuple(n for n in tensor.shape if n != 1) or (1,) if src.squeeze else tensor.shape


def source_name(src: Src, expert: int | None) -> str:
    return src.name if expert is None else src.name.replace("{e}", str(expert))


def source_quant(name: str) -> str | None:
    """The quant of a dtype or ggml type, by name in any case; None if moegg has no such row."""
    return name.lower() if name.lower() in QUANTS else None


def clean_name(name: str) -> str:
    """A model's name for messages and the file: one line, at most 200 bytes of UTF-8, never empty."""
    text = "".join(c if c.isprintable() else " " for c in " ".join(name.split()))
    return text.encode("utf-8", "ignore")[:200].decode("utf-8", "ignore") or "model"
