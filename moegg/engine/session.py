"""Session: one timeline of tokens with its state (state.py). Works on token ids only; made by Engine.session()."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moegg.engine.state import SessionState, Snapshot
from moegg.errors import BadRequest

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
        self.state = SessionState(engine.program.attn, engine.program.mixer_blocks, engine.ctx, engine.ubatch, engine.kv)
        self.tokens: list[int] = []
        self.logits: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def reach(self, n: int) -> int:
        """How many tokens, at most n, are kept if all after the first n are forgotten: a ring may have forgotten what they need, a
        mixer can only go back to a mark, and beyond a rope regime's limit all positions are others."""
        last = len(self.tokens)
        if n >= last:
            return last
        keep = self.state.reach(n) if n > 0 else 0
        return keep if self._engine.regime(keep) == self._engine.regime(last) else 0

    def rewind(self, n: int) -> int:
        """Forgets all tokens after the first reach(n). Returns how many are kept."""
        keep = self.reach(n)
        if keep < len(self.tokens):
            self.state.rewind(keep)
            del self.tokens[keep:]
            self.logits = None
        return keep

    def recover(self) -> None:
        """After a pass that did not come to its end: what mixers made of its tokens cannot be taken back, so their last mark counts."""
        keep = self.state.reach(len(self.tokens))
        self.state.rewind(keep)
        if keep < len(self.tokens):
            del self.tokens[keep:]
            self.logits = None

    @property
    def rewinds(self) -> bool:
        """Whether this session can always go back to any earlier token, apart from regimes."""
        return self.state.rewinds

    def saved_bytes(self, n: int) -> int:
        """What a snapshot of n tokens takes, apart from ids and logits."""
        return self.state.saved_bytes(n)

    def snapshot(self, n: int | None = None) -> Snapshot:
        """A copy of the state of the first reach(n) tokens (None: of all), which Session.restore of the same engine, or of one with the
        same file and settings, takes back."""
        keep = self.reach(len(self.tokens) if n is None else n)
        logits = self.logits.copy() if keep == len(self.tokens) and self.logits is not None else None
        return Snapshot(tuple(self.tokens[:keep]), logits, self.state.high if keep else 0, self.state.save(keep))

    def restore(self, snapshot: Snapshot) -> None:
        """Makes this session what it was when `snapshot` was taken. Raises BadRequest if it is of another engine; then nothing changed."""
        if len(snapshot.tokens) > self._engine.ctx:
            raise BadRequest(f"session state: got {len(snapshot.tokens)} tokens, expected at most {self._engine.ctx}", "state-mismatch")
        self.state.load(len(snapshot.tokens), snapshot.high, snapshot.parts)
        self.tokens = list(snapshot.tokens)
        self.logits = None if snapshot.logits is None else snapshot.logits.copy()

    def copy_from(self, other: Session, n: int) -> int:
        """Makes this session equal to the first n tokens of another one of the same engine, as far as it reaches; returns how many."""
        if other is self or other._engine is not self._engine:
            raise BadRequest("session state: got this session or one of another engine, expected another session of this engine",
                             "state-mismatch")
        keep = other.reach(n)
        self.rewind(0)
        if keep:
            self.state.copy_from(other.state, keep)
            self.tokens = other.tokens[:keep]
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
