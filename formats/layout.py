"""The .moegg container, version 1, as numbers: limits, alignments, codes, table rows, and what a reader makes of them.

This is FORMAT.md as code and nothing else; it reads and writes no file. All integers are little-endian, all offsets are
bytes from the start of the file. `HEADER` and the numpy row types are the only description of the bytes in the code.
"""
import math
import struct
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from moegg.quants import INTERLEAVED, QUANTS, ROW_MAJOR

MAGIC = b"\x8dmoegg\r\n\x1a\n"          # not ASCII, CR LF, Ctrl-Z, LF: any text-mode transfer breaks it
TAIL_MAGIC = b"moeggtl\n"
READ_VERSION = WRITE_VERSION = 1        # newest versions this code reads and writes
HEADER_BYTES, PREAMBLE_BYTES, TAIL_HEADER_BYTES = 512, 64 << 10, 64

# --- feature bits ---------------------------------------------------------------------------------------------------------
REQUIRED_KNOWN = 0                      # a reader refuses every other required bit
REQUIRED_NAMES = {0: "per-expert quant override"}
OPTIONAL_NAMES = {0: "extra components", 1: "byte splits", 2: "calibration data", 3: "quality receipts"}

# --- limits: checked before anything is allocated ---------------------------------------------------------------------------
MAX_SECTIONS, MAX_LAYERS, MAX_PARTS, MAX_TENSORS = 256, 1024, 512, 1 << 17
MAX_EXPERTS, MAX_NDIM, MAX_NAME, MAX_LAYER, MAX_JSON_DEPTH = 1 << 16, 4, 255, 1 << 16, 16
MAX_INDEX_BYTES, MAX_OPAQUE_BYTES, MAX_TAIL_SECTIONS, MAX_TAIL_BYTES = 64 << 20, 256 << 20, 64, 64 << 20

# --- alignments ---------------------------------------------------------------------------------------------------------------
SECTION_ALIGN, TENSOR_ALIGN, GATHER_ALIGN = 4096, 64, 16 << 10
MIN_ALIGN_LOG2, MAX_ALIGN_LOG2 = 14, 21                 # 16 KiB (Apple's page) to 2 MiB (a huge page)
HUGE_RESIDENT_BYTES = 16 << 20                          # from here the resident region is worth a 2 MiB boundary

# --- codes: permanent, never reused -------------------------------------------------------------------------------------------
KINDS = {1: "index", 2: "opaque", 3: "resident", 4: "gather", 5: "experts"}
RESERVED_KINDS = {6: "component", 7: "splits", 8: "calibration", 9: "receipts"}
LAYOUTS = {0: ROW_MAJOR, 1: INTERLEAVED}
ROLES = {0: "embed", 1: "norm", 2: "attn", 3: "dense", 4: "shared", 5: "router", 6: "head", 7: "bias", 8: "aux"}
REGIONS = ("index", "resident", "gather", "experts")     # kinds whose content the index describes; at most one section each
SECTION_REQUIRED, TENSOR_GATHER = 1, 1                  # bit 0 of the flags of a section and of a tensor

# --- rows of the tables -------------------------------------------------------------------------------------------------------
SECTION_ROW = np.dtype([("name", "S32"), ("media", "S40"), ("kind", "<u2"), ("flags", "<u2"), ("reserved", "<u4"),
                        ("offset", "<u8"), ("nbytes", "<u8"), ("checksum", "V16")])
LAYER_ROW = np.dtype([("layer", "<u4"), ("n", "<u4"), ("top_k", "<u4"), ("first_part", "<u4"), ("n_parts", "<u4"),
                      ("reserved", "<u4"), ("base", "<u8"), ("stride", "<u8"), ("record_bytes", "<u8")])
PART_ROW = np.dtype([("name", "S24"), ("quant", "<u2"), ("layout", "u1"), ("ndim", "u1"), ("reserved", "<u4"),
                     ("shape", "<u4", 2), ("offset", "<u8"), ("nbytes", "<u8")])
TENSOR_ROW = np.dtype([("name_offset", "<u4"), ("name_bytes", "<u2"), ("quant", "<u2"), ("layer", "<i4"), ("layout", "u1"),
                       ("ndim", "u1"), ("role", "u1"), ("flags", "u1"), ("shape", "<u4", MAX_NDIM), ("offset", "<u8"),
                       ("nbytes", "<u8")])
TAIL_HEADER = struct.Struct("<8sQIIQ32s")               # magic, tail_bytes, n_sections, 0, 0, tail hash
CHECKSUM_BYTES = 16


class Header(NamedTuple):
    """The first 512 bytes, in order."""
    magic: bytes
    read_version: int
    write_version: int
    header_bytes: int
    required: int
    optional: int
    tail_offset: int
    n_sections: int
    n_layers: int
    n_parts: int
    n_tensors: int
    names_bytes: int
    config_bytes: int
    meta_bytes: int
    resident_align_log2: int
    record_align_log2: int
    reserved0: int
    reserved1: int
    checksum: bytes
    root: bytes
    content_id: bytes
    arch: bytes
    name: bytes
    reserved2: bytes


HEADER = struct.Struct("<10sHHHQQQIIIIIIIBBHQ16s32s32s32s256s64s")
CHECKSUM_SPAN, ROOT_SPAN = slice(80, 96), slice(96, 128)        # of Header.checksum and Header.root; zero while hashing


def align(n: int, to: int) -> int:
    """n rounded up to a multiple of `to`."""
    return n + -n % to


def data_bytes(shape: tuple[int, ...], quant: str, layout: str) -> int:
    """Bytes of a tensor or part: its last axis is a row. Raises ValueError if a row is no whole number of blocks."""
    return QUANTS[quant].matrix_bytes(math.prod(shape[:-1]), shape[-1], layout)


def index_spans(n_tensors: int, names_bytes: int, n_records: int) -> tuple[slice, slice, slice, slice]:
    """Where tensor rows, names, slots and checksums lie inside the index; its size is the stop of the last one."""
    names = n_tensors * TENSOR_ROW.itemsize
    slots = align(names + names_bytes, 16)
    sums = align(slots + 4 * n_records, 16)
    return (slice(0, names), slice(names, names + names_bytes), slice(slots, slots + 4 * n_records),
            slice(sums, sums + CHECKSUM_BYTES * (n_tensors + n_records)))


# --- what a reader sees -------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Region:
    """A byte range of the file; (0, 0) if the file has none of this kind."""
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Section:
    """One entry of the section table or of the tail. checksum is zero for index and weight regions (see the index)."""
    name: str
    kind: str
    offset: int
    nbytes: int
    media: str
    checksum: bytes
    mutable: bool = False       # lies in the tail


@dataclass(frozen=True)
class TensorInfo:
    """One weight outside expert records. layer is -1 for tensors of no layer."""
    name: str
    quant: str
    layout: str
    shape: tuple[int, ...]
    role: str
    layer: int
    offset: int
    nbytes: int
    gather: bool


@dataclass(frozen=True)
class PartInfo:
    """One matrix of an expert record; offset counts from the start of the record."""
    name: str
    quant: str
    layout: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, eq=False)
class ExpertLayer:
    """The expert records of one layer: record of slot s at base + s * stride. slot: expert id -> slot, int32 [n]."""
    layer: int
    n: int
    top_k: int
    base: int
    stride: int
    record_bytes: int
    parts: tuple[PartInfo, ...]
    slot: np.ndarray = field(repr=False)
