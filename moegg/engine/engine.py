"""Engine: a loaded model. Maps the container, plans memory, owns the executor; Engine.step evaluates several sessions at once.

Structure is immutable after start; one thread drives it. Sessions carry all mutable state (session.py).
"""
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from moegg.arch import Model
from moegg.engine.cpus import available_memory, default_threads
from moegg.engine.forward import Executor, pad16
from moegg.engine.loading import Mapping, all_f32, find_experts, find_weights
from moegg.engine.program import lower
from moegg.engine.session import Session
from moegg.errors import BadRequest, Cancelled, ContextFull
from moegg.formats.container import Container
from moegg.planner import DEFAULT_UBATCH, MAX_OUT, MemoryPlan, plan


class Engine:
    """Runs `model` from `container`. ctx: tokens per session (None: planned); kv: 'f16', 'f32' or None (f32 for all-f32 files)."""

    def __init__(self, container: Container, model: Model, *, ctx: int | None = None, n_threads: int | None = None,
                 kv: str | None = None, ubatch: int = DEFAULT_UBATCH):
        for name, value, low, high in (("ctx", ctx, 1, 1 << 31), ("threads", n_threads, 1, 1024), ("ubatch", ubatch, 1, 1 << 16)):
            if value is not None and not low <= value <= high:
                raise BadRequest(f"{name}: got {value}, expected {low} to {high}", "engine-option")
        if kv not in (None, "f16", "f32"):
            raise BadRequest(f"kv: got {kv!r}, expected 'f16' or 'f32'", "engine-option")
        self.container, self.model, self.vocab = container, model, model.vocab
        self.program = lower(model)
        self.kv = kv or ("f32" if all_f32(container) else "f16")
        self.n_threads = n_threads or default_threads()
        free, experts = available_memory(), sum(layer.n * layer.stride for layer in container.layers)
        self.plan: MemoryPlan = plan(model, container.resident.nbytes, experts, ctx, ubatch, self.kv, self.n_threads, free)
        self.ctx, self.ubatch = self.plan.ctx, self.plan.ubatch
        self._mapping = Mapping(container, free)
        base = self._mapping.address
        self._executor = Executor(self.program, find_weights(container, model, base), find_experts(container, self.program, base),
                                  ctx=self.ctx, ubatch=self.ubatch, max_out=MAX_OUT, kv=self.kv, n_threads=self.n_threads)
        self._logits = np.zeros((MAX_OUT, pad16(self.vocab)), np.float32)
        self._limits = sorted({limit for rope in self.program.ropes for limit, _, _ in rope.regimes()})
        self._busy = threading.Lock()

    @property
    def mapped(self) -> np.ndarray:
        """The file's bytes as mapped, uint8 [file_bytes], read-only: to touch or to measure."""
        return self._mapping.bytes

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
        for start in range(0, len(queue), self.ubatch):
            part = queue[start:start + self.ubatch]
            rows = [r for r, (i, _, p) in enumerate(part) if p == seq_len[i] - 1]
            if cancel is not None and cancel():
                raise Cancelled("prompt: stopped on request", "cancelled")
            seq, tokens, pos = (np.array(x, np.int32) for x in zip(*part, strict=True))
            self._executor.run(tokens, pos, seq, [s.state for s in sessions], seq_len, np.array(rows, np.int32), self._logits)
            for i, t, _ in part:
                sessions[i].tokens.append(t)
                sessions[i].logits = None
            for k, r in enumerate(rows):
                sessions[part[r][0]].logits = self._logits[k, :self.vocab].copy()
            if progress is not None:
                progress(start + len(part), len(queue))
        return [s.logits for s in sessions]

    def cancel(self) -> None:
        """Stops the running pass before its next op (from another thread or a signal handler); step raises Cancelled."""
        self._executor.cancel()

    def forward(self, tokens: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[int]]:
        """Logits of every position, for people who check. tokens [T].

        Returns logits [T, V] float32, router choices [M, T, K] int32 by descending weight, their weights [M, T, K] float32
        and the M decoder layers that have a router. Raises BadRequest, ContextFull.
        """
        tokens = list(tokens)
        self.check(tokens, 0)
        T, M = len(tokens), len(self.program.moe)
        k = self._executor.top_k
        logits = np.empty((T, self.vocab), np.float32)
        idx, w = np.zeros((M, T, k), np.int32), np.zeros((M, T, k), np.float32)
        state, total = self.session().state, np.array([T], np.int64)
        rows = min(MAX_OUT, self.ubatch)
        with self._alone():
            for start in range(0, T, rows):
                n = min(rows, T - start)
                capture = (np.zeros((M, n, k), np.int32), np.zeros((M, n, k), np.float32)) if M else None
                span = np.arange(start, start + n, dtype=np.int32)
                self._executor.run(np.array(tokens[start:start + n], np.int32), span, np.zeros(n, np.int32), [state], total,
                                   np.arange(n, dtype=np.int32), self._logits, capture)
                logits[start:start + n] = self._logits[:n, :self.vocab]
                if capture:
                    idx[:, start:start + n], w[:, start:start + n] = capture
        return logits, idx, w, self.program.moe_layers
