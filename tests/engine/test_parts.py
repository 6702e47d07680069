"""A model that lies on the disk in parts: the engine maps and reads it across their borders, bit by bit as the whole."""
import ctypes
import os
import shutil

import numpy as np
import pytest

from moegg.errors import IOFailure
from moegg.formats.container import Container
from moegg.formats.split import split
from moegg.io.residency import Residency
from moegg.io.store import ExpertStore
from tests.loading import open_engine

IDS = list(range(3, 40))


@pytest.fixture
def parts(qwen3_moe_file, tmp_path):
    """Two parts of 2 MiB and the rest; a record lies across the border."""
    paths = split(Container.open(qwen3_moe_file), tmp_path / "m.moegg", 2 << 20)
    c, border = Container.open(qwen3_moe_file), 2 << 20
    assert any(at < border < at + n for at, n in (c.record(e.layer, i) for e in c.layers for i in range(e.n)))
    return paths


@pytest.mark.parametrize("io", ["auto", "page-cache", "direct"])
def test_logits_of_parts_are_those_of_the_whole(qwen3_moe_file, parts, io):
    whole, cut = (open_engine(p, ctx=64, n_threads=2, io=io) for p in (qwen3_moe_file, parts[0]))
    a, b = whole.forward(IDS), cut.forward(IDS)
    assert all(np.array_equal(x, y) for x, y in zip(a[:3], b[:3], strict=True))
    assert cut.mapped.tobytes() == qwen3_moe_file.read_bytes()


@pytest.mark.parametrize("mode", ["direct", "page-cache"])
def test_every_record_is_read_exactly(qwen3_moe_file, parts, mode):
    data, c = qwen3_moe_file.read_bytes(), Container.open(parts[0])
    budget = sum(e.n * (-(-e.record_bytes // 16384) * 16384) for e in c.layers)
    store = ExpertStore(c.path, c.identity, c.layers, budget, Residency(mode, True, "test"), parts=c.parts)
    assert store.size == c.file_bytes
    for i, e in enumerate(c.layers):
        experts = np.arange(e.n, dtype=np.int32)
        for first in range(0, e.n, e.top_k):
            some = experts[first:first + e.top_k].copy()
            records, state = np.zeros(len(some), np.uint64), np.zeros(len(some), np.uint8)
            store.begin(1)
            store.request(i, some, None, records, state)
            while (state < 2).any():
                store.wait(i, some, records, state)
            for k, expert in enumerate(some.tolist()):
                at, n = c.record(e.layer, expert)
                assert ctypes.string_at(int(records[k]), n) == data[at:at + n]
            store.release(i, np.arange(len(some), dtype=np.int32), some, state)


def test_a_part_that_was_replaced_is_refused(parts, tmp_path):
    c = Container.open(parts[0])
    data = parts[1].read_bytes()
    parts[1].unlink()
    parts[1].write_bytes(data)
    with pytest.raises(IOFailure, match="file-changed"):
        ExpertStore(c.path, c.identity, c.layers, 1 << 30, Residency("direct", True, "test"), parts=c.parts)


def test_commands_take_the_stem_and_list_and_rm_know_parts(call, parts, tmp_path, qwen3_moe_file, monkeypatch):
    code, out, _ = call("tokenize", tmp_path / "m.moegg", "Hi")
    assert (code, out) == (0, call("tokenize", qwen3_moe_file, "Hi")[1])
    code, out, _ = call("verify", parts[-1])
    assert code == 0 and f"{parts[0]}: ok" in out
    monkeypatch.setenv("MOEGG_HOME", str(tmp_path / "home"))
    folder = tmp_path / "home" / "models"
    folder.mkdir(parents=True)
    for p in parts:
        shutil.move(p, folder / p.name)
    assert "qwen3-moe" in call("list")[1] and call("tokenize", "m", "Hi")[0] == 0
    assert call("rm", "m", "-y")[0] == 0 and os.listdir(folder) == []


def test_an_export_of_parts_is_that_of_the_whole(call, qwen3_moe_file, parts, tmp_path):
    for name, source in (("a.gguf", qwen3_moe_file), ("b.gguf", tmp_path / "m.moegg")):
        assert call("export", source, "-o", tmp_path / name)[0] == 0
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_split_command(call, qwen3_moe_file, tmp_path):
    code, out, _ = call("split", qwen3_moe_file, "--size", "2M", "-o", tmp_path / "x.moegg")
    assert code == 0 and "in 2 parts, every checksum right" in out and len(os.listdir(tmp_path)) == 2
    code, _, err = call("split", tmp_path / "x.moegg", "--size", "2M")
    assert code == 2 and err.endswith("[split-size]\n")
    code, _, err = call("split", qwen3_moe_file, "--size", "20G")
    assert code == 2 and "expected 2 to 999" in err
