"""The sampling chain step by step, its determinism, and what it refuses."""
import math

import numpy as np
import pytest

from moegg.errors import BadRequest, FormatError
from moegg.sampler import Sampler, SamplingParams, logprobs

INF, NAN = np.inf, np.nan


def logits(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def seen(params: SamplingParams, values: np.ndarray, n: int = 300, **context) -> set[int]:
    sampler = Sampler(params, seed=1)
    return {sampler.sample(values, **context) for _ in range(n)}


def test_greedy_takes_the_lowest_id_of_equals_whatever_else_is_set():
    greedy = Sampler(SamplingParams(temperature=0, top_k=1, top_p=0.1, min_p=0.9))
    assert greedy.sample(logits(1, 3, 3, 2)) == 1
    assert greedy.sample(logits(-INF, -INF, -7)) == 2


def test_same_seed_same_ids_and_the_seed_is_known():
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    params = SamplingParams(temperature=0.9, top_k=50, top_p=0.9, min_p=0.01)
    first = Sampler(params)
    ids = [first.sample(values) for _ in range(50)]
    again = Sampler(params, first.seed)
    assert ids == [again.sample(values) for _ in range(50)]
    assert ids != [s.sample(values) for s in [Sampler(params, first.seed + 1)] for _ in range(50)]
    assert Sampler(SamplingParams(seed=-3)).seed == -3 and Sampler(SamplingParams(seed=-3)).sample(values) >= 0


def test_sampling_does_not_change_the_logits():
    values = logits(1, 2, 3)
    Sampler(SamplingParams(repeat_penalty=2, presence_penalty=1, logit_bias={0: 5}), 0).sample(values, [1, 2])
    assert values.tolist() == [1, 2, 3]


def test_draws_follow_the_probabilities():
    values = np.log(logits(0.5, 0.25, 0.125, 0.125))
    sampler = Sampler(SamplingParams(), seed=3)
    share = np.bincount([sampler.sample(values) for _ in range(20000)]) / 20000
    assert np.abs(share - [0.5, 0.25, 0.125, 0.125]).max() < 0.01
    cold = Sampler(SamplingParams(temperature=0.5), seed=3)      # squares the probabilities
    share = np.bincount([cold.sample(values) for _ in range(20000)]) / 20000
    assert abs(share[0] - 0.25 / 0.34375) < 0.01


def test_top_k_keeps_ties_with_the_last_one():
    assert seen(SamplingParams(top_k=1), logits(1, 2, 0)) == {1}
    assert seen(SamplingParams(top_k=2), logits(2, 1, 1, 0)) == {0, 1, 2}
    assert seen(SamplingParams(top_k=99), logits(0, 0, 0)) == {0, 1, 2}


def test_top_p_is_the_smallest_set_that_reaches_p():
    values = np.log(logits(0.4, 0.3, 0.2, 0.1))
    assert seen(SamplingParams(top_p=0.0), values) == {0}
    assert seen(SamplingParams(top_p=0.39), values) == {0}
    assert seen(SamplingParams(top_p=0.6), values) == {0, 1}
    assert seen(SamplingParams(top_p=0.85), values) == {0, 1, 2}
    assert seen(SamplingParams(top_p=1.0), values) == {0, 1, 2, 3}


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999])
def test_top_p_over_a_large_vocabulary_equals_a_full_sort(top_p):
    values = (np.random.default_rng(5).standard_normal(20000) * 2).astype(np.float32)
    probs = np.exp(values.astype(np.float64) - float(values.max()))
    order = np.argsort(-probs, kind="stable")
    allowed = set(order[:1 + int(np.searchsorted(np.cumsum(probs[order]), top_p * probs.sum()))].tolist())
    assert seen(SamplingParams(top_p=top_p), values, 500) <= allowed


def test_min_p_is_relative_to_the_best():
    values = np.log(logits(0.5, 0.25, 0.04, 0.21))
    assert seen(SamplingParams(min_p=0.1), values) == {0, 1, 3}
    assert seen(SamplingParams(min_p=1.0), values) == {0}


def test_temperature_comes_before_top_p_as_in_transformers():
    values = np.log(logits(0.5, 0.3, 0.2))
    assert seen(SamplingParams(temperature=0.2, top_p=0.9), values) == {0}
    assert seen(SamplingParams(temperature=1.0, top_p=0.9), values) == {0, 1, 2}


def test_repeat_penalty_covers_prompt_and_answer_and_pulls_both_signs_down():
    greedy = SamplingParams(temperature=0, repeat_penalty=2.0)
    assert Sampler(greedy).sample(logits(3, 2, -1), [0], answer_start=1) == 1
    assert Sampler(greedy).sample(logits(-1, -1.5, -3), [0], answer_start=0) == 1
    assert Sampler(greedy).sample(logits(3, 2, -1), []) == 0


def test_presence_and_frequency_penalties_count_the_answer_only():
    values = logits(3, 2.5, 0)
    presence, frequency = SamplingParams(temperature=0, presence_penalty=1), SamplingParams(temperature=0, frequency_penalty=0.3)
    assert Sampler(presence).sample(values, [0, 0], answer_start=2) == 0
    assert Sampler(presence).sample(values, [0, 0], answer_start=1) == 1
    assert Sampler(frequency).sample(values, [0], answer_start=0) == 0
    assert Sampler(frequency).sample(values, [0, 0], answer_start=0) == 1


def test_logit_bias_can_force_and_ban():
    values = logits(1, 2, 3)
    assert Sampler(SamplingParams(temperature=0, logit_bias={0: 10})).sample(values) == 0
    assert Sampler(SamplingParams(temperature=0, logit_bias={2: -INF})).sample(values) == 1
    with pytest.raises(BadRequest, match="token-range"):
        Sampler(SamplingParams(logit_bias={3: 1.0})).sample(values)


@pytest.mark.parametrize("params", [
    SamplingParams(temperature=0), SamplingParams(top_p=0.9, top_k=2), SamplingParams(repeat_penalty=1.1)])
def test_broken_logits_are_a_clear_error_not_a_loop(params):
    """known_failures G11."""
    for bad in (logits(1, NAN, 2), logits(1, INF, 2), logits(NAN, NAN, NAN)):
        with pytest.raises(BadRequest, match="sampler-nan"):
            Sampler(params, 0).sample(bad, [0])
        with pytest.raises(BadRequest, match="sampler-nan"):
            logprobs(bad, 0)
    with pytest.raises(BadRequest, match="sampler-empty"):
        Sampler(params, 0).sample(logits(-INF, -INF, -INF), [0])
    with pytest.raises(BadRequest, match="sampler-empty"):
        Sampler(SamplingParams(logit_bias={0: -INF, 1: -INF}), 0).sample(logits(1, 2))


def test_impossible_tokens_are_never_drawn():
    assert seen(SamplingParams(), logits(-INF, 0, -INF, 0)) == {1, 3}
    assert seen(SamplingParams(top_k=3, top_p=0.999), logits(-INF, 0, -INF, 0)) == {1, 3}


def test_logprobs_are_those_of_the_plain_logits():
    values = np.log(logits(0.5, 0.25, 0.125, 0.125))
    got = logprobs(values, 2, top=3)
    assert math.isclose(got.logprob, math.log(0.125), rel_tol=1e-6)
    assert [i for i, _ in got.top] == [0, 1, 2] and math.isclose(got.top[0][1], math.log(0.5), rel_tol=1e-6)
    assert logprobs(values, 0).top == [] and len(logprobs(values, 0, top=99).top) == 4


def test_defaults_come_from_the_models_generation_config():
    make = SamplingParams.from_generation_config
    config = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "repetition_penalty": 1.05, "eos_token_id": 3}
    assert make(config) == SamplingParams(temperature=0.6, top_p=0.95, top_k=20, repeat_penalty=1.05)
    assert make(config, temperature=0.0, top_k=None).temperature == 0 and make(config, top_k=None).top_k == 20
    assert make({"do_sample": True, "temperature": None}) == SamplingParams()
    assert make({"do_sample": False, "temperature": 0.7}).temperature == 0
    assert make({"do_sample": False}, temperature=0.7).temperature == 0.7
    assert make({}) == make(None) == SamplingParams(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05)


@pytest.mark.parametrize("bad", [
    {"temperature": -1}, {"temperature": NAN}, {"top_p": 1.1}, {"min_p": -0.1}, {"top_k": -1}, {"repeat_penalty": 0},
    {"presence_penalty": INF}, {"seed": 1.5}, {"top_p": "0.9"}, {"logit_bias": {1: NAN}}])
def test_values_out_of_range_are_refused_by_name(bad):
    with pytest.raises(BadRequest, match=rf"{next(iter(bad))}.*sampling-range"):
        SamplingParams(**bad)


@pytest.mark.parametrize("value", [True, "0.7", [1], {}, float("nan"), INF, -1, 1e300, 10**30])
@pytest.mark.parametrize("key", ["temperature", "top_k", "top_p", "min_p", "repetition_penalty", "do_sample"])
def test_generation_config_of_any_type_is_the_files_fault(key, value):
    """top_k true or 40.5 once passed in silence."""
    if (key, value) == ("do_sample", True):
        return
    with pytest.raises(FormatError, match="generation_config.*config-"):
        SamplingParams.from_generation_config({key: value})
    with pytest.raises(FormatError, match="top_k.*40.5"):
        SamplingParams.from_generation_config({"top_k": 40.5})


@pytest.mark.parametrize("temperature", [1e-310, 5e-324, 1e-40, 100])
def test_tiny_temperature_takes_the_best_without_a_numpy_warning(temperature):
    logits = np.array([1, 3, -3e38, -INF, 2], np.float32)
    assert temperature == 100 or Sampler(SamplingParams(temperature=temperature), 1).sample(logits) == 1
    assert Sampler(SamplingParams(temperature=temperature, top_p=0.9, min_p=0.01, top_k=3), 1).sample(logits) in (0, 1, 4)


def test_penalties_beyond_float32_are_an_error_without_a_numpy_warning():
    with pytest.raises(BadRequest, match="sampler-nan"):
        Sampler(SamplingParams(repeat_penalty=0.01), 1).sample(np.array([3e38, 1], np.float32), [0])
    for bias in (1e300, NAN, INF):
        with pytest.raises(BadRequest, match="logit_bias"):
            SamplingParams(logit_bias={1: bias})
