"""export(): a container to a GGUF, with the tensor data bit by bit, and the metadata as it was if it was made from a GGUF.

What the conversion recorded decides, else what export_meta.py finds: names, shapes, order and types of the tensors, and all keys.
A tensor has the type that the file has it in; what conversions widen (norms, routers) gets its old type back where that is exact.
Rows that a conversion took out of fused tensors go back to their places. Decays of which a file holds the logarithm come back from the record;
of more than 4096 (Jamba) the last bit may differ. Refuses quants that GGUF has not.
"""
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from moegg import kernels, registry
from moegg.arch import Part, Tensor
from moegg.converters.export_meta import Order, make_metadata
from moegg.converters.source import SourceTensor, View, find_view
from moegg.errors import FormatError, UnsupportedModel
from moegg.formats.container import Container, ExpertLayer, PartInfo, TensorInfo
from moegg.formats.gguf import TYPES
from moegg.formats.gguf_write import GGUFWriter
from moegg.formats.reader import Reader
from moegg.formats.sections import section_json
from moegg.quants import GROUP_ROWS, INTERLEAVED, QUANTS

CHUNK_BYTES = 8 << 20
GGML = {t.name for t in TYPES.values() if t.block_elems}


@dataclass(frozen=True)
class ExportResult:
    """path and size of the file; types: GGUF type -> number of tensors."""
    path: Path
    file_bytes: int
    types: dict[str, int]


@dataclass(frozen=True)
class _Record:
    """What the conversion kept of its source; a Source as far as find_view() asks."""
    name: str
    tensors: dict[str, SourceTensor]
    values: dict[str, list[float]]          # of short f32 tensors that went into the config
    metadata: list[tuple[str, str, Any]]
    version: int
    alignment: int
    orders: dict[str, Order] = field(default_factory=dict)      # by name in the container


@dataclass(frozen=True)
class _Piece:
    """One matrix or vector of the container and its place in a GGUF tensor. at: byte offset in the file."""
    view: View
    info: TensorInfo | PartInfo
    at: int
    order: Order = Order()


def export(container: Container, out: Path, *, force: bool = False,
           progress: Callable[[int, int], Any] | None = None) -> ExportResult:
    """Writes `out`. Raises UnsupportedModel, FormatError, UsageError, NotFound, NoRoom, IOFailure; then leaves nothing behind."""
    record = _read_record(container)
    pieces = _find_pieces(container, record)
    types = {name: _type_of(container, name, record, ps) for name, ps in pieces.items()}
    types |= dict.fromkeys(record.values, "f32")
    if absent := [name for name in record.tensors if name not in types]:
        raise UnsupportedModel(f"{container.path}: {len(absent)} tensors of its source were left out when it was converted: "
                               f"{', '.join(map(repr, absent[:5]))}; a GGUF without them would be another model", "export-absent")
    table = [(name, t.shape, types[name]) for name, t in record.tensors.items()]
    kept = all(types[name] == t.dtype for name, t in record.tensors.items())
    metadata = [kv for kv in record.metadata if kept or kv[0] != "general.file_type"]
    done = 0
    with container.opened() as raw, GGUFWriter(out, metadata, table, version=record.version, alignment=record.alignment,
                                               force=force) as writer:
        total = writer.total_bytes
        for name, values in record.values.items():
            writer.put(name, 0, np.array(list(map(float, values)), "<f4").view(np.uint8))
        for name, ps in pieces.items():
            for p in ps if name not in record.values else ():
                for rows, data in _rows(raw, p):
                    _put(writer, p, name, rows, _retype(container, p, _columns(container, p, data), types[name]))
                    done += data.nbytes
                    if progress:
                        progress(min(done, total), total)
        writer.finish()
    return ExportResult(out, total, {t: list(types.values()).count(t) for t in sorted(set(types.values()))})


def _read_record(container: Container) -> _Record:
    if "gguf_metadata" not in container.sections:
        made = make_metadata(container)
        return _Record(container.name, made.tensors, made.values, made.metadata, 3, 32, made.orders)
    try:
        kept = section_json(container, "gguf_metadata")
        tensors = {n: SourceTensor(n, tuple(shape), kind, kind if kind in QUANTS else None) for n, kind, shape in kept["tensors"]}
        values, kv = kept["values"], [(k, kind, v) for k, kind, v in kept["kv"]]
        sound = (kept["version"] in (2, 3) and kept["alignment"] in [1 << i for i in range(3, 22)]
                 and all(t.dtype in GGML and 1 <= len(t.shape) <= 4 for t in tensors.values())
                 and all(type(s) is int and 0 < s < 1 << 62 for t in tensors.values() for s in t.shape)
                 and all(n in tensors and math.prod(tensors[n].shape) == len(v) for n, v in values.items())
                 and all(type(x) is float or x in ("nan", "inf", "-inf") for v in values.values() for x in v)
                 and all(isinstance(k, str) and isinstance(kind, str) for k, kind, _ in kv))
    except KeyError as e:
        raise _damaged(container, f": has no {e}") from None
    except (TypeError, ValueError, AttributeError) as e:
        raise _damaged(container, f": {type(e).__name__} {str(e):.60}") from None
    if not sound:
        raise _damaged(container)
    return _Record(container.name, tensors, values, kv, kept["version"], kept["alignment"])


def _damaged(container: Container, why: str = "") -> FormatError:
    return FormatError(f"{container.path}: section 'gguf_metadata': does not describe a GGUF{why}; convert the GGUF again",
                       "section-json")


def _find_pieces(container: Container, record: _Record) -> dict[str, list[_Piece]]:
    """GGUF tensor -> what it consists of, found as a conversion finds it."""
    model = registry.describe(container.arch, container.config, container.path)
    held = registry.find(arch=container.arch).NAMES.get("gguf_weight_keys", ())
    found: dict[str, list[_Piece]] = {}

    def add(item: Tensor | Part, info: TensorInfo | PartInfo | None, at: int, expert: int | None = None, n: int = 0) -> None:
        view = find_view(record, item.gguf, expert, n)
        if view is None or info is None or view.shape != item.shape or tuple(info.shape) != item.shape or not view.reversible:
            raise FormatError(f"{container.path}: {item.name!r}: cannot be put into a GGUF: its place there is not known",
                              "arch-mismatch")
        if info.quant != "f32" and (len(item.shape) == 1 or getattr(item, "role", "") == "aux"):
            raise FormatError(f"{container.path}: {item.name!r}: is stored as {info.quant}, expected f32", "arch-mismatch")
        found.setdefault(view.tensor.name, []).append(_Piece(view, info, at, record.orders.get(item.name, Order())))

    for t in model.tensors():
        if t.gguf and t.gguf[0].name in held:         # a key of the metadata
            continue
        info = container.tensors.get(t.name)
        add(t, info, info.offset if info else 0)
    layers: dict[int, ExpertLayer] = {layer.layer: layer for layer in container.layers}
    for e in model.experts():
        parts = {p.name: p for p in layers[e.layer].parts} if e.layer in layers and layers[e.layer].n == e.n else {}
        for i in range(e.n):
            for p in e.parts:
                info = parts.get(p.name)
                add(p, info, container.record(e.layer, i)[0] + info.offset if info else 0, i, e.n)
    return found


def _type_of(container: Container, name: str, record: _Record, pieces: list[_Piece]) -> str:
    """Checks that the pieces fill the tensor and agree on a type that GGUF has."""
    shape, quants = record.tensors[name].shape, {p.info.quant for p in pieces}
    if sum(int(np.prod(p.info.shape)) for p in pieces) != int(np.prod(shape, dtype=object)):
        raise FormatError(f"{container.path}: GGUF tensor {name!r}: its parts do not fill {list(shape)}", "arch-mismatch")
    quant = quants.pop()
    if quants or quant not in GGML:
        stored = ", ".join(sorted({quant, *quants}))
        raise UnsupportedModel(f"{container.path}: GGUF tensor {name!r}: is stored as {stored}, which GGUF cannot hold; convert "
                               "with other quants", "export-quant")
    before = record.tensors[name].dtype
    return before if quant == "f32" and before in ("f16", "bf16") else quant


def _rows(raw: Reader, p: _Piece) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(row numbers of the piece, blocks row-major uint8 [n, row_bytes]) in pieces of whole groups; a vector is one row."""
    quant, shape = QUANTS[p.info.quant], p.info.shape
    n, cols = (1, shape[0]) if len(shape) == 1 else (int(np.prod(shape[:-1])), shape[-1])
    each = quant.row_bytes(cols, p.info.layout)
    step = max(1, CHUNK_BYTES // (each * GROUP_ROWS)) * GROUP_ROWS
    for start in range(0, n, step):
        stop = min(start + step, n)
        if p.info.layout == INTERLEAVED:
            data = np.frombuffer(raw.read(p.at + start * each, (stop - start + -(stop - start) % GROUP_ROWS) * each), np.uint8)
            yield np.arange(start, stop), kernels.deinterleave(quant.name, data, stop - start, cols)
        else:
            yield np.arange(start, stop), np.frombuffer(raw.read(p.at + start * each, (stop - start) * each), np.uint8).reshape(-1, each)


def _retype(container: Container, p: _Piece, data: np.ndarray, kind: str) -> np.ndarray:
    """f32 rows as the values or the 16-bit floats that they were."""
    if p.view.src.log:
        with np.errstate(over="ignore"):        # far beyond any decay: inf in f32
            data = (p.view.src.log * np.exp(data.view("<f4").astype(np.float64))).astype("<f4").view(np.uint8)
    if kind == p.info.quant:
        return data
    x = data.view("<f4")
    out = kernels.quantize(kind, x)
    if not np.array_equal(kernels.dequantize(kind, out, x.shape[1]).view(np.uint32), x.view(np.uint32)):
        raise FormatError(f"{container.path}: {p.view.tensor.name!r}: has values that its old type {kind} does not hold",
                          "arch-mismatch")
    return out


def _columns(container: Container, p: _Piece, data: np.ndarray) -> np.ndarray:
    """Rows with their columns in the order of a GGUF; blocks are moved whole."""
    if p.order.heads is None:
        return data
    keys, per, width = p.order.heads
    if width % QUANTS[p.info.quant].block_elems:
        raise UnsupportedModel(f"{container.path}: {p.view.tensor.name!r}: blocks of {p.info.quant} are longer than a head's {width} columns, whose "
                               "order is another in a GGUF; convert with other quants", "export-quant")
    return np.ascontiguousarray(data.reshape(len(data), keys, per, -1).swapaxes(1, 2)).reshape(data.shape)


def _put(writer: GGUFWriter, p: _Piece, name: str, rows: np.ndarray, data: np.ndarray) -> None:
    """Rows (elements of a vector) at their places; runs of neighbours are written at once."""
    if len(p.view.shape) == 1:
        data = data.reshape(p.view.shape[0], -1)
        rows = np.arange(p.view.shape[0])
    rows = rows if p.order.rows is None else p.order.rows[rows]
    places, each = p.view.first_place + p.view.places(rows), data.shape[1]
    ends = np.flatnonzero(np.diff(places) != 1) + 1
    for start, stop in zip([0, *ends], [*ends, len(places)], strict=True):
        writer.put(name, int(places[start]) * each, np.ascontiguousarray(data[start:stop]))
