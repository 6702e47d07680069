"""The machine profile: what is measured, what follows from it, how it is kept. Rates here are made up or not looked at."""
import os

import numpy as np
import pytest

from moegg.io import profile as P
from moegg.io.profile import Profile, Reading, Settings


def reading(mode="direct", fill="", block=2560, depth=4, rate=1.0, cpu=0.0):
    return Reading(mode, fill, block << 10, depth, rate * 1e9, cpu)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("profile") / "file.bin"
    path.write_bytes(np.random.default_rng(0).bytes(24 << 20))
    s = os.stat(path)
    return path, (s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns)


def test_every_mode_is_measured_on_a_file(file, monkeypatch):
    monkeypatch.setattr(P, "PROBE_BYTES", 1 << 20)
    monkeypatch.setattr(P, "MOST_BYTES", 2 << 20)
    seen = []
    p = P.measure(*file, cores=2, blocks=(64 << 10, 256 << 10), depths=(1, 4), least_file=1 << 20, progress=lambda *a: seen.append(a))
    assert {(r.mode, r.fill) for r in p.readings} == set(P.KINDS) and seen[-1] == (12, 12)
    assert all(r.rate > 0 and r.cpu_per_gb >= 0 for r in p.readings)
    assert p.cost("direct") is None or p.cost("direct") > 0
    assert P.table(p)[0].startswith("mode") and len(P.table(p)) == 13 and p.advice()


def test_a_small_file_is_not_measured(file):
    p = P.measure(*file, cores=2)
    assert p.readings == () and p.settings("direct") == Settings() and p.cost("direct") is None and "too small" in p.advice()[0]


def test_the_time_is_limited_and_the_telling_numbers_come_first(file, monkeypatch):
    monkeypatch.setattr(P, "PROBE_BYTES", 1 << 20)
    p = P.measure(*file, cores=2, blocks=(64 << 10, 256 << 10), least_file=1 << 20, total_s=0.0)
    assert [(r.mode, r.block, r.depth) for r in p.readings] == [("direct", 256 << 10, 4)]


def test_cpu_time_counts_as_much_as_bytes():
    fast = Profile("k", 1, (reading("direct", rate=1.2, cpu=0.04), reading("page-cache", "copy", rate=1.6, cpu=0.6)))
    assert fast.cost("direct") < fast.cost("page-cache")
    many_cores = Profile("k", 16, fast.readings)
    assert many_cores.cost("direct") > many_cores.cost("page-cache")


def test_the_cheapest_way_with_the_fewest_threads_wins():
    p = Profile("k", 2, (reading(depth=1, rate=1.0), reading(depth=4, rate=1.98), reading(depth=8, rate=2.0), reading(block=256, depth=8, rate=9.0)))
    assert p.best("direct").depth == 4 and p.best("page-cache") is None


def test_a_lone_record_is_cut_only_where_that_is_faster():
    split = Profile("k", 2, (reading(depth=1, rate=0.8), reading(depth=4, rate=1.8),
                             reading(block=1024, depth=4, rate=1.7), reading(block=256, depth=8, rate=1.0)))
    assert split.settings("direct") == Settings(4, 1 << 20, "advice", guess=True)
    whole = Profile("k", 2, (reading(depth=1, rate=3.0), reading(depth=4, rate=3.1), reading(block=1024, depth=4, rate=2.5)))
    assert whole.settings("direct").min_part == 2560 << 10


def test_a_disk_that_refuses_direct_reads_has_no_price_for_them():
    p = Profile("k", 2, (reading("direct", rate=2.0), reading("page-cache", "advice", rate=1.0)), direct=False)
    assert p.cost("direct") is None and any("refuses" in line for line in p.advice())


def test_a_profile_is_kept_per_disk(file, tmp_path):
    path, store = file[0], tmp_path / "deep" / "profile.json"
    p = Profile(P.device_key(path), 2, (reading(), reading("page-cache", "copy")), 33e9)
    assert P.load(path, store) is None
    P.save(p, store)
    P.save(Profile("another disk", 4), store)
    assert P.load(path, store) == p


@pytest.mark.parametrize("text", ["", "[]", "{", '{"KEY": {"version": 0}}', '{"KEY": 5}', '{"KEY": {"version": 1, "readings": [{}]}}'])
def test_a_damaged_profile_is_measured_again(file, tmp_path, text):
    store = tmp_path / "profile.json"
    store.write_text(text.replace("KEY", P.device_key(file[0])))
    assert P.load(file[0], store) is None
    P.save(Profile(P.device_key(file[0]), 2), store)
    assert P.load(file[0], store) == Profile(P.device_key(file[0]), 2)
