"""moegg.formats.gguf: what it reads (files of the gguf package), and what it refuses (files spelled out as bytes)."""
import os
import struct

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter

from moegg.errors import FormatError, NotFound
from moegg.formats.gguf import TYPES, GGUFFile

U32, STR, ARR, F32 = 4, 8, 9, 6


def s(text: str | bytes) -> bytes:
    text = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(text)) + text


def kv(key: str | bytes, kind: int, payload: bytes) -> bytes:
    return s(key) + struct.pack("<I", kind) + payload


def info(name: str, dims: list[int], type_id: int = 0, offset: int = 0) -> bytes:
    return s(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, type_id, offset)


def gguf(keys: list[bytes] = (), tensors: list[bytes] = (), data: bytes = b"", *, version: int = 3, n_keys: int | None = None,
         n_tensors: int | None = None, align: int = 32) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors) if n_tensors is None else n_tensors,
                                 len(keys) if n_keys is None else n_keys) + b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % align) + data


@pytest.fixture
def write(tmp_path):
    def write(data: bytes, name: str = "m.gguf"):
        path = tmp_path / name
        path.write_bytes(data)
        return path
    return write


def refuse(path, slug: str) -> str:
    with pytest.raises(FormatError) as e:
        GGUFFile.open(path)
    assert e.value.slug == slug, e.value
    assert "\n" not in str(e.value)
    return str(e.value)


@pytest.fixture
def sample(tmp_path):
    """A file with every value type and several tensor types, by the gguf package."""
    path = tmp_path / "sample.gguf"
    w = GGUFWriter(path, "llama")
    for kind, value in ((GGUFValueType.UINT8, 200), (GGUFValueType.INT8, -3), (GGUFValueType.UINT16, 60000),
                        (GGUFValueType.INT16, -300), (GGUFValueType.UINT32, 4_000_000_000),
                        (GGUFValueType.INT32, -5), (GGUFValueType.FLOAT32, 0.1),
                        (GGUFValueType.BOOL, True), (GGUFValueType.UINT64, 2**63), (GGUFValueType.INT64, -(2**40)),
                        (GGUFValueType.FLOAT64, 0.1), (GGUFValueType.STRING, "ünï\n")):
        w.add_key_value(f"x.{kind.name.lower()}", value, kind)
    w.add_array("x.ints", [1, -2, 3])
    w.add_array("x.floats", [0.5, float("nan"), float("inf")])
    w.add_array("x.strings", ["", "a", "▁the", "<0x0A>"])
    w.add_array("x.bools", [True, False])
    rng = np.random.default_rng(0)
    w.add_tensor("a", rng.standard_normal((3, 64)).astype("f4"))
    w.add_tensor("b", rng.standard_normal(7).astype("f2"))
    w.add_tensor("c", rng.integers(0, 255, (4, 2, 2 * 144), dtype=np.uint8), raw_dtype=GGMLQuantizationType.Q4_K)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def test_reads_what_the_gguf_package_writes(sample):
    f, r = GGUFFile.open(sample), GGUFReader(sample)
    want = {k: v.contents() for k, v in r.fields.items() if not k.startswith("GGUF.")}
    assert list(f.metadata) == list(want)
    for key, value in want.items():
        np.testing.assert_equal(f.metadata[key], value)
    assert f.metadata["x.bool"] is True and f.metadata["x.bools"] == [True, False]
    assert [f.kinds[f"x.{key}"] for key in ("uint8", "float64", "strings", "floats")] == ["u8", "f64", "[str]", "[f32]"]
    assert [(t.name, t.quant, t.shape) for t in f.tensors.values()] == [
        ("a", "f32", (3, 64)), ("b", "f16", (7,)), ("c", "q4_k", (4, 2, 512))]
    for t in r.tensors:
        assert f.read(t.name).tobytes() == t.data.tobytes()
        assert f.tensors[t.name].offset == t.data_offset
    assert f.read("c", 5, 7).tobytes() == f.read("c").tobytes()[5 * 288:7 * 288]
    with pytest.raises(NotFound):
        f.read("z")


def test_opening_reads_no_weights(write, monkeypatch):
    path = write(gguf(tensors=[info("a", [1_000_000])], data=bytes(4_000_000)))
    read, real = [], os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, bufs, at: read.append(sum(map(len, bufs))) or real(fd, bufs, at))
    GGUFFile.open(path)
    assert sum(read) <= 1 << 16


@pytest.mark.parametrize("end", [1 << 16, 1 << 18])
def test_a_value_may_lie_across_the_end_of_what_was_read_so_far(write, end):
    """What is read at first ends after 64 KiB, or with a string that is longer than that: a length, a type, a number, an array or a
    string may follow, or lie across."""
    numbers = struct.pack("<IQ", U32, 3) + struct.pack("<3I", 1, 2, 3)
    words = struct.pack("<IQ", STR, 2) + s("one") + s("two")
    for at in range(200):
        keys = [kv("fill", STR, s(bytes(end - 240 + at))), kv("a", U32, struct.pack("<I", 7)), kv("b", ARR, numbers), kv("c", ARR, words)]
        f = GGUFFile.open(write(gguf(keys, [info("x", [8, 2])], bytes(64))))
        assert (f.metadata["a"], f.metadata["b"], f.metadata["c"], f.tensors["x"].shape) == (7, [1, 2, 3], ["one", "two"], (2, 8))
        f.close()


def test_a_vocabulary_of_260_k_tokens_survives_refills_of_the_buffer(write):
    tokens = [f"tok{i}" * (i % 5) for i in range(262_144)]
    array = struct.pack("<IQ", STR, len(tokens)) + b"".join(map(s, tokens))
    f = GGUFFile.open(write(gguf([kv("tokenizer.ggml.tokens", ARR, array), kv("after", U32, struct.pack("<I", 7))])))
    assert f.metadata["tokenizer.ggml.tokens"] == tokens and f.metadata["after"] == 7


def test_version_2_reads_like_version_3(write):
    f = GGUFFile.open(write(gguf(tensors=[info("a", [4])], data=np.arange(4, dtype="<f4").tobytes(), version=2)))
    assert f.version == 2 and f.read("a").view("<f4").tolist() == [[0, 1, 2, 3]]


def test_general_alignment_moves_the_data(write):
    keys = [kv("general.alignment", U32, struct.pack("<I", 64))]
    f = GGUFFile.open(write(gguf(keys, [info("a", [1]), info("b", [1], offset=64)], bytes(64) + struct.pack("<f", 5), align=64)))
    assert f.alignment == 64 and f.tensors["a"].offset % 64 == 0 and f.read("b").view("<f4")[0, 0] == 5


HUGE = struct.pack("<Q", 2**64 - 1)
HOSTILE = {
    "magic": (b"GGML" + bytes(60), "gguf-magic", "GGML"),
    "empty": (b"", "gguf-truncated", "magic"),
    "only magic": (b"GGUF", "gguf-truncated", "version"),
    "v1": (gguf(version=1), "gguf-version", "got 1"),
    "v4": (gguf(version=4), "gguf-version", "got 4"),
    "v0": (gguf(version=0), "gguf-version", "got 0"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + bytes(40), "gguf-version", "big-endian"),
    # ggml-org/llama.cpp#27188: a 43-byte file that hung a reader.
    "43 bytes": ((gguf(n_keys=2**60, n_tensors=2**60) + bytes(43))[:43], "gguf-header", "keys"),
    "key count": (gguf(n_keys=2**63), "gguf-header", "keys"),
    "tensor count": (gguf(n_tensors=2**64 - 1), "gguf-header", "tensors"),
    "key longer than the file": (gguf([HUGE + b"x" * 20]), "gguf-header", "string of"),
    "string longer than the file": (gguf([kv("a", STR, HUGE)]), "gguf-header", "string of"),
    "string a little longer": (gguf([kv("a", STR, struct.pack("<Q", 100) + b"x")]), "gguf-truncated", "'a'"),
    "array count": (gguf([kv("a", ARR, struct.pack("<I", U32) + HUGE)]), "gguf-header", "'a'"),
    "array beyond the file": (gguf([kv("a", ARR, struct.pack("<IQ", U32, 10**6))]), "gguf-truncated", "'a'"),
    "string array count": (gguf([kv("a", ARR, struct.pack("<IQ", STR, 10**7))]), "gguf-header", "'a'"),
    "string in array": (gguf([kv("a", ARR, struct.pack("<IQ", STR, 2) + s("x") + HUGE)]), "gguf-truncated", "string 1"),
    "nested array": (gguf([kv("a", ARR, struct.pack("<IQIQ", ARR, 1, ARR, 1))]), "gguf-header", "arrays"),
    "value type": (gguf([kv("a", 13, bytes(8))]), "gguf-header", "13"),
    "array value type": (gguf([kv("a", ARR, struct.pack("<IQ", 99, 0))]), "gguf-header", "99"),
    "bool 2": (gguf([kv("a", 7, b"\x02")]), "gguf-header", "bool"),
    "bool 2 in array": (gguf([kv("a", ARR, struct.pack("<IQ", 7, 3) + b"\0\1\2")]), "gguf-header", "bool"),
    "empty key": (gguf([kv("", U32, bytes(4))]), "gguf-header", "empty"),
    "key twice": (gguf([kv("a", U32, bytes(4))] * 2), "gguf-header", "twice"),
    "key not utf-8": (gguf([kv(b"\xff", U32, bytes(4))]), "gguf-header", "UTF-8"),
    "token not utf-8": (gguf([kv("a", ARR, struct.pack("<IQ", STR, 2) + s("x") + s(b"\xc3"))]), "gguf-header", "string 1"),
    "alignment 0": (gguf([kv("general.alignment", U32, bytes(4))]), "gguf-header", "alignment"),
    "alignment 48": (gguf([kv("general.alignment", U32, struct.pack("<I", 48))]), "gguf-header", "48"),
    "alignment 2**30": (gguf([kv("general.alignment", U32, struct.pack("<I", 1 << 30))]), "gguf-header", "power of two"),
    "alignment is text": (gguf([kv("general.alignment", STR, s("32"))]), "gguf-header", "'32'"),
    "no dims": (gguf(tensors=[info("a", [])], data=bytes(64)), "gguf-header", "0 dimensions"),
    "5 dims": (gguf(tensors=[info("a", [1] * 5)], data=bytes(64)), "gguf-header", "5 dimensions"),
    "2**32 dims": (gguf(tensors=[s("a") + b"\xff" * 4 + bytes(64)]), "gguf-header", "dimensions"),
    # ggml-org/llama.cpp#24263: a dimension of 0 divided by zero.
    "dim 0": (gguf(tensors=[info("a", [0, 4])], data=bytes(64)), "gguf-header", "[0, 4]"),
    # CVE-2025-53630 and kin: the product wraps to something small.
    "dims wrap": (gguf(tensors=[info("a", [2**32, 2**32, 1])], data=bytes(64)), "gguf-header", "'a'"),
    "dims wrap to 0": (gguf(tensors=[info("a", [2**63, 2])], data=bytes(64)), "gguf-header", "'a'"),
    "partial block": (gguf(tensors=[info("a", [33], 8)], data=bytes(64)), "gguf-header", "32"),
    "unknown type": (gguf(tensors=[info("a", [32], 77)], data=bytes(64)), "gguf-quant", "77"),
    "removed type": (gguf(tensors=[info("a", [32], 31)], data=bytes(64)), "gguf-quant", "q4_0_4_4"),
    "offset unaligned": (gguf(tensors=[info("a", [4], offset=4)], data=bytes(64)), "gguf-header", "32"),
    # CVE-2026-7482: offset beyond the file.
    "offset beyond": (gguf(tensors=[info("a", [4], offset=2**40)], data=bytes(64)), "gguf-truncated", "'a'"),
    "offset wraps": (gguf(tensors=[info("a", [4], offset=2**64 - 32)], data=bytes(64)), "gguf-truncated", "'a'"),
    "overlap": (gguf(tensors=[info("a", [16]), info("b", [4], offset=32)], data=bytes(96)), "gguf-header", "inside 'a'"),
    "tensor twice": (gguf(tensors=[info("a", [4]), info("a", [4], offset=32)], data=bytes(64)), "gguf-header", "twice"),
    "tensor without name": (gguf(tensors=[info("", [4])], data=bytes(64)), "gguf-header", "name"),
    "tensor name of 2 KB": (gguf(tensors=[info("x" * 2000, [4])], data=bytes(64)), "gguf-header", "string of"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_refused_in_one_line(write, case):
    data, slug, says = HOSTILE[case]
    assert says in refuse(write(data), slug)


def test_a_truncated_file_names_tensor_and_missing_bytes(sample):
    """F1."""
    size = sample.stat().st_size
    end = max(t.offset + t.nbytes for t in GGUFFile.open(sample).tensors.values())
    os.truncate(sample, end - 1000)
    message = refuse(sample, "gguf-truncated")
    assert "'c'" in message and "1000 B are missing" in message and size >= end


def test_every_truncation_of_the_header_is_a_format_error(write, sample):
    data = sample.read_bytes()
    for n in range(0, len(data), 7):
        f = None
        try:
            f = GGUFFile.open(write(data[:n]))
        except FormatError:
            continue
        assert f.tensors and n >= max(t.offset + t.nbytes for t in f.tensors.values())


def test_mutated_files_are_refused_or_read_within_bounds(write, sample):
    data = sample.read_bytes()
    header = min(t.offset for t in GGUFFile.open(sample).tensors.values())
    rng = np.random.default_rng(2)
    for _ in range(2000):
        mutant = bytearray(data)
        for _ in range(rng.integers(1, 4)):
            mutant[rng.integers(header)] = rng.choice([0, 1, 255, rng.integers(256)])
        try:
            f = GGUFFile.open(write(bytes(mutant)))
        except FormatError:
            continue
        for name, t in f.tensors.items():
            assert f.read(name).nbytes == t.nbytes
        f.close()


def test_a_file_that_shrinks_while_it_is_read_is_an_error_not_a_crash(sample):
    f = GGUFFile.open(sample)
    os.truncate(sample, f.tensors["c"].offset + 5)
    with pytest.raises(FormatError, match="file-short"):
        f.read("c")


def test_no_file_and_no_regular_file(tmp_path):
    with pytest.raises(NotFound):
        GGUFFile.open(tmp_path / "x.gguf")
    refuse(tmp_path, "file-kind")
    os.mkfifo(tmp_path / "pipe")
    refuse(tmp_path / "pipe", "file-kind")


def test_the_type_table_knows_what_the_package_knows():
    for t in GGMLQuantizationType:
        assert TYPES[t] == (t.name.lower(), *GGML_QUANT_SIZES[t])
