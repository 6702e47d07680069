"""Engine: a loaded model. Maps the container, plans memory, owns the executor; Engine.step evaluates several sessions at once.

Structure is immutable after start; one thread drives it. Sessions carry all mutable state (session.py).
"""
import mmap
import os
from collections.abc import Callable, Sequence

import numpy as np

from moegg.arch import Model
from moegg.engine.cpus import available_memory, default_threads
from moegg.engine.forward import Executor, MoeRef, WeightRef, pad16
from moegg.engine.program import lower
from moegg.engine.session import Session
from moegg.errors import BadRequest, Cancelled, ContextFull, FormatError, IOFailure
from moegg.formats.container import Container
from moegg.planner import DEFAULT_UBATCH, MemoryPlan, plan
from moegg.quants import INTERLEAVED, ROW_MAJOR

MAX_OUT = 64               # rows of logits in one pass: sessions of a step, or positions of Engine.forward


class Engine:
    """Runs `model` from `container`. ctx: tokens per session (None: planned); kv: 'f16', 'f32' or None (f32 for all-f32 files)."""

    def __init__(self, container: Container, model: Model, *, ctx: int | None = None, n_threads: int | None = None,
                 kv: str | None = None, ubatch: int = DEFAULT_UBATCH):
        self.container, self.model = container, model
        self.program = lower(model)
        self.kv = kv or ("f32" if self._all_f32() else "f16")
        experts = sum(layer.n * layer.stride for layer in container.layers)
        self.plan: MemoryPlan = plan(model, container.resident.nbytes, experts, ctx, ubatch, self.kv, available_memory())
        self.ctx, self.ubatch = self.plan.ctx, self.plan.ubatch
        self.n_threads = n_threads or default_threads()
        self.vocab = model.vocab
        self._map = self._open()
        base = np.frombuffer(self._map, np.uint8).ctypes.data
        self._executor = Executor(self.program, self._weights(base), self._experts(base), ctx=self.ctx, ubatch=self.ubatch,
                                  max_out=MAX_OUT, kv=self.kv, n_threads=self.n_threads)
        self._logits = np.zeros((MAX_OUT, pad16(self.vocab)), np.float32)
        self._limits = sorted({limit for rope in self.program.ropes for limit, _, _ in rope.regimes()})

    # --- loading --------------------------------------------------------------------------------------------------------

    def _all_f32(self) -> bool:
        c = self.container
        return all(t.quant == "f32" for t in c.tensors.values()) and all(p.quant == "f32" for layer in c.layers for p in layer.parts)

    def _open(self) -> mmap.mmap:
        path = self.container.path
        try:
            fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except OSError as e:
            raise IOFailure(f"{path}: cannot be opened: {e.strerror}", "io-open") from e
        try:
            st = os.fstat(fd)
            mapped = mmap.mmap(fd, self.container.file_bytes, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as e:               # ValueError: the file has become shorter
            raise IOFailure(f"{path}: cannot be mapped: {e}", "io-map") from e
        finally:
            os.close(fd)
        if (st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns) != self.container.identity:
            raise IOFailure(f"{path}: file changed since it was opened: got {st.st_size} bytes, expected the {self.container.file_bytes} bytes "
                            "that were read; start again", "file-changed")
        if hasattr(mmap, "MADV_WILLNEED") and (available_memory() or 0) > st.st_size:
            mapped.madvise(mmap.MADV_WILLNEED)
        return mapped

    def _weights(self, base: int) -> dict[str, WeightRef]:
        refs = {}
        for t in self.model.tensors():
            info = self.container.tensors.get(t.name)
            if info is None or info.shape != t.shape:
                raise FormatError(f"{self.container.path}: tensor {t.name!r}: got {'nothing' if info is None else list(info.shape)}, "
                                  f"expected {list(t.shape)} from the stored config", "arch-mismatch")
            want = ("f32", ROW_MAJOR) if len(t.shape) == 1 else (info.quant, ROW_MAJOR if t.gather else INTERLEAVED)
            if (info.quant, info.layout) != want:
                raise FormatError(f"{self.container.path}: tensor {t.name!r}: got {info.quant} {info.layout}, expected {want[0]} {want[1]}", "arch-mismatch")
            rows, cols = (1, t.shape[0]) if len(t.shape) == 1 else t.shape
            refs[t.name] = WeightRef(base + info.offset, info.quant, rows, cols, info.gather)
        return refs

    def _experts(self, base: int) -> list[MoeRef]:
        by_layer = {layer.layer: layer for layer in self.container.layers}
        refs = []
        for m in self.program.moe:
            layer = by_layer.get(m.experts.layer)
            want = [(p.name, p.shape) for p in m.experts.parts]
            got = [(p.name, tuple(p.shape)) for p in layer.parts] if layer else []
            if layer is None or layer.n != m.experts.n or got != want:
                raise FormatError(f"{self.container.path}: experts of layer {m.experts.layer}: got {got}, expected {m.experts.n} x {want} "
                                  "from the stored config", "arch-mismatch")
            parts = tuple((p.quant, *p.shape, p.offset) for p in layer.parts)
            refs.append(MoeRef(base + layer.base, layer.stride, layer.slot, parts))
        return refs

    # --- running --------------------------------------------------------------------------------------------------------

    def session(self) -> Session:
        """A new, empty timeline."""
        return Session(self)

    def regime(self, n: int) -> int:
        """Which rope regime a sequence of n tokens uses; sessions that cross one are evaluated again."""
        return sum(n > limit for limit in self._limits)

    def check(self, tokens: Sequence[int], before: int) -> None:
        """Raises BadRequest or ContextFull unless `tokens` may follow `before` tokens."""
        if not tokens:
            raise BadRequest("tokens: got none, expected at least one", "tokens-empty")
        worst = next((t for t in tokens if not 0 <= t < self.vocab), None)
        if worst is not None:
            raise BadRequest(f"token id {worst}: outside the vocabulary of {self.vocab} tokens", "token-range")
        if before + len(tokens) > self.ctx:
            raise ContextFull(f"context: {before + len(tokens)} tokens do not fit into {self.ctx}; use a larger --ctx or a shorter prompt",
                              "context-full")

    def step(self, work: Sequence[tuple[Session, Sequence[int]]], *, progress: Callable[[int, int], None] | None = None,
             cancel: Callable[[], bool] | None = None) -> list[np.ndarray]:
        """Appends tokens to each session in one or more passes; returns the logits [V] after the last token of each.

        A session may appear once. Raises BadRequest, ContextFull (before any work), Cancelled (what was evaluated is kept).
        """
        if len(work) > MAX_OUT:
            raise BadRequest(f"step: got {len(work)} sessions, expected at most {MAX_OUT}", "step-sessions")
        self._executor.rearm()
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
        self._executor.rearm()
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
