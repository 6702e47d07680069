"""Read-only GGUF (v2 and v3, little-endian): metadata, tensor table, raw rows. Never reads weights on opening.

Everything a file claims is checked before it is believed or allocated: counts against the bytes that are left, products with
checked arithmetic, offsets against alignment, each other and the file's size. Refuses v1, big-endian files, nested arrays,
duplicate names. Shapes are numpy order ([out, in], [expert, out, in]), the reverse of the order in the file.
Format: ggml docs/gguf.md; type ids and block sizes: ggml.h, gguf-py constants.
"""
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from moegg.errors import FormatError, NotFound
from moegg.formats.rawfile import RawFile, count_elements
from moegg.units import fmt_bytes

HEADER_LIMIT = 256 << 20            # metadata and tensor table together
ARRAY_LIMIT = 1 << 24               # elements of one metadata array; the largest vocabularies have 2**19
KEY_LIMIT, NAME_LIMIT = 65535, 1024
ALIGN_LIMIT = 2 << 20


class GGMLType(NamedTuple):
    """Name as in ggml, lower case; block_elems 0: the id is known, its size is not (removed, or newer than this table)."""
    name: str
    block_elems: int
    block_bytes: int


TYPES = {i: GGMLType(*t) for i, t in {
    0: ("f32", 1, 4), 1: ("f16", 1, 2), 2: ("q4_0", 32, 18), 3: ("q4_1", 32, 20), 4: ("q4_2", 0, 0), 5: ("q4_3", 0, 0),
    6: ("q5_0", 32, 22), 7: ("q5_1", 32, 24), 8: ("q8_0", 32, 34), 9: ("q8_1", 32, 40), 10: ("q2_k", 256, 84),
    11: ("q3_k", 256, 110), 12: ("q4_k", 256, 144), 13: ("q5_k", 256, 176), 14: ("q6_k", 256, 210), 15: ("q8_k", 256, 292),
    16: ("iq2_xxs", 256, 66), 17: ("iq2_xs", 256, 74), 18: ("iq3_xxs", 256, 98), 19: ("iq1_s", 256, 50),
    20: ("iq4_nl", 32, 18), 21: ("iq3_s", 256, 110), 22: ("iq2_s", 256, 82), 23: ("iq4_xs", 256, 136), 24: ("i8", 1, 1),
    25: ("i16", 1, 2), 26: ("i32", 1, 4), 27: ("i64", 1, 8), 28: ("f64", 1, 8), 29: ("iq1_m", 256, 56), 30: ("bf16", 1, 2),
    31: ("q4_0_4_4", 0, 0), 32: ("q4_0_4_8", 0, 0), 33: ("q4_0_8_8", 0, 0), 34: ("tq1_0", 256, 54), 35: ("tq2_0", 256, 66),
    36: ("iq4_nl_4_4", 0, 0), 37: ("iq4_nl_4_8", 0, 0), 38: ("iq4_nl_8_8", 0, 0), 39: ("mxfp4", 32, 17),
    40: ("nvfp4", 64, 36), 41: ("q1_0", 128, 18), 42: ("q2_0", 0, 0),
}.items()}

# Metadata value types: id -> (name, struct code). 8 string and 9 array are read by code.
SCALARS = {0: ("u8", "B"), 1: ("i8", "b"), 2: ("u16", "H"), 3: ("i16", "h"), 4: ("u32", "I"), 5: ("i32", "i"), 6: ("f32", "f"),
            7: ("bool", "?"), 10: ("u64", "Q"), 11: ("i64", "q"), 12: ("f64", "d")}
_BOOL, _STRING, _ARRAY = 7, 8, 9


@dataclass(frozen=True)
class GGUFTensor:
    """One tensor: ggml type id, numpy-order shape, absolute byte offset."""
    name: str
    type_id: int
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @property
    def quant(self) -> str:
        """The type's name, which is a quant's name where moegg.quants has that row."""
        return TYPES[self.type_id].name

    @property
    def row_bytes(self) -> int:
        t = TYPES[self.type_id]
        return self.shape[-1] // t.block_elems * t.block_bytes


class GGUFFile:
    """An open GGUF file. metadata: key -> int, float, bool, str or list of these, in file order; kinds: key -> 'u32', '[str]'."""

    def __init__(self, raw: RawFile, version: int, alignment: int, metadata: dict[str, Any], kinds: dict[str, str],
                 tensors: dict[str, GGUFTensor]):
        self._raw, self.path, self.size = raw, raw.path, raw.size
        self.version, self.alignment = version, alignment
        self.metadata, self.kinds, self.tensors = metadata, kinds, tensors

    @classmethod
    def open(cls, path: str | os.PathLike, opened: Callable[[Path], RawFile] = RawFile) -> "GGUFFile":
        """Reads and validates header, metadata and tensor table. Raises NotFound, IOFailure, FormatError."""
        raw = opened(Path(path))
        c = _Cursor(raw)
        version, n_tensors, n_keys = _preamble(c)
        metadata, kinds = _metadata(c, n_keys)
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 8 <= alignment <= ALIGN_LIMIT or alignment & (alignment - 1):
            raise c.bad(f"'general.alignment' is {alignment!r:.40}, expected a power of two from 8 to {ALIGN_LIMIT}")
        return cls(raw, version, alignment, metadata, kinds, _tensors(c, n_tensors, alignment))

    def read(self, name: str, start_row: int | None = None, stop_row: int | None = None) -> np.ndarray:
        """Raw bytes of rows [start_row:stop_row], leading axes flattened: uint8 [rows, row_bytes]. Raises NotFound, IOFailure."""
        t = self.tensors.get(name)
        if t is None:
            raise NotFound(f"{self.path}: no tensor {name!r}", "gguf-tensor")
        start = start_row or 0
        stop = t.nbytes // t.row_bytes if stop_row is None else stop_row
        return self._raw.read(t.offset + start * t.row_bytes, (stop - start) * t.row_bytes).reshape(stop - start, t.row_bytes)

    def close(self) -> None:
        self._raw.close()


class _Cursor:
    """A position in the header, and as much of the file's start as was needed so far."""

    def __init__(self, raw: RawFile):
        self.raw, self.pos, self.buf, self.end = raw, 0, b"", 0

    def bad(self, what: str, slug: str = "gguf-header") -> FormatError:
        return FormatError(f"{self.raw.path}: {what}", slug, offset=self.pos)

    @property
    def left(self) -> int:
        return self.raw.size - self.pos

    def need(self, n: int, what: str) -> int:
        """Makes n more bytes available and steps over them; returns where they start."""
        at = self.pos
        if n > self.raw.size - at:
            raise self.bad(f"truncated: {what} at byte {at} needs {n} B, but the file ends after {self.left} B; the copy is "
                           "incomplete, download it again", "gguf-truncated")
        if at + n > self.end:
            if at + n > HEADER_LIMIT:
                raise self.bad(f"header is larger than {fmt_bytes(HEADER_LIMIT)} at {what}")
            upto = min(self.raw.size, max(at + n, 2 * self.end, 1 << 16))
            self.buf += self.raw.read(self.end, upto - self.end).tobytes()
            self.end = upto
        self.pos = at + n
        return at

    def unpack(self, code: str, what: str) -> Any:
        at = self.need(struct.calcsize("<" + code), what)       # first: it may replace the buffer
        return struct.unpack_from("<" + code, self.buf, at)[0]

    def string(self, what: str, limit: int = HEADER_LIMIT) -> str:
        n = self.unpack("Q", what)
        if n > limit:
            raise self.bad(f"{what}: a string of {n} B, expected at most {limit}")
        at = self.need(n, what)
        return self.text(at, n, what)

    def text(self, at: int, n: int, what: str) -> str:
        try:
            return self.buf[at:at + n].decode("utf-8")
        except UnicodeDecodeError as e:
            raise self.bad(f"{what}: not valid UTF-8: {e.reason}") from None


def _preamble(c: _Cursor) -> tuple[int, int, int]:
    """(version, tensors, keys)."""
    at = c.need(4, "magic")
    if c.buf[at:at + 4] != b"GGUF":
        raise c.bad(f"starts with {c.buf[at:at + 4]!r}, expected b'GGUF'; not a GGUF file", "gguf-magic")
    version = c.unpack("I", "version")
    if version and version & 0xFFFF == 0:
        raise c.bad(f"version reads as {version:#x}: a big-endian file, which is not supported", "gguf-version")
    if version not in (2, 3):
        raise c.bad(f"GGUF version: got {version}, expected 2 or 3; convert the file with a current llama.cpp", "gguf-version")
    n_tensors, n_keys = c.unpack("Q", "tensor count"), c.unpack("Q", "key count")
    # The smallest key takes 8 + 1 + 4 + 1 bytes, the smallest tensor entry 8 + 1 + 4 + 8 + 4 + 8.
    for n, least, what in ((n_keys, 14, "keys"), (n_tensors, 33, "tensors")):
        if n > c.left // least:
            raise c.bad(f"announces {n} {what}, more than the file's {c.raw.size} B can hold")
    return version, n_tensors, n_keys


def _metadata(c: _Cursor, n_keys: int) -> tuple[dict[str, Any], dict[str, str]]:
    values: dict[str, Any] = {}
    kinds: dict[str, str] = {}
    for i in range(n_keys):
        key = c.string(f"key {i}", KEY_LIMIT)
        if not key or key in values:
            raise c.bad(f"key {key!r:.100} {'appears twice' if key else 'is empty'}")
        values[key], kinds[key] = _value(c, key)
    return values, kinds


def _value(c: _Cursor, key: str) -> tuple[Any, str]:
    what = f"key {key!r:.100}"
    kind = c.unpack("I", what)
    if kind == _STRING:
        return c.string(what), "str"
    if kind == _ARRAY:
        kind, n = c.unpack("I", what), c.unpack("Q", what)
        if kind == _ARRAY:
            raise c.bad(f"{what}: an array of arrays, which no model uses")
        if n > ARRAY_LIMIT:
            raise c.bad(f"{what}: an array of {n} values, expected at most {ARRAY_LIMIT}")
        if kind == _STRING:
            return _strings(c, n, what), "[str]"
        name, code = _scalar(c, kind, what)
        dtype = np.dtype("u1" if kind == _BOOL else code).newbyteorder("<")
        at = c.need(n * dtype.itemsize, what)
        data = np.frombuffer(c.buf, dtype, n, at)
        return (_bools(c, data, what) if kind == _BOOL else data).tolist(), f"[{name}]"
    name, code = _scalar(c, kind, what)
    if kind == _BOOL:
        return _bools(c, np.array([c.unpack("B", what)]), what).tolist()[0], name
    return c.unpack(code, what), name


def _scalar(c: _Cursor, kind: int, what: str) -> tuple[str, str]:
    if kind not in SCALARS:
        raise c.bad(f"{what}: value type {kind}, expected 0 to 12")
    return SCALARS[kind]


def _bools(c: _Cursor, data: np.ndarray, what: str) -> np.ndarray:
    if data.size and data.max() > 1:
        raise c.bad(f"{what}: a bool of value {data.max()}, expected 0 or 1")
    return data.astype(bool)


def _strings(c: _Cursor, n: int, what: str) -> list[str]:
    """An array of strings; the loop is spelled out because vocabularies have 260 k of them."""
    if n > c.left // 8:
        raise c.bad(f"{what}: {n} strings, more than the file's {c.raw.size} B can hold")
    out, length = [], struct.Struct("<Q").unpack_from
    buf, pos, end = c.buf, c.pos, c.end
    for i in range(n):
        if pos + 8 > end:
            c.pos = pos
            c.need(8, what)
            buf, end = c.buf, c.end
        size = length(buf, pos)[0]
        pos += 8
        if pos + size > end:
            c.pos = pos
            c.need(size, f"{what}, string {i}")
            buf, end = c.buf, c.end
        try:
            out.append(buf[pos:pos + size].decode("utf-8"))
        except UnicodeDecodeError as e:
            c.pos = pos
            raise c.bad(f"{what}, string {i}: not valid UTF-8: {e.reason}") from None
        pos += size
    c.pos = pos
    return out


def _tensors(c: _Cursor, n_tensors: int, alignment: int) -> dict[str, GGUFTensor]:
    entries = []
    for i in range(n_tensors):
        name = c.string(f"name of tensor {i}", NAME_LIMIT)
        what = f"tensor {name!r:.100}"
        n_dims = c.unpack("I", what)
        if not name or not 1 <= n_dims <= 4:
            raise c.bad(f"{what}: {n_dims} dimensions, expected a name and 1 to 4 dimensions")
        dims = [c.unpack("Q", what) for _ in range(n_dims)]
        type_id, offset = c.unpack("I", what), c.unpack("Q", what)
        t = TYPES.get(type_id)
        if t is None or not t.block_elems:
            raise c.bad(f"{what}: ggml type {type_id}{f' ({t.name})' if t else ''} is not known to this reader", "gguf-quant")
        n = count_elements(dims)
        if not n:
            raise c.bad(f"{what}: dimensions {dims}, expected at least 1 element and fewer than 2**62")
        if dims[0] % t.block_elems:
            raise c.bad(f"{what}: rows of {dims[0]} elements, expected whole blocks of {t.block_elems} for {t.name}")
        if offset % alignment:
            raise c.bad(f"{what}: offset {offset}, expected a multiple of the alignment {alignment}")
        entries.append((offset, n // t.block_elems * t.block_bytes, name, type_id, tuple(reversed(dims))))
    base = c.pos + -c.pos % alignment
    _check_layout(c, base, entries)
    tensors = {name: GGUFTensor(name, type_id, shape, base + offset, nbytes) for offset, nbytes, name, type_id, shape in entries}
    if len(tensors) != len(entries):
        seen: set[str] = set()
        twice = next(e[2] for e in entries if e[2] in seen or seen.add(e[2]))
        raise c.bad(f"tensor {twice!r:.100} appears twice")
    return tensors


def _check_layout(c: _Cursor, base: int, entries: list) -> None:
    at, last = 0, "nothing"
    for offset, nbytes, name, *_ in sorted(entries):
        if offset < at:
            raise c.bad(f"tensor {name!r:.100}: starts inside {last!r:.100}, at {offset} of the data")
        if base + offset + nbytes > c.raw.size:
            missing = base + max(e[0] + e[1] for e in entries) - c.raw.size
            raise c.bad(f"truncated: tensor {name!r:.100} ends at byte {base + offset + nbytes}, but the file has "
                        f"{c.raw.size} B: {missing} B are missing; the copy is incomplete, download it again", "gguf-truncated")
        at, last = offset + nbytes, name
