"""How well a model predicts a text, and how far its predictions are from a reference's: perplexity, KL divergence, agreement.

The text is cut into windows of `ctx` tokens, each evaluated by itself; only predictions from the second half of a window count, so
that each had at least half a window before it (llama.cpp's llama-perplexity cuts and counts the same way). Natural logarithms,
float64 sums. Logits are held for a few positions at a time, of both models.
"""
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from moegg.engine.engine import Engine
from moegg.errors import BadRequest

BLOCK_FLOATS = 1 << 20          # float64 logits of one model in memory at once


@dataclass(frozen=True)
class Divergence:
    """From a reference, over all counted tokens. kl_*: nats per token. top1: share of tokens where both prefer the same one.

    perplexity: the reference's own. kl_error: the standard error of kl_mean.
    """
    perplexity: float
    kl_mean: float
    kl_error: float
    kl_median: float
    kl_p99: float
    kl_max: float
    top1: float


@dataclass(frozen=True)
class Quality:
    """perplexity of `tokens` counted tokens in `windows` windows of `ctx`; perplexity_error: its standard error."""
    tokens: int
    windows: int
    ctx: int
    perplexity: float
    perplexity_error: float
    reference: Divergence | None = None

    def to_dict(self) -> dict:
        return asdict(self)


def cut(ids: Sequence[int], ctx: int, prefix: Sequence[int] = ()) -> list[list[int]]:
    """Whole windows of `ctx` tokens; `prefix` (what the tokenizer puts before raw text) takes the place of the first ones.

    Raises BadRequest for a text that fills none, and for windows in which nothing would be predicted.
    """
    if ctx < (least := max(4, 2 * len(prefix) + 2)):
        raise BadRequest(f"windows: too short: got {ctx} tokens, expected at least {least} (--ctx)", "text-short")
    if len(ids) < ctx:
        raise BadRequest(f"text: too short: got {len(ids)} tokens, expected at least one window of {ctx}; give a longer text "
                         f"or a smaller --ctx of {least} or more", "text-short")
    return [[*prefix, *ids[i + len(prefix):i + ctx]] for i in range(0, len(ids) - ctx + 1, ctx)]


def evaluate(engine: Engine, windows: Sequence[Sequence[int]], reference: Engine | None = None,
             progress: Callable[[int, int], None] = lambda done, total: None) -> Quality:
    """Quality of `engine` on windows of equal length. progress(windows done, of). Raises BadRequest, ContextFull, IOFailure."""
    if reference is not None and reference.vocab != engine.vocab:
        raise BadRequest(f"reference: got a vocabulary of {reference.vocab} tokens, expected the model's {engine.vocab}", "reference-vocab")
    ctx, rows = len(windows[0]), []
    progress(0, len(windows))
    for i, window in enumerate(windows):
        rows.append(_window(engine, reference, window))
        progress(i + 1, len(windows))
    nll, nll_ref, kl, same = counted = np.concatenate(rows, axis=1)
    if not np.isfinite(counted).all():
        raise BadRequest("logits: got a value that is no number, expected finite ones; the file is damaged, or the model cannot compute "
                         "this text", "logits-nan")
    perplexity, error = _perplexity(nll)
    compared = None
    if reference is not None:
        compared = Divergence(_perplexity(nll_ref)[0], float(kl.mean()), _error(kl), float(np.median(kl)),
                              float(np.quantile(kl, 0.99)), float(kl.max()), float(same.mean()))
    return Quality(len(nll), len(windows), ctx, perplexity, error, compared)


def _window(engine: Engine, reference: Engine | None, window: Sequence[int]) -> np.ndarray:
    """[4, counted tokens]: negative log-likelihood of the model and of the reference, KL divergence, same first choice."""
    first = len(window) // 2
    targets = np.asarray(window[1:])
    out = np.zeros((4, len(targets) - first))
    ours = engine.positions(window, first)
    theirs = reference.positions(window, first) if reference is not None else None
    held, held_at = np.empty((0, 0), np.float32), first        # the reference's logits, whose steps may be of other sizes
    step = max(1, BLOCK_FLOATS // engine.vocab)
    for start, logits, _ in ours:
        at = start
        while at < min(start + len(logits), len(targets)):
            n = min(step, start + len(logits) - at, len(targets) - at)
            if theirs is not None:
                if at == held_at + len(held):
                    held_at, held, _ = next(theirs)
                n = min(n, held_at + len(held) - at)
            span, wanted = slice(at - first, at - first + n), targets[at:at + n]
            log_p = _log_softmax(logits[at - start:at - start + n])
            out[0, span] = -log_p[np.arange(n), wanted]
            if theirs is not None:
                log_q = _log_softmax(held[at - held_at:at - held_at + n])
                out[1, span] = -log_q[np.arange(n), wanted]
                out[2, span] = np.maximum((np.exp(log_q) * (log_q - log_p)).sum(-1), 0)       # rounding, where they are equal
                out[3, span] = log_p.argmax(-1) == log_q.argmax(-1)
            at += n
    if theirs is not None:
        theirs.close()
    return out


@np.errstate(invalid="ignore", over="ignore")       # evaluate() refuses what is no number
def _log_softmax(logits: np.ndarray) -> np.ndarray:
    x = logits.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    x -= np.log(np.exp(x).sum(-1, keepdims=True))
    return x


def _perplexity(nll: np.ndarray) -> tuple[float, float]:
    """(perplexity, its standard error); infinite if it is beyond float64."""
    mean = float(nll.mean())
    value = math.exp(mean) if mean < 709 else math.inf
    return value, value * _error(nll)


def _error(x: np.ndarray) -> float:
    return float(x.std(ddof=1) / math.sqrt(len(x))) if len(x) > 1 else math.inf
