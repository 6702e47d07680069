"""A stranger's reader: written from formats/FORMAT.md alone, without moegg.formats.layout, and held against Container."""
import json
import struct

import pytest
from blake3 import blake3

from moegg.formats.container import Container

from .corrupt import write


def text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode()


def up(n: int, to: int) -> int:
    return (n + to - 1) // to * to


class Stranger:
    """Every table of a file, by struct and slices only."""

    def __init__(self, data: bytes):
        self.data = data
        (magic, self.read_version, _, header_bytes, _, _, self.tail, n_sections, n_layers, n_parts, n_tensors, names_bytes,
         config_bytes, meta_bytes, *_) = struct.unpack_from("<10s3H3Q7I2B", data)
        assert (magic, header_bytes) == (b"\x8dmoegg\r\n\x1a\n", 512)
        self.arch, self.name = text(data[160:192]), text(data[192:448])
        at = 512
        self.sections, at = self.rows("<32s40sHHIQQ16s", at, n_sections)
        self.layers, at = self.rows("<6I3Q", at, n_layers)
        self.parts, at = self.rows("<24sHBBI2IQQ", at, n_parts)
        self.config_text, self.meta_text = data[at:at + config_bytes], data[at + config_bytes:at + config_bytes + meta_bytes]
        n_records = sum(layer[1] for layer in self.layers)
        self.tensors, at = self.rows("<IHHiBBBB4IQQ", 65536, n_tensors)
        self.names = [data[at + t[0]:at + t[0] + t[1]] for t in self.tensors]
        at = up(at + names_bytes, 16)
        flat = struct.unpack_from(f"<{n_records}I", data, at)
        self.slots = [flat[sum(x[1] for x in self.layers[:i]):][:x[1]] for i, x in enumerate(self.layers)]
        at = up(at + 4 * n_records, 16)
        self.sums = [data[at + 16 * i:at + 16 * i + 16] for i in range(n_tensors + n_records)]
        self.index_end = at + 16 * (n_tensors + n_records)
        _, self.tail_bytes, n_tail, *_ = struct.unpack_from("<8sQIIQ32s", data, self.tail)
        self.tail_sections, _ = self.rows("<32s40sHHIQQ16s", self.tail + 64, n_tail)

    def rows(self, form: str, at: int, n: int) -> tuple[list[tuple], int]:
        size = struct.calcsize(form)
        return [struct.unpack_from(form, self.data, at + i * size) for i in range(n)], at + n * size

    def units(self):
        """(offset, bytes, checksum) of tensors, records and opaque sections."""
        sums = iter(self.sums)
        yield from ((t[12], t[13], next(sums)) for t in self.tensors)
        yield from ((x[6] + s * x[7], x[8], next(sums)) for x in self.layers for s in range(x[1]))
        yield from ((s[5], s[6], s[7]) for s in self.sections + self.tail_sections if s[2] == 2)


@pytest.fixture
def both(tmp_path) -> tuple[Stranger, Container]:
    data = write(tmp_path / "x.moegg")
    return Stranger(data), Container.open(tmp_path / "x.moegg")


def test_names_configs_and_tables(both):
    s, c = both
    assert (s.arch, s.name, json.loads(s.config_text), json.loads(s.meta_text)) == (c.arch, c.name, c.config, c.meta)
    assert [text(x[0]) for x in s.sections + s.tail_sections] == list(c.sections)
    assert s.tail + s.tail_bytes == len(s.data) == c.file_bytes and s.index_end == c.index.offset + c.index.nbytes
    for row, name, t in zip(s.tensors, s.names, c.tensors.values(), strict=True):
        assert (name.decode(), row[12], row[13], row[3], row[7]) == (t.name, t.offset, t.nbytes, t.layer, t.gather)
        assert tuple(d for d in row[8:12] if d) == t.shape
    for row, slots, e in zip(s.layers, s.slots, c.layers, strict=True):
        assert (row[0], row[1], row[2], row[6], row[7], row[8]) == (e.layer, e.n, e.top_k, e.base, e.stride, e.record_bytes)
        assert slots == tuple(e.slot)
        assert [(text(p[0]), p[5], p[6], p[7], p[8]) for p in s.parts[row[3]:row[3] + row[4]]] == [
            (p.name, *p.shape, p.offset, p.nbytes) for p in e.parts]


def test_hashes(both):
    s, c = both
    preamble = bytearray(s.data[:65536])
    preamble[80:96] = bytes(16)
    assert blake3(preamble).digest(16) == s.data[80:96]
    preamble[96:128] = bytes(32)
    assert blake3(bytes(preamble) + s.data[65536:s.index_end]).digest() == s.data[96:128] == c.root
    h = blake3(b"moegg content 1\0" + s.arch.encode() + b"\0" + s.config_text + b"\0")
    at = len(s.tensors)
    for row, slots in zip(s.layers, s.slots, strict=True):
        h.update(struct.pack("<II", row[0], row[1]) + b"".join(s.sums[at + slot] for slot in slots))
        at += row[1]
    for name, checksum in sorted(zip(s.names, s.sums, strict=False)):
        h.update(name + b"\0" + checksum)
    assert h.digest() == s.data[128:160] == c.content_id
    head = s.data[s.tail:s.tail + 64 + 112 * len(s.tail_sections)]
    assert blake3(head[:32] + bytes(32) + head[64:]).digest() == head[32:64]
    for offset, nbytes, checksum in s.units():
        assert blake3(s.data[offset:offset + nbytes]).digest(16) == checksum


def test_every_other_byte_is_zero(both):
    s, _ = both
    rest = bytearray(s.data)
    for offset, nbytes, _ in [*s.units(), (0, 65536, b""), (65536, s.index_end - 65536, b""), (s.tail, 64 + 112 * 2, b"")]:
        rest[offset:offset + nbytes] = bytes(nbytes)
    assert not any(rest)
