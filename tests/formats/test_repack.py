"""Repacking: another order of records, the same model in every other respect."""
import numpy as np
import pytest

from moegg.errors import BadRequest, FormatError, UsageError
from moegg.formats.container import Container
from moegg.formats.repack import repack, together

from .corrupt import write


@pytest.fixture
def c(tmp_path):
    write(tmp_path / "m.moegg")
    return Container.open(tmp_path / "m.moegg")


def record(c, layer, expert) -> bytes:
    at, n = c.record(layer, expert)
    return c.path.read_bytes()[at:at + n]


def test_records_move_and_nothing_else_changes(c, tmp_path):
    shown = []
    new = repack(c, tmp_path / "new.moegg", {0: np.array([1, 0], np.int32)}, progress=lambda a, b: shown.append((a, b)))
    new.verify()
    assert new.content_id == c.content_id and new.root != c.root and shown[-1][0] == shown[-1][1]
    assert [e.slot.tolist() for e in new.layers] == [[1, 0], [0, 1]] and new.file_bytes == c.file_bytes
    assert all(record(c, e.layer, i) == record(new, e.layer, i) for e in c.layers for i in range(e.n))
    assert record(c, 0, 0) != record(c, 0, 1) and new.record(0, 0)[0] == c.record(0, 1)[0]
    assert all(new.read_section(s) == c.read_section(s) for s in ("tokenizer", "license", "chat_template", "model_card"))


def test_there_and_back_is_the_same_file(c, tmp_path):
    new = repack(c, tmp_path / "new.moegg", {0: np.array([1, 0]), 2: np.array([1, 0])})
    assert repack(new, tmp_path / "back.moegg", {0: np.array([0, 1]), 2: np.array([0, 1])}).root == c.root
    assert (tmp_path / "back.moegg").read_bytes() == c.path.read_bytes()
    assert repack(new, tmp_path / "same.moegg", {}).root == new.root, "layers left out keep their order"


@pytest.mark.parametrize("slots", [{0: np.array([0, 0])}, {0: np.array([0])}, {0: np.array([1, 2])}, {7: np.array([0, 1])}])
def test_what_is_no_permutation_is_refused(c, tmp_path, slots):
    with pytest.raises(BadRequest, match="expert-range"):
        repack(c, tmp_path / "new.moegg", slots)
    assert not (tmp_path / "new.moegg").exists()


def test_damaged_weights_are_not_copied_as_if_they_were_sound(c, tmp_path):
    data = bytearray(c.path.read_bytes())
    data[c.record(2, 1)[0] + 3] ^= 1
    c.path.write_bytes(data)
    with pytest.raises(FormatError, match="verify the file"):
        repack(Container.open(c.path), tmp_path / "new.moegg", {0: np.array([1, 0])})
    assert [p.name for p in tmp_path.iterdir()] == ["m.moegg"]
    with pytest.raises(UsageError, match="exists already"):
        repack(Container.open(c.path), c.path, {})


def test_experts_chosen_together_become_neighbours():
    ids = np.array([[0, 5]] * 9 + [[5, 3]] * 5 + [[1, 2]] * 4 + [[4, -1]])
    slot = together(ids, 7)
    order = slot.argsort().tolist()
    assert order[:3] == [5, 0, 3] or order[:2] == [5, 0]
    assert sorted(order) == list(range(7)) and abs(slot[1] - slot[2]) == 1 and abs(slot[0] - slot[5]) == 1
    assert together(np.full((3, 2), -1), 4).tolist() == [0, 1, 2, 3] and together(np.zeros((0, 2), int), 1).tolist() == [0]
    assert together(ids, 7).tolist() == slot.tolist()
