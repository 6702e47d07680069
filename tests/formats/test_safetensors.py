"""moegg.formats.safetensors: what it reads, and what it refuses. Hostile headers are spelled out as bytes."""
import json
import os
import struct

import numpy as np
import pytest
from safetensors.numpy import save_file

from moegg.errors import FormatError, NotFound
from moegg.formats.safetensors import DTYPE_BITS, INDEX, SafetensorsSet


def raw(header: dict | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(begin: int, end: int, shape=None, dtype="F32") -> dict:
    return {"dtype": dtype, "shape": [(end - begin) // 4] if shape is None else shape, "data_offsets": [begin, end]}


def refuse(path, slug: str) -> str:
    with pytest.raises(FormatError) as e:
        SafetensorsSet.open(path)
    assert e.value.slug == slug, e.value
    assert "\n" not in str(e.value)
    return str(e.value)


@pytest.fixture
def write(tmp_path):
    def write(data: bytes, name: str = "model.safetensors"):
        path = tmp_path / name
        path.write_bytes(data)
        return path
    return write


def test_reads_what_the_safetensors_package_writes(tmp_path):
    rng = np.random.default_rng(0)
    tensors = {"a": rng.standard_normal((5, 7)).astype("f4"), "b.c": rng.standard_normal((2, 3, 4)).astype("f2"),
               "s": np.array(3.0, "f4"), "none": np.zeros((0, 4), "f4"), "i": np.arange(6, dtype="i8")}
    save_file(tensors, tmp_path / "model.safetensors")
    s = SafetensorsSet.open(tmp_path)
    assert set(s.tensors) == set(tensors)
    for name, x in tensors.items():
        assert s.tensors[name].shape == x.shape
        np.testing.assert_array_equal(s.read(name), x)
    np.testing.assert_array_equal(s.read("a", 1, 4), tensors["a"][1:4])
    np.testing.assert_array_equal(s.read("b.c", 2, 5), tensors["b.c"].reshape(6, 4)[2:5])
    np.testing.assert_array_equal(s.read("i", 0, 1), tensors["i"][None])
    assert s.files == {"model.safetensors": (tmp_path / "model.safetensors").stat().st_size}
    with pytest.raises(NotFound):
        s.read("z")
    s.close()


def test_bf16_comes_as_bit_patterns_and_unknown_to_numpy_as_bytes(write):
    header = {"w": entry(0, 4, [2], "BF16"), "q": entry(4, 8, [4], "F8_E4M3"), "n": entry(8, 10, [4], "F4")}
    s = SafetensorsSet.open(write(raw(header, bytes([0x80, 0x3F, 0, 0xC0, 1, 2, 3, 4, 5, 6]))))
    assert s.read("w").tolist() == [0x3F80, 0xC000]
    assert s.read("q").tolist() == [1, 2, 3, 4]
    assert s.read("n").tolist() == [5, 6]


def test_opening_reads_no_weights(write, monkeypatch):
    path = write(raw({"w": entry(0, 4000)}, bytes(4000)))
    size, read = path.stat().st_size, []
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, bufs, at: read.append((at, sum(map(len, bufs)))) or real(fd, bufs, at))
    SafetensorsSet.open(path)
    assert max(at + n for at, n in read) == size - 4000


@pytest.mark.parametrize("header, slug, says", [
    ({"a": entry(0, 8), "b": entry(4, 12)}, "st-header", "overlap"),
    ({"a": entry(0, 4), "b": entry(8, 12)}, "st-header", "hole"),
    ({"a": entry(4, 12)}, "st-header", "hole"),
    ({"a": entry(0, 4)}, "st-header", "8 B follow"),
    ({"a": entry(0, 12, [4])}, "st-header", "'a'"),
    ({"a": entry(0, 12, [3], "F16")}, "st-header", "F16"),
    ({"a": entry(0, 12, [2**62, 2**62])}, "st-header", "'a'"),
    ({"a": entry(0, 12, [2**63, 2])}, "st-header", "shape"),
    ({"a": entry(0, 12, [2**40] * 100_000)}, "st-header", "'a'"),
    ({"a": entry(0, 12, [3], "F4")}, "st-header", "F4"),
    ({"a": entry(0, 12, [3], "F31")}, "st-header", "F31"),
    ({"a": entry(0, 12, [-3])}, "st-header", "shape"),
    ({"a": entry(0, 12, [True, 3])}, "st-header", "shape"),
    ({"a": {"dtype": "F32", "shape": [3], "data_offsets": [12, 0]}}, "st-header", "data_offsets"),
    ({"a": {"dtype": "F32", "shape": [3]}}, "st-header", "data_offsets"),
    ({"a": [1]}, "st-header", "'a'"),
    ({"__metadata__": {"n": 1}, "a": entry(0, 12)}, "st-header", "__metadata__"),
    (b'{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}}',
     "st-header", "'a' appears twice"),
    (b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,12]}}', "st-header", "NaN"),
    (b"[1]", "st-header", "'{'"),
    (b" {}", "st-header", "'{'"),
    (b"{" + b'"a":[' * 1, "st-header", "JSON"),
    (b'{"a":' + b"[" * 100_000, "st-header", "deeply"),
    (b'{"\xff":1}', "st-header", "JSON"),
    (b'{"a":' + b"9" * 5000 + b"}", "st-header", "JSON"),
], ids=range(25))
def test_a_hostile_header_is_refused(write, header, slug, says):
    assert says in refuse(write(raw(header, bytes(12))), slug)


@pytest.mark.parametrize("data, slug", [
    (b"", "st-truncated"), (b"\x02\0\0", "st-truncated"), (raw(b"{}", length=2**63), "st-header"),
    (raw(b"{}", length=100_000_001), "st-header"), (raw(b"{}", length=3), "st-truncated"),
])
def test_a_hostile_header_length_is_refused_before_it_is_allocated(write, data, slug):
    refuse(write(data), slug)


def test_a_truncated_shard_names_file_tensor_and_missing_bytes(tmp_path):
    """F1."""
    save_file({"a": np.zeros(100, "f4"), "b": np.zeros(100, "f4"), "c": np.zeros(100, "f4")}, tmp_path / "model-2.safetensors")
    os.truncate(tmp_path / "model-2.safetensors", (tmp_path / "model-2.safetensors").stat().st_size - 500)
    message = refuse(tmp_path, "st-truncated")
    assert "model-2.safetensors" in message and "'b'" in message and "500 B are missing" in message


def test_a_file_that_shrinks_while_it_is_read_is_an_error_not_a_crash(write):
    path = write(raw({"w": entry(0, 4000)}, bytes(4000)))
    s = SafetensorsSet.open(path)
    os.truncate(path, 1000)
    with pytest.raises(FormatError, match="file-short"):
        s.read("w")


def test_every_truncation_of_a_small_file_is_a_format_error(write, tmp_path):
    save_file({"a": np.arange(3, dtype="f4"), "b": np.arange(4, dtype="f2")}, tmp_path / "x")
    data = (tmp_path / "x").read_bytes()
    for n in range(len(data)):
        with pytest.raises(FormatError):
            SafetensorsSet.open(write(data[:n]))


def sharded(folder, where: dict, shards: dict) -> None:
    for name, tensors in shards.items():
        save_file(tensors, folder / name)
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": where}))


def test_the_index_decides_which_of_two_shards_holds_a_tensor(tmp_path):
    """F5, F6: shard names are free; a name in base and overlay is read where the index says."""
    one, two = np.full(2, 1, "f4"), np.full(2, 2, "f4")
    sharded(tmp_path, {"a": "overlay.safetensors", "b": "model.safetensors-00001-of-00002.safetensors"},
            {"model.safetensors-00001-of-00002.safetensors": {"a": one, "b": one}, "overlay.safetensors": {"a": two, "x": two}})
    s = SafetensorsSet.open(tmp_path)
    assert s.read("a").tolist() == [2, 2] and s.read("b").tolist() == [1, 1]
    assert s.unlisted == ["x"] and set(s.tensors) == {"a", "b"}


def test_a_tensor_in_two_shards_without_an_index_is_refused(tmp_path):
    """F5."""
    save_file({"a": np.zeros(2, "f4")}, tmp_path / "base.safetensors")
    save_file({"a": np.zeros(2, "f4")}, tmp_path / "overlay.safetensors")
    message = refuse(tmp_path, "st-duplicate")
    assert "base.safetensors" in message and "overlay.safetensors" in message


def test_shards_without_an_index_are_joined(tmp_path):
    save_file({"a": np.zeros(2, "f4")}, tmp_path / "1.safetensors")
    save_file({"b": np.zeros(2, "f4")}, tmp_path / "2.safetensors")
    save_file({"other.a": np.zeros(2, "f4")}, tmp_path / "consolidated.safetensors")
    assert set(SafetensorsSet.open(tmp_path).tensors) == {"a", "b"}


def test_an_indexed_tensor_that_its_shard_lacks_is_refused(tmp_path):
    sharded(tmp_path, {"a": "1.safetensors", "b": "1.safetensors"}, {"1.safetensors": {"a": np.zeros(2, "f4")}})
    assert "'b'" in refuse(tmp_path, "st-index")


@pytest.mark.parametrize("name", ["../1.safetensors", "/etc/passwd", "sub/1.safetensors", "..", "", "a\\b", "C:x", "a\0b", 7,
                                  None])
def test_a_shard_name_that_is_no_plain_file_name_is_refused(tmp_path, name):
    sharded(tmp_path, {"a": name}, {"1.safetensors": {"a": np.zeros(2, "f4")}})
    refuse(tmp_path, "st-index")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": {}}', '{"weight_map": [1]}',
                                  '{"weight_map": {"a":"x","a":"y"}}'])
def test_a_broken_index_is_refused(tmp_path, text):
    save_file({"a": np.zeros(2, "f4")}, tmp_path / "model.safetensors")
    (tmp_path / INDEX).write_text(text)
    refuse(tmp_path, "st-index")


def test_symlinks_to_blobs_are_followed(tmp_path):
    """F10: hub caches are folders of symlinks."""
    (tmp_path / "blobs").mkdir()
    save_file({"a": np.arange(3, dtype="f4")}, tmp_path / "blobs" / "0123abcd")
    (tmp_path / "snap").mkdir()
    (tmp_path / "snap" / "model.safetensors").symlink_to("../blobs/0123abcd")
    s = SafetensorsSet.open(tmp_path / "snap")
    assert s.read("a").tolist() == [0, 1, 2] and list(s.files) == ["model.safetensors"]


def test_missing_files_and_things_that_are_no_files(tmp_path):
    with pytest.raises(NotFound):
        SafetensorsSet.open(tmp_path)
    with pytest.raises(NotFound):
        SafetensorsSet.open(tmp_path / "none.safetensors")
    (tmp_path / "model.safetensors").symlink_to("gone")
    with pytest.raises(NotFound):
        SafetensorsSet.open(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    refuse(tmp_path / "pipe", "file-kind")


def test_a_path_with_spaces_and_non_ascii_characters(tmp_path):
    """P1."""
    folder = tmp_path / "mödel 空 x"
    folder.mkdir()
    save_file({"a": np.arange(3, dtype="f4")}, folder / "model.safetensors")
    assert SafetensorsSet.open(folder).read("a").tolist() == [0, 1, 2]


def test_mutated_headers_are_refused_or_read_alike(write, tmp_path):
    save_file({"a": np.arange(3, dtype="f4"), "b": np.arange(8, dtype="f2").reshape(2, 4)}, tmp_path / "x")
    data = (tmp_path / "x").read_bytes()
    rng = np.random.default_rng(1)
    for _ in range(1500):
        mutant = bytearray(data)
        mutant[rng.integers(len(data) - 28)] = rng.integers(256)
        try:
            s = SafetensorsSet.open(write(bytes(mutant)))
        except FormatError:
            continue
        for name, t in s.tensors.items():
            assert s.read(name).nbytes == t.nbytes
        s.close()


def test_the_dtype_table_knows_what_the_package_knows():
    from safetensors import numpy as st
    assert set(st._TYPES) <= set(DTYPE_BITS)
