"""A tiny valid container, and one or more ways to break each rule of formats/FORMAT.md.

Every mutation repairs the hashes above the bytes it changes, so that the rule it aims at, and no checksum, has to catch it.
"""
from collections.abc import Callable

import numpy as np

from moegg.formats import layout as L
from moegg.formats.validate import preamble_checksum, root_hash, tail_hash
from moegg.formats.writer import ContainerWriter, ExpertSpec, PartSpec, TensorSpec

Mutation = Callable[[bytearray], None]
GATE, UP = PartSpec("gate", (16, 32), "q4_0", "interleaved"), PartSpec("up", (16, 32), "q4_0", "interleaved")
DOWN = PartSpec("down", (32, 16), "f16", "interleaved")
CONFIG = b'{"hidden_size":32,"layers":[1,2],"rope_theta":10000.0}'


def tiny() -> dict:
    """Arguments of a ContainerWriter: every table has at least two rows, and both kinds of layers occur."""
    return {
        "arch": "qwen3-moe", "name": "Tiny ünit 空", "config": {"hidden_size": 32, "rope_theta": 10000.0, "layers": [1, 2]},
        "meta": {"recipe": {"name": "q4", "version": 1}},
        "tensors": [TensorSpec("embed", (20, 32), "q8_0", "row-major", "embed", gather=True),
                    TensorSpec("layers.0.attn_norm", (32,), "f32", "row-major", "norm", 0),
                    TensorSpec("layers.0.attn.q", (20, 32), "q4_0", "interleaved", "attn", 0),
                    TensorSpec("table", (4, 32), "f32", "row-major", "aux", gather=True)],
        "experts": [ExpertSpec(0, 2, 1, (GATE, UP, DOWN)), ExpertSpec(2, 2, 2, (DOWN,))],
        "sections": {"tokenizer": ("application/json", b'{"model":{}}'), "license": ("text/plain", b"Apache-2.0"),
                     "chat_template": ("application/json", b'{"default":"{{ messages }}"}'),
                     "model_card": ("text/markdown", b"# Tiny")},
    }


def pattern(seed: int, n: int) -> bytes:
    """n bytes that depend on the seed, never zero, and compress well."""
    return bytes((seed * 37 + i * 11) % 255 + 1 for i in range(n))


def record_parts(e: ExpertSpec, expert: int) -> list[bytes]:
    """What fill() puts into the record of one expert."""
    return [pattern(50 + 20 * e.layer + 5 * expert + i, p.nbytes) for i, p in enumerate(e.parts)]


def fill(w: ContainerWriter, spec: dict, backwards: bool = False) -> None:
    """Put every tensor and record of `spec`, in either order."""
    puts = [lambda i=i, t=t: w.put_tensor(t.name, pattern(i, t.nbytes)) for i, t in enumerate(spec["tensors"])]
    puts += [lambda e=e, x=x: w.put_record(e.layer, x, record_parts(e, x)) for e in spec["experts"] for x in range(e.n)]
    for put in reversed(puts) if backwards else puts:
        put()


def write(path, spec: dict | None = None, backwards: bool = False, force: bool = False) -> bytes:
    """Write the tiny container, or `spec`, to `path`; returns its bytes."""
    spec = spec or tiny()
    with ContainerWriter(path, **spec, force=force) as w:
        fill(w, spec, backwards)
        w.finish()
    return path.read_bytes()


# --- where things are, and repairing hashes -------------------------------------------------------------------------------------

def header_of(buf: bytes) -> L.Header:
    return L.Header(*L.HEADER.unpack_from(buf))


def table(buf: bytearray, name: str) -> np.ndarray:
    """A writable view of one table. Keep no reference to it: a viewed bytearray cannot change its length."""
    h = header_of(buf)
    layers = L.HEADER_BYTES + h.n_sections * L.SECTION_ROW.itemsize
    parts = layers + h.n_layers * L.LAYER_ROW.itemsize
    names, slots, sums = index_at(buf)
    dtype, n, at = {
        "sections": (L.SECTION_ROW, h.n_sections, L.HEADER_BYTES), "layers": (L.LAYER_ROW, h.n_layers, layers),
        "parts": (L.PART_ROW, h.n_parts, parts), "tensors": (L.TENSOR_ROW, h.n_tensors, L.PREAMBLE_BYTES),
        "names": (np.uint8, h.names_bytes, names), "slots": ("<u4", (sums - slots) // 4, slots),
        "tail": (L.SECTION_ROW, 2, h.tail_offset + L.TAIL_HEADER_BYTES)}[name]
    return np.frombuffer(buf, dtype, n, at)


def index_at(buf: bytes) -> tuple[int, int, int]:
    """File offsets of names, slots and checksums of a tiny container (4 records)."""
    h = header_of(buf)
    spans = L.index_spans(h.n_tensors, h.names_bytes, 4)
    return tuple(L.PREAMBLE_BYTES + s.start for s in spans[1:])


def json_at(buf: bytes) -> int:
    h = header_of(buf)
    return (L.HEADER_BYTES + h.n_sections * L.SECTION_ROW.itemsize + h.n_layers * L.LAYER_ROW.itemsize
            + h.n_parts * L.PART_ROW.itemsize)


def reseal(buf: bytearray, root: bool = True) -> None:
    """Make root hash and preamble checksum true again."""
    index_end = L.PREAMBLE_BYTES + int(table(buf, "sections")[0]["nbytes"])
    preamble = bytes(buf[:L.PREAMBLE_BYTES])
    if root:
        buf[L.ROOT_SPAN] = root_hash(preamble, bytes(buf[L.PREAMBLE_BYTES:index_end]))
    buf[L.CHECKSUM_SPAN] = preamble_checksum(bytes(buf[:L.PREAMBLE_BYTES]))


def header(**fields) -> Mutation:
    def mutate(buf: bytearray) -> None:
        buf[:L.HEADER_BYTES] = L.HEADER.pack(*header_of(buf)._replace(**fields))
        buf[L.CHECKSUM_SPAN] = preamble_checksum(bytes(buf[:L.PREAMBLE_BYTES]))
    return mutate


def row(where: str, i: int, /, **fields) -> Mutation:
    """Set fields of row i of a table; a callable value maps the old one."""
    def mutate(buf: bytearray) -> None:
        t = table(buf, where)
        for key, value in fields.items():
            t[key][i] = value(t[key][i].item()) if callable(value) else value
        del t
        if where == "tail":
            reseal_tail(buf)
        else:
            reseal(buf)
    return mutate


def reseal_tail(buf: bytearray) -> None:
    at = header_of(buf).tail_offset
    head = bytes(buf[at:at + L.TAIL_HEADER_BYTES + 2 * L.SECTION_ROW.itemsize])
    buf[at + 32:at + 64] = tail_hash(head)


def jsons(config: bytes = b"{}", meta: bytes = b"{}") -> Mutation:
    """Replace the text of config and meta."""
    def mutate(buf: bytearray) -> None:
        at = json_at(buf)
        buf[at:L.PREAMBLE_BYTES] = (config + meta).ljust(L.PREAMBLE_BYTES - at, b"\0")
        header(config_bytes=len(config), meta_bytes=len(meta))(buf)
        reseal(buf)
    return mutate


def bytes_at(where: Callable[[bytearray], int], new: bytes, seal: Callable = reseal) -> Mutation:
    def mutate(buf: bytearray) -> None:
        at = where(buf)
        buf[at:at + len(new)] = new
        seal(buf)
    return mutate


def tail_header(**fields) -> Mutation:
    names = ("magic", "tail_bytes", "n", "zero0", "zero1", "digest")
    def mutate(buf: bytearray) -> None:
        at = header_of(buf).tail_offset
        old = dict(zip(names, L.TAIL_HEADER.unpack_from(buf, at), strict=True))
        buf[at:at + L.TAIL_HEADER_BYTES] = L.TAIL_HEADER.pack(*(old | fields).values())
        reseal_tail(buf)
    return mutate


def whole(f: Callable[[bytes], bytes]) -> Mutation:
    """Replace the whole file."""
    def mutate(buf: bytearray) -> None:
        buf[:] = f(bytes(buf))
    return mutate


def grow(by: int) -> Callable[[int], int]:
    return lambda old: old + by


def no_seal(buf: bytearray) -> None:
    """Leave every hash as it is."""


def both(*mutations: Mutation) -> Mutation:
    def mutate(buf: bytearray) -> None:
        for m in mutations:
            m(buf)
        reseal(buf)
    return mutate


def slots(at: int, *values: int) -> Mutation:
    return bytes_at(lambda b: index_at(b)[1] + 4 * at, np.array(values, "<u4").tobytes())


def in_section(i: int, by: int) -> Callable[[bytearray], int]:
    return lambda b: int(table(b, "sections")["offset"][i]) + by


def in_layer(i: int, by: int) -> Callable[[bytearray], int]:
    return lambda b: int(table(b, "layers")["base"][i]) + by


def in_tail(by: int) -> Callable[[bytearray], int]:
    return lambda b: header_of(b).tail_offset + by


# Sections of the tiny container: 0 index, 1 license, 2 tokenizer, 3 resident, 4 gather, 5 experts; tail: 0 chat_template,
# 1 model_card. Tensors: 0 attn_norm, 1 attn.q, 2 embed, 3 table. Layers 0 (parts 0 to 2) and 2 (part 3).
MUTATIONS: list[tuple[str, str, Mutation]] = [
    ("R1", "gguf", whole(lambda b: b"GGUF\3\0\0\0" + b[8:])),
    ("R1", "safetensors", whole(lambda b: (80).to_bytes(8, "little") + b'{"__metadata__":{}' + b[26:])),
    ("R1", "zip archive", whole(lambda b: b"PK\3\4" + b[4:])),
    ("R1", "web page", whole(lambda b: b"<!DOCTYPE html>\n<html>404</html>")),
    ("R1", "git-lfs pointer", whole(lambda b: b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")),
    ("R1", "unfinished", whole(lambda b: bytes(512) + b[512:])),
    ("R1", "no bytes", whole(lambda b: b"")),
    ("R1", "noise", whole(lambda b: b"\x13" * 4 + b[16:])),
    ("R2", "CR LF to LF", whole(lambda b: b.replace(b"\r\n", b"\n"))),
    ("R2", "LF to CR LF", whole(lambda b: b.replace(b"\n", b"\r\n"))),
    ("R2", "seven bits", whole(lambda b: bytes(x & 127 for x in b[:512]) + b[512:])),
    ("R2", "latin-1 to utf-8", whole(lambda b: b.decode("latin-1").encode())),
    ("R2", "utf-8 replacement", whole(lambda b: b.decode("utf-8", "replace").encode())),
    ("R3", "newer", header(read_version=2, write_version=2)),
    ("R3", "zero", header(read_version=0)),
    ("R3", "write below read", header(write_version=0)),
    ("R3", "header size", header(header_bytes=1024)),
    ("R4", "reserved bit", header(required=1)),
    ("R4", "unknown bit", header(required=1 << 63)),
    ("R5", "one byte", whole(lambda b: b[:-1])),
    ("R5", "half", whole(lambda b: b[:len(b) // 2])),
    ("R5", "in the preamble", whole(lambda b: b[:60000])),
    ("R5", "in the header", whole(lambda b: b[:300])),
    ("R6", "one byte", whole(lambda b: b + b"\0")),
    ("R6", "twice", whole(lambda b: b + b)),
    ("R7", "name", bytes_at(lambda b: 195, b"\x01", no_seal)),
    ("R7", "checksum", bytes_at(lambda b: 80, bytes(4), no_seal)),
    ("R7", "padding", bytes_at(lambda b: 65000, b"\x01", no_seal)),
    ("R8", "sections", header(n_sections=L.MAX_SECTIONS + 1)),
    ("R8", "layers", header(n_layers=1 << 31)),
    ("R8", "parts", header(n_parts=1 << 20)),
    ("R8", "tensors", header(n_tensors=(1 << 32) - 1)),
    ("R8", "names", header(names_bytes=(1 << 32) - 1)),
    ("R8", "opaque section", row("sections", 1, nbytes=(1 << 64) - 1)),
    ("R8", "experts", row("layers", 0, n=L.MAX_EXPERTS + 1)),
    ("R9", "config", header(config_bytes=65536)),
    ("R9", "meta", header(meta_bytes=(1 << 32) - 1)),
    ("R9", "tables", header(n_layers=L.MAX_LAYERS, n_parts=L.MAX_PARTS)),
    ("R10", "header", header(reserved1=1)),
    ("R10", "header pair", header(reserved0=256)),
    ("R10", "header end", header(reserved2=bytes(63) + b"\1")),
    ("R10", "section", row("sections", 1, reserved=1)),
    ("R10", "section flag", row("sections", 1, flags=2)),
    ("R10", "layer", row("layers", 1, reserved=1)),
    ("R10", "part", row("parts", 2, reserved=1)),
    ("R10", "tensor flag", row("tensors", 0, flags=2)),
    ("R10", "preamble", bytes_at(lambda b: L.PREAMBLE_BYTES - 1, b"\1")),
    ("R10", "after names", bytes_at(lambda b: index_at(b)[1] - 1, b"\1")),
    ("R11", "arch", header(arch=b"qwen3\0moe")),
    ("R11", "no arch", header(arch=b"")),
    ("R11", "model name", header(name=b"a\nb")),
    ("R11", "no model name", header(name=b"")),
    ("R11", "model name utf-8", header(name=b"\xff")),
    ("R11", "section", row("sections", 1, name=b"a/b")),
    ("R11", "media type", row("sections", 1, media=b"a b")),
    ("R11", "part", row("parts", 0, name=b"")),
    ("R11", "tensor", bytes_at(lambda b: index_at(b)[0], b"/")),
    ("R11", "tail", row("tail", 0, name=b"../x")),
    ("R12", "section", row("sections", 2, name=b"license")),
    ("R12", "part", row("parts", 1, name=b"gate")),
    ("R12", "tensor", bytes_at(lambda b: index_at(b)[0] + header_of(b).names_bytes - 5, b"embed")),
    ("R12", "tail", row("tail", 1, name=b"tokenizer")),
    ("R13", "same key twice", jsons(b'{"a":1,"a":1}')),
    ("R13", "order of keys", jsons(b'{"b":1,"a":1}')),
    ("R13", "space", jsons(b'{"a": 1}')),
    ("R13", "nan", jsons(b'{"a":NaN}')),
    ("R13", "infinite", jsons(b'{"a":-1e999}')),
    ("R13", "long integer", jsons(meta=b'{"a":9223372036854775808}')),
    ("R13", "very long integer", jsons(meta=b'{"a":' + b"9" * 9000 + b"}")),
    ("R13", "utf-8", jsons(b'{"a":"\xff"}')),
    ("R13", "surrogate", jsons(b'{"a":"\\udc00"}')),
    ("R13", "list", jsons(meta=b"[1]")),
    ("R13", "nothing", jsons(b"")),
    ("R13", "cut", jsons(b'{"a":')),
    ("R13", "17 levels", jsons(b'{"a":' + b"[" * 16 + b"]" * 16 + b"}")),
    ("R13", "20000 levels", jsons(b'{"a":' + b"[" * 20000 + b"]" * 20000 + b"}")),
    ("R14", "part quant", row("parts", 0, quant=4)),
    ("R14", "tensor quant", row("tensors", 0, quant=999)),
    ("R14", "layout", row("tensors", 0, layout=2)),
    ("R14", "role", row("tensors", 0, role=9)),
    ("R15", "unknown", row("sections", 1, kind=77, flags=1)),
    ("R15", "reserved", row("sections", 1, kind=6, flags=1)),
    ("R15", "tail", row("tail", 0, kind=8, flags=1)),
    ("R16", "name", row("sections", 3, name=b"resident2")),
    ("R16", "second index", row("sections", 1, kind=1)),
    ("R16", "media type", row("sections", 3, media=b"x")),
    ("R16", "checksum", row("sections", 5, checksum=b"\1" * 16)),
    ("R16", "no bytes", row("sections", 4, nbytes=0)),
    ("R16", "index size", both(header(n_tensors=3))),
    ("R16", "experts size", both(row("sections", 5, nbytes=grow(4096)), whole(lambda b: b + bytes(4096)),
                                 lambda b: header(tail_offset=header_of(b).tail_offset + 4096)(b))),
    ("R17", "small", header(record_align_log2=13)),
    ("R17", "large", header(resident_align_log2=22)),
    ("R18", "gap", row("sections", 1, offset=grow(4096))),
    ("R18", "overlap", row("sections", 2, offset=grow(-4096))),
    ("R18", "unaligned", row("sections", 3, offset=grow(64))),
    ("R18", "endless", row("sections", 3, nbytes=(1 << 64) - 1)),
    ("R18", "experts", row("sections", 5, offset=grow(16384))),
    ("R18", "tail", header(tail_offset=0)),
    ("R19", "no axes", row("tensors", 0, ndim=0)),
    ("R19", "five axes", row("tensors", 0, ndim=5)),
    ("R19", "empty axis", row("tensors", 1, shape=(0, 32, 0, 0))),
    ("R19", "spare axis", row("tensors", 0, shape=(32, 1, 0, 0))),
    ("R19", "half a block", row("tensors", 1, shape=(20, 31, 0, 0))),
    ("R19", "interleaved vector", row("tensors", 0, layout=1)),
    ("R19", "part", row("parts", 0, ndim=3)),
    ("R20", "tensor", row("tensors", 1, nbytes=grow(64))),
    ("R20", "no bytes", row("tensors", 0, nbytes=0)),
    ("R20", "shape", row("tensors", 1, shape=(40, 32, 0, 0))),
    ("R20", "product wraps to 0", row("tensors", 0, ndim=4, shape=(1 << 31, 1 << 31, 4, 32), nbytes=0)),
    ("R20", "part", row("parts", 0, nbytes=grow(64))),
    ("R20", "large part", row("parts", 2, shape=((1 << 32) - 1, (1 << 32) - 1))),
    ("R21", "order", row("layers", 1, layer=0)),
    ("R21", "layer number", row("layers", 1, layer=L.MAX_LAYER)),
    ("R21", "top-k", row("layers", 0, top_k=3)),
    ("R21", "no top-k", row("layers", 0, top_k=0)),
    ("R21", "no experts", row("layers", 0, n=0, top_k=0)),
    ("R21", "other run", row("layers", 1, first_part=2)),
    ("R21", "no parts", row("layers", 1, n_parts=0)),
    ("R21", "parts beyond", row("layers", 1, n_parts=2)),
    ("R21", "parts unused", row("layers", 1, first_part=0, n_parts=3, record_bytes=1664)),
    ("R22", "record", row("layers", 0, record_bytes=grow(64))),
    ("R22", "stride", row("layers", 0, stride=grow(16384))),
    ("R22", "odd stride", row("layers", 1, stride=grow(1))),
    ("R22", "base", row("layers", 1, base=grow(16384))),
    ("R22", "gap", row("parts", 1, offset=grow(64))),
    ("R22", "overlap", row("parts", 1, offset=0)),
    ("R23", "index", bytes_at(lambda b: L.PREAMBLE_BYTES, b"\xff", no_seal)),
    ("R23", "a checksum", bytes_at(lambda b: index_at(b)[2] + 70, b"\xff", no_seal)),
    ("R23", "root", lambda b: (b.__setitem__(L.ROOT_SPAN, bytes(32)), reseal(b, root=False))),
    ("R24", "name", row("tensors", 1, name_offset=grow(1))),
    ("R24", "names", row("tensors", 3, name_bytes=2)),
    ("R24", "layer", row("tensors", 0, layer=-2)),
    ("R24", "offset", row("tensors", 1, offset=grow(64))),
    ("R24", "outside", row("tensors", 0, offset=0)),
    ("R24", "gather first", row("tensors", 0, flags=1)),
    ("R24", "resident last", row("tensors", 3, flags=0)),
    ("R24", "unlisted", row("sections", 3, nbytes=grow(-64))),
    ("R25", "twice", slots(1, 0)),
    ("R25", "beyond", slots(0, 2)),
    ("R25", "far beyond", slots(3, (1 << 32) - 1)),
    ("R26", "zero", both(header(content_id=bytes(32)))),
    ("R26", "slots swapped", slots(0, 1, 0)),
    ("R27", "magic", tail_header(magic=b"moeggtl\r")),
    ("R27", "sections", tail_header(n=L.MAX_TAIL_SECTIONS + 1)),
    ("R27", "short", tail_header(tail_bytes=63)),
    ("R27", "long", tail_header(tail_bytes=1 << 62)),
    ("R27", "reserved", tail_header(zero1=1)),
    ("R27", "table", bytes_at(in_tail(70), b"x", no_seal)),
    ("R27", "offset", row("tail", 1, offset=grow(64))),
    ("R27", "kind", row("tail", 1, kind=3)),
    ("R27", "bytes", row("tail", 1, nbytes=grow(1))),
    ("R28", "tensor", bytes_at(in_section(3, 1), b"\0", no_seal)),
    ("R28", "row-gather tensor", bytes_at(in_section(4, 1), b"\0", no_seal)),
    ("R28", "record", bytes_at(in_layer(1, 5), b"\0", no_seal)),
    ("R28", "between parts", bytes_at(in_layer(0, 300), b"\1", no_seal)),
    ("R28", "section", bytes_at(in_section(2, 0), b"[", no_seal)),
    ("R28", "tail section", whole(lambda b: b[:-1] + b"!")),
    ("R29", "after index", bytes_at(in_section(1, -1), b"\1", no_seal)),
    ("R29", "before weights", bytes_at(in_section(3, -1), b"\1", no_seal)),
    ("R29", "after a record", bytes_at(in_layer(1, -1), b"\1", no_seal)),
    ("R29", "before the tail", bytes_at(in_tail(-1), b"\1", no_seal)),
    ("R29", "in the tail", bytes_at(lambda b: int(table(b, "tail")["offset"][1]) - 1, b"\1", no_seal)),
]

VALID: list[tuple[str, Mutation]] = [
    ("optional features", both(header(optional=(1 << 64) - 1))),
    ("later writer", both(header(write_version=9))),
    ("unknown optional section", row("sections", 1, kind=77)),
    ("reserved optional section", row("sections", 2, kind=7)),
    ("unknown optional section in the tail", row("tail", 0, kind=500)),
    ("16 levels", jsons(CONFIG, b'{"a":' + b"[" * 15 + b"]" * 15 + b"}")),
]
