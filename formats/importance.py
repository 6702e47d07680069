"""The importance of weights: how large the inputs of every matrix are, column by column, measured by `moegg calibrate`.

The file is a safetensors file without any code in it. For each matrix (names as in a container; the n experts of a layer are one,
'layers.3.experts.gate'): NAME, F32 [n, cols], sums of x^2 over the inputs x of that column, and NAME + '.rows', I64 [n], how many
inputs there were (for experts: tokens routed to each). __metadata__: format 'moegg-imatrix', version '1', 'same' (JSON object: names
of matrices that read the same inputs -> the name stored), 'about' (JSON object: model, content_id, tokens, windows, ctx, text_bytes,
text_sha256). The idea is that of llama.cpp's imatrix; the least squares that use it are in kernels/csrc/quantize.c.
"""
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from moegg.errors import FormatError, IOFailure
from moegg.files import whole_file
from moegg.formats.safetensors import SafetensorsSet, strict_json

PRIOR_ROWS = 64         # inputs that the average over all experts of a layer counts for in each expert's estimate
MOST_ROWS = 1 << 50
LEAST = 1e-3            # of the mean: no column is worthless, because other texts may use it
FORMAT, VERSION = "moegg-imatrix", "1"


class Importance:
    """Reads such a file. `about`: what it was made of. Raises NotFound, IOFailure, FormatError."""

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self._set = SafetensorsSet.open(self.path)
        kind, version = self._set.metadata.get("format"), self._set.metadata.get("version")
        if (kind, version) != (FORMAT, VERSION):
            raise self._bad(f"got format {kind!r:.40} version {version!r:.40}, expected {FORMAT!r} version {VERSION!r}, as "
                            "'moegg calibrate' writes it")
        self.about, self._same = self._json("about"), self._json("same")
        for name, other in self._same.items():
            if not isinstance(other, str) or other not in self._set.tensors:
                raise self._bad(f"{name!r:.80} is said to be like {other!r:.80}, which is not there")

    def _bad(self, what: str) -> FormatError:
        return FormatError(f"{self.path}: {what}", "imatrix-file")

    def _json(self, key: str) -> dict[str, Any]:
        value = strict_json(self._set.metadata.get(key, "{}").encode("utf-8", "surrogatepass"), f"{self.path}: {key}", "imatrix-file")
        if not isinstance(value, dict):
            raise self._bad(f"{key!r}: got {type(value).__name__}, expected an object")
        return value

    def has(self, name: str, n: int, cols: int) -> bool:
        """True if the file knows matrix `name`, or its n experts. Raises FormatError if it knows one of another shape."""
        stored = self._same.get(name, name)
        if stored not in self._set.tensors:
            return False
        for tensor, dtype, shape in ((stored, "F32", (n, cols)), (f"{stored}.rows", "I64", (n,))):
            info = self._set.tensors.get(tensor)
            if info is None or (info.dtype, info.shape) != (dtype, shape):
                got = "none" if info is None else f"{info.dtype} {list(info.shape)}"
                raise self._bad(f"{tensor!r}: got {got}, expected {dtype} {list(shape)}; it is of another model")
        return True

    def _read(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """squares [n, cols] and rows [n] of a stored matrix, checked."""
        squares, rows = self._set.read(name), self._set.read(f"{name}.rows")
        if not (np.isfinite(squares).all() and (squares >= 0).all() and (rows >= 0).all() and (rows <= MOST_ROWS).all()):
            raise self._bad(f"{name!r}: holds negative, huge or infinite values, expected sums of squares and counts")
        return squares.astype(np.float64), rows

    def columns(self, name: str, n: int, cols: int) -> np.ndarray | None:
        """Weights of the columns of matrix `name`, or of its n experts: f32 [n, cols] with mean 1 each; None if nothing is known.

        An expert's estimate leans on the average of its layer as if that were PRIOR_ROWS inputs more, so that one which saw few
        tokens, or none, falls back to it.
        """
        if not self.has(name, n, cols):
            return None
        squares, rows = self._read(self._same.get(name, name))
        seen = rows.sum()
        if not seen or not squares.any():
            return None
        prior = PRIOR_ROWS if n > 1 else 0
        mean = (squares + prior * squares.sum(0) / seen) / np.maximum(rows + prior, 1)[:, None]
        mean /= np.maximum(mean.mean(1, keepdims=True), np.finfo(np.float64).tiny)
        mean += LEAST
        return (mean / mean.mean(1, keepdims=True)).astype(np.float32)

    def close(self) -> None:
        self._set.close()


def write_importance(out: Path, squares: Mapping[str, np.ndarray], rows: Mapping[str, np.ndarray], same: Mapping[str, str],
                     about: Mapping[str, Any]) -> None:
    """Writes the file, complete or not at all. squares: name -> [n, cols]; rows: name -> [n]. Raises IOFailure."""
    arrays = {name: x.astype("<f4") for name, x in squares.items()} | {f"{name}.rows": rows[name].astype("<i8") for name in squares}
    order = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))         # 8-byte values first, so that all are aligned
    head: dict[str, Any] = {"__metadata__": {"format": FORMAT, "version": VERSION, "same": json.dumps(same), "about": json.dumps(about)}}
    at = 0
    for name in order:
        x = arrays[name]
        head[name] = {"dtype": "F32" if x.dtype == "<f4" else "I64", "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    try:
        with whole_file(out) as f:
            f.write(len(text).to_bytes(8, "little") + text)
            for name in order:
                f.write(arrays[name].tobytes())
    except OSError as e:
        raise IOFailure(f"{out}: cannot be written: {e.strerror}", "io-write") from e
