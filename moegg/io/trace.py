"""Recorded routing: which experts every token chose, for replay without weights (bench/cache_replay.py). Ids only, no text.

File: a .npz with `ids` int16 or int32 [T, L, K] (-1 where a layer has a smaller top-k), `passes` int32 [T] (tokens of one forward
pass share a number), `layers` int32 [L] (decoder layers), `experts` int32 [L], `record_bytes` int64 [L]; or the same as JSON lines:
a header object, then one [pass, layer index, ids] per token and layer.
"""
import json
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from moegg.errors import FormatError, IOFailure, NotFound
from moegg.files import whole_file

ARRAYS = ("ids", "passes", "layers", "experts", "record_bytes")


@dataclass(frozen=True)
class Trace:
    """ids [T, L, K], passes [T], layers [L], experts [L], record_bytes [L]."""
    ids: np.ndarray
    passes: np.ndarray
    layers: np.ndarray
    experts: np.ndarray
    record_bytes: np.ndarray

    def __post_init__(self):
        T, L, _ = self.ids.shape
        ok = self.passes.shape == (T,) and all(x.shape == (L,) for x in (self.layers, self.experts, self.record_bytes))
        if not (ok and (self.ids < self.experts[None, :, None]).all() and (self.ids >= -1).all() and (np.diff(self.passes) >= 0).all()):
            raise FormatError(f"trace of shape {list(self.ids.shape)}: its arrays contradict each other", "trace-shape")

    @property
    def top_k(self) -> list[int]:
        return [int((self.ids[:, i] >= 0).sum(-1).max(initial=1)) for i in range(self.ids.shape[1])]

    @property
    def pool_bytes(self) -> int:
        """Bytes of all records."""
        return int((self.experts * self.record_bytes).sum())

    def by_pass(self) -> Iterator[np.ndarray]:
        """ids [t, L, K] of one forward pass after the other."""
        cuts = np.flatnonzero(np.diff(self.passes)) + 1
        yield from np.split(self.ids, cuts)


@dataclass
class Recorder:
    """Collects what Executor captures and writes it once at the end; memory is 2 bytes per choice."""
    layers: list[int]
    experts: list[int]
    record_bytes: list[int]
    chunks: list[np.ndarray] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)

    def add(self, idx: np.ndarray) -> None:
        """One pass: idx [L, t, K] as the executor captures it."""
        self.passes += [self.passes[-1] + 1 if self.passes else 0] * idx.shape[1]
        self.chunks.append(idx.transpose(1, 0, 2).astype(np.int16 if max(self.experts) < 1 << 15 else np.int32))

    def trace(self) -> Trace:
        ids = np.concatenate(self.chunks) if self.chunks else np.zeros((0, len(self.layers), 1), np.int16)
        return Trace(ids, np.array(self.passes, np.int32), np.array(self.layers, np.int32), np.array(self.experts, np.int32),
                     np.array(self.record_bytes, np.int64))

    def save(self, path: str | os.PathLike) -> None:
        write(self.trace(), path)


def write(trace: Trace, path: str | os.PathLike) -> None:
    """Writes a .npz, or JSON lines if the name ends in .jsonl; the file appears whole or not at all. Raises IOFailure."""
    path = Path(path)
    try:
        with whole_file(path, 0o600) as f:
            if path.suffix == ".jsonl":
                head = {"moegg_trace": 1, **{k: getattr(trace, k).tolist() for k in ("layers", "experts", "record_bytes")}}
                f.write((json.dumps(head) + "\n").encode())
                for t, p in enumerate(trace.passes.tolist()):
                    for i, ids in enumerate(trace.ids[t].tolist()):
                        f.write((json.dumps([p, i, [x for x in ids if x >= 0]]) + "\n").encode())
            else:
                np.savez_compressed(f, **{k: getattr(trace, k) for k in ARRAYS})
    except OSError as e:
        raise IOFailure(f"{path}: trace cannot be written: {e.strerror}", "io-write") from e


def read(path: str | os.PathLike) -> Trace:
    """Raises NotFound, IOFailure, FormatError."""
    path = Path(path)
    try:
        if path.suffix == ".jsonl":
            return _read_lines(path)
        with open(path, "rb") as f, np.load(f, allow_pickle=False) as z:
            return Trace(*(z[k] for k in ARRAYS))
    except FileNotFoundError:
        raise NotFound(f"{path}: no such file", "file-missing") from None
    except OSError as e:
        raise IOFailure(f"{path}: cannot be read: {e.strerror}", "io-open") from e
    except (KeyError, ValueError, TypeError, IndexError, AttributeError, EOFError, zipfile.BadZipFile) as e:
        raise FormatError(f"{path}: not a routing trace: {e}", "trace-shape") from e


def _read_lines(path: Path) -> Trace:
    with open(path, encoding="utf-8") as f:
        head = json.loads(next(f, "null"))
        rows = [json.loads(line) for line in f if line.strip()]
    L = len(head["layers"])
    if len(rows) % L or any(r[1] != i % L for i, r in enumerate(rows)):
        raise ValueError("lines do not go through all layers in order")
    ids = np.full((len(rows) // L, L, max((len(r[2]) for r in rows), default=1)), -1, np.int32)
    for i, r in enumerate(rows):
        ids[i // L, i % L, :len(r[2])] = r[2]
    return Trace(ids, np.array([r[0] for r in rows[::L]], np.int32),
                 *(np.array(head[k], t) for k, t in (("layers", np.int32), ("experts", np.int32), ("record_bytes", np.int64))))
