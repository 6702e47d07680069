"""Routing traces: what goes in comes out, whatever the form; contradictions are refused."""
import numpy as np
import pytest

from moegg.errors import FormatError, NotFound
from moegg.io import trace as T
from moegg.io.trace import Recorder, Trace


def recorded():
    r = Recorder([2, 5], [4, 6], [100, 300])
    r.add(np.array([[[0, 1], [2, 3]], [[5, 4], [0, 1]]]))            # [layers, tokens, k]
    r.add(np.array([[[3, 0]], [[2, -1]]]))
    return r


@pytest.mark.parametrize("name", ["t.npz", "t.jsonl"])
def test_a_trace_survives_writing_and_reading(tmp_path, name):
    recorded().save(tmp_path / name)
    got = T.read(tmp_path / name)
    assert got.ids.tolist() == [[[0, 1], [5, 4]], [[2, 3], [0, 1]], [[3, 0], [2, -1]]] and got.passes.tolist() == [0, 0, 1]
    assert got.layers.tolist() == [2, 5] and got.experts.tolist() == [4, 6] and got.pool_bytes == 4 * 100 + 6 * 300 and got.top_k == [2, 2]
    assert [len(p) for p in got.by_pass()] == [2, 1]


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"{}\n", b'{"layers": [0], "experts": [2], "record_bytes": [1]}\n[0, 0, [2]]\n',
                                  b'{"layers": [0, 1], "experts": [2, 2], "record_bytes": [1, 1]}\n[0, 0, [1]]\n'])
@pytest.mark.parametrize("name", ["t.npz", "t.jsonl"])
def test_what_is_no_trace_is_refused(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(FormatError, match="trace-shape"):
        T.read(tmp_path / name)


def test_a_missing_file_is_not_found(tmp_path):
    with pytest.raises(NotFound, match="none.npz: no such file"):
        T.read(tmp_path / "none.npz")


def test_ids_outside_the_experts_are_refused():
    with pytest.raises(FormatError):
        Trace(np.array([[[4]]]), np.array([0]), np.array([0]), np.array([4]), np.array([1]))
