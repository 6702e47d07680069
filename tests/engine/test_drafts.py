"""What drafting asks of a session: tokens that turn out wrong are taken back, and leave nothing behind.

Nothing here speculates on tokens yet; whoever does gets these guarantees from Session.sync.
"""
import numpy as np
import pytest

from moegg import registry
from moegg.arch import Mixer
from tests import tiny
from tests.loading import convert_to, open_engine

ARCHS = ["qwen3-moe", "gemma3", *(a for a in registry.names() if any(isinstance(layer.attn, Mixer) for layer in tiny.describe(a).layers))]
IDS = np.random.default_rng(8).integers(3, 480, 48).tolist()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drafts")
    return {arch: convert_to(tiny.hf(folder / arch, arch), folder, "q8") for arch in ARCHS}


def fresh(engine, ids):
    s = engine.session()
    s.sync(ids)
    return s.logits


@pytest.mark.parametrize("arch", ARCHS)
def test_rejected_drafts_leave_no_trace_in_any_state(files, arch):
    """known_failures Q12: drafts that are all wrong, half wrong and right, then a step without any; the text stays greedy."""
    engine = open_engine(files[arch], ctx=128)
    plain = engine.session()
    plain.sync(IDS)
    greedy = []
    for _ in range(9):
        greedy.append(int(plain.logits.argmax()))
        plain.eval(greedy[-1])
    s, said = engine.session(), []
    s.sync(IDS)
    for right in (0, 2, 3, 0):
        first = int(s.logits.argmax())
        draft = [g if n < right else (g + 1) % 480 for n, g in enumerate(greedy[len(said) + 1:len(said) + 4])]
        s.sync([*IDS, *said, first, *draft])
        said += [first, *draft[:min(right, len(draft))]]
        s.sync([*IDS, *said])                       # what was wrong is taken back
        np.testing.assert_array_equal(s.logits, fresh(engine, [*IDS, *said]))
    assert said == greedy


@pytest.mark.parametrize("arch", ARCHS)
def test_a_draft_that_repeats_the_prompt_is_not_taken_for_granted(files, arch):
    """known_failures Q13: prompt [1, 1, 1], draft [1]: the first draft token is judged by the prompt's logits, not by its own."""
    engine = open_engine(files[arch], ctx=64)
    s = engine.session()
    s.sync([1, 1, 1, 1])
    s.sync([1, 1, 1])
    np.testing.assert_array_equal(s.logits, fresh(engine, [1, 1, 1]))
    assert len(s) == 3 and int(s.logits.argmax()) == int(fresh(engine, [1, 1, 1]).argmax())
