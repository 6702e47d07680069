"""The timelines of the server: which one a prompt continues, which one it may overwrite, and where else its beginning is found.

A timeline is a Session with its own state. At most `limit` of them exist, made when needed. A prompt's beginning may be in an idle
timeline, which then goes on with it; in another one, busy or not, from which it is copied; or on the shelf (shelf.py).
Used by the engine thread only.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from moegg.engine import Engine, Session
from moegg.server.archive import pack
from moegg.server.shelf import LEAST_TOKENS, Entry, Shelf, common_prefix

COPIED_PER_READ = 64        # tokens whose state is copied in the time in which one is evaluated, or rather fewer


@dataclass(eq=False)
class Timeline:
    """used: when it was last given back, by count of requests."""
    id: int
    session: Session
    busy: bool = False
    used: int = 0

    def reusable(self, prompt: list[int]) -> int:
        """How many tokens of `prompt` need no evaluation here; less than all of them, because logits are needed."""
        session = self.session
        common = common_prefix(session.tokens, prompt)
        if common == len(prompt) == len(session) and session.logits is not None:
            return common
        return session.reach(min(common, len(prompt) - 1))


@dataclass(frozen=True)
class Way:
    """One way to begin with a prompt. target: the timeline to use, None for a new one; source: what to copy there, None to go on in
    place; kept: tokens. worth: tokens that it saves, less what others may miss later."""
    worth: float
    target: Timeline | None
    source: Timeline | Entry | None
    kept: int


@dataclass
class Timelines:
    """At most `limit` timelines of `engine`. rewinds: whether any earlier token can be gone back to."""
    engine: Engine
    limit: int
    shelf: Shelf = field(default_factory=Shelf)
    all: list[Timeline] = field(default_factory=list)
    rewinds: bool = field(init=False)
    _clock: int = 0

    def __post_init__(self) -> None:
        self.rewinds = self.engine.session().rewinds

    def idle(self) -> list[Timeline]:
        """Those that nobody uses, the freshest first."""
        return sorted((t for t in self.all if not t.busy), key=lambda t: -t.used)

    def seen(self, prompt: list[int]) -> int:
        """How much of the beginning of `prompt` was read before, even if no state is left that could go back to its end."""
        packed = pack(prompt)
        return max([common_prefix(t.session.tokens, prompt) for t in self.all] + [e.shared(packed) for e in self.shelf.entries], default=0)

    def saves(self, prompt: list[int]) -> int:
        """How many tokens of `prompt` would need no evaluation."""
        return self._best(prompt).kept

    def take(self, prompt: list[int]) -> tuple[Timeline, int]:
        """The timeline on which `prompt` is cheapest, now busy, rewound to what it keeps; and how many tokens that is."""
        way = self._best(prompt)
        target, source, kept = way.target, way.source, way.kept
        if target is None:
            target = Timeline(len(self.all), self.engine.session())
            self.all.append(target)
        target.busy, session = True, target.session
        if source is not None or 2 * kept < len(session):
            self.shelf.put(session, spare=source)
        if isinstance(source, Timeline):
            session.copy_from(source.session, kept)
        elif source is not None and not self.shelf.give(source, session):
            session.rewind(0)
        return target, session.rewind(kept)

    def _best(self, prompt: list[int]) -> Way:
        return max(self._ways(prompt), key=lambda way: way.worth)

    def _ways(self, prompt: list[int]) -> Iterator[Way]:
        """All ways; what another conversation loses counts the more the fresher it is."""
        idle, room = self.idle(), len(self.all) < self.limit
        weight = {id(t): 1 / (2 + rank) for rank, t in enumerate(idle)}
        for t in idle:
            kept = self._fit(t.reusable(prompt), prompt)
            yield Way(kept - (len(t.session) - kept) * weight[id(t)], t, None, kept)
        if room:
            yield Way(0, None, None, 0)
        packed = pack(prompt[:-1])
        sources = [(t, t.reusable(prompt)) for t in self.all] + [(e, self._of_entry(e, packed)) for e in self.shelf.entries]
        for source, kept in sources:
            kept = self._fit(min(kept, len(prompt) - 1), prompt)
            others = [t for t in idle if t is not source]
            if kept >= LEAST_TOKENS and (room or others):
                target = None if room else min(others, key=lambda t: len(t.session) * weight[id(t)])
                lost = 0 if room else len(target.session) * weight[id(target)]
                yield Way(kept - kept / COPIED_PER_READ - lost, target, source, kept)

    def _fit(self, n: int, prompt: list[int]) -> int:
        """n, or 0 where n tokens and the whole prompt have different rope regimes."""
        return n if self.engine.regime(n) == self.engine.regime(len(prompt)) else 0

    def _of_entry(self, entry: Entry, packed: bytes) -> int:
        """What is of use of a kept state; all or nothing if it cannot go back."""
        n = entry.shared(packed)
        return n if n == len(entry) or self.rewinds and self.engine.regime(n) == self.engine.regime(len(entry)) else 0

    def give(self, timeline: Timeline, sound: bool = True) -> None:
        """Back to the pool; unsound state is forgotten."""
        self._clock += 1
        timeline.busy, timeline.used = False, self._clock
        if not sound:
            timeline.session.rewind(0)

    def save(self, wait_s: float = 0.0) -> bool:
        """One step towards having every idle conversation in a file, if there is a folder for them; False if nothing is left."""
        return self.shelf.save((t.session for t in self.idle()), wait_s)

    def clear(self) -> None:
        """Gives the memory of all idle timelines back, and that of the shelf."""
        self.shelf.clear()
        self.all = [t for t in self.all if t.busy]
        for n, t in enumerate(self.all):
            t.id = n
