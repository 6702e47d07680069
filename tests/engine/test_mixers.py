"""Layers with a float state, or latents: the same bits however a prompt is cut, going back to marks, cancelling, snapshots, the plan."""
import numpy as np
import pytest

from moegg import kernels, registry
from moegg.arch import Gqa, Mixer
from moegg.engine.state import MARK_BACK
from moegg.errors import Cancelled
from moegg.planner import MARKS
from tests import tiny
from tests.loading import convert_to, open_engine
from tests.reference.forward import forward

ARCHS = [a for a in registry.names() if not all(isinstance(layer.attn, Gqa) for layer in tiny.describe(a).layers)]
FORGETFUL = [a for a in ARCHS if any(isinstance(layer.attn, Mixer) for layer in tiny.describe(a).layers)]
IDS = np.random.default_rng(6).integers(3, 480, 400).tolist()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixers")
    return {(arch, quant): convert_to(tiny.hf(folder / arch, arch), folder, quant) for arch in ARCHS for quant in ("f32", "q8")}


def fresh(engine, ids):
    s = engine.session()
    s.sync(ids)
    return s


@pytest.mark.parametrize("arch", ARCHS)
def test_logits_are_those_of_the_reference(files, arch):
    model = tiny.describe(arch)
    want = forward(model, tiny.weights(model), IDS[:70]).logits
    got = open_engine(files[arch, "f32"], ctx=128).forward(IDS[:70])[0]
    assert np.abs(got - want).max() < 2e-4 * max(1, want.std())


@pytest.mark.parametrize("arch", ARCHS)
def test_threads_levels_and_splits_change_no_bit(files, arch):
    want = [fresh(open_engine(files[arch, "q8"], ctx=256, n_threads=1), IDS[:n]).logits for n in (1, 2, 60, 61)]
    try:
        for level in kernels.levels():
            kernels.select(level)
            s = open_engine(files[arch, "q8"], ctx=256, n_threads=3, ubatch=7).session()
            for n, logits in zip((1, 2, 60, 61), want, strict=True):
                s.sync(IDS[:n])
                np.testing.assert_array_equal(s.logits, logits, level)
    finally:
        kernels.select(None)


ODD = {     # sizes beside those of vectors, tiles and registers: keys, lanes, taps, heads that share keys, ranks
    "keys past a multiple of four, three tiles": ("qwen3-next",
                                                  {"linear_key_head_dim": 18, "linear_value_head_dim": 36, "linear_conv_kernel_dim": 5}),
    "decays per key, three taps": ("kimi-linear", {"linear_attn_config": {
        "full_attn_layers": [2], "kda_layers": [1, 3, 4], "head_dim": 33, "num_heads": 3, "short_conv_kernel_size": 3}, "kv_lora_rank": 48}),
    "no correction": ("minimax", {"head_dim": 22}),
    "two taps": ("jamba", {"mamba_d_conv": 2, "mamba_d_state": 5}),
    "ten heads choose alike": ("qwen4-exp",
                               {"num_attention_heads": 10, "num_key_value_heads": 1, "head_dim": 44, "indexer_n_heads": 5, "indexer_head_dim": 26}),
    "nine heads over latents": ("deepseek", {"num_attention_heads": 9, "num_key_value_heads": 9, "kv_lora_rank": 80}),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_sizes_give_the_reference_at_every_level_and_split(name, tmp_path):
    arch, changes = ODD[name]
    model, path = tiny.describe(arch, **changes), convert_to(tiny.hf(tmp_path / "odd", arch, **changes), tmp_path, "f32")
    want = forward(model, tiny.weights(model), IDS[:70]).logits
    got = open_engine(path, ctx=128, n_threads=1).forward(IDS[:70])[0]
    assert np.abs(got - want).max() < 2e-4 * max(1, want.std())
    try:
        for level in kernels.levels():
            kernels.select(level)
            np.testing.assert_array_equal(open_engine(path, ctx=128, n_threads=3, ubatch=37).forward(IDS[:70])[0], got, level)
    finally:
        kernels.select(None)


@pytest.mark.parametrize("arch", ARCHS)
def test_two_interleaved_sessions_are_independent(files, arch):
    """known_failures Q5."""
    engine = open_engine(files[arch, "q8"], ctx=256)
    a, b = engine.session(), engine.session()
    engine.step([(a, IDS[:30]), (b, IDS[100:103])])
    for i in range(30, 36):
        engine.step([(b, [IDS[i + 100]]), (a, [IDS[i]])])
    np.testing.assert_array_equal(a.logits, fresh(engine, IDS[:36]).logits)
    np.testing.assert_array_equal(b.logits, fresh(engine, [*IDS[100:103], *IDS[130:136]]).logits)


@pytest.mark.parametrize("arch", FORGETFUL)
def test_a_turn_that_differs_goes_back_to_the_mark_before_it(files, arch):
    """known_failures Q17: a mixer cannot forget single tokens; the nearest mark below the common prefix counts."""
    engine = open_engine(files[arch, "q8"], ctx=256, ubatch=32)
    s = fresh(engine, IDS[:80])
    for t in IDS[80:90]:
        s.eval(t)
    assert s.reach(90) == 90 and s.reach(89) == 80 - MARK_BACK and s.reach(80 - MARK_BACK - 1) == 0
    other = [*IDS[:85], *IDS[200:220]]
    assert s.sync(other).reused == 80 - MARK_BACK
    np.testing.assert_array_equal(s.logits, fresh(engine, other).logits)
    assert s.sync([*IDS[:80], 7]).reused == 80 - MARK_BACK            # the older mark is still there
    np.testing.assert_array_equal(s.logits, fresh(engine, [*IDS[:80], 7]).logits)
    assert s.sync(IDS[:10]).reused == 0
    np.testing.assert_array_equal(s.logits, fresh(engine, IDS[:10]).logits)


@pytest.mark.parametrize("arch", ARCHS[:1])
def test_marks_keep_the_first_turn_and_the_last(files, arch):
    engine = open_engine(files[arch, "q8"], ctx=400)
    s = engine.session()
    for n in (100, 160, 220, 280, 340):
        s.sync(IDS[:n])
        s.eval(IDS[n])
    assert sorted(s.state.marks) == [100 - MARK_BACK, 340 - MARK_BACK] and MARKS == 2


@pytest.mark.parametrize("arch", ARCHS[:1])
def test_a_prompt_in_several_calls_gets_one_mark(files, arch):
    engine = open_engine(files[arch, "q8"], ctx=400)
    s = engine.session()
    for n in range(0, 320, 40):
        engine.step([(s, IDS[n:n + 40])])
    assert sorted(s.state.marks) == [-1, 320 - MARK_BACK]
    assert s.rewind(319) == 320 - MARK_BACK
    np.testing.assert_array_equal(s.eval(IDS[304]), fresh(engine, IDS[:305]).logits)


@pytest.mark.parametrize("arch", FORGETFUL)
def test_a_cancelled_pass_leaves_no_half_state(files, arch):
    """Layers that ran have taken the pass's tokens in: the session falls back to its mark, and a new one to nothing."""
    engine = open_engine(files[arch, "q8"], ctx=256, ubatch=16)
    s = fresh(engine, IDS[:60])
    s.eval(IDS[60])
    with pytest.raises(Cancelled):
        engine.step([(s, IDS[61:100])], progress=lambda done, total: engine.cancel())
    assert s.tokens == IDS[:60 - MARK_BACK]
    s.sync(IDS[:100])
    new = engine.session()
    with pytest.raises(Cancelled):
        engine.step([(new, IDS[:90])], progress=lambda done, total: engine.cancel())
    assert len(new) == 0
    np.testing.assert_array_equal(s.logits, fresh(engine, IDS[:100]).logits)


@pytest.mark.parametrize("arch", FORGETFUL)
def test_snapshots_and_copies_continue_with_the_same_bits(files, arch):
    """known_failures Q7, Q18: every part of the state is in it, of the end or of a mark."""
    engine = open_engine(files[arch, "q8"], ctx=256)
    s = fresh(engine, IDS[:50])
    whole, part = s.snapshot(), s.snapshot(49)
    assert len(part.tokens) == 50 - MARK_BACK
    for t in IDS[50:60]:
        s.eval(t)
    for snapshot in (whole, part):
        other = fresh(open_engine(files[arch, "q8"], ctx=256), IDS[300:340])
        other.restore(snapshot)
        assert other.sync(IDS[:60]).reused == len(snapshot.tokens)
        np.testing.assert_array_equal(other.logits, s.logits)
    other = fresh(engine, IDS[300:340])
    assert other.copy_from(s, 55) == 50 - MARK_BACK
    other.sync([*IDS[:40], 9])
    np.testing.assert_array_equal(other.logits, fresh(engine, [*IDS[:40], 9]).logits)


@pytest.mark.parametrize("arch", ARCHS)
def test_what_is_planned_is_what_is_allocated(files, arch):
    """known_failures H10."""
    for options in ({"ctx": 64, "n_threads": 7}, {"ctx": 5000, "ubatch": 16}, {"ctx": 300, "kv": "f32"}):
        engine = open_engine(files[arch, "q8"], **options)
        assert engine.anonymous_bytes <= engine.plan.scratch + engine.plan.rope_tables, options
        state = engine.session().state
        held = [*state._kv, *state._index, state._floats, [state.ids]]           # token ids too, which n-grams look back at
        assert state.nbytes == sum(x.nbytes for arrays in held for x in arrays) <= engine.plan.kv_state, options
