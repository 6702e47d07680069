"""The layers of a dense model stream: any budget, residency, thread count and split gives the logits of everything in memory."""
import os
import threading
from dataclasses import replace

import numpy as np
import pytest

from moegg.commands.opening import describe
from moegg.engine import dense
from moegg.engine.program import lower
from moegg.errors import BudgetTooSmall, Cancelled, FormatError, IOFailure
from moegg.formats.container import Container
from moegg.io.store import ExpertStore
from tests import oracle, tiny
from tests.io import faults
from tests.loading import check_splits, convert_to, decode, open_engine

IDS = np.random.default_rng(5).integers(3, 480, 120).tolist()
SIZES = dense.sizes
MODES = ("direct", "page-cache")
DENSE = [n for n in oracle.PLAIN if not oracle.load(n)[1]]


@pytest.fixture(autouse=True)
def forced(monkeypatch):
    """Plans that do not depend on what the test process uses, and models that never fit as a whole: tiny ones would."""
    monkeypatch.setattr("moegg.engine.engine.own_bytes", lambda: 0)
    monkeypatch.setattr(dense, "sizes", lambda c, m: replace(SIZES(c, m), resident=1 << 50))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Tiny checkpoints: nine layers of one kind; windows, and norms after blocks too; convolutions with a state."""
    folder = tmp_path_factory.mktemp("dense")
    return {"llama": convert_to(tiny.hf(folder / "llama", "llama", num_hidden_layers=9), folder, "q8"),
            "gemma3": convert_to(tiny.hf(folder / "gemma3", "gemma3"), folder, "q4@1"),
            "lfm2": convert_to(tiny.hf(folder / "lfm2", "lfm2"), folder, "q8")}


def ram_for(path, part, ctx=256, **options):
    """--ram that holds so much of what streams: 0: the least, 1: all of it but a byte."""
    engine = open_engine(path, ctx=ctx, ram=1 << 40, **options)
    p, least = engine.plan, SIZES(engine.container, engine.model).streamed().least_cache
    return p.fixed + least + int(part * (p.experts - least - 1))


def resident(path, **options):
    """All in memory, whatever `forced` says."""
    with pytest.MonkeyPatch.context() as m:
        m.setattr(dense, "sizes", SIZES)
        engine = open_engine(path, ctx=256, **options)
    assert engine.plan.cycle is None
    return engine


def streams(engine):
    n = engine.store.counters()
    return engine.plan.cycle is not None and n["evictions"] > 0 and n["peak_bytes"] <= n["budget"] == engine.plan.cache


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", DENSE)
def test_every_dense_family_has_the_same_bits_under_the_least_budget(name, mode, tmp_path):
    path, ids = convert_to(oracle.rebuild(name, tmp_path / "hf"), tmp_path, "f32"), oracle.load(name)[0][0].ids.tolist()
    ram = ram_for(path, 0, ctx=64)
    want = resident(path).forward(ids)[0]
    for n_threads in (1, 2):
        engine = open_engine(path, ctx=64, ram=ram, io=mode, n_threads=n_threads)
        assert engine.plan.cycle.kept == ()
        np.testing.assert_array_equal(engine.forward(ids)[0], want)
        assert streams(engine)


@pytest.mark.parametrize("model", ["llama", "gemma3", "lfm2"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("part", [0, 0.4, 1])
def test_no_budget_changes_a_bit(files, model, mode, part):
    path = files[model]
    engine = open_engine(path, ctx=256, ram=ram_for(path, part), io=mode)
    assert engine.residency.mode == mode and not engine.plan.all_fits and (len(engine.plan.cycle.kept) > 0) == (part > 0)
    np.testing.assert_array_equal(decode(engine, IDS, 12), decode(resident(path), IDS, 12))
    assert streams(engine)


@pytest.mark.parametrize("options", [{"n_threads": 1}, {"n_threads": 5}, {"ubatch": 7}, {"ubatch": 33, "n_threads": 3}], ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_threads_and_passes_change_no_bit(files, mode, options):
    """A ubatch of 7: 18 groups go through the layers together."""
    path = files["llama"]
    base = {k: v for k, v in options.items() if k == "ubatch"}
    engine = open_engine(path, ctx=256, ram=ram_for(path, 0.3, **base), io=mode, **options)
    np.testing.assert_array_equal(decode(engine, IDS, 20), decode(resident(path), IDS, 20))
    assert streams(engine)


@pytest.mark.parametrize("model", ["llama", "gemma3"])
def test_any_split_of_the_prompt_agrees_under_the_least_budget(files, model):
    engine = open_engine(files[model], ctx=256, ram=ram_for(files[model], 0), io="direct")
    whole = engine.forward(IDS[:60])[0]
    np.testing.assert_array_equal(whole, resident(files[model]).forward(IDS[:60])[0])
    check_splits(engine, IDS, whole)


def test_a_layer_is_read_once_per_pass_and_a_kept_one_once(files):
    """More reads would be lost time: a group of passes over a long prompt reads each layer once as well."""
    path = files["llama"]
    engine = open_engine(path, ctx=256, ubatch=16, ram=ram_for(path, 0.5, ubatch=16), io="direct")
    cycle, records = engine.plan.cycle, engine.plan.experts
    assert engine.plan.groups > 7 and 0 < len(cycle.kept) < 7
    engine.settle()
    s = engine.session()
    s.sync(IDS)
    for _ in range(10):
        s.eval(5)
    n = engine.store.counters()
    read_ahead = engine.plan.cycle.places * max(x for x in dense.sizes(engine.container, engine.model).dense)
    assert 11 * cycle.pass_bytes <= n["demanded"] + n["warmed"] - (records - cycle.pass_bytes) + 9 * 16384
    assert n["demanded"] <= 11 * cycle.pass_bytes + read_ahead and n["wasted"] == 0 and n["misses"] <= 18 * 9


def test_several_sessions_in_a_pass_agree_when_streamed(files):
    path = files["llama"]
    engine = open_engine(path, ctx=256, ram=ram_for(path, 0.3), io="direct")
    full, prompts = resident(path), [IDS[:50], IDS[60:63], IDS[10:11]]
    for a, p in zip(engine.step([(engine.session(), p) for p in prompts]), prompts, strict=True):
        np.testing.assert_array_equal(a, decode(full, p, 0)[0])


def test_a_budget_below_the_least_is_refused_with_the_number_that_works(files):
    """known_failures H10: planner and loader share one function, so the number that is named does work."""
    path = files["llama"]
    with pytest.raises(BudgetTooSmall, match=r"places for layers.*smallest workable budget is \d+M.*\[budget-small\]") as e:
        open_engine(path, ctx=256, ram=100 << 20)
    least = int(str(e.value).split("smallest workable budget is ")[1].split("M")[0])
    open_engine(path, ctx=256, ram=least << 20)
    with pytest.raises(BudgetTooSmall):
        open_engine(path, ctx=256, ram=(least - 1) << 20)


def test_a_model_that_fits_stays_whole(files, monkeypatch):
    monkeypatch.setattr(dense, "sizes", SIZES)
    engine = open_engine(files["llama"], ctx=256, ram=1 << 30)
    assert engine.plan.cycle is None and engine.plan.all_fits and engine.plan.experts == 0 and not engine.store.cycle


@pytest.mark.parametrize("mode", MODES)
def test_memory_that_is_given_back_and_taken_again_changes_no_bit(files, mode):
    path = files["llama"]
    engine = open_engine(path, ctx=256, ram=ram_for(path, 0.6), io=mode)
    want = decode(engine, IDS, 3)
    for _ in range(2):
        engine.release()
        assert engine.store.counters()["cache_bytes"] == 0
        np.testing.assert_array_equal(decode(engine, IDS, 3), want)
        engine.release()
        engine.restore()
        engine.settle()
        assert engine.store.counters()["cache_bytes"] > 0
        np.testing.assert_array_equal(decode(engine, IDS, 3), want)


# --- which files --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", DENSE)
def test_all_large_matrices_of_layers_stream_and_each_tensor_has_a_place(name, tmp_path):
    """Names of what stays and what streams add up to the file's; nothing but vectors and aux stays inside a layer."""
    c = Container.open(convert_to(oracle.rebuild(name, tmp_path / "hf"), tmp_path, "f32"))
    found = dense.find(c, lower(describe(c)))
    stays = {n for r in (*found.large, *found.small) for n, _ in r.tensors}
    streamed = {t.name for t in c.tensors.values() if not t.gather} - stays
    layers = [t for t in c.tensors.values() if t.layer >= 0 and not t.gather]
    matrices = {t.name for t in layers if len(t.shape) == 2 and t.role in ("attn", "dense")}
    assert matrices and matrices <= streamed
    inside = [(r.base, r.base + r.record_bytes) for r in found.records]
    for n in streamed:
        t = c.tensors[n]
        assert any(a <= t.offset and t.offset + t.nbytes <= b for a, b in inside)


def test_experts_stream_instead_of_layers(tmp_path):
    c = Container.open(convert_to(tiny.hf(tmp_path / "moe", "qwen3-moe"), tmp_path, "q8"))
    assert dense.find(c, lower(describe(c))) is None and dense.sizes(c, describe(c)).dense == ()


def test_layers_that_do_not_lie_one_after_another_stay(files):
    c = Container.open(files["llama"])
    names = ["layers.0.attn.q", "layers.3.attn.q"]
    a, b = (c.tensors[n] for n in names)
    c.tensors = c.tensors | {names[0]: replace(a, offset=b.offset), names[1]: replace(b, offset=a.offset)}
    assert dense.find(c, lower(describe(c))) is None
    with pytest.raises((BudgetTooSmall, FormatError)):
        open_engine(files["llama"], ctx=256, ram=1 << 20)


# --- faults -------------------------------------------------------------------------------------------------------------

@pytest.fixture
def streamed(files, tmp_path, monkeypatch):
    """make(mode): a streaming engine on a copy of the file, whose reads go through a Faults."""
    def make(mode="direct"):
        path = tmp_path / "model.moegg"
        path.write_bytes(files["llama"].read_bytes())
        ram, hook = ram_for(path, 0.2), faults.Faults()
        monkeypatch.setattr("moegg.engine.engine.ExpertStore", lambda *a, **k: ExpertStore(*a, **k, hook=hook.address))
        engine = open_engine(path, ctx=256, ram=ram, io=mode)
        monkeypatch.setattr("moegg.engine.engine.ExpertStore", ExpertStore)
        return engine, hook, path
    return make


@pytest.mark.parametrize("mode", MODES)
def test_a_read_error_names_the_layer_and_the_engine_recovers(streamed, files, mode):
    engine, hook, _ = streamed(mode)
    s = engine.session()
    s.sync(IDS[:30])
    hook.broken = True
    with pytest.raises(IOFailure, match=r": layer \d: read of \d+ B at byte \d+ failed: .*\[io-read\]"):
        for t in IDS[30:90]:
            s.eval(t)
    hook.broken = False
    np.testing.assert_array_equal(decode(engine, IDS, 5), decode(resident(files["llama"]), IDS, 5))


@pytest.mark.parametrize("mode", MODES)
def test_a_file_cut_while_running_is_an_error_not_a_signal(streamed, mode):
    engine, _, path = streamed(mode)
    s = engine.session()
    s.sync(IDS[:20])
    os.truncate(path, Container.open(path).tensors["layers.4.attn.q"].offset)
    with pytest.raises(IOFailure, match="file-changed"):
        for t in IDS[20:60]:
            s.eval(t)


@pytest.mark.parametrize("mode", MODES)
def test_a_stalled_disk_does_not_hang_a_cancel(streamed, files, mode):
    """What was read ahead for a cancelled pass is in the way of the next one, which gets its places all the same."""
    engine, hook, _ = streamed(mode)
    s = engine.session()
    s.sync(IDS[:10])
    hook.stall.clear()
    timer = threading.Timer(0.2, engine.cancel)
    timer.start()
    with pytest.raises(Cancelled):
        for t in IDS[10:100]:
            s.eval(t)
    hook.stall.set()
    timer.join()
    np.testing.assert_array_equal(decode(engine, IDS, 5), decode(resident(files["llama"]), IDS, 5))


def test_nothing_faults_on_the_decode_path(files):
    for mode in MODES:
        engine = open_engine(files["llama"], ctx=256, ram=ram_for(files["llama"], 0.3), io=mode)
        decode(engine, IDS, 3)
        before = engine.store.counters()["faults"]
        decode(engine, IDS, 20)
        assert engine.store.counters()["faults"] - before <= 2, mode
