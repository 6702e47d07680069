"""The plan of a container: where every byte goes, before any is written.

Owns the specs that a converter hands in and the encoding of preamble, index and tail. Every plan is held against the reader's
own rules, so what the rules refuse is refused here, with the same rule number. Knows no files. All sizes in bytes.
"""
import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from moegg.errors import FormatError, InternalError, MoeggError
from moegg.formats import layout as L
from moegg.formats.layout import ExpertLayer, Header, PartInfo, align, data_bytes
from moegg.formats.validate import (
    RULES,
    content_id,
    digest16,
    preamble_checksum,
    read_index,
    read_preamble,
    read_tail,
    root_hash,
    tail_hash,
)
from moegg.quants import QUANTS

MUTABLE_SECTIONS = frozenset({"chat_template", "generation_config", "model_card", "quality"})     # these go into the tail
_QUANT_ID, _LAYOUT_ID = {q.name: q.id for q in QUANTS.values()}, {v: k for k, v in L.LAYOUTS.items()}
_ROLE_ID, _KIND_ID = {v: k for k, v in L.ROLES.items()}, {v: k for k, v in L.KINDS.items()}
Sections = Mapping[str, tuple[str, bytes]]      # name -> (media type, content)


@dataclass(frozen=True)
class TensorSpec:
    """A tensor to be written. gather: only looked up by row, so not resident; row-major."""
    name: str
    shape: tuple[int, ...]
    quant: str
    layout: str
    role: str
    layer: int = -1
    gather: bool = False

    @property
    def nbytes(self) -> int:
        return data_bytes(self.shape, self.quant, self.layout)


@dataclass(frozen=True)
class PartSpec:
    """One matrix in every expert record of a layer."""
    name: str
    shape: tuple[int, ...]
    quant: str
    layout: str

    @property
    def nbytes(self) -> int:
        return data_bytes(self.shape, self.quant, self.layout)


@dataclass(frozen=True)
class ExpertSpec:
    """The n expert records of one layer; parts in record order. slot: expert id -> slot, None: as they are numbered."""
    layer: int
    n: int
    top_k: int
    parts: tuple[PartSpec, ...]
    slot: tuple[int, ...] | None = None


def planned_bytes(*, arch: str, name: str, config: Mapping, meta: Mapping, tensors: Iterable[TensorSpec],
                  experts: Iterable[ExpertSpec], sections: Sections) -> int:
    """Size of the file that a ContainerWriter with these arguments writes. Raises FormatError, InternalError like it."""
    return Plan(name, arch, name, config, meta, tensors, experts, sections).total_bytes


def _nbytes(spec: TensorSpec | PartSpec) -> int:
    try:
        return spec.nbytes
    except (LookupError, ValueError) as e:
        raise InternalError(f"'{spec.name}' of shape {list(spec.shape)} cannot be {spec.quant} {spec.layout}: {e}") from e


def _dims(shape: tuple[int, ...], n: int) -> tuple[int, ...]:
    return (*shape, *[0] * (n - len(shape)))


def _rows(dtype: np.dtype, rows: list[tuple]) -> bytes:
    return np.array(rows, dtype).tobytes()


def encode_tail(sections: Sections, tail_offset: int) -> bytes:
    """The tail that holds these sections in this order, for a place in the file."""
    rows, body = [], bytearray()
    head = L.TAIL_HEADER_BYTES + len(sections) * L.SECTION_ROW.itemsize
    for name, (media, data) in sections.items():
        body += bytes(-(head + len(body)) % L.TENSOR_ALIGN)
        rows.append((name.encode(), media.encode(), _KIND_ID["opaque"], 0, 0, tail_offset + head + len(body), len(data),
                     digest16(data)))
        body += data
    table = L.TAIL_HEADER.pack(L.TAIL_MAGIC, head + len(body), len(rows), 0, 0, bytes(32)) + _rows(L.SECTION_ROW, rows)
    return table[:32] + tail_hash(table) + table[64:] + body


class Plan:
    """Every offset, decided. encode() gives preamble and index for given checksums; `where` is the name used in messages.

    tensors: name -> TensorInfo in file order; layers: ExpertLayer, ascending; blobs: (offset, bytes) of the opaque sections;
    tail: its bytes, for tail_offset; n_units: tensors + records. Raises FormatError for what a rule forbids, InternalError for
    a spec that no rule could even see.
    """

    def __init__(self, where: str, arch: str, name: str, config: Mapping, meta: Mapping, tensors: Iterable[TensorSpec],
                 experts: Iterable[ExpertSpec], sections: Sections):
        self.where, self.arch, self.name = where, arch, name
        self.config, self.meta = self._json("config", config), self._json("meta", meta)
        specs = sorted(tensors, key=lambda t: t.gather)         # stable: resident ones first, in the order given
        self.names = [t.name for t in specs]
        self.blobs: list[tuple[int, bytes]] = []
        self.layers: list[ExpertLayer] = []
        self._section_rows: list[tuple] = []
        self._tensor_rows: list[tuple] = []
        self._parts: list[PartInfo] = []
        self._first_part: list[int] = []                        # of each layer
        try:
            self._place(specs, sorted(experts, key=lambda e: e.layer), sections)
            preamble, index = self.encode(np.zeros((self.n_units, L.CHECKSUM_BYTES), np.uint8))
        except MoeggError:
            raise
        except (LookupError, ValueError, TypeError, OverflowError, struct.error) as e:
            raise InternalError(f"{where}: the plan does not fit the format: {type(e).__name__} {e}") from e
        checked = read_preamble(preamble, self.total_bytes, where)
        self.tensors = read_index(checked, index, where).tensors
        read_tail(self.tail, self.tail_offset, self.total_bytes, checked.sections, where)

    def _place(self, specs: list[TensorSpec], experts: list[ExpertSpec], sections: Sections) -> None:
        self.n_records = sum(e.n for e in experts)
        self.n_units = len(specs) + self.n_records
        self._names = "".join(self.names).encode()
        self._spans = L.index_spans(len(specs), len(self._names), self.n_records)
        self._section("index", "index", L.PREAMBLE_BYTES, self._spans[3].stop)
        for name in sorted(sections.keys() - MUTABLE_SECTIONS):
            media, data = sections[name]
            self.blobs.append((align(self._end, L.SECTION_ALIGN), data))
            self._section(name, "opaque", self.blobs[-1][0], len(data), media, digest16(data))
        resident, gather = [t for t in specs if not t.gather], [t for t in specs if t.gather]
        # Padding of up to 2 MiB buys huge pages for a large region and would only bloat a small file.
        huge = sum(_nbytes(t) for t in resident) >= L.HUGE_RESIDENT_BYTES
        self._resident_align_log2 = L.MAX_ALIGN_LOG2 if huge else L.MIN_ALIGN_LOG2
        self._place_tensors("resident", resident, 1 << self._resident_align_log2, L.TENSOR_ALIGN)
        self._place_tensors("gather", gather, L.GATHER_ALIGN, L.GATHER_ALIGN)
        self._place_experts(experts)
        self.tail_offset = align(self._end, L.SECTION_ALIGN)
        self.tail = encode_tail({name: sections[name] for name in sorted(MUTABLE_SECTIONS & sections.keys())}, self.tail_offset)
        self.total_bytes = self.tail_offset + len(self.tail)

    def _json(self, what: str, obj: Mapping) -> bytes:
        try:
            return json.dumps(dict(obj), sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, ValueError) as e:
            raise FormatError(f"{self.where}: {what}: cannot be stored as canonical JSON: {e}", RULES["R13"], "R13") from e

    def _section(self, name: str, kind: str, offset: int, nbytes: int, media: str = "", checksum: bytes = bytes(16)) -> None:
        self._section_rows.append((name.encode(), media.encode(), _KIND_ID[kind], 0, 0, offset, nbytes, checksum))
        self._end = offset + nbytes

    def _place_tensors(self, kind: str, specs: list[TensorSpec], start_align: int, step: int) -> None:
        if not specs:
            return
        start = end = align(self._end, start_align)
        name_at = sum(row[1] for row in self._tensor_rows)
        for t in specs:
            offset, name_bytes = align(end, step), len(t.name.encode())
            end = offset + _nbytes(t)
            self._tensor_rows.append((name_at, name_bytes, _QUANT_ID[t.quant], t.layer, _LAYOUT_ID[t.layout], len(t.shape),
                                     _ROLE_ID[t.role], L.TENSOR_GATHER if t.gather else 0, _dims(t.shape, L.MAX_NDIM), offset,
                                     end - offset))
            name_at += name_bytes
        self._section(kind, kind, start, end - start)

    def _place_experts(self, experts: list[ExpertSpec]) -> None:
        if not experts:
            return
        step = 1 << L.MIN_ALIGN_LOG2
        start = end = align(self._end, step)
        runs: dict[tuple[PartInfo, ...], int] = {}
        for e in experts:
            parts, record_bytes = [], 0
            for p in e.parts:
                offset = align(record_bytes, L.TENSOR_ALIGN)
                record_bytes = offset + _nbytes(p)
                parts.append(PartInfo(p.name, p.quant, p.layout, tuple(p.shape), offset, record_bytes - offset))
            run, stride = tuple(parts), align(record_bytes, step)
            if run not in runs:
                runs[run] = len(self._parts)
                self._parts += run
            self._first_part.append(runs[run])
            slot = np.arange(e.n, dtype=np.int32) if e.slot is None else np.array(e.slot, np.int32)
            self.layers.append(ExpertLayer(e.layer, e.n, e.top_k, end, stride, record_bytes, run, slot))
            end += e.n * stride
        self._section("experts", "experts", start, end - start)

    def encode(self, checksums: np.ndarray) -> tuple[bytes, bytes]:
        """(preamble, index). checksums: uint8 [tensors + records, 16]. The preamble is longer than 64 KiB if it does not fit."""
        layer_rows = [(e.layer, e.n, e.top_k, first, len(e.parts), 0, e.base, e.stride, e.record_bytes)
                      for e, first in zip(self.layers, self._first_part, strict=True)]
        part_rows = [(p.name.encode(), _QUANT_ID[p.quant], _LAYOUT_ID[p.layout], len(p.shape), 0, _dims(p.shape, 2), p.offset,
                      p.nbytes) for p in self._parts]
        content = content_id(self.arch, self.config, self.layers, self.names, checksums)
        header = Header(
            L.MAGIC, L.READ_VERSION, L.WRITE_VERSION, L.HEADER_BYTES, 0, 0, self.tail_offset, len(self._section_rows),
            len(layer_rows), len(part_rows), len(self._tensor_rows), len(self._names), len(self.config), len(self.meta),
            self._resident_align_log2, L.MIN_ALIGN_LOG2, 0, 0, bytes(16), bytes(32), content, self.arch.encode(),
            self.name.encode(), bytes(64))
        preamble = bytearray(L.HEADER.pack(*header) + _rows(L.SECTION_ROW, self._section_rows) + _rows(L.LAYER_ROW, layer_rows)
                             + _rows(L.PART_ROW, part_rows) + self.config + self.meta)
        preamble += bytes(max(0, L.PREAMBLE_BYTES - len(preamble)))
        index = bytearray(self._spans[3].stop)
        slots = np.concatenate([np.empty(0, "<u4"), *(e.slot for e in self.layers)]).astype("<u4")
        tables = _rows(L.TENSOR_ROW, self._tensor_rows), self._names, slots.tobytes(), checksums.tobytes()
        for span, table in zip(self._spans, tables, strict=True):
            index[span] = table
        preamble[L.ROOT_SPAN] = root_hash(preamble, index)
        preamble[L.CHECKSUM_SPAN] = preamble_checksum(preamble)
        return bytes(preamble), bytes(index)
