"""Perplexity and divergence: against plain numpy over whole logits, and what cannot be measured."""
import math

import numpy as np
import pytest

from moegg.engine.evaluate import cut, evaluate
from moegg.errors import BadRequest
from tests import tiny
from tests.loading import convert_to, open_engine

IDS = np.random.default_rng(8).integers(3, 480, 400).tolist()


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluate")
    source = tiny.hf(folder / "tiny", "qwen3-moe")
    return {q: open_engine(convert_to(source, folder, q), ctx=128, n_threads=1, ubatch=u) for q, u in (("f32", 512), ("q4", 13))}


def log_softmax(x):
    x = x.astype(np.float64)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def test_statistics_equal_plain_numpy_although_both_models_step_differently(engines):
    windows = cut(IDS, 96)
    got = evaluate(engines["q4"], windows, engines["f32"])
    nll, kl, same = [], [], []
    for w in windows:
        p, q = (log_softmax(engines[name].forward(w)[0])[48:-1] for name in ("q4", "f32"))
        nll += (-p[np.arange(47), w[49:]]).tolist()
        kl += (np.exp(q) * (q - p)).sum(-1).tolist()
        same += (p.argmax(-1) == q.argmax(-1)).tolist()
    assert (got.tokens, got.windows, got.ctx) == (4 * 47, 4, 96)
    assert got.perplexity == pytest.approx(np.exp(np.mean(nll)), rel=1e-9)
    assert got.perplexity_error == pytest.approx(got.perplexity * np.std(nll, ddof=1) / math.sqrt(len(nll)), rel=1e-9)
    r = got.reference
    assert [r.kl_mean, r.kl_median, r.kl_p99, r.kl_max] == pytest.approx([np.mean(kl), np.median(kl), np.quantile(kl, 0.99), max(kl)], rel=1e-6)
    assert r.top1 == pytest.approx(np.mean(same)) and r.kl_mean > 0


def test_a_model_is_at_no_distance_from_itself(engines):
    got = evaluate(engines["q4"], cut(IDS, 64), engines["q4"].__class__(engines["q4"].container, engines["q4"].model, ctx=64, n_threads=2))
    assert (got.reference.kl_max, got.reference.top1, got.reference.perplexity) == (0, 1, got.perplexity)


def test_a_vocabulary_larger_than_a_block_changes_nothing(engines, monkeypatch):
    want = evaluate(engines["q4"], cut(IDS, 64), engines["f32"])
    monkeypatch.setattr("moegg.engine.evaluate.BLOCK_FLOATS", 1)
    assert evaluate(engines["q4"], cut(IDS, 64), engines["f32"]) == want


def test_windows_are_whole_and_begin_with_what_the_tokenizer_puts_in_front():
    assert cut(range(10), 4) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert cut(range(10, 22), 6, [1, 2]) == [[1, 2, 12, 13, 14, 15], [1, 2, 18, 19, 20, 21]]


@pytest.mark.parametrize("n, ctx", [(10, 11), (10, 3), (0, 4)])
def test_a_text_without_a_whole_window_is_refused(n, ctx):
    with pytest.raises(BadRequest, match=r"too short.*\[text-short\]"):
        cut(range(n), ctx)


def test_a_reference_of_another_vocabulary_is_refused(engines):
    with pytest.raises(BadRequest, match=r"\[reference-vocab\]"):
        evaluate(engines["q4"], cut(IDS, 64), type("Other", (), {"vocab": 7})())
