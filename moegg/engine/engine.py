"""Engine: a loaded model. Plans memory, opens the expert store, owns the executor; Engine.step evaluates several sessions.

Structure is immutable after start; one thread drives it. Sessions carry all mutable state (session.py).
"""
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np

from moegg import log
from moegg.arch import Model
from moegg.engine import dense
from moegg.engine.cpus import default_threads
from moegg.engine.forward import Executor
from moegg.engine.loading import all_f32, find_experts, find_weights
from moegg.engine.program import lower
from moegg.engine.session import Session
from moegg.engine.state import pad16
from moegg.engine.tally import Tally, with_tallies
from moegg.errors import BadRequest, Cancelled, ContextFull
from moegg.formats.container import Container
from moegg.io.memory import auto_budget, own_bytes, read_memory
from moegg.io.profile import Profile, Settings
from moegg.io.residency import AUTO, choose
from moegg.io.store import ExpertStore
from moegg.io.usage import UsageFile
from moegg.planner import DEFAULT_UBATCH, MAX_OUT, PROCESS_BYTES, FileSizes, MemoryPlan, plan

GROWTH_BYTES = 32 << 20    # what Python and numpy still take after the engine is made
WARM_POLL_S = 0.02


class Engine:
    """Runs `model` from `container`. ctx: tokens per session (None: planned); sessions: the least and the most; kv: 'f16',
    'f32' or None (f32 for all-f32 files); beside: bytes that the caller needs for itself.

    ram: bytes for everything, None: what the system can give. io: 'auto', 'page-cache' or 'direct'. profile: gives that of the
    disk; asked only if experts do not all fit. usage: history that warms the cache, or None. keep: experts per layer that stay for
    good. lookahead: ranks to guess a layer ahead; None: all, if the profile says that it pays. trace: gets the router choices
    [M, n, K] of every pass. calibrate: keep `tallies` of what each matrix reads. progress: of the resident weights. Raises BudgetTooSmall, IOFailure,
    FormatError, NoRoom, UsageError.
    """

    def __init__(self, container: Container, model: Model, *, ctx: int | None = None, sessions: tuple[int, int] = (1, 1),
                 n_threads: int | None = None, kv: str | None = None, ubatch: int = DEFAULT_UBATCH, ram: int | None = None, io: str = AUTO,
                 profile: Callable[[], Profile | None] | None = None, usage: UsageFile | None = None, keep: int = 0, lookahead: int | None = None,
                 beside: int = 0, trace: Callable[[np.ndarray], None] | None = None, calibrate: bool = False,
                 progress: Callable[[int, int], None] | None = None):
        for name, value, low, high in (("ctx", ctx, 1, 1 << 31), ("threads", n_threads, 1, 1024), ("ubatch", ubatch, 1, 1 << 16)):
            if value is not None and not low <= value <= high:
                raise BadRequest(f"{name}: got {value}, expected {low} to {high}", "engine-option")
        if kv not in (None, "f16", "f32"):
            raise BadRequest(f"kv: got {kv!r}, expected 'f16' or 'f32'", "engine-option")
        self.container, self.model, self.vocab = container, model, model.vocab
        self.n_threads = n_threads or default_threads()
        self.plan = plan_for(container, model, ctx=ctx, sessions=sessions, ubatch=ubatch, kv=kv, n_threads=self.n_threads, ram=ram, beside=beside)
        self.kv, self.ctx, self.ubatch = self.plan.kv, self.plan.ctx, self.plan.ubatch
        known = profile() if profile and not self.plan.all_fits else None
        self.residency = choose(io, ram_given=ram is not None, experts=self.plan.experts, cache=self.plan.cache, profile=known)
        settings = known.settings(self.residency.mode) if known else Settings()
        if self.plan.all_fits or self.plan.cycle:            # what a cycle needs next is no guess
            lookahead = 0
        elif lookahead is None:
            lookahead = max(x.top_k for x in container.layers) if settings.guess else 0
        self.program = lower(model, lookahead > 0)
        experts = find_experts(container, self.program)
        find_weights(container, model, {}, 0)                # refuse a wrong file before anything is read
        cycle, layers = self.plan.cycle, dense.find(container, self.program) if self.plan.cycle else None
        self.store = ExpertStore(container.path, container.identity, layers.records if layers else container.layers, self.plan.cache, self.residency,
                                 parts=container.parts, usage=usage, keep=keep, kept=cycle.kept if cycle else None, max_rows=self.ubatch,
                                 settings=settings)
        region = container.resident
        if layers:
            addresses = layers.load(self.store, progress)
        else:
            start = self.store.resident([(region.offset, region.nbytes)], progress)[0] - region.offset
            addresses = {t.name: start + t.offset for t in container.tensors.values() if not t.gather}
        weights = find_weights(container, model, addresses, self.store.map_address)
        self.tallies: dict[str, Tally] = {}
        if calibrate:
            weights, experts, self.tallies = with_tallies(weights, experts, self.program)
        self._executor = Executor(self.program, weights, experts, ctx=self.ctx,
                                  ubatch=self.ubatch, max_out=MAX_OUT, kv=self.kv, n_threads=self.n_threads, store=self.store,
                                  lookahead=lookahead, groups=self.plan.groups, records=layers.places if layers else {})
        self.store.warm()
        self._logits = np.zeros((MAX_OUT, pad16(self.vocab)), np.float32)
        self._limits = sorted({limit for rope in self.program.ropes for limit, _, _ in rope.regimes()})
        self._trace, self._busy = trace, threading.Lock()

    @property
    def mapped(self) -> np.ndarray:
        """The file's bytes as mapped, uint8 [file_bytes], read-only: to touch or to measure."""
        return self.store.mapping()

    @property
    def anonymous_bytes(self) -> int:
        """What the engine has really allocated beside the mapping, one session's state apart; at most what the plan says."""
        return self._executor.nbytes + self._logits.nbytes

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One thread at a time: buffers belong to the pass that runs."""
        if not self._busy.acquire(blocking=False):
            raise BadRequest("engine: got a second call while one runs, expected one thread at a time", "engine-busy")
        try:
            self._executor.rearm()
            yield
        finally:
            self._busy.release()

    # --- running --------------------------------------------------------------------------------------------------------

    def session(self) -> Session:
        """A new, empty timeline."""
        return Session(self)

    def regime(self, n: int) -> int:
        """Which rope regime a sequence of n tokens uses; sessions that cross one are evaluated again."""
        return sum(n > limit for limit in self._limits)

    def check(self, tokens: Sequence[int], before: int) -> None:
        """Raises BadRequest or ContextFull unless `tokens` may follow `before` tokens."""
        if len(tokens) == 0:
            raise BadRequest("tokens: got none, expected at least one", "tokens-empty")
        worst = next((t for t in tokens if not isinstance(t, (int, np.integer)) or not 0 <= t < self.vocab), None)
        if worst is not None:
            raise BadRequest(f"token id {worst!r}: outside the vocabulary of {self.vocab} tokens", "token-range")
        if before + len(tokens) > self.ctx:
            raise ContextFull(f"context: {before + len(tokens)} tokens do not fit into {self.ctx}; use a larger --ctx or a shorter prompt",
                              "context-full")

    def step(self, work: Sequence[tuple[Session, Sequence[int]]], *, progress: Callable[[int, int], None] | None = None,
             cancel: Callable[[], bool] | None = None) -> list[np.ndarray]:
        """Appends tokens to each session in one or more passes; returns the logits [V] after the last token of each.

        A session may appear once. Raises BadRequest, ContextFull (before any work), Cancelled (what was evaluated is kept).
        """
        if len(work) > MAX_OUT or len({id(s) for s, _ in work}) < len(work) or any(s._engine is not self for s, _ in work):
            raise BadRequest(f"step: got {len(work)} sessions, expected at most {MAX_OUT}, each once and made by this engine", "step-sessions")
        with self._alone():
            return self._step(work, progress, cancel)

    def _step(self, work, progress, cancel) -> list[np.ndarray]:
        queue: list[tuple[int, int, int]] = []               # (session index, token, position)
        for i, (s, tokens) in enumerate(work):
            self.check(tokens, len(s))
            tokens = list(tokens)
            if len(s) and self.regime(len(s)) != self.regime(len(s) + len(tokens)):
                tokens = s.tokens + tokens
                s.rewind(0)
            queue += [(i, t, len(s) + j) for j, t in enumerate(tokens)]
        sessions = [s for s, _ in work]
        left = [sum(1 for q in queue if q[0] == i) for i in range(len(sessions))]
        seq_len = np.array([len(s) + n for s, n in zip(sessions, left, strict=True)], np.int64)
        for s, last in zip(sessions, seq_len.tolist(), strict=True):
            s.state.prompt(len(s), last)
        span = self.ubatch * self._groups(sessions, seq_len)
        for start in range(0, len(queue), span):
            part = queue[start:start + span]
            rows = [r for r, (i, _, p) in enumerate(part) if p == seq_len[i] - 1]
            if cancel is not None and cancel():
                raise Cancelled("prompt: stopped on request", "cancelled")
            seq, tokens, pos = (np.array(x, np.int32) for x in zip(*part, strict=True))
            states = [s.state for s in sessions]
            capture = self._choices(len(part)) if self._trace and len(part) <= self.ubatch else None
            spans = [(sessions[i], *pos[seq == i][[0, -1]].tolist()) for i in np.unique(seq)]
            for s, first, last in spans:
                s.state.begin(first, last + 1)
            try:
                if len(part) <= self.ubatch:
                    self._executor.run(tokens, pos, seq, states, seq_len, np.array(rows, np.int32), self._logits, capture)
                else:
                    groups = [np.array([r - g for r in rows if g <= r < g + self.ubatch], np.int32) for g in range(0, len(part), self.ubatch)]
                    self._executor.run_groups(tokens, pos, seq, states, seq_len, groups, self._logits,
                                              progress and partial(_within, progress, start, len(part), len(queue)))
            except BaseException:
                for s, _, _ in spans:
                    s.recover()
                raise
            for s, _, last in spans:
                s.state.commit(last + 1)
            if capture:
                self._trace(capture[0])
            for i, t, _ in part:
                sessions[i].tokens.append(t)
                sessions[i].logits = None
            for k, r in enumerate(rows):
                sessions[part[r][0]].logits = self._logits[k, :self.vocab].copy()
            if progress is not None:
                progress(start + len(part), len(queue))
        return [s.logits for s in sessions]

    def _groups(self, sessions: Sequence[Session], seq_len: np.ndarray) -> int:
        """Ubatches that go through the layers together. A ring of keys holds one ubatch more than its window, and forgets what a
        pass has overwritten even if it is cancelled; so with a ring that has to turn, one; and while routing is recorded."""
        if self._trace:
            return 1
        whole = all(cap >= n for s, n in zip(sessions, seq_len, strict=True) for cap in s.state.capacity)
        return self.plan.groups if whole else 1

    def _choices(self, n: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Arrays for the router choices of n tokens and their weights; None if no layer has a router."""
        shape = (len(self.program.moe), n, self._executor.top_k)
        return (np.zeros(shape, np.int32), np.zeros(shape, np.float32)) if shape[0] else None

    def settle(self, progress: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Waits for the warm-up: what the usage history wants, or without a tight budget all experts. progress(records, of)."""
        total = left = self.store.warming()
        while left:
            time.sleep(WARM_POLL_S)
            left = self.store.warming()
            progress(total - left, total)

    @property
    def span(self) -> int:
        """Tokens that go through the layers together at best: of a long prompt whose experts stream, several ubatches."""
        return self.ubatch * self.plan.groups

    @property
    def waited_s(self) -> float:
        """Seconds that passes have stood still for what streams."""
        return self.store.counters()["wait_ns"] / 1e9

    def release(self) -> None:
        """Gives the memory of what streams back, but for what a pass needs at least. Between passes, from the thread that runs them."""
        if self.plan.cycle:
            with self._alone():
                self.store.empty()
        else:
            self._hold(min(self.plan.cache, FileSizes.of(self.container).least_cache))

    def restore(self) -> None:
        """Takes that memory again, and fills it in the background."""
        if not self.plan.cycle:
            self._hold(self.plan.cache)
        self.store.warm()

    def _hold(self, cache: int) -> None:
        if self.plan.experts:
            with self._alone():
                self.store.set_budget(cache)

    def cancel(self) -> None:
        """Stops the running pass before its next op (from another thread or a signal handler); step raises Cancelled."""
        self._executor.cancel()

    def positions(self, tokens: Sequence[int], first: int = 0, routes: bool = False) -> Iterator[tuple[int, np.ndarray, tuple | None]]:
        """Evaluates `tokens` as a sequence of its own and yields what follows its positions from `first` on, some at a time.

        Yields (position, logits [n, V] float32 that the next step overwrites, router choices and weights [M, n, K] or None).
        The engine is busy until the iterator is used up or closed. Raises BadRequest, ContextFull.
        """
        tokens = list(tokens)
        self.check(tokens, 0)
        T, start = len(tokens), 0
        state, total = self.session().state, np.array([T], np.int64)
        with self._alone():
            while start < T:
                n = min(first - start, self.ubatch) if start < first else min(MAX_OUT, self.ubatch, T - start)
                capture = self._choices(n) if routes else None
                self._executor.run(np.array(tokens[start:start + n], np.int32), np.arange(start, start + n, dtype=np.int32),
                                   np.zeros(n, np.int32), [state], total, np.arange(n if start >= first else 0, dtype=np.int32),
                                   self._logits, capture)
                if start >= first:
                    yield start, self._logits[:n, :self.vocab], capture
                start += n

    def forward(self, tokens: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[int]]:
        """Logits of every position, for people who check. tokens [T].

        Returns logits [T, V] float32, router choices [M, T, K] int32 by descending weight, their weights [M, T, K] float32
        and the M decoder layers that have a router. Raises BadRequest, ContextFull.
        """
        T, M, k = len(tokens), len(self.program.moe), self._executor.top_k
        logits = np.empty((T, self.vocab), np.float32)
        idx, w = np.zeros((M, T, k), np.int32), np.zeros((M, T, k), np.float32)
        for start, part, capture in self.positions(tokens, routes=True):
            span = slice(start, start + len(part))
            logits[span] = part
            if capture:
                idx[:, span], w[:, span] = capture
        return logits, idx, w, self.program.moe_layers


def plan_for(container: Container, model: Model, *, ctx: int | None = None, sessions: tuple[int, int] = (1, 1), ubatch: int = DEFAULT_UBATCH,
             kv: str | None = None, n_threads: int = 1, ram: int | None = None, beside: int = 0) -> MemoryPlan:
    """How an Engine with these arguments would split memory; reads nothing of the file. Raises BudgetTooSmall."""
    used = own_bytes()
    budget, option = ram, "--ram"
    if ram is None:
        option = "available memory of"
        free = auto_budget(read_memory())
        budget = None if free is None else free + used
        if budget is None:
            log.warn("the system does not say how much memory is available; planning as if everything fits (set --ram)")
    return plan(model, dense.sizes(container, model), ctx=ctx, sessions=sessions,
                ubatch=ubatch, kv=kv or ("f32" if all_f32(container) else "f16"), n_threads=n_threads,
                budget=budget, process=beside + (used + GROWTH_BYTES if used else PROCESS_BYTES), option=option)


def _within(progress: Callable[[int, int], None], start: int, n: int, total: int, ops: int, of: int) -> None:
    """Tokens as if they were evaluated one after the other, of a call that goes through `of` ops with n tokens at once."""
    progress(start + n * ops // of, total)
