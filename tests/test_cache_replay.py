"""bench/cache_replay.py: policies on traces whose answers are known, and on the synthetic routing of the benchmark model."""
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from moegg.io.trace import Trace, write

BENCH = Path(__file__).resolve().parents[1] / "bench"


@pytest.fixture
def report(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    yield importlib.import_module("repack_report")
    for name in [p.stem for p in BENCH.glob("*.py")]:
        sys.modules.pop(name, None)


@pytest.fixture
def replay(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    names = [p.stem for p in BENCH.glob("*.py")]
    yield importlib.import_module("cache_replay")
    for name in names:
        sys.modules.pop(name, None)


def trace(ids, experts=8):
    ids = np.array(ids, np.int16)
    T, L, _ = ids.shape
    return Trace(ids, np.arange(T, dtype=np.int32), np.arange(L, dtype=np.int32), np.full(L, experts, np.int32), np.full(L, 10, np.int64))


def test_policies_on_a_cycle_one_longer_than_the_cache(replay):
    """Recency hits nothing; the bound keeps all but one."""
    t = trace([[[i % 5]] for i in range(200)])
    hits = {name: policy(t, 40, 100, 1e9)[0] for name, policy in replay.POLICIES.items()}
    assert hits["lru"] == 0 and hits["belady"] >= 74 and hits["moegg"] == 0 and hits["lfu"] == 0


def test_policies_on_a_popular_expert_and_a_parade(replay):
    """Every second token uses expert 0; the others come once in a while."""
    t = trace([[[0]] if i % 2 else [[1 + i // 2 % 7]] for i in range(400)])
    for name, policy in replay.POLICIES.items():
        hits, uses = policy(t, 20, 200, 256.0)
        assert uses == 200 and hits >= 100, name


def test_nobody_beats_the_bound_and_frequency_beats_recency_on_skewed_routing(replay):
    t = replay.synthetic(120, layers=6, experts=64, top_k=4)
    for share in (0.12, 0.25, 0.5):
        r = replay.replay(t, share, 60, 256.0)
        assert max(r["lru"], r["lfu"]) - 0.03 <= r["moegg"] <= r["belady"], r
        assert r["lru"] < r["moegg"] or share == 0.5, r                      # nearly everything fits: no policy matters


def test_the_synthetic_routing_has_the_published_hit_curve(replay):
    """An LRU cache of 12, 24, 35, 50 % hits about 37, 74, 92, 99 % (tools' synthetic model; trained Qwen3-30B-A3B is close)."""
    t = replay.synthetic(200, layers=8)
    rates = [replay.lru(t, int(x * t.pool_bytes), 100, 0)[0] / (100 * 8 * 8) for x in (0.12, 0.24, 0.35, 0.5)]
    np.testing.assert_allclose(rates, [0.37, 0.72, 0.9, 0.98], atol=0.06)


def test_a_long_prompt_under_a_small_cache_hits_what_fits(replay):
    """Passes of many tokens: a cyclic scan, of which recency keeps nothing."""
    t = replay.synthetic(256, layers=6, experts=32, top_k=4)
    t = Trace(t.ids, np.arange(256, dtype=np.int32) // 64, t.layers, t.experts, t.record_bytes)
    r = replay.replay(t, 0.4, 64, 256.0)
    assert r["moegg"] > 0.3 > 0.1 > r["lru"]


def test_the_script_prints_a_row_per_budget(replay, tmp_path, monkeypatch, capsys):
    write(replay.synthetic(20, layers=2, experts=8, top_k=2), tmp_path / "t.npz")
    monkeypatch.setattr(sys, "argv",
                        ["cache_replay", str(tmp_path / "t.npz"), "--table", "--warm", "5", "--budgets", "0.5,1", "--plot", str(tmp_path / "p.svg")])
    replay.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and lines[0].startswith("| trace | budget | moegg") and (tmp_path / "p.svg").read_text().startswith("<svg")


def test_repacking_joins_experts_that_are_chosen_together_and_moves_no_bytes(report):
    """Pairs (0, 7), (1, 6), ... that never part: one read each instead of two."""
    rng = np.random.default_rng(1)
    first = rng.integers(0, 4, (400, 2))
    ids = np.stack([first, 7 - first], axis=-1).astype(np.int16)
    trace = Trace(ids, np.arange(400, dtype=np.int32), np.arange(2, dtype=np.int32), np.full(2, 8, np.int32), np.full(2, 16384, np.int64))
    learn, test = report.halves(trace)
    before, after = (report.judge(test, slots, trace.pool_bytes // 2) for slots in ([np.arange(8)] * 2, report.orders(learn)))
    assert before["bytes"] == after["bytes"] > 0 and before["records"] == after["records"]
    assert after["reads"] < 0.75 * before["reads"] and after["adjacent"] > 0.4


def test_repacking_a_trace_without_pattern_gains_next_to_nothing(report):
    trace = report.synthetic(80, layers=3, experts=32, top_k=4)
    learn, test = report.halves(trace)
    before, after = (report.judge(test, slots, trace.pool_bytes // 4) for slots in ([np.arange(32)] * 3, report.orders(learn)))
    assert after["bytes"] == before["bytes"] and 0.5 < after["reads"] / before["reads"] < 1.1
