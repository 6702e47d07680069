"""Bytes of a container in, checked tables out: every structural rule of FORMAT.md, first broken rule first.

Owns the rule list. Works on buffers that the caller has read, so it knows no files, and costs O(preamble + index). Order:
caps, then checked sums (Python integers cannot wrap), then coverage, then recomputed sizes, then hashes of what was parsed.
Refuses by FormatError with rule and byte offset and by nothing else, whatever the bytes.
"""
import json
import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NoReturn

import numpy as np
from blake3 import blake3

from moegg.errors import FormatError
from moegg.formats import layout as L
from moegg.formats.layout import ExpertLayer, PartInfo, Region, Section, TensorInfo, align
from moegg.quants import BY_ID
from moegg.units import fmt_bytes

RULES = {
    "R1": "format-magic", "R2": "format-textmode", "R3": "format-version", "R4": "format-feature", "R5": "format-truncated",
    "R6": "format-trailing", "R7": "format-header", "R8": "format-limit", "R9": "format-fit", "R10": "format-reserved",
    "R11": "format-name", "R12": "format-duplicate", "R13": "format-json", "R14": "format-code", "R15": "format-section",
    "R16": "format-region", "R17": "format-align", "R18": "format-coverage", "R19": "format-shape", "R20": "format-size",
    "R21": "format-experts", "R22": "format-record", "R23": "format-root", "R24": "format-tensors", "R25": "format-slots",
    "R26": "format-content", "R27": "format-tail", "R28": "format-checksum", "R29": "format-padding",
}
_SECTION_NAME, _TENSOR_NAME = re.compile(rb"[a-z0-9_.-]{1,31}"), re.compile(rb"[A-Za-z0-9_.-]{1,255}")
_PART_NAME, _ARCH, _MEDIA = re.compile(rb"[a-z0-9_.]{1,23}"), re.compile(rb"[a-z0-9-]{1,31}"), re.compile(rb"[!-~]{0,39}")
_JSON_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_LOOKS = ((b"GGUF", "a GGUF file; import it with 'moegg convert'"),
          (b"PK\x03\x04", "a zip archive, perhaps a PyTorch checkpoint"),
          (b"version https://git-lfs", "a git-lfs pointer, not the file itself; fetch it with 'git lfs pull'"),
          (b"\x80\x02", "a Python pickle, perhaps a PyTorch checkpoint"), (b"\x1f\x8b", "a gzip archive"),
          (b"\x28\xb5\x2f\xfd", "a zstd archive"), (b"\x89HDF\r\n", "an HDF5 file"), (b"{", "a JSON file"))


def digest16(data: Any) -> bytes:
    """The checksum of records, tensors, sections and the preamble: BLAKE3 cut to 16 bytes."""
    return blake3(data).digest(16)


def preamble_checksum(preamble: bytes) -> bytes:
    """Checksum of the 64 KiB with its own field zeroed."""
    buf = bytearray(preamble)
    buf[L.CHECKSUM_SPAN] = bytes(16)
    return digest16(buf)


def root_hash(preamble: bytes, index: bytes) -> bytes:
    """BLAKE3-256 over the preamble, checksum and root zeroed, and the index; through the index it covers every weight."""
    buf = bytearray(preamble)
    buf[L.CHECKSUM_SPAN], buf[L.ROOT_SPAN] = bytes(16), bytes(32)
    return blake3(buf).update(index).digest()


def tail_hash(table: bytes) -> bytes:
    """BLAKE3-256 over tail header and tail table, the hash itself zeroed."""
    return blake3(table[:32] + bytes(32) + table[64:]).digest()


def content_id(arch: str, config: bytes, layers: list[ExpertLayer], names: list[str], sums: np.ndarray) -> bytes:
    """A hash of what the model is, not of where it lies: records count in order of expert ids, tensors in order of names.

    config: canonical JSON. names: tensors in file order. sums: uint8 [tensors + records, 16], as in the index.
    """
    h = blake3(b"moegg content 1\0" + arch.encode() + b"\0" + config + b"\0")
    at = len(names)
    for e in layers:
        h.update(struct.pack("<II", e.layer, e.n) + sums[at:at + e.n][e.slot].tobytes())
        at += e.n
    for i in sorted(range(len(names)), key=names.__getitem__):
        h.update(names[i].encode() + b"\0" + sums[i].tobytes())
    return h.digest()


def looks_like(head: bytes) -> str:
    """What a file that is no container seems to be, from its first bytes; '' if nothing is recognised."""
    text = head[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "a web page; the download fetched a page instead of the file"
    if len(head) > 9 and head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") <= 100_000_000:
        return "a safetensors file; convert its folder with 'moegg convert'"
    if head and not any(head[:L.HEADER_BYTES]):
        return "empty at its start: an unfinished conversion or download"
    return next((what for magic, what in _LOOKS if head.startswith(magic)), "")


@dataclass(frozen=True, eq=False)
class Preamble:
    """The first 64 KiB, checked: all that planning needs. `slot` of the layers is empty until the index has been read."""
    header: L.Header
    arch: str
    name: str
    config: dict
    meta: dict
    config_bytes: bytes
    sections: dict[str, Section]
    layers: list[ExpertLayer]
    regions: dict[str, Region]      # index, resident, gather, experts; (0, 0) if absent
    n_records: int


@dataclass(frozen=True, eq=False)
class Index:
    """The checked index. checksums: uint8 [tensors + records, 16], tensors and layers in file order, records by slot."""
    tensors: dict[str, TensorInfo]
    layers: list[ExpertLayer]
    checksums: np.ndarray


class Check:
    """The name used in messages, and small checks that raise."""

    def __init__(self, where: str):
        self.where = where

    def fail(self, rule: str, what: str, offset: int | None = None) -> NoReturn:
        at = "" if offset is None else f" (byte {offset})"
        raise FormatError(f"{self.where}: {what}{at}", RULES[rule], rule, offset)

    def truncated(self, have: int, want: int) -> NoReturn:
        a, b = (fmt_bytes(have), fmt_bytes(want)) if fmt_bytes(have) != fmt_bytes(want) else (f"{have} B", f"{want} B")
        self.fail("R5", f"file is {a} but header says {b}; the copy is incomplete, download it again")

    def name(self, raw: bytes, form: re.Pattern, what: str, offset: int) -> str:
        if not form.fullmatch(raw):
            self.fail("R11", f"{what}: got {raw[:40]!r}, expected characters {form.pattern.decode()}", offset)
        return raw.decode()

    def zero(self, data: bytes, what: str, offset: int, rule: str = "R10") -> None:
        if data != bytes(len(data)):
            rest = data.lstrip(b"\0")
            self.fail(rule, f"{what}: got {rest[0]:#04x}, expected zero", offset + len(data) - len(rest))

    def code(self, table: dict, value: int, what: str, offset: int) -> Any:
        if value not in table:
            self.fail("R14", f"{what}: got unknown code {value}; the file may need a newer moegg", offset)
        return table[value]

    def data(self, what: str, quant: int, lay: int, ndim: int, dims: list[int], nbytes: int,
             offset: int) -> tuple[str, str, tuple[int, ...]]:
        """Checks codes, shape and size of a tensor or part; the size is recomputed, the stored one only compared."""
        q, lay = self.code(BY_ID, quant, f"{what}: quant", offset), self.code(L.LAYOUTS, lay, f"{what}: layout", offset)
        shape = tuple(dims[:ndim])
        if not 1 <= ndim <= len(dims) or 0 in shape or any(dims[ndim:]):
            self.fail("R19", f"{what}: got {ndim} axes {dims}, expected 1 to {len(dims)} axes of at least 1, then zeros", offset)
        if not q.fits(shape[-1]) or (ndim != 2 and lay == L.INTERLEAVED):
            self.fail("R19", f"{what}: shape {list(shape)} does not go with {q.name} {lay}", offset)
        want = L.data_bytes(shape, q.name, lay)
        if nbytes != want:
            self.fail("R20", f"{what}: got {nbytes} B, expected {want} B for {list(shape)} {q.name} {lay}", offset)
        return q.name, lay, shape

    def json(self, raw: bytes, what: str, offset: int) -> dict:
        """A canonical object: UTF-8, keys ascending (so unique), no space between tokens, finite floats, 64-bit integers."""
        def pairs(items: list[tuple[str, Any]]) -> dict:
            keys = [k for k, _ in items]
            if any(a >= b for a, b in zip(keys, keys[1:], strict=False)):
                raise ValueError("keys are not in ascending order, or occur twice")
            return dict(items)

        def number(cast: Callable, limit: float) -> Callable:
            def read(text: str) -> Any:
                value = cast(text)
                if not abs(value) < limit:      # NaN fails too
                    raise ValueError(f"number out of range: {text[:40]}")
                return value
            return read
        real = number(float, math.inf)
        try:
            text = raw.decode()
            obj = json.loads(text, object_pairs_hook=pairs, parse_int=number(int, 1 << 63), parse_float=real, parse_constant=real)
            bare = _JSON_STRING.sub("", text)
            if re.search(r"\s", bare):
                raise ValueError("space between tokens")
            if max(accumulate(1 if b in "[{" else -1 for b in re.findall(r"[][{}]", bare)), default=0) > L.MAX_JSON_DEPTH:
                raise ValueError(f"more than {L.MAX_JSON_DEPTH} levels")
            json.dumps(obj, ensure_ascii=False).encode()     # refuses lone surrogates
        except (ValueError, RecursionError) as e:
            self.fail("R13", f"{what}: not canonical JSON: {e!s:.120}", offset)
        if not isinstance(obj, dict):
            self.fail("R13", f"{what}: got {type(obj).__name__}, expected an object", offset)
        return obj


# --- the preamble -------------------------------------------------------------------------------------------------------------

def read_preamble(buf: bytes, file_bytes: int | None, where: str) -> Preamble:
    """Check the first 64 KiB of a container. file_bytes: the file's size, or None if only the preamble is at hand.

    buf: as much of the first 64 KiB as the file has. Raises FormatError.
    """
    c = Check(where)
    h = _header(c, buf, file_bytes)
    tables, at = [], L.HEADER_BYTES
    for n, row in ((h.n_sections, L.SECTION_ROW), (h.n_layers, L.LAYER_ROW), (h.n_parts, L.PART_ROW)):
        tables.append((np.frombuffer(buf, row, n, at), at))
        at += n * row.itemsize
    config_at, meta_at = at, at + h.config_bytes
    end = meta_at + h.meta_bytes
    c.zero(buf[end:], "preamble: unused bytes", end)
    config = c.json(buf[config_at:meta_at], "config", config_at)
    meta = c.json(buf[meta_at:end], "meta", meta_at)
    arch = c.name(h.arch.rstrip(b"\0"), _ARCH, "arch", 160)
    raw = h.name.rstrip(b"\0")
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        name = "\n"
    if not name.isprintable() or not 1 <= len(raw) <= L.MAX_NAME:
        c.fail("R11", f"model name: got {raw[:40]!r}, expected 1 to {L.MAX_NAME} bytes of printable UTF-8", 192)

    parts = _parts(c, *tables[2])
    layers = _layers(c, *tables[1], parts, 1 << h.record_align_log2)
    n_records = sum(e.n for e in layers)
    sections, regions = _sections(c, *tables[0], h, layers, n_records)
    return Preamble(h, arch, name, config, meta, buf[config_at:meta_at], sections, layers, regions, n_records)


def _header(c: Check, buf: bytes, file_bytes: int | None) -> L.Header:
    if buf[:10] != L.MAGIC:
        if b"moegg" in buf[:16]:
            c.fail("R2", "the first bytes were changed by a text-mode or character-set transfer; copy it again in binary mode", 0)
        looks = f"; it looks like {looks_like(buf)}" if looks_like(buf) else ""
        c.fail("R1", f"not a moegg file: got {buf[:8].hex(' ') or 'no bytes at all'}, expected {L.MAGIC[:8].hex(' ')}{looks}", 0)
    size = len(buf) if file_bytes is None else file_bytes
    if len(buf) < L.HEADER_BYTES:
        c.truncated(size, L.PREAMBLE_BYTES)
    h = L.Header(*L.HEADER.unpack_from(buf))
    if h.read_version > L.READ_VERSION:
        c.fail("R3", f"got format version {h.read_version}, expected at most {L.READ_VERSION}; upgrade moegg", 10)
    if h.read_version < 1 or h.write_version < h.read_version or h.header_bytes != L.HEADER_BYTES:
        c.fail("R3", f"got versions {h.read_version}/{h.write_version} and a header of {h.header_bytes} B, expected versions "
                     f"1 <= read <= write and {L.HEADER_BYTES} B", 10)
    unknown = h.required & ~L.REQUIRED_KNOWN
    if unknown:
        names = [L.REQUIRED_NAMES.get(i, f"bit {i}") for i in range(64) if unknown >> i & 1]
        c.fail("R4", f"needs features that this moegg does not have: {', '.join(names)}; upgrade moegg", 16)
    if len(buf) < L.PREAMBLE_BYTES:
        c.truncated(size, max(h.tail_offset + L.TAIL_HEADER_BYTES, L.PREAMBLE_BYTES))
    if preamble_checksum(buf) != h.checksum:
        c.fail("R7", "the first 64 KiB do not match their checksum; the file is damaged, download or convert it again", 80)
    if file_bytes is not None and file_bytes < h.tail_offset + L.TAIL_HEADER_BYTES:
        c.truncated(file_bytes, h.tail_offset + L.TAIL_HEADER_BYTES)
    for what, n, top, at in (("sections", h.n_sections, L.MAX_SECTIONS, 40), ("expert layers", h.n_layers, L.MAX_LAYERS, 44),
                             ("parts", h.n_parts, L.MAX_PARTS, 48), ("tensors", h.n_tensors, L.MAX_TENSORS, 52),
                             ("bytes of names", h.names_bytes, L.MAX_TENSORS * L.MAX_NAME, 56)):
        if n > top:
            c.fail("R8", f"header: got {n} {what}, expected at most {top}", at)
    used = preamble_bytes(h)
    if used > L.PREAMBLE_BYTES:
        c.fail("R9", f"tables, config and meta need {fmt_bytes(used)} ({used} B), expected at most {L.PREAMBLE_BYTES} B", 40)
    c.zero(struct.pack("<HQ", h.reserved0, h.reserved1), "header: reserved bytes", 70)
    c.zero(h.reserved2, "header: reserved bytes", 448)
    for what, log2, at in (("resident", h.resident_align_log2, 68), ("record", h.record_align_log2, 69)):
        if not L.MIN_ALIGN_LOG2 <= log2 <= L.MAX_ALIGN_LOG2:
            c.fail("R17", f"header: {what} alignment: got 2^{log2}, expected 2^{L.MIN_ALIGN_LOG2} to 2^{L.MAX_ALIGN_LOG2}", at)
    return h


def preamble_bytes(h: L.Header) -> int:
    """Bytes of the preamble that the header says are used."""
    return (L.HEADER_BYTES + h.n_sections * L.SECTION_ROW.itemsize + h.n_layers * L.LAYER_ROW.itemsize
            + h.n_parts * L.PART_ROW.itemsize + h.config_bytes + h.meta_bytes)


def _parts(c: Check, table: np.ndarray, at: int) -> list[PartInfo]:
    out = []
    rows = zip(table.tolist(), table["shape"].tolist(), strict=True)
    for i, ((name, quant, lay, ndim, reserved, _, offset, nbytes), dims) in enumerate(rows):
        pos = at + i * L.PART_ROW.itemsize
        name = c.name(name, _PART_NAME, f"part {i}: name", pos)
        if reserved:
            c.fail("R10", f"part '{name}': reserved field: got {reserved}, expected zero", pos)
        q, lay, shape = c.data(f"part '{name}'", quant, lay, ndim, dims, nbytes, pos)
        out.append(PartInfo(name, q, lay, shape, offset, nbytes))
    return out


def _layers(c: Check, table: np.ndarray, at: int, parts: list[PartInfo], record_align: int) -> list[ExpertLayer]:
    out: list[ExpertLayer] = []
    runs: dict[tuple[int, int], int] = {}       # (first part, count) -> record_bytes; layers of one kind share a run
    fresh, prev, end = 0, -1, None
    for i, (layer, n, top_k, first, count, reserved, base, stride, record_bytes) in enumerate(table.tolist()):
        pos = at + i * L.LAYER_ROW.itemsize
        if reserved:
            c.fail("R10", f"expert layer {layer}: reserved field: got {reserved}, expected zero", pos)
        if not prev < layer < L.MAX_LAYER:
            c.fail("R21", f"expert layer {layer} follows {prev}; expected ascending numbers below {L.MAX_LAYER}", pos)
        if n > L.MAX_EXPERTS:
            c.fail("R8", f"expert layer {layer}: got {n} experts, expected at most {L.MAX_EXPERTS}", pos)
        if not 1 <= top_k <= n:
            c.fail("R21", f"expert layer {layer}: got top-k {top_k} of {n} experts", pos)
        if (first, count) not in runs:
            if first != fresh or not 1 <= count <= len(parts) - first:
                c.fail("R21", f"expert layer {layer}: got {count} parts from {first} of {len(parts)}, expected a run of an "
                              f"earlier layer or one from {fresh}", pos)
            runs[first, count] = _record(c, parts[first:first + count], at + table.nbytes + first * L.PART_ROW.itemsize)
            fresh += count
        want = runs[first, count]
        if record_bytes != want or stride != align(want, record_align):
            c.fail("R22", f"expert layer {layer}: got records of {record_bytes} B every {stride} B, expected {want} B every "
                          f"{align(want, record_align)} B", pos)
        if end is not None and base != end:
            c.fail("R22", f"expert layer {layer}: got base {base}, expected {end}, the end of the layer before", pos)
        prev, end = layer, base + n * stride
        out.append(ExpertLayer(layer, n, top_k, base, stride, record_bytes, tuple(parts[first:first + count]),
                               np.empty(0, np.int32)))
    if fresh != len(parts):
        c.fail("R21", f"got {len(parts)} parts, but layers use {fresh}", at)
    return out


def _record(c: Check, parts: list[PartInfo], pos: int) -> int:
    """Bytes of a record of these parts, which must follow one another, 64-byte aligned."""
    end = 0
    for i, p in enumerate(parts):
        want = align(end, L.TENSOR_ALIGN)
        if p.offset != want:
            c.fail("R22", f"part '{p.name}': got offset {p.offset}, expected {want}", pos + i * L.PART_ROW.itemsize)
        end = p.offset + p.nbytes
    if len({p.name for p in parts}) < len(parts):
        c.fail("R12", f"two parts of a record have one name: {', '.join(p.name for p in parts)}", pos)
    return end


def _sections(c: Check, table: np.ndarray, at: int, h: L.Header, layers: list[ExpertLayer],
              n_records: int) -> tuple[dict[str, Section], dict[str, Region]]:
    index_bytes = L.index_spans(h.n_tensors, h.names_bytes, n_records)[3].stop
    if index_bytes > L.MAX_INDEX_BYTES:
        c.fail("R8", f"the index needs {fmt_bytes(index_bytes)}, expected at most {fmt_bytes(L.MAX_INDEX_BYTES)}", 52)
    aligns = {"index": L.PREAMBLE_BYTES, "resident": 1 << h.resident_align_log2, "gather": L.GATHER_ALIGN,
              "experts": 1 << h.record_align_log2}
    sections: dict[str, Section] = {}
    regions = dict.fromkeys(aligns, Region(0, 0))
    end = L.PREAMBLE_BYTES
    for i, row in enumerate(table.tolist()):
        pos = at + i * L.SECTION_ROW.itemsize
        s = _section(c, row, pos, f"section {i}", sections)
        if s.kind in regions:
            if s.name != s.kind or s.media or any(s.checksum) or (s.kind == "index") != (i == 0) or not s.nbytes:
                c.fail("R16", f"section '{s.name}' of kind {s.kind}: expected that name, no media type, a zero checksum, "
                              "at least one byte, and the index first", pos)
            regions[s.kind] = Region(s.offset, s.nbytes)
        want = align(end, aligns.get(s.kind, L.SECTION_ALIGN))
        if s.offset != want:
            c.fail("R18", f"section '{s.name}': got offset {s.offset}, expected {want}: the end of the one before, aligned", pos)
        end = s.offset + s.nbytes
        sections[s.name] = s
    want = align(end, L.SECTION_ALIGN)
    if h.tail_offset != want:
        c.fail("R18", f"tail: got offset {h.tail_offset}, expected {want}: the end of the last section, aligned", 32)
    experts = sum(e.n * e.stride for e in layers)
    for kind, want in (("index", Region(L.PREAMBLE_BYTES, index_bytes)),
                       ("experts", Region(layers[0].base if layers else 0, experts))):
        got = regions[kind]
        if got != want:
            c.fail("R16", f"section '{kind}': got {got.nbytes} B from {got.offset}, expected {want.nbytes} B from {want.offset}",
                   at)
    return sections, regions


def _section(c: Check, row: tuple, pos: int, what: str, seen: dict[str, Section], mutable: bool = False) -> Section:
    name, media, kind, flags, reserved, offset, nbytes, checksum = row
    name = c.name(name, _SECTION_NAME, f"{what}: name", pos)
    media = c.name(media, _MEDIA, f"section '{name}': media type", pos)
    if reserved or flags & ~L.SECTION_REQUIRED:
        c.fail("R10", f"section '{name}': reserved field or flag: got {reserved}, flags {flags:#x}", pos)
    known = L.KINDS.get(kind)
    if known is None and flags & L.SECTION_REQUIRED:
        c.fail("R15", f"section '{name}' is required, but this moegg does not know its kind {L.RESERVED_KINDS.get(kind, kind)}; "
                      "upgrade moegg", pos)
    if name in seen:
        c.fail("R12", f"two sections have one name: '{name}'", pos)
    if known == "opaque" and nbytes > L.MAX_OPAQUE_BYTES:
        c.fail("R8", f"section '{name}': got {fmt_bytes(nbytes)}, expected at most {fmt_bytes(L.MAX_OPAQUE_BYTES)}", pos)
    return Section(name, known or L.RESERVED_KINDS.get(kind, f"kind-{kind}"), offset, nbytes, media, checksum, mutable)


# --- the index ----------------------------------------------------------------------------------------------------------------

def read_index(p: Preamble, buf: bytes, where: str, root: bytes | None = None) -> Index:
    """Check the index. buf: the bytes of p.regions['index']; root: what root_hash gives, None to skip both hashes.

    Raises FormatError. Weight bytes are not looked at: their checksums are what verify() compares.
    """
    c, h = Check(where), p.header
    base = p.regions["index"].offset
    if root is not None and root != h.root:
        c.fail("R23", "header and index do not match the root hash; the file is damaged, download or convert it again", 96)
    rows, names, slots, sums = L.index_spans(h.n_tensors, h.names_bytes, p.n_records)
    c.zero(buf[names.stop:slots.start], "index: padding", base + names.stop)
    c.zero(buf[slots.stop:sums.start], "index: padding", base + slots.stop)
    tensors = _tensors(c, np.frombuffer(buf[rows], L.TENSOR_ROW), buf[names], p.regions, base)
    layers = _slots(c, np.frombuffer(buf[slots], "<u4"), p.layers, base + slots.start)
    out = Index(tensors, layers, np.frombuffer(buf[sums], np.uint8).reshape(-1, L.CHECKSUM_BYTES))
    if root is not None and content_id(p.arch, p.config_bytes, layers, list(tensors), out.checksums) != h.content_id:
        c.fail("R26", "the content id does not match config and checksums", 128)
    return out


def _tensors(c: Check, table: np.ndarray, names: bytes, regions: dict[str, Region], base: int) -> dict[str, TensorInfo]:
    out: dict[str, TensorInfo] = {}
    ends = {"resident": regions["resident"].offset, "gather": regions["gather"].offset}
    steps = {"resident": L.TENSOR_ALIGN, "gather": L.GATHER_ALIGN}
    name_end, gathered = 0, False
    for i, (row, dims) in enumerate(zip(table.tolist(), table["shape"].tolist(), strict=True)):
        name_at, name_bytes, quant, layer, lay, ndim, role, flags, _, offset, nbytes = row
        pos = base + i * L.TENSOR_ROW.itemsize
        if name_at != name_end:
            c.fail("R24", f"tensor {i}: its name starts at {name_at}, expected {name_end}", pos)
        name_end += name_bytes
        name = c.name(names[name_at:name_end], _TENSOR_NAME, f"tensor {i}: name", pos)
        if name in out:
            c.fail("R12", f"two tensors have one name: '{name}'", pos)
        if flags & ~L.TENSOR_GATHER:
            c.fail("R10", f"tensor '{name}': reserved flag: got {flags:#x}", pos)
        role = c.code(L.ROLES, role, f"tensor '{name}': role", pos)
        q, lay, shape = c.data(f"tensor '{name}'", quant, lay, ndim, dims, nbytes, pos)
        gather = bool(flags & L.TENSOR_GATHER)
        region = "gather" if gather else "resident"
        if not -1 <= layer < L.MAX_LAYER or (lay != L.ROW_MAJOR if gather else gathered):
            c.fail("R24", f"tensor '{name}': got layer {layer}, {region}, {lay}, expected a layer from -1, and row-gather "
                          "tensors row-major and after all others", pos)
        gathered = gather
        want = align(ends[region], steps[region])
        if offset != want:
            c.fail("R24", f"tensor '{name}': got offset {offset}, expected {want}: the end of the one before, aligned", pos)
        ends[region] = offset + nbytes
        out[name] = TensorInfo(name, q, lay, shape, role, layer, offset, nbytes, gather)
    if name_end != len(names):
        c.fail("R24", f"got {len(names)} B of names, but tensors use {name_end} B", 56)
    for kind, end in ends.items():
        want = regions[kind].offset + regions[kind].nbytes
        if end != want:
            c.fail("R24", f"tensors end at {end}, expected {want}, the end of section '{kind}'", base)
    return out


def _slots(c: Check, table: np.ndarray, layers: list[ExpertLayer], pos: int) -> list[ExpertLayer]:
    out, at = [], 0
    for e in layers:
        slot = table[at:at + e.n]
        if int(slot.max()) >= e.n or np.bincount(slot, minlength=e.n).max() > 1:
            c.fail("R25", f"expert layer {e.layer}: its slot table does not hold each of 0 to {e.n - 1} once", pos + 4 * at)
        slot = slot.astype(np.int32)
        slot.flags.writeable = False
        out.append(replace(e, slot=slot))
        at += e.n
    return out


# --- the tail -----------------------------------------------------------------------------------------------------------------

def read_tail(buf: bytes, offset: int, file_bytes: int, taken: dict[str, Section], where: str) -> dict[str, Section]:
    """Check the mutable tail, from its header to the file's end. buf: its first bytes, header and table included if the file has
    them; taken: sections outside the tail. Raises FormatError.
    """
    c = Check(where)
    magic, tail_bytes, n, zero0, zero1, digest = L.TAIL_HEADER.unpack_from(buf)
    head = L.TAIL_HEADER_BYTES + n * L.SECTION_ROW.itemsize
    if magic != L.TAIL_MAGIC or n > L.MAX_TAIL_SECTIONS or not head <= tail_bytes <= L.MAX_TAIL_BYTES or zero0 or zero1:
        c.fail("R27", f"tail: its header is damaged: got {magic!r}, {n} sections in {tail_bytes} B", offset)
    if len(buf) < head:
        c.truncated(file_bytes, offset + tail_bytes)
    if tail_hash(buf[:head]) != digest:
        c.fail("R27", "tail: header and table do not match their hash; the file is damaged, or an edit was interrupted", offset)
    out: dict[str, Section] = {}
    end = offset + head
    for i, row in enumerate(np.frombuffer(buf, L.SECTION_ROW, n, L.TAIL_HEADER_BYTES).tolist()):
        pos = offset + L.TAIL_HEADER_BYTES + i * L.SECTION_ROW.itemsize
        s = _section(c, row, pos, f"tail section {i}", {**taken, **out}, mutable=True)
        want = align(end, L.TENSOR_ALIGN)
        if s.offset != want or s.kind in L.REGIONS:
            c.fail("R27", f"tail section '{s.name}': got kind {s.kind} at {s.offset}, expected an opaque one at {want}", pos)
        end = s.offset + s.nbytes
        out[s.name] = s
    if end != offset + tail_bytes:
        c.fail("R27", f"tail: sections end at {end}, expected {offset + tail_bytes}", offset)
    if file_bytes < end:
        c.truncated(file_bytes, end)
    if file_bytes > end:
        c.fail("R6", f"file is {file_bytes} B but header says {end} B; something was appended to it", end)
    return out
