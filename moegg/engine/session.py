"""Session: one timeline of tokens with its keys and values. Works on token ids only; made by Engine.session()."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moegg.engine.forward import KvState

if TYPE_CHECKING:
    from moegg.engine.engine import Engine


@dataclass(frozen=True)
class SyncResult:
    """Tokens that were kept and tokens that were evaluated by Session.sync."""
    reused: int
    evaluated: int


class Session:
    """tokens: what has been evaluated; logits [V] float32 of the last of them, or None before the first."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self.state = KvState(engine.program.attn, engine.ctx, engine.ubatch, engine.kv)
        self.tokens: list[int] = []
        self.logits: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def can_rewind(self, n: int) -> bool:
        """True if the first n tokens' state is still whole: a ring has forgotten what lies further back than it holds."""
        last = len(self.tokens)
        for attn, cap in zip(self._engine.program.attn, self.state.capacity, strict=True):
            if attn.window and last - cap > max(0, n - attn.window + 1):
                return False
        return self._engine.regime(n) == self._engine.regime(last)

    def rewind(self, n: int) -> int:
        """Forgets all tokens after the first n, or all of them where that state is gone. Returns how many are kept."""
        if n >= len(self.tokens):
            return len(self.tokens)
        keep = n if n > 0 and self.can_rewind(n) else 0
        del self.tokens[keep:]
        self.logits = None
        return keep

    def sync(self, tokens: Sequence[int], progress: Callable[[int, int], None] | None = None,
             cancel: Callable[[], bool] | None = None) -> SyncResult:
        """Makes this session's state equal to having evaluated exactly `tokens` (at least one), with logits of the last.

        Reuses the longest common prefix and evaluates the rest. progress(done, total) after each ubatch; cancel() is asked
        before each. Raises BadRequest (an id outside the vocabulary), ContextFull, Cancelled (what was evaluated is kept).
        """
        tokens = list(tokens)
        self._engine.check(tokens, 0)
        common = 0
        for a, b in zip(self.tokens, tokens, strict=False):
            if a != b:
                break
            common += 1
        if common == len(tokens) == len(self.tokens) and self.logits is not None:
            return SyncResult(common, 0)
        kept = self.rewind(min(common, len(tokens) - 1))
        if kept and self._engine.regime(kept) != self._engine.regime(len(tokens)):
            kept = self.rewind(0)
        self._engine.step([(self, tokens[kept:])], progress=progress, cancel=cancel)
        return SyncResult(kept, len(tokens) - kept)

    def eval(self, token: int) -> np.ndarray:
        """Appends one token; returns the logits [V] that follow it. Raises BadRequest, ContextFull, Cancelled."""
        self._engine.step([(self, [token])])
        return self.logits
