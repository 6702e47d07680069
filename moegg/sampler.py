"""From logits to the next id: penalties, bias, temperature, top-k, top-p, min-p, a seeded draw; and log-probabilities.

Order of the chain, each step on what the last one left; it is that of transformers' `generate`, which model cards assume.
  1. logit_bias: added.
  2. repeat_penalty: divides positive and multiplies negative logits of every id in the whole history, prompt included.
  3. presence_penalty, frequency_penalty: subtracted for ids of the answer only, once and per use.
  4. temperature: divides; 0 ends here with the largest logit (of equals the lowest id).
  5. top_k: ids below the k-th best go, ties with it stay.
  6. top_p: the fewest best ids whose probabilities reach p stay.
  7. min_p: ids below min_p x the best probability go.
  8. One uniform number against the running sum of the probabilities.
Draws come from numpy's PCG64: same seed, same logits, same ids.
Refuses: NaN and +inf logits, and a vocabulary with no possible token: a loop that went on would only hide the fault.
"""
from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from moegg.arch import ConfigReader
from moegg.errors import BadRequest, FormatError
from moegg.kernels.ops import kth_largest


@dataclass(frozen=True)
class SamplingParams:
    """How to choose. Defaults change nothing but draw from the model's own distribution. top_k 0, top_p 1, min_p 0: off.

    Raises BadRequest for values out of range.
    """
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, low, high in (("temperature", 0, 100), ("top_k", 0, 2**31), ("top_p", 0, 1), ("min_p", 0, 1),
                                ("repeat_penalty", 0.01, 100), ("presence_penalty", -100, 100), ("frequency_penalty", -100, 100)):
            value = getattr(self, name)
            kind = int if name == "top_k" else (int, float)
            if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:
                raise BadRequest(f"{name}: out of range: got {value!r}, expected {low} to {high}", "sampling-range")
        if self.seed is not None and not isinstance(self.seed, int):
            raise BadRequest(f"seed: got {self.seed!r}, expected a whole number", "sampling-range")
        if not all(bias == -math.inf or abs(bias) <= 1e30 for bias in self.logit_bias.values()):
            raise BadRequest("logit_bias: out of range: expected -1e30 to 1e30, or -inf", "sampling-range")

    @classmethod
    def from_generation_config(cls, config: Mapping[str, Any] | None, **chosen: Any) -> SamplingParams:
        """The model's defaults (generation_config.json), overruled by every `chosen` value that is not None.

        A config that says nothing about sampling gives temperature 0.8, top_k 40, top_p 0.95, min_p 0.05;
        `do_sample: false` gives temperature 0, unless a temperature was chosen. Raises FormatError if the config is at fault.
        """
        reader = ConfigReader(config or {}, where="generation_config")
        found = {"repeat_penalty": reader.float("repetition_penalty", default=None), "top_k": reader.int("top_k", default=None),
                 **{name: reader.float(name, default=None) for name in ("temperature", "top_p", "min_p")}}
        given = {name: value for name, value in found.items() if value is not None}
        do_sample = reader.bool("do_sample", default=None)
        if do_sample is False:
            given["temperature"] = 0.0
        elif not given and not do_sample:
            given = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
        try:
            cls(**given)
        except BadRequest as e:
            raise FormatError(f"generation_config: {e.message}", "config-value") from None
        return cls(**{**given, **{key: value for key, value in chosen.items() if value is not None}})


class TokenLogprobs(NamedTuple):
    """ln of probabilities under the plain logits. top: [(id, logprob)], best first, of equals the lowest id."""
    logprob: float
    top: list[tuple[int, float]]


class Sampler:
    """Draws ids; holds the random state of one answer. `seed` is the one in use, so that an answer can be repeated."""

    def __init__(self, params: SamplingParams, seed: int | None = None):
        self.params = params
        given = params.seed if seed is None else seed
        self.seed = secrets.randbits(53) if given is None else given       # exact in JSON readers that know only doubles
        self._random = np.random.Generator(np.random.PCG64(self.seed % 2**64))

    def sample(self, logits: np.ndarray, history: Sequence[int] = (), answer_start: int = 0) -> int:
        """The next id. logits: [V] f32, not changed. history: ids so far; from `answer_start` on they are the answer.

        Raises BadRequest 'sampler-nan' for NaN or +inf, 'sampler-empty' if every logit is -inf.
        """
        p = self.params
        scores = _penalised(logits, history, answer_start, p)
        if p.temperature == 0:
            return int(np.argmax(scores))
        ids, probs = _candidates(scores, p)
        sums = np.cumsum(probs)
        at = int(np.searchsorted(sums, self._random.random() * sums[-1], side="right"))
        return int(ids[min(at, len(ids) - 1)])


def logprobs(logits: np.ndarray, token: int, top: int = 0) -> TokenLogprobs:
    """ln p of `token` and of the `top` best ids, from the model's own logits [V]: before penalties, bias and temperature."""
    _check(logits)
    values = logits.astype(np.float64) - float(logits.max())
    values -= math.log(np.exp(values).sum())
    best = _largest(values, top) if top > 0 else ()
    return TokenLogprobs(float(values[token]), [(int(i), float(values[i])) for i in best])


def _check(logits: np.ndarray) -> None:
    """The maximum alone tells: it is NaN if any logit is, +inf if any is, -inf only if all are."""
    best = float(logits.max())
    if math.isnan(best) or best == math.inf:
        bad = int(np.flatnonzero(~(logits < math.inf))[0])
        raise BadRequest(f"logits: not a number: got {float(logits[bad])} for id {bad}, expected finite values; "
                         "the model file or a kernel is damaged, try moegg verify", "sampler-nan")
    if best == -math.inf:
        raise BadRequest("logits: no token is possible: got -inf for all, expected at least one finite value", "sampler-empty")


@np.errstate(over="ignore")     # _check sees what became infinite
def _penalised(logits: np.ndarray, history: Sequence[int], answer_start: int, p: SamplingParams) -> np.ndarray:
    scores = logits.astype(np.float32)
    for token, bias in p.logit_bias.items():
        if not 0 <= token < len(scores):
            raise BadRequest(f"logit_bias: outside the model's vocabulary: got id {token}, expected 0 to {len(scores) - 1}",
                             "token-range")
        scores[token] += bias
    if p.repeat_penalty != 1 and len(history):
        seen = np.unique(np.asarray(history, np.int64))
        scores[seen] = np.where(scores[seen] > 0, scores[seen] / p.repeat_penalty, scores[seen] * p.repeat_penalty)
    if (p.presence_penalty or p.frequency_penalty) and len(history) > answer_start:
        used, times = np.unique(np.asarray(history[answer_start:], np.int64), return_counts=True)
        scores[used] -= p.presence_penalty + p.frequency_penalty * times
    _check(scores)
    return scores


def _candidates(scores: np.ndarray, p: SamplingParams) -> tuple[np.ndarray, np.ndarray]:
    """(ids, weights) that may be drawn, in an order that depends on `scores` alone. Weights are relative to the best one's 1."""
    ids = np.arange(len(scores))
    if 0 < p.top_k < len(scores):                        # before any exp: a vocabulary of them would cost more than the model's head
        ids = np.flatnonzero(scores >= kth_largest(scores, p.top_k))
    with np.errstate(over="ignore"):                     # far below the best, over a tiny temperature: -inf, so never
        weights = np.exp((scores[ids].astype(np.float64) - float(scores.max())) / p.temperature)
    ids, weights = ids[weights > 0], weights[weights > 0]
    if p.top_p < 1:
        at = _nucleus(weights, p.top_p)
        ids, weights = ids[at], weights[at]
    if p.min_p > 0:
        ids, weights = ids[weights >= p.min_p], weights[weights >= p.min_p]
    return ids, weights


def _nucleus(weights: np.ndarray, top_p: float) -> np.ndarray:
    """Positions of the fewest best weights that hold `top_p` of all, at least one. Looks at few first: sorting a vocabulary is slow."""
    need = top_p * weights.sum()
    for few in (256, 4096, len(weights)):
        best = _largest(weights, min(few, len(weights)))
        sums = np.cumsum(weights[best])
        if sums[-1] >= need or few >= len(weights):
            return best[:1 + int(np.searchsorted(sums, need))]
    return best


def _largest(values: np.ndarray, n: int) -> np.ndarray:
    """Positions of the n largest values, largest first, of equals the lowest position."""
    n = min(n, len(values))
    cut = np.partition(values, -n)[-n]
    at = np.flatnonzero(values >= cut)
    return at[np.lexsort((at, -values[at]))][:n]
