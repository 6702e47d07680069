"""Read-only safetensors: one file, or a folder of shards with model.safetensors.index.json as the authority.

Checks every header by itself: size cap, no duplicate names, dtype x shape = bytes with checked products, tensors that tile the
buffer without holes or overlap to its very end. Shard names are plain file names inside the folder (symlinks are followed, as
hub caches need). Never reads weights on opening; read() fetches exactly the rows asked for.
Format: huggingface/safetensors README, u64 header length, JSON header, buffer; little-endian, row-major.
"""
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from moegg.errors import FormatError, NotFound
from moegg.formats.rawfile import COUNT_LIMIT, RawFile, count_elements
from moegg.units import fmt_bytes

HEADER_LIMIT = 100_000_000
INDEX = "model.safetensors.index.json"
# Bits per element; names as in safetensors 0.8.
DTYPE_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16,
    "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F6_E2M3": 6,
    "F6_E3M2": 6, "F4": 4, "C64": 64,
}
_VIEW = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
         "U64": "<u8", "U32": "<u4", "U16": "<u2", "C64": "<c8"}


@dataclass(frozen=True)
class STInfo:
    """One tensor: dtype as spelled in the file, base name of its file, absolute byte offset there."""
    dtype: str
    shape: tuple[int, ...]
    file: str
    offset: int
    nbytes: int


class SafetensorsSet:
    """The tensors of a file or folder. `files`: base name -> bytes; `unlisted`: names that shards hold but the index omits;
    `metadata`: the header's own strings, of a single file."""

    def __init__(self, folder: Path, files: dict[str, RawFile], tensors: dict[str, STInfo], unlisted: list[str],
                 metadata: dict[str, str] | None = None):
        self.folder, self.tensors, self.unlisted, self.metadata = folder, tensors, unlisted, metadata or {}
        self._files = files

    @classmethod
    def open(cls, path: str | os.PathLike) -> "SafetensorsSet":
        """Opens a .safetensors file, or a folder. Raises NotFound, IOFailure, FormatError."""
        path = Path(path)
        if not path.is_dir():
            raw, metadata = RawFile(path), {}
            return cls(path.parent, {path.name: raw}, dict(_header(raw, path.name, metadata)), [], metadata)
        where = _read_index(path)
        names = sorted(set(where.values())) if where is not None else _shards_without_index(path)
        files, tensors, unlisted = {}, {}, []
        for name in names:
            files[name] = raw = RawFile(path / name)
            for tensor, info in _header(raw, name):
                if where is None:
                    if tensor in tensors:
                        raise FormatError(f"{path}: tensor {tensor!r} is in {tensors[tensor].file!r} and in {name!r}, without an "
                                          f"{INDEX} to choose; keep one of them, or add the index", "st-duplicate")
                    tensors[tensor] = info
                elif where.get(tensor) == name:
                    tensors[tensor] = info
                elif tensor not in where:
                    unlisted.append(tensor)
        for tensor, name in (where or {}).items():
            if tensor not in tensors:
                raise FormatError(f"{path / INDEX}: tensor {tensor!r} should be in {name!r}, which does not hold it", "st-index")
        return cls(path, files, tensors, unlisted)

    @property
    def files(self) -> dict[str, int]:
        return {name: raw.size for name, raw in self._files.items()}

    def read(self, name: str, start: int | None = None, stop: int | None = None) -> np.ndarray:
        """Rows [start:stop] of tensor `name` as [n, shape[-1]], leading axes flattened; without rows the whole [shape].

        BF16 comes as uint16 bit patterns, dtypes numpy does not know as flat uint8. Raises NotFound, IOFailure.
        """
        t = self.tensors.get(name)
        if t is None:
            raise NotFound(f"{self.folder}: no tensor {name!r}", "st-tensor")
        raw = self._files[t.file]
        view = _VIEW.get(t.dtype, "u1")
        if start is None or not t.shape or DTYPE_BITS[t.dtype] < 8:
            data = raw.read(t.offset, t.nbytes).view(view)
            return data.reshape(t.shape) if data.size == count_elements(list(t.shape)) else data
        row = t.shape[-1] * DTYPE_BITS[t.dtype] // 8
        return raw.read(t.offset + start * row, (stop - start) * row).view(view).reshape(stop - start, t.shape[-1])

    def replace_file(self, name: str, make: Callable[[Path], RawFile]) -> RawFile:
        """Puts another reader in the place of one, for files that are not wholly here. Returns the one before."""
        before = self._files[name]
        self._files[name] = make(before.path)
        return before

    def close(self) -> None:
        for raw in self._files.values():
            raw.close()


def strict_json(data: bytes, where: str, slug: str) -> Any:
    """json.loads that refuses duplicate keys, NaN and what no JSON parser should get. Raises FormatError."""
    def unique(pairs: list[tuple[str, Any]]) -> dict:
        out = dict(pairs)
        if len(out) != len(pairs):
            seen: set[str] = set()
            twice = next(k for k, _ in pairs if k in seen or seen.add(k))
            raise FormatError(f"{where}: key {twice!r:.200} appears twice", slug)
        return out

    def constant(text: str):
        raise FormatError(f"{where}: holds {text}, which is not JSON", slug)

    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=unique, parse_constant=constant)
    except FormatError:
        raise
    except RecursionError:
        raise FormatError(f"{where}: JSON is nested too deeply", slug) from None
    except ValueError as e:
        raise FormatError(f"{where}: not valid JSON: {str(e):.200}", slug) from None


def _read_index(folder: Path) -> dict[str, str] | None:
    """tensor name -> shard file name, or None if the folder has no index."""
    path = folder / INDEX
    if not os.path.lexists(path):       # a link to nothing is a download that was cut off, not a folder without an index
        return None
    raw = RawFile(path)
    if raw.size > HEADER_LIMIT:
        raise FormatError(f"{path}: index is {fmt_bytes(raw.size)}, expected at most {fmt_bytes(HEADER_LIMIT)}", "st-index")
    index = strict_json(raw.read(0, raw.size).tobytes(), str(path), "st-index")
    where = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(where, dict) or not where:
        raise FormatError(f"{path}: missing 'weight_map', expected an object of tensor name to file name", "st-index")
    for tensor, name in where.items():
        if not isinstance(name, str) or name in ("", ".", "..") or any(c in name for c in "/\\:\0"):
            raise FormatError(f"{path}: tensor {tensor!r:.200} is said to be in {name!r:.200}, expected a plain file name in "
                              "this folder", "st-index")
    return where


def _shards_without_index(folder: Path) -> list[str]:
    names = sorted(p.name for p in folder.glob("*.safetensors"))
    # Mistral's own format lies beside the Hugging Face one in the same repository.
    names = [n for n in names if not n.startswith("consolidated")] or names
    if not names:
        raise NotFound(f"{folder}: no *.safetensors file and no {INDEX}", "st-missing")
    return names


def _header(raw: RawFile, file: str, metadata: dict[str, str] | None = None) -> Iterator[tuple[str, STInfo]]:
    """Validates the header of one file and yields its tensors in the order of their bytes; fills `metadata`."""
    def bad(what: str, slug: str = "st-header") -> FormatError:
        return FormatError(f"{raw.path}: {what}", slug)

    if raw.size < 10:
        raise bad(f"file is {raw.size} B, too short for a safetensors header", "st-truncated")
    n = int(raw.read(0, 8).view("<u8")[0])
    if n > HEADER_LIMIT:
        raise bad(f"header length: got {n}, expected at most {HEADER_LIMIT}; not a safetensors file?")
    if n > raw.size - 8:
        raise bad(f"header ends at byte {8 + n}, but the file has {raw.size} B; the copy is incomplete, download it again",
                  "st-truncated")
    text = raw.read(8, n).tobytes()
    if not text.startswith(b"{"):
        raise bad("header does not start with '{'; not a safetensors file?")
    entries = strict_json(text, str(raw.path), "st-header")
    meta = entries.pop("__metadata__", {})
    if not isinstance(meta, dict) or not all(isinstance(v, str) for v in meta.values()):
        raise bad("'__metadata__': expected an object of strings")
    if metadata is not None:
        metadata.update(meta)
    spans = sorted(((*_entry(e, name, bad), name) for name, e in entries.items()), key=lambda s: s[:2] + (s[4],))
    base, at, last = 8 + n, 0, "the header"
    for begin, end, _, _, name in spans:
        if begin != at:
            raise bad(f"tensor {name!r}: starts at byte {begin} of the buffer, expected {at}, the end of {last!r} "
                      f"({'hole' if begin > at else 'overlap'})")
        at, last = end, name
    if base + at > raw.size:
        cut = next(s for s in spans if base + s[1] > raw.size)
        raise bad(f"truncated: tensor {cut[4]!r} ends at byte {base + cut[1]}, but the file has {raw.size} B: "
                  f"{base + at - raw.size} B are missing; the copy is incomplete, download it again", "st-truncated")
    if base + at < raw.size:
        raise bad(f"{raw.size - base - at} B follow the last tensor {last!r}, expected none")
    for begin, end, dtype, shape, name in spans:
        yield name, STInfo(dtype, shape, file, base + begin, end - begin)


def _entry(e: Any, name: str, bad) -> tuple[int, int, str, tuple[int, ...]]:
    """(begin, end, dtype, shape) of one header entry."""
    def is_count(v: Any) -> bool:
        return isinstance(v, int) and not isinstance(v, bool) and 0 <= v <= COUNT_LIMIT

    if not isinstance(e, dict) or not {"dtype", "shape", "data_offsets"} <= e.keys():
        raise bad(f"tensor {name!r:.200}: expected dtype, shape and data_offsets")
    dtype, shape, span = e["dtype"], e["shape"], e["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise bad(f"tensor {name!r:.200}: dtype is {dtype!r:.40}, expected one of {', '.join(DTYPE_BITS)}")
    if not isinstance(shape, list) or not all(map(is_count, shape)):
        raise bad(f"tensor {name!r:.200}: shape is {shape!r:.80}, expected a list of whole numbers")
    if not isinstance(span, list) or len(span) != 2 or not all(map(is_count, span)) or span[0] > span[1]:
        raise bad(f"tensor {name!r:.200}: data_offsets is {span!r:.80}, expected [begin, end]")
    n = count_elements(shape)
    if n is None or n * DTYPE_BITS[dtype] % 8 or n * DTYPE_BITS[dtype] // 8 != span[1] - span[0]:
        raise bad(f"tensor {name!r:.200}: {span[1] - span[0]} B do not hold {dtype} {str(shape):.80}")
    return span[0], span[1], dtype, tuple(shape)
