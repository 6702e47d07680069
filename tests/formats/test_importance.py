"""moegg.formats.importance: what calibrate writes is read back; experts that saw little lean on their layer; hostile files are refused."""
import json

import numpy as np
import pytest

from moegg.errors import FormatError, NotFound
from moegg.formats.importance import LEAST, PRIOR_ROWS, Importance, write_importance

SQUARES = {"a": np.array([[4.0, 1.0, 0.0, 3.0]]), "x": np.array([[1000.0, 3000.0], [0.0, 0.0], [64.0, 0.0]])}
ROWS = {"a": np.array([2]), "x": np.array([1000, 0, 64])}


@pytest.fixture
def file(tmp_path):
    write_importance(tmp_path / "i", SQUARES, ROWS, {"b": "a"}, {"tokens": 7})
    return tmp_path / "i"


def test_columns_have_mean_one_and_none_is_worthless(file):
    i = Importance(file)
    for name in "ab":
        w = i.columns(name, 1, 4)
        assert w.dtype == np.float32 and w[0] == pytest.approx((np.array([2, 0.5, 0, 1.5]) + LEAST) / (1 + LEAST), rel=1e-6)
    assert i.about == {"tokens": 7} and i.columns("c", 1, 4) is None


def test_an_expert_that_saw_no_token_has_the_average_of_its_layer_and_one_that_saw_few_leans_on_it(file):
    w = Importance(file).columns("x", 3, 2)
    average = np.array([1064.0, 3000.0]) / 1064
    assert w[1, 0] / w[1, 1] == pytest.approx(average[0] / average[1], rel=2e-3)
    few = (SQUARES["x"][2] + PRIOR_ROWS * average) / (64 + PRIOR_ROWS)
    assert w[2, 0] / w[2, 1] == pytest.approx(few[0] / few[1], rel=2e-3)
    assert w[0, 0] / w[0, 1] == pytest.approx(1 / 3, rel=0.02)


@pytest.mark.parametrize("name, n, cols", [("a", 1, 5), ("a", 2, 4), ("x", 2, 2), ("b", 1, 3)])
def test_another_shape_is_another_model(file, name, n, cols):
    with pytest.raises(FormatError, match=r"of another model \[imatrix-file\]"):
        Importance(file).columns(name, n, cols)


@pytest.mark.parametrize("squares, rows", [([[-1.0, 1.0]], [1]), ([[np.nan, 1.0]], [1]), ([[np.inf, 1.0]], [1]), ([[1.0, 1.0]], [-1]),
                                           ([[1.0, 1.0]], [1 << 62])])
def test_values_of_no_meaning_are_refused(tmp_path, squares, rows):
    write_importance(tmp_path / "i", {"a": np.array(squares)}, {"a": np.array(rows)}, {}, {})
    with pytest.raises(FormatError, match=r"\[imatrix-file\]"):
        Importance(tmp_path / "i").columns("a", 1, 2)


@pytest.mark.parametrize("squares, rows", [([[0.0, 0.0]], [5]), ([[1.0, 2.0]], [0])])
def test_what_was_never_read_has_no_importance(tmp_path, squares, rows):
    write_importance(tmp_path / "i", {"a": np.array(squares)}, {"a": np.array(rows)}, {}, {})
    assert Importance(tmp_path / "i").columns("a", 1, 2) is None


@pytest.mark.parametrize("change", [{"format": "other"}, {"version": "2"}, {"about": "[]"}, {"about": "{"}, {"same": '{"b": "zzz"}'},
                                    {"same": '{"b": ["a"]}'}, {"same": '{"b": "a", "b": "x"}'}, {"about": "\ud800"}], ids=repr)
def test_metadata_of_any_kind_is_a_named_error(file, change):
    data = file.read_bytes()
    n = int.from_bytes(data[:8], "little")
    head = json.loads(data[8:8 + n])
    head["__metadata__"] |= change
    text = json.dumps(head).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + n:])
    with pytest.raises(FormatError, match=r"\[imatrix-file\]"):
        Importance(file)


def test_every_cut_and_every_flipped_byte_is_read_or_a_named_error(file):
    data, rng = file.read_bytes(), np.random.default_rng(1)
    for i in range(300):
        broken = bytearray(data if i % 3 else data[:rng.integers(len(data))])
        if broken:
            broken[rng.integers(len(broken))] ^= 1 << rng.integers(8)
        file.write_bytes(broken)
        try:
            Importance(file).columns("x", 3, 2)
        except FormatError:
            pass


def test_missing_and_unwritable(tmp_path):
    with pytest.raises(NotFound):
        Importance(tmp_path / "no")
    with pytest.raises(OSError):
        write_importance(tmp_path / "no" / "i", SQUARES, ROWS, {}, {})
