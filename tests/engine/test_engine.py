"""Engine and Session: invariance of the results, several sessions in a pass, rewinding, limits."""
import os

import numpy as np
import pytest

from moegg import kernels
from moegg.engine import Engine
from moegg.errors import BadRequest, BudgetTooSmall, Cancelled, ContextFull, IOFailure
from moegg.formats.container import Container
from tests import tiny
from tests.loading import convert_to, open_engine

ARCHS = ["qwen3-moe", "gemma3", "llama"]
IDS = np.random.default_rng(3).integers(3, 480, 200).tolist()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engine")
    return {(arch, quant): convert_to(tiny.hf(folder / arch, arch), folder, quant) for arch in ARCHS for quant in ("f32", "q8", "q4")}


@pytest.fixture(scope="module")
def rope_file(tmp_path_factory):
    """longrope: sequences over 64 tokens use other frequencies throughout."""
    folder = tmp_path_factory.mktemp("longrope")
    half = tiny.describe("llama").layers[0].attn.rope.dim // 2
    scaling = {"rope_type": "longrope", "short_factor": [1.0 + 0.1 * i for i in range(half)], "long_factor": [2.0 + i for i in range(half)],
               "original_max_position_embeddings": 64}
    return convert_to(tiny.hf(folder / "longrope", "llama", rope_scaling=scaling, max_position_embeddings=512), folder, "f32")


def last_logits(engine, ids):
    s = engine.session()
    s.sync(ids)
    return s.logits


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("quant", ["f32", "q8", "q4"])
def test_threads_levels_and_ubatch_change_no_bit(files, arch, quant):
    path, ids = files[arch, quant], IDS[:90]
    want = last_logits(open_engine(path, ctx=256, n_threads=1), ids)
    assert np.isfinite(want).all() and want.std() > 0.1
    for options in ({"n_threads": 2}, {"n_threads": 5}, {"ubatch": 7}, {"ubatch": 33, "n_threads": 3}):
        np.testing.assert_array_equal(last_logits(open_engine(path, ctx=256, **options), ids), want, str(options))
    try:
        for level in kernels.levels():
            kernels.select(level)
            np.testing.assert_array_equal(last_logits(open_engine(path, ctx=256), ids), want, level)
    finally:
        kernels.select(None)


@pytest.mark.parametrize("arch", ARCHS)
def test_several_sessions_in_one_pass_equal_their_serial_runs(files, arch):
    engine = open_engine(files[arch, "q8"], ctx=256)
    prompts = [IDS[:50], IDS[60:63], IDS[10:11], IDS[5:100]]
    want = [last_logits(engine, p) for p in prompts]
    sessions = [engine.session() for _ in prompts]
    got = engine.step(list(zip(sessions, prompts, strict=True)))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)
    more = engine.step([(s, [7 + i]) for i, s in enumerate(sessions)])
    for i, p in enumerate(prompts):
        np.testing.assert_array_equal(more[i], last_logits(engine, [*p, 7 + i]))


@pytest.mark.parametrize("arch", ARCHS)
def test_sync_reuses_the_common_prefix_and_equals_a_fresh_run(files, arch):
    engine = open_engine(files[arch, "f32"], ctx=256)
    s = engine.session()
    assert s.sync(IDS[:30]).reused == 0
    assert s.sync(IDS[:40]).reused == 30
    np.testing.assert_array_equal(s.logits, last_logits(engine, IDS[:40]))
    assert s.sync(IDS[:40]) == s.sync(IDS[:40]) and s.sync(IDS[:40]).evaluated == 0
    result = s.sync([*IDS[:20], 9, 9, 9])
    assert (result.reused, result.evaluated) == (20, 3)
    np.testing.assert_array_equal(s.logits, last_logits(engine, [*IDS[:20], 9, 9, 9]))
    assert s.sync(IDS[:20]).evaluated >= 1                   # the last token's logits are needed again
    np.testing.assert_array_equal(s.logits, last_logits(engine, IDS[:20]))


def test_a_wrapped_window_is_rebuilt_not_trimmed(files):
    """known_failures Q15: a ring that has wrapped cannot be rewound past what it holds."""
    engine = open_engine(files["gemma3", "f32"], ctx=512, ubatch=8)
    window = min(a.window for a in engine.program.attn if a.window)
    ids = (IDS * 3)[:window + 200]
    s = engine.session()
    s.sync(ids)
    assert s.reach(20) == 0
    result = s.sync([*ids[:20], 5])
    assert result.reused == 0
    np.testing.assert_array_equal(s.logits, last_logits(engine, [*ids[:20], 5]))
    s.sync(ids)
    assert s.sync([*ids[:-2], 5]).reused == len(ids) - 2
    np.testing.assert_array_equal(s.logits, last_logits(engine, [*ids[:-2], 5]))


def test_crossing_a_rope_regime_evaluates_the_sequence_again(rope_file):
    engine = open_engine(rope_file, ctx=256)
    s = engine.session()
    s.sync(IDS[:60])
    for n in range(60, 70):
        s.eval(IDS[n])
        np.testing.assert_array_equal(s.logits, last_logits(engine, IDS[:n + 1]))
    assert s.sync(IDS[:50]).reused == 0
    np.testing.assert_array_equal(s.logits, last_logits(engine, IDS[:50]))


def test_f16_keys_and_values_stay_close_to_f32(files):
    wide, half = (last_logits(open_engine(files["qwen3-moe", "f32"], ctx=256, kv=kv), IDS[:120]) for kv in ("f32", "f16"))
    assert 0 < np.abs(wide - half).max() < 0.02 * wide.std() + 0.02


def test_many_experts_at_once_and_one_token_agree(files):
    """The grouped MoE path and the one-token path give the same bits."""
    engine = open_engine(files["qwen3-moe", "q4"], ctx=256)
    whole, idx, w, layers = engine.forward(IDS[:70])
    assert idx.shape == w.shape == (len(layers), 70, engine.program.moe[0].top_k)
    s = engine.session()
    for i, t in enumerate(IDS[:70]):
        np.testing.assert_array_equal(s.eval(t), whole[i])


def test_more_tokens_than_the_context_are_refused_before_any_work(files):
    engine = open_engine(files["llama", "q8"], ctx=64)
    s = engine.session()
    with pytest.raises(ContextFull, match=r"65 tokens do not fit into 64.*\[context-full\]"):
        s.sync(IDS[:65])
    s.sync(IDS[:64])
    with pytest.raises(ContextFull):
        s.eval(5)
    assert len(s) == 64


@pytest.mark.parametrize("bad", [-1, 1 << 20])
def test_a_token_outside_the_vocabulary_is_an_error_not_a_read(files, bad):
    """known_failures A10."""
    engine = open_engine(files["llama", "q8"], ctx=64)
    with pytest.raises(BadRequest, match="token-range"):
        engine.session().sync([1, bad])
    with pytest.raises(BadRequest, match="token-range"):
        engine.forward([bad])
    with pytest.raises(BadRequest, match="tokens-empty"):
        engine.session().sync([])


def test_a_cancelled_prompt_keeps_what_was_evaluated(files):
    engine = open_engine(files["llama", "q8"], ctx=256, ubatch=16)
    s, seen = engine.session(), []
    with pytest.raises(Cancelled):
        s.sync(IDS[:100], progress=lambda done, total: seen.append((done, total)), cancel=lambda: len(seen) == 2)
    assert seen == [(16, 100), (32, 100)] and len(s) == 32
    assert s.sync(IDS[:100]).reused == 32
    np.testing.assert_array_equal(s.logits, last_logits(engine, IDS[:100]))


def test_cancel_during_a_pass_leaves_a_usable_session(files):
    engine = open_engine(files["gemma3", "q8"], ctx=256, ubatch=16)
    s = engine.session()
    s.sync(IDS[:40])
    with pytest.raises(Cancelled):
        engine.step([(s, IDS[40:100])], progress=lambda done, total: engine.cancel())
    s.sync(IDS[:100])
    np.testing.assert_array_equal(s.logits, last_logits(engine, IDS[:100]))


def test_poisoned_state_does_not_leak_into_a_session(files):
    """known_failures G16: memory that held NaN before must not reach the logits of another sequence."""
    engine = open_engine(files["qwen3-moe", "q8"], ctx=256)
    want = last_logits(engine, IDS[:33])
    s = engine.session()
    s.sync(IDS[:200])
    s.sync(IDS[:33])
    np.testing.assert_array_equal(s.logits, want)


def test_a_context_beyond_memory_is_refused_with_what_fits(files):
    with pytest.raises(BudgetTooSmall, match=r"longest context that fits is \d+ \[budget-small\]"):
        open_engine(files["llama", "q8"], ctx=1 << 30)


def test_a_file_replaced_after_opening_is_noticed(files, tmp_path):
    path = tmp_path / "m.moegg"
    path.write_bytes(files["llama", "q8"].read_bytes())
    container = Container.open(path)
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(IOFailure, match="file-changed"):
        Engine(container, tiny.describe("llama"), ctx=64)


@pytest.mark.parametrize("arch", ARCHS)
def test_what_is_allocated_stays_within_the_plan(files, arch):
    for options in ({"ctx": 1}, {"ctx": 64, "n_threads": 7}, {"ctx": 5000, "ubatch": 16}, {"ctx": 3000, "n_threads": 64, "kv": "f32"}):
        engine = open_engine(files[arch, "q8"], **options)
        assert engine.anonymous_bytes <= engine.plan.scratch + engine.plan.rope_tables, options
        assert engine.session().state.nbytes <= engine.plan.kv_state + 4096 * len(engine.program.attn), options


@pytest.mark.parametrize("options", [{"ctx": 0}, {"ctx": -5}, {"n_threads": 0}, {"n_threads": 4096}, {"kv": "f8"}, {"ubatch": 0}], ids=str)
def test_impossible_options_are_refused(files, options):
    with pytest.raises(BadRequest, match="engine-option"):
        open_engine(files["llama", "q8"], **options)


def test_a_session_of_another_engine_or_twice_in_a_step_is_refused(files):
    a, b = open_engine(files["llama", "q8"], ctx=64), open_engine(files["llama", "q8"], ctx=512)
    with pytest.raises(BadRequest, match="step-sessions"):
        b.step([(a.session(), IDS[:300])])
    s = a.session()
    with pytest.raises(BadRequest, match="step-sessions"):
        a.step([(s, [1]), (s, [2])])


def test_a_second_thread_is_refused_while_a_pass_runs(files):
    engine, seen = open_engine(files["llama", "q8"], ctx=256, ubatch=16), []

    def meddle(done, total):
        try:
            engine.session().eval(5)
        except BadRequest as e:
            seen.append(e.slug)
    s = engine.session()
    s.sync(IDS[:100], progress=meddle)
    assert set(seen) == {"engine-busy"}
    np.testing.assert_array_equal(s.logits, last_logits(engine, IDS[:100]))


def test_a_float_token_is_refused_not_truncated(files):
    with pytest.raises(BadRequest, match="token-range"):
        open_engine(files["llama", "q8"], ctx=64).session().sync([1, 1.7])


def test_a_file_cut_while_mapped_is_an_error_not_a_signal(files, tmp_path):
    """What the file no longer holds reads as zeros, and the pass that met it ends with an error; so do all later ones."""
    path = tmp_path / "m.moegg"
    path.write_bytes(files["llama", "q8"].read_bytes())
    engine = open_engine(path, ctx=64)
    session = engine.session()
    session.sync(IDS[:5])
    os.truncate(path, 4096)
    assert engine.mapped[-1] == 0
    for _ in range(2):
        with pytest.raises(IOFailure, match="file-changed"):
            session.eval(3)
