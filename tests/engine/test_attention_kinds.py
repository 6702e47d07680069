"""Attention beyond plain GQA, through the engine: rings that have turned, layers that share keys and values, sinks, chunks."""
import numpy as np
import pytest

from tests import tiny
from tests.loading import convert_to, open_engine

IDS = np.random.default_rng(9).integers(3, 480, 200).tolist()
KINDS = {
    "windows and sinks": ("gpt-oss", {}),
    "chunks": ("llama4", {}),
    "shared keys and values": ("gemma4", {"enable_moe_block": False, "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
                                          "hidden_size_per_layer_input": 6, "vocab_size_per_layer_input": 509}),
    "keys as values": ("gemma4", {}),
}


@pytest.fixture(scope="module", params=KINDS)
def engine(request, tmp_path_factory):
    arch, changes = KINDS[request.param]
    folder = tmp_path_factory.mktemp("kinds")
    return open_engine(convert_to(tiny.hf(folder / arch, arch, **changes), folder, "f32"), ctx=256, ubatch=16)


def logits(engine, ids):
    s = engine.session()
    s.sync(ids)
    return s.logits


def test_a_prompt_that_parts_from_the_last_one_after_the_ring_has_turned_is_read_as_if_new(engine):
    """known_failures Q15, Q17: a ring trimmed behind its own back answers from keys of another text."""
    s = engine.session()
    s.sync(IDS)
    for n in (199, 190, 120, 30, 3):
        ids = IDS[:n] + [7, 8]
        s.sync(ids)
        np.testing.assert_array_equal(s.logits, logits(engine, ids))


def test_a_restored_state_continues_as_if_it_had_never_left(engine):
    """known_failures Q18: what one layer shares with another is saved once and found by both."""
    s = engine.session()
    s.sync(IDS[:150])
    kept = s.snapshot()
    want = s.eval(11).copy()
    other = engine.session()
    other.restore(kept)
    np.testing.assert_array_equal(other.eval(11), want)


def test_two_sessions_in_one_pass_do_not_meet(engine):
    a, b = engine.session(), engine.session()
    got = engine.step([(a, IDS[:70]), (b, IDS[90:101])])
    for row, ids in zip(got, (IDS[:70], IDS[90:101]), strict=True):
        np.testing.assert_array_equal(row, logits(engine, ids))


def test_the_plan_covers_what_is_allocated(engine):
    assert engine.session().state.nbytes <= engine.plan.kv_state + 4096 * len(engine.program.attn)
    assert engine.anonymous_bytes <= engine.plan.rope_tables + engine.plan.scratch
