"""What a session remembers: snapshots, restoring, copying between sessions, and how far it can go back."""
import numpy as np
import pytest

from moegg.errors import BadRequest
from tests import tiny
from tests.loading import convert_to, open_engine

ARCHS = ["qwen3-moe", "gemma3", "llama"]
IDS = np.random.default_rng(5).integers(3, 480, 400).tolist()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("state")
    return {arch: convert_to(tiny.hf(folder / arch, arch), folder, "q8") for arch in ARCHS}


def fresh(engine, ids):
    s = engine.session()
    s.sync(ids)
    return s


def continued(session, ids):
    """Logits after each of `ids`."""
    return [session.eval(t) for t in ids]


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("n", [1, 40, 150])
def test_a_restored_session_continues_with_the_same_bits(files, arch, n):
    """known_failures Q18; in another session, and in a second engine on the same file. A long prompt has turned gemma3's rings."""
    engine = open_engine(files[arch], ctx=256, ubatch=16)
    s = fresh(engine, IDS[:n])
    snapshot = s.snapshot()
    assert snapshot.tokens == tuple(IDS[:n]) and snapshot.nbytes > 0
    want = continued(s, IDS[200:210])
    for other in (fresh(engine, IDS[50:90]), open_engine(files[arch], ctx=256, ubatch=16).session(), s):
        other.restore(snapshot)
        assert other.tokens == IDS[:n]
        np.testing.assert_array_equal(other.logits, snapshot.logits)
        assert other.sync(IDS[:n]).evaluated == 0
        for a, b in zip(continued(other, IDS[200:210]), want, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("arch", ARCHS)
def test_a_copied_beginning_serves_two_conversations(files, arch):
    """known_failures Q5, Q17: each continues alone, and the source is as it was."""
    engine = open_engine(files[arch], ctx=256)
    first = fresh(engine, IDS[:60])
    second = fresh(engine, IDS[300:310])
    assert second.copy_from(first, 50) == 50 and second.tokens == IDS[:50] and second.logits is None
    second.sync([*IDS[:50], *IDS[100:140]])
    np.testing.assert_array_equal(second.logits, fresh(engine, [*IDS[:50], *IDS[100:140]]).logits)
    first.sync(IDS[:70])
    np.testing.assert_array_equal(first.logits, fresh(engine, IDS[:70]).logits)
    assert second.copy_from(first, 0) == 0 and len(second) == 0
    assert second.copy_from(first, 1000) == 70


def test_a_snapshot_of_a_beginning_holds_that_alone(files):
    engine = open_engine(files["llama"], ctx=256)
    s = fresh(engine, IDS[:100])
    small, whole = s.snapshot(20), s.snapshot()
    assert small.tokens == tuple(IDS[:20]) and small.logits is None and small.nbytes < whole.nbytes / 2
    s.restore(small)
    assert s.sync(IDS[:30]).reused == 20
    np.testing.assert_array_equal(s.logits, fresh(engine, IDS[:30]).logits)


def test_rewinding_twice_does_not_forget_what_was_overwritten_before(files):
    """A ring that held 200 positions' worth of the past, rewound to 150, has lost what lies before as if it still held 200."""
    engine = open_engine(files["gemma3"], ctx=512, ubatch=64)
    window = min(a.window for a in engine.program.attn if a.window)
    cap = min(engine.session().state.capacity)
    s = fresh(engine, (IDS * 2)[:3 * cap])
    near = 3 * cap - cap + window
    assert s.rewind(near) == near
    assert s.reach(near - window) == 0
    s.sync([*s.tokens[:near - window], 7])
    np.testing.assert_array_equal(s.logits, fresh(engine, s.tokens).logits)


def test_a_snapshot_of_a_turned_ring_cannot_go_back_further_than_its_source(files):
    engine = open_engine(files["gemma3"], ctx=512, ubatch=16)
    s, other = fresh(engine, (IDS * 2)[:450]), engine.session()
    other.restore(s.snapshot())
    assert [other.reach(n) for n in range(450)] == [s.reach(n) for n in range(450)]
    assert other.copy_from(s, 10) == 0


def test_state_of_another_engine_is_refused_and_nothing_changes(files):
    a, b = open_engine(files["llama"], ctx=256), open_engine(files["gemma3"], ctx=256)
    s, wide = fresh(a, IDS[:20]), open_engine(files["llama"], ctx=256, kv="f32").session()
    for other in (b.session(), wide):
        with pytest.raises(BadRequest, match="state-mismatch"):
            other.restore(s.snapshot())
        with pytest.raises(BadRequest, match="state-mismatch"):
            other.copy_from(s, 10)
    with pytest.raises(BadRequest, match="state-mismatch"):
        open_engine(files["llama"], ctx=10).session().restore(s.snapshot())
    with pytest.raises(BadRequest, match="state-mismatch"):
        s.copy_from(s, 10)
    assert s.sync(IDS[:21]).reused == 20


@pytest.mark.parametrize("arch, rewinds", [("qwen3-moe", True), ("gemma3", False), ("lfm2", False)])
def test_a_state_says_whether_it_can_always_go_back_and_what_a_snapshot_takes(tmp_path, arch, rewinds):
    """What a server plans with: a session of its own for a snapshot, or a cheap rewind."""
    engine = open_engine(convert_to(tiny.hf(tmp_path / "source", arch), tmp_path, "f32"), ctx=256, n_threads=1, ubatch=16)
    session = engine.session()
    session.sync(list(range(5, 105)))
    assert session.rewinds is rewinds
    assert session.saved_bytes(100) == sum(p.nbytes for p in session.snapshot().parts)
