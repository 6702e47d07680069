"""moegg repack: the same answers bit by bit, from a file in another order."""
import numpy as np
import pytest

from moegg.formats.container import Container
from moegg.io.trace import Trace, write
from tests.loading import open_engine


@pytest.fixture
def trace(qwen3_moe_file, tmp_path):
    c = Container.open(qwen3_moe_file)
    ids = np.random.default_rng(3).permuted(np.tile(np.arange(8, dtype=np.int16), (50, 4, 1)), axis=2)[:, :, :2]
    write(Trace(np.ascontiguousarray(ids), np.arange(50, dtype=np.int32), np.array([e.layer for e in c.layers], np.int32),
                np.array([e.n for e in c.layers], np.int32), np.array([e.record_bytes for e in c.layers], np.int64)), tmp_path / "t.npz")
    return tmp_path / "t.npz"


def test_logits_and_routes_do_not_change(call, qwen3_moe_file, trace, tmp_path):
    new = tmp_path / "new.moegg"
    code, out, _ = call("repack", qwen3_moe_file, "--profile", trace, "-o", new)
    assert code == 0 and "4 layers in the order of 50 tokens" in out and call("verify", new)[0] == 0
    assert any((e.slot != np.arange(e.n)).any() for e in Container.open(new).layers)
    for io in ("page-cache", "direct"):
        a, b = (open_engine(p, ctx=64, n_threads=2, io=io).forward(list(range(3, 30))) for p in (qwen3_moe_file, new))
        assert all(np.array_equal(x, y) for x, y in zip(a[:3], b[:3], strict=True))


def test_a_trace_of_another_model_is_refused(call, trace, tmp_path):
    code, _, err = call("repack", "demo", "--profile", trace, "-o", tmp_path / "new.moegg")
    assert code == 2 and "is of another model" in err and err.endswith("[trace-model]\n")


def test_a_trace_that_is_not_there_is_a_missing_file(call, tmp_path):
    code, _, err = call("repack", "demo", "--profile", tmp_path / "no.npz", "-o", tmp_path / "new.moegg")
    assert code == 3 and err.endswith("no.npz: no such file [file-missing]\n")
