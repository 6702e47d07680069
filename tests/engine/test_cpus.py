"""Threads as the process may really use them: affinity masks and cgroup quotas of all ancestors."""
import os

import pytest

from moegg.engine import cpus


@pytest.fixture
def cgroup(tmp_path, monkeypatch):
    """A fake cgroup v2 tree; returns a function that writes one of its files."""
    monkeypatch.setattr(cpus, "_CGROUP", tmp_path)
    monkeypatch.setattr(cpus, "_ancestors", lambda: [tmp_path / "a" / "b", tmp_path / "a", tmp_path])
    (tmp_path / "a" / "b").mkdir(parents=True)

    def write(name, text):
        (tmp_path / name).write_text(text + "\n")
    return write


def test_threads_follow_the_affinity_mask():
    """known_failures P5."""
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system has no affinity masks")
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert cpus.default_threads() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert cpus.default_threads() <= len(before)


@pytest.mark.parametrize("quota, cores", [("max 100000", float("inf")), ("150000 100000", 1.5), ("50000 100000", 0.5), ("rubbish", float("inf"))])
def test_cpu_quota_of_an_ancestor_counts(cgroup, quota, cores):
    cgroup("a/cpu.max", quota)
    assert cpus.cpu_quota() == cores


def test_a_quota_is_rounded_up_to_whole_threads(cgroup, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert cpus.default_threads() == 8
    cgroup("a/b/cpu.max", "150000 100000")
    assert cpus.default_threads() == 2
    cgroup("a/b/cpu.max", "1000 100000")
    assert cpus.default_threads() == 1
