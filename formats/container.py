"""Container: an open .moegg file, seen through its index. Says where things lie; weights are read by others.

Opening reads the 64 KiB preamble, the index and the tail's table, each with one ranged read, and checks every structural rule
(validate.py); it costs O(index). verify() reads the whole file once, 4 MiB at a time. Bytes come from a Reader (reader.py), which
is opened for each of these and closed again: `identity` tells whether it still leads to the file that was checked.
"""
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from moegg.errors import BadRequest, IOFailure, NotFound
from moegg.formats import layout as L
from moegg.formats.about import About
from moegg.formats.layout import ExpertLayer, PartInfo, Region, Section, TensorInfo
from moegg.formats.reader import Reader, open_file
from moegg.formats.validate import Check, read_index, read_preamble, read_tail, root_hash

__all__ = ["Container", "ExpertLayer", "PartInfo", "Region", "Section", "TensorInfo"]
_CHUNK_BYTES = 4 << 20
_TAIL_HEAD_BYTES = L.TAIL_HEADER_BYTES + L.MAX_TAIL_SECTIONS * L.SECTION_ROW.itemsize


class Container:
    """An immutable view of one checked .moegg file.

    sections holds body and tail sections, optional ones of unknown kinds too. tensors are in file order. root is the hash over
    header and index, content_id the hash that survives a new order of experts, identity (device, inode, size, mtime in ns). edited,
    parts: as a Reader's; of a file in parts `path` and `identity` are those of the first.
    """

    @classmethod
    def open(cls, path: str | os.PathLike) -> "Container":
        """Open and check. Raises NotFound, IOFailure, or FormatError with the number of the broken rule."""
        return cls(lambda: open_file(Path(path)))

    def __init__(self, opener: Callable[[], Reader]):
        """A container wherever `opener` finds it. Raises as its reader does, and FormatError."""
        self._opener = opener
        with opener() as f:
            self._open(f)

    def _open(self, f: Reader) -> None:
        where = str(f.path)
        head = f.read(0, min(L.PREAMBLE_BYTES, f.size))
        p = read_preamble(head, f.size, where)
        index_at = p.regions["index"]
        raw = f.read(index_at.offset, index_at.nbytes)
        index = read_index(p, raw, where, root_hash(head, raw))
        tail_offset = p.header.tail_offset
        tail = read_tail(f.read(tail_offset, min(_TAIL_HEAD_BYTES, f.size - tail_offset)), tail_offset, f.size, p.sections, where)
        self.path, self.file_bytes, self.identity, self.parts, self.edited = f.path, f.size, f.identity, f.parts, f.edited
        self.arch, self.name, self.config, self.meta = p.arch, p.name, p.config, p.meta
        self.tensors, self.layers = index.tensors, index.layers
        self.index, self.resident, self.gather, self.experts = (p.regions[k] for k in L.REGIONS)
        self.sections = p.sections | tail
        self.root, self.content_id = p.header.root, p.header.content_id
        self.tail_offset = tail_offset
        self._header, self._checksums = p.header, index.checksums
        self._by_layer = {e.layer: e for e in self.layers}

    @property
    def about(self) -> About:
        """What the file says of itself."""
        return About.of(self.meta)

    def record(self, layer: int, expert: int) -> tuple[int, int]:
        """(file offset, bytes) of the record of a logical expert id. Raises BadRequest if the file has no such expert."""
        e = self._by_layer.get(layer)
        if e is None or not 0 <= expert < e.n:
            raise BadRequest(f"{self.path}: no expert {expert} in layer {layer}", "expert-range")
        return e.base + int(e.slot[expert]) * e.stride, e.record_bytes

    def read_section(self, name: str) -> bytes:
        """The bytes of an opaque section, checksum compared. Raises NotFound, FormatError, IOFailure."""
        s = self.sections.get(name)
        if s is None or s.kind != "opaque":
            raise NotFound(f"{self.path}: no section '{name}'", "section-missing")
        with self.opened() as f:
            data = f.read(s.offset, s.nbytes)
        self._compare(f"section '{name}'", s.offset, blake3(data).digest(16), s.checksum)
        return data

    def verify(self, progress: Callable[[int, int], Any] | None = None) -> None:
        """Read everything behind the index and compare every checksum and every byte of padding.

        progress: called with (bytes done, bytes in all). Raises FormatError naming the first bad tensor, record or section,
        IOFailure. The preamble and the index were compared with the root hash when the file was opened.
        """
        start = end = self.index.offset + self.index.nbytes
        total = self.file_bytes - start
        with self.opened() as f:
            for label, offset, nbytes, want in self.units():
                self._zero(f, end, offset)
                h, end = blake3(), offset + nbytes
                for at in range(offset, end, _CHUNK_BYTES):
                    h.update(f.read(at, min(_CHUNK_BYTES, end - at)))
                    if progress:
                        progress(min(at + _CHUNK_BYTES, end) - start, total)
                if want:
                    self._compare(label, offset, h.digest(16), want)
            self._zero(f, end, self.file_bytes)

    def units(self) -> list[tuple[str, int, int, bytes]]:
        """(label, offset, bytes, checksum) of all that has a checksum, in file order; the tail's table, which has a hash of its
        own that was compared on opening, comes with an empty one."""
        opaque = [s for s in self.sections.values() if s.kind not in L.REGIONS]
        tail_head = L.TAIL_HEADER_BYTES + sum(s.mutable for s in opaque) * L.SECTION_ROW.itemsize
        units = [("tail", self.tail_offset, tail_head, b"")]
        units += [(f"section '{s.name}'", s.offset, s.nbytes, s.checksum) for s in opaque]
        sums = map(np.ndarray.tobytes, self._checksums)
        units += [(f"tensor '{t.name}'", t.offset, t.nbytes, next(sums)) for t in self.tensors.values()]
        units += [(f"record of layer {e.layer}, expert {expert}", e.base + slot * e.stride, e.record_bytes, next(sums))
                  for e in self.layers for slot, expert in enumerate(e.slot.argsort().tolist())]
        return sorted(units, key=lambda u: u[1:3])

    def _compare(self, label: str, offset: int, got: bytes, want: bytes) -> None:
        if got != want:
            Check(str(self.path)).fail("R28", f"{label}: checksum differs: got {got.hex()}, expected {want.hex()}; the file is "
                                       "damaged, download or convert it again", offset)

    def _zero(self, f: Reader, start: int, stop: int) -> None:
        """Padding is shorter than an alignment, so it is read at once."""
        Check(str(self.path)).zero(f.read(start, stop - start), "padding", start, "R29")

    @contextmanager
    def opened(self) -> Iterator[Reader]:
        """The bytes of the file that was checked, in one part or several. Raises IOFailure if it was changed or replaced."""
        with self._opener() as f:
            if (f.identity, f.parts) != (self.identity, self.parts):
                raise IOFailure(f"{self.path}: changed or replaced since it was opened; open it again", "file-changed")
            yield f

    def summary(self) -> dict[str, Any]:
        """What `moegg inspect --json` prints: plain JSON types, sizes in bytes, nothing read from the file."""
        roles: dict[str, int] = {}
        quants: dict[str, int] = {}
        for key, quant, nbytes in ([(t.role, t.quant, t.nbytes) for t in self.tensors.values()]
                                   + [("expert", p.quant, e.n * p.nbytes) for e in self.layers for p in e.parts]):
            roles[key] = roles.get(key, 0) + nbytes
            quants[quant] = quants.get(quant, 0) + nbytes
        h = self._header
        features = [L.OPTIONAL_NAMES.get(i, f"bit {i}") for i in range(64) if h.optional >> i & 1]
        return {
            "path": str(self.path), "file_bytes": self.file_bytes,
            "format": {"read_version": h.read_version, "write_version": h.write_version, "optional_features": features},
            "arch": self.arch, "name": self.name, "root": self.root.hex(), "content_id": self.content_id.hex(),
            "config": self.config, "meta": self.meta, "bytes_by_role": roles, "bytes_by_quant": quants,
            "regions": {k: {"offset": r.offset, "nbytes": r.nbytes} for k, r in (
                ("index", self.index), ("resident", self.resident), ("gather", self.gather), ("experts", self.experts))},
            "sections": [{"name": s.name, "kind": s.kind, "offset": s.offset, "nbytes": s.nbytes, "media": s.media,
                          "mutable": s.mutable} for s in self.sections.values()],
            "n_tensors": len(self.tensors),
            "layers": [{"layer": e.layer, "n": e.n, "top_k": e.top_k, "base": e.base, "stride": e.stride,
                        "record_bytes": e.record_bytes, "parts": [
                            {"name": p.name, "quant": p.quant, "layout": p.layout, "shape": list(p.shape), "offset": p.offset,
                             "nbytes": p.nbytes} for p in e.parts]} for e in self.layers],
        }
