"""The timelines of the server: which one a prompt continues, and which one it may overwrite. Used by the engine thread only.

A timeline is a Session with its own KV state. At most `limit` of them exist, made when needed. Reuse is the longest common
prefix of token ids that the session can still rewind to (rings cannot go back further than they hold).
Refuses to share a prefix between two timelines: a Session's state cannot be copied yet.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from moegg.engine import Engine, Session


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix; by bisection, so that comparing runs at the speed of list slices."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        mid = (low + high + 1) // 2
        low, high = (mid, high) if a[low:mid] == b[low:mid] else (low, mid - 1)
    return low


@dataclass(eq=False)
class Timeline:
    """used: when it was last given back, by count of requests."""
    id: int
    session: Session
    busy: bool = False
    used: int = 0

    def reusable(self, prompt: Sequence[int]) -> int:
        """How many tokens of `prompt` need no evaluation here; less than all of them, because logits are needed."""
        session = self.session
        common = common_prefix(session.tokens, prompt)
        if common == len(prompt) == len(session) and session.logits is not None:
            return common
        n = min(common, len(prompt) - 1)
        return session.reach(n)


@dataclass
class Timelines:
    """At most `limit` timelines of `engine`."""
    engine: Engine
    limit: int
    all: list[Timeline] = field(default_factory=list)
    _clock: int = 0

    def idle(self) -> bool:
        """Whether `take` would succeed."""
        return len(self.all) < self.limit or any(not t.busy for t in self.all)

    def take(self, prompt: Sequence[int]) -> tuple[Timeline, int]:
        """The timeline on which `prompt` is cheapest, now busy, rewound to what it keeps; and how many tokens that is.

        Cheapest counts what is saved, and what another conversation may miss later: the fresher, the dearer.
        """
        free = sorted((t for t in self.all if not t.busy), key=lambda t: -t.used)
        best, score = None, 0.0
        for rank, t in enumerate(free):
            kept = t.reusable(prompt)
            value = kept - (len(t.session) - kept) / (2 + rank)
            if best is None or value > score:
                best, score = t, value
        if best is None or score <= 0 < len(best.session) and len(self.all) < self.limit:
            best = Timeline(len(self.all), self.engine.session())
            self.all.append(best)
        best.busy = True
        return best, self._rewind(best.session, prompt, best.reusable(prompt))

    def _rewind(self, session: Session, prompt: Sequence[int], kept: int) -> int:
        if kept == len(prompt):
            return kept
        kept = session.rewind(kept)
        if kept and self.engine.regime(kept) != self.engine.regime(len(prompt)):
            return session.rewind(0)
        return kept

    def give(self, timeline: Timeline, sound: bool = True) -> None:
        """Back to the pool; unsound state is forgotten."""
        self._clock += 1
        timeline.busy, timeline.used = False, self._clock
        if not sound:
            timeline.session.rewind(0)

    def clear(self) -> None:
        """Gives the memory of all idle timelines back."""
        self.all = [t for t in self.all if t.busy]
        for n, t in enumerate(self.all):
            t.id = n
