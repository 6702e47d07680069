"""Usage history: real uses only, whole files only, right model only."""
import json
import os
import threading

import numpy as np
import pytest

from moegg.io import usage
from moegg.io.usage import Usage, UsageFile, cache_folder

ID = bytes(range(32))


@pytest.fixture(autouse=True)
def heard(monkeypatch):
    """What was said to the user."""
    out = []
    monkeypatch.setattr(usage.log, "warn", out.append)
    return out


def counts(*pairs, n=8):
    out = np.zeros(n)
    for i, v in pairs:
        out[i] = v
    return out


def test_two_runs_add_up_to_their_real_uses(tmp_path):
    """known_failures H18, colizig: totals that were loaded must not be added again."""
    f = UsageFile(ID, 8, tmp_path)
    f.add(counts((1, 5)), 10)
    assert UsageFile(ID, 8, tmp_path).load().counts.tolist() == counts((1, 5)).tolist()
    f.add(counts((1, 2), (3, 4)), 6)
    got = UsageFile(ID, 8, tmp_path).load()
    assert got.counts.tolist() == counts((1, 7), (3, 4)).tolist() and got.tokens == 16


def test_nothing_used_writes_nothing(tmp_path):
    """known_failures H18, colibri #1039."""
    UsageFile(ID, 8, tmp_path).add(counts(), 0)
    assert not list(tmp_path.rglob("*"))


def test_runs_at_the_same_time_lose_nothing(tmp_path):
    def run():
        for _ in range(20):
            UsageFile(ID, 8, tmp_path).add(counts((2, 1)), 1)
    threads = [threading.Thread(target=run) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert UsageFile(ID, 8, tmp_path).load().counts[2] == 80


def test_a_crash_while_saving_leaves_the_old_file(tmp_path, monkeypatch, heard):
    """known_failures H18: not atomic."""
    f = UsageFile(ID, 8, tmp_path)
    f.add(counts((1, 5)), 10)

    def crash(*_):
        raise OSError(28, "No space left on device")
    monkeypatch.setattr(usage.os, "replace", crash)
    f.add(counts((1, 5)), 10)
    monkeypatch.undo()
    assert UsageFile(ID, 8, tmp_path).load().counts[1] == 5
    assert [p.suffix for p in f.path.parent.iterdir() if p.suffix not in (".bin", ".lock")] == []


@pytest.mark.parametrize("damage", [
    lambda b: b[:-1], lambda b: b + b"x", lambda b: b"", lambda b: b"garbage", lambda b: b.replace(b'"tokens": 10', b'"tokens": -1'),
    lambda b: b.replace(b'"moegg_usage": 1', b'"moegg_usage": 2'), lambda b: b[:-4] + b"\x00\x00\xc0\x7f", lambda b: b"[]\n" + b[-32:],
    lambda b: b.replace(b'"tokens": 10', b'"tokens": "10"')], ids=range(9))
def test_a_damaged_file_is_ignored_with_a_note_and_then_replaced(tmp_path, heard, damage):
    f = UsageFile(ID, 8, tmp_path)
    f.add(counts((1, 5)), 10)
    f.path.write_bytes(damage(f.path.read_bytes()))
    assert f.load().tokens == 0 and len(heard) == 1
    f.add(counts((2, 3)), 4)
    assert f.load().counts.tolist() == counts((2, 3)).tolist()


def test_the_file_of_another_model_is_refused(tmp_path, heard):
    """known_failures H19: swap files."""
    a, b = UsageFile(ID, 8, tmp_path), UsageFile(ID[::-1], 8, tmp_path)
    a.add(counts((1, 5)), 10)
    os.replace(a.path, b.path)
    assert b.load().tokens == 0 and "another model" in heard[0]
    assert UsageFile(ID[::-1], 9, tmp_path).load().tokens == 0


def test_old_habits_fade(tmp_path):
    f = UsageFile(ID, 8, tmp_path)
    f.add(counts((1, 1000)), usage.FADE_TOKENS)
    f.add(counts((1, 1000)), usage.FADE_TOKENS + 2)
    assert f.load().tokens == usage.FADE_TOKENS + 1 and f.load().counts[1] == 1000


def test_a_long_history_is_no_firmer_than_half_of_what_is_seen_now():
    every = Usage(np.array([1e6, 5e5, 0], np.float32), 1e6).seed(256)
    assert every.tolist() == pytest.approx([256 / np.log(2) / 2, 256 / np.log(2) / 4, 0])
    assert Usage(np.array([3, 1, 0], np.float32), 4).seed(256).tolist() == [3, 1, 0]         # a short one is taken as it is
    assert Usage(np.zeros(3, np.float32)).seed(256).tolist() == [0, 0, 0]


def test_the_cache_folder_follows_xdg(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "moegg"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder().is_absolute()


def test_an_unwritable_folder_is_a_note(tmp_path, heard):
    (tmp_path / "usage").write_text("a file where the folder should be")
    UsageFile(ID, 8, tmp_path).add(counts((1, 1)), 1)
    assert len(heard) == 1 and "not saved" in heard[0]


def test_the_file_holds_counts_and_no_text(tmp_path):
    f = UsageFile(ID, 8, tmp_path)
    f.add(counts((1, 5)), 10)
    head, body = f.path.read_bytes().split(b"\n", 1)
    assert set(json.loads(head)) == {"moegg_usage", "content_id", "records", "tokens"} and len(body) == 32
