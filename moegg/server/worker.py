"""The engine thread: a bounded queue, continuous batching, cancellation. With sessions.py the only code that drives the engine.

Each pass holds one token of every answer that is being written, and a chunk of the prompts that are still being read, which take
turns to be first. So experts are fetched once per pass for all, a long prompt delays the others by one chunk, and a cancelled
answer leaves before the next pass. Results do not depend on company: passes are bit-identical however they are split.
Refuses: more answers than run and wait together (429). Faults of a pass end the answers in it, not the thread.
"""
from __future__ import annotations

import queue
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from moegg import log
from moegg.engine import Engine
from moegg.errors import Cancelled
from moegg.sampler import Sampler, logprobs
from moegg.server import problem
from moegg.server.ask import Done, Event, Failed, Progress, Timings, Usage
from moegg.server.metrics import Metrics
from moegg.server.problem import Problem
from moegg.server.sessions import Timeline, Timelines
from moegg.server.shelf import LEAST_TOKENS, Shelf, common_prefix
from moegg.server.voice import Voice, token_log
from moegg.tokenizer import Tokenizer

MAX_PARALLEL = 64               # sessions in one Engine.step
PREFILL_BESIDE_DECODE = 128     # prompt tokens in a pass while others wait for their next token; more if each pass reads the disk
LONG_PASS_S = 2.0               # what others may wait for if a longer pass gains nothing
SAVE_AFTER_S = 2.0              # without work, before conversations are written to files
SAVE_AT_STOP_S = 20.0
TURN_TOKENS = 64                # at most so many tokens at a prompt's end only ask for an answer


class Constraint(Protocol):
    """Which tokens may come next; grammar.py makes them."""

    def mask(self, logits: np.ndarray) -> np.ndarray: ...

    def accept(self, token: int) -> None: ...

    @property
    def finished(self) -> bool: ...


@dataclass(eq=False)
class Job:
    """One answer to be made. ends: ids that end it. logs: alternatives to log, or None.

    behind: the job whose prompt begins alike, which reads the first `shared` tokens for both. marks: lengths at which the state is
    put on the shelf, because it cannot go back to them later.
    """
    prompt: list[int]
    sampler: Sampler
    voice: Voice
    ends: frozenset[int]
    max_tokens: int | None = None
    logs: int | None = None
    constraint: Constraint | None = None
    # --- set by Worker ---
    index: int = 0
    run: Run | None = None
    timeline: Timeline | None = None
    cached: int = 0
    behind: Job | None = None
    shared: int = 0
    marks: set[int] = field(default_factory=set)
    pending: int | None = None          # sampled, not evaluated yet
    made: int = 0
    times: list[float] = field(default_factory=list)        # queued, started, prompt read, over

    @property
    def reading(self) -> bool:
        return self.pending is None

    @property
    def left(self) -> list[int]:
        """Prompt tokens that are not evaluated."""
        return self.prompt[len(self.timeline.session):]

    @property
    def next(self) -> list[int]:
        """Of these, those before the next mark."""
        at = len(self.timeline.session)
        return self.prompt[at:min((m for m in self.marks if m > at), default=len(self.prompt))]


@dataclass
class Chunk:
    """How many prompt tokens a pass takes while no answer is being written: `most` at first, never less than `least`.

    A long pass that does not wait for the disk gains nothing from its length, and somebody may come: the next one is half as long.
    One that waits was too short: more tokens cost hardly more time. It is not tried again.
    """
    least: int
    most: int
    tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = self.most

    def learn(self, tokens: int, seconds: float, waited_s: float) -> None:
        """What a pass of so many tokens took, and how much of it was waiting for records."""
        if tokens < self.tokens:
            return
        if waited_s > 0.25 * seconds:
            self.tokens = self.least = min(2 * self.tokens, self.most)
        elif waited_s < 0.05 * seconds and seconds > LONG_PASS_S:
            self.tokens = max(self.tokens // 2, self.least)


class Run:
    """The answers of one request. `events` gives (index, event) of all of them; each index ends with Done or Failed."""

    def __init__(self, jobs: Sequence[Job], id: str | None = None):
        self.id = id or uuid.uuid4().hex
        self.jobs = list(jobs)
        self.events: queue.SimpleQueue[tuple[int, Event]] = queue.SimpleQueue()
        self.cancelled = False
        self.on_cancel: Callable[[], None] = lambda: None
        for n, job in enumerate(self.jobs):
            job.index, job.run = n, self

    def cancel(self) -> None:
        """Ends all answers of this run before the next pass; from any thread, any number of times."""
        if not self.cancelled:
            self.cancelled = True
            self.on_cancel()


class Worker:
    """Owns `engine`. parallel: answers at once; waiting: answers in the queue besides; idle_s: when to give memory back; shelf: for
    the states of other conversations."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, *, parallel: int, waiting: int, metrics: Metrics,
                 idle_s: float | None = None, shelf: Shelf | None = None):
        self.engine, self.parallel, self.waiting, self.metrics = engine, min(parallel, MAX_PARALLEL), waiting, metrics
        self._tokenizer, self._idle_s = tokenizer, idle_s
        self._timelines = Timelines(engine, self.parallel, shelf or Shelf())
        self._beside = min(PREFILL_BESIDE_DECODE, engine.ubatch) if engine.plan.all_fits else engine.ubatch
        self._chunk = Chunk(engine.ubatch, engine.span)
        self._passing: set[Run] = set()     # whose tokens are in the pass that runs
        self._released = False
        self._change = threading.Condition()
        self._queue: deque[Job] = deque()
        self._running: list[Job] = []
        self._turn = 0
        self._stopping = False
        self._mean_s = 1.0              # of an answer, for Retry-After
        self._last = time.monotonic()   # when the last answer ended
        self._thread = threading.Thread(target=self._loop, name="moegg-engine", daemon=True)
        self._thread.start()

    # --- for request threads ---------------------------------------------------------------------------------------------

    def submit(self, run: Run) -> None:
        """Queues a run. Raises BadRequest, ContextFull, or Problem 429 (400 if it could never fit, 503 while stopping)."""
        for job in run.jobs:
            self._check(job.prompt)
        with self._change:
            self.check_room(len(run.jobs))
            run.on_cancel = self._hasten
            now = time.monotonic()
            for job in run.jobs:
                job.times.append(now)
                self._queue.append(job)
            self._change.notify()

    def check_room(self, answers: int) -> None:
        """Raises what `submit` would for so many answers, so that nobody need tokenise for nothing."""
        room = self.parallel + self.waiting
        if answers > room:
            raise problem.bad(f"n: got {answers} answers at once, expected at most {room}", "n")
        with self._change:
            running, waiting = len(self._running), len(self._queue)
        if self._stopping:
            raise Problem(503, "the server is stopping", code="stopping", headers={"Retry-After": "5"})
        if running + waiting + answers > room:
            wait = max(1, min(120, round(self._mean_s * (1 + waiting / self.parallel))))
            self.metrics.add("queue_full_total")
            raise Problem(429, f"{running} answers are being written, {waiting} wait; try again in {wait} s", code="queue_full",
                          headers={"Retry-After": str(wait)})

    def _check(self, prompt: Sequence[int]) -> None:
        if len(prompt) >= self.engine.ctx:
            raise problem.too_long(len(prompt), self.engine.ctx)
        self.engine.check(prompt, 0)

    def cancel(self, id: str | None = None) -> int:
        """Cancels the run with this id, or all; returns how many answers that concerns."""
        with self._change:
            jobs = [j for j in (*self._running, *self._queue) if id is None or j.run.id == id]
            for job in jobs:
                job.run.cancel()
            self._change.notify()
            return len(jobs)

    def _hasten(self) -> None:
        """Stops the pass that runs if nobody in it wants its results any more."""
        with self._change:
            if self._passing and all(run.cancelled for run in self._passing):
                self.engine.cancel()

    def state(self) -> list[dict[str, Any]]:
        """The timelines, for people who look; no text."""
        with self._change:
            jobs = {id(j.timeline): j for j in self._running}
        out = []
        for t in list(self._timelines.all):
            job = jobs.get(id(t))
            more = {} if job is None else {"n_prompt": len(job.prompt), "n_cached": job.cached, "n_decoded": job.made}
            out.append({"id": t.id, "n_ctx": self.engine.ctx, "is_processing": t.busy, "n_tokens": len(t.session), **more})
        return out

    @property
    def stopping(self) -> bool:
        return self._stopping

    def load(self) -> tuple[int, int]:
        """(answers being written, answers waiting)."""
        with self._change:
            return len(self._running), len(self._queue)

    def stop(self) -> None:
        """Refuses new runs and ends all others; returns at once. Safe in a signal handler of a thread that is not in submit()."""
        self._stopping = True
        self.engine.cancel()

    def close(self, timeout_s: float = 30.0) -> None:
        """stop(), and waits for the thread."""
        self.stop()
        with self._change:
            self._change.notify()
        self._thread.join(timeout_s)

    # --- the engine thread -----------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        while not self._stopping:
            try:
                self._admit()
                if self._running:
                    self._pass()
                else:
                    self._rest()
            except Exception as e:      # a bug; those who wait must hear of it, and others must be served
                self._fail(list(self._running), e, sound=False)
        with self._change:
            left = [*self._running, *self._queue]
            self._queue.clear()
        for job in left:
            self._end(job, Failed(Problem(503, "the server is stopping", code="stopping", headers={"Retry-After": "5"})))
        end = time.monotonic() + SAVE_AT_STOP_S
        while (left := end - time.monotonic()) > 0 and self._timelines.save(left):
            pass

    def _rest(self) -> None:
        """Waits for work, at most a second. Without any for long enough, conversations are saved, and memory is given back."""
        with self._change:
            if self._queue or self._stopping or self._change.wait(min(1.0, self._idle_s or 1.0)):
                return
        idle = time.monotonic() - self._last
        if idle >= SAVE_AFTER_S and self._timelines.save():
            return
        if self._idle_s is not None and not self._released and idle >= self._idle_s:
            self._timelines.clear()
            self.engine.release()
            self._released = True
            self._gauges()
            log.detail("nobody asked for a while: the memory of conversations and experts is given back")

    def _admit(self) -> None:
        """Moves jobs from the queue to timelines, first come first served, and drops those that are cancelled."""
        while True:
            with self._change:
                job = next((j for j in (*self._running, *self._queue) if j.run.cancelled), None)
                if job is None:
                    if not self._queue or len(self._running) >= self.parallel:
                        break
                    job = self._queue.popleft()
                    self._running.append(job)
                elif job in self._queue:
                    self._queue.remove(job)
            if job.run.cancelled:
                self._finish(job, "cancelled")
                continue
            job.times.append(time.monotonic())
        for job in [j for j in self._running if j.timeline is None]:
            try:
                if not self._waits(job):
                    self._begin(job)
            except Exception as e:      # memory for a new timeline
                self._fail([job], e)
        self._gauges()

    def _waits(self, job: Job) -> bool:
        """Whether another job is reading what this one would have to read again."""
        if job.behind in self._running and len(job.behind.timeline.session) < job.shared:
            return True
        ahead = [j for j in self._running if j.timeline and j.reading]
        job.behind = max(ahead, key=lambda j: common_prefix(j.prompt, job.prompt), default=None)
        if job.behind is None:
            return False
        job.shared = min(common_prefix(job.behind.prompt, job.prompt), len(job.prompt) - 1)
        if job.shared <= len(job.behind.timeline.session) or job.shared - self._timelines.saves(job.prompt) < LEAST_TOKENS:
            return False
        if not self._timelines.rewinds:
            job.behind.marks.add(job.shared)
        return True

    def _begin(self, job: Job) -> None:
        """Gives a job its timeline, with what is known of its prompt already."""
        if self._released:
            self.engine.restore()
            self._released = False
        if not self._timelines.rewinds:
            asks = next((n for n in range(1, min(TURN_TOKENS, len(job.prompt))) if job.prompt[-n] in job.ends), 2)
            job.marks |= {self._timelines.seen(job.prompt), len(job.prompt) - asks + 1}
        job.timeline, job.cached = self._timelines.take(job.prompt)
        self.metrics.add("prompt_tokens_cached_total", job.cached)
        job.run.events.put((job.index, Progress(job.cached, len(job.prompt), job.cached)))
        if job.cached == len(job.prompt):
            self._advance(job)

    def _pass(self) -> None:
        """One forward pass, and what follows from its logits."""
        writing = [j for j in self._running if j.timeline and not j.reading]
        reading = [j for j in self._running if j.timeline and j.reading]
        work: list[tuple[Job, list[int]]] = [(j, [j.pending]) for j in writing]
        room = max(1, min(self.engine.ubatch - len(writing), self._beside)) if writing else self._chunk.tokens
        self._turn += 1
        for n in range(len(reading)):
            job = reading[(self._turn + n) % len(reading)]
            if room > 0:
                work.append((job, job.next[:room]))
                room -= len(work[-1][1])
        start, waited_s = time.monotonic(), self.engine.waited_s
        with self._change:
            self._passing = {j.run for j, _ in work}
        try:
            self.engine.step([(j.timeline.session, tokens) for j, tokens in work], cancel=lambda: self._stopping)
        except Exception as e:          # Cancelled: by a stop, or by all whose pass it was
            if not self._stopping:
                self._fail([j for j, _ in work if not (isinstance(e, Cancelled) and j.run.cancelled)], e)
            return
        finally:
            with self._change:
                self._passing = set()
        n, seconds = sum(len(tokens) for _, tokens in work), time.monotonic() - start
        if not writing:
            self._chunk.learn(n, seconds, self.engine.waited_s - waited_s)
        self.metrics.add("prompt_seconds_total" if reading else "answer_seconds_total", seconds)
        self.metrics.add("passes_total")
        self.metrics.add("pass_tokens_total", n)
        for job, tokens in work:
            self._evaluated(job, len(tokens))

    def _evaluated(self, job: Job, n: int) -> None:
        """n more tokens of a job have been evaluated."""
        session = job.timeline.session
        if job.reading:
            self.metrics.add("prompt_tokens_total", n)
            job.run.events.put((job.index, Progress(len(session), len(job.prompt), job.cached)))
            if len(session) in job.marks:
                self._timelines.shelf.put(session)
        if not job.left or not job.reading:
            self._advance(job)

    def _advance(self, job: Job) -> None:
        """Chooses the next token of a job whose logits are there, and ends the answer where it ends."""
        try:
            self._choose(job)
        except Exception as e:
            self._fail([job], e, sound=True)

    def _choose(self, job: Job) -> None:
        session = job.timeline.session
        if len(job.times) == 2:
            job.times.append(time.monotonic())
        if job.max_tokens == 0:
            return self._finish(job, "length")
        logits = session.logits
        constraint = None if job.voice.in_reasoning else job.constraint
        allowed = logits if constraint is None else constraint.mask(logits)
        token = job.sampler.sample(allowed, session.tokens, len(job.prompt))
        if token in job.ends:
            return self._finish(job, "stop")
        job.made += 1
        self.metrics.add("answer_tokens_total")
        entry = None if job.logs is None else token_log(self._tokenizer, token, logprobs(logits, token, job.logs))
        self._tell(job, job.voice.push(token, entry))
        if constraint is not None:
            constraint.accept(token)
        if job.voice.ended or constraint is not None and constraint.finished:
            self._finish(job, job.voice.ended or "stop")
        elif job.made == job.max_tokens or len(session) >= self.engine.ctx:
            self._finish(job, "length")
        else:
            job.pending = token

    # --- ends ----------------------------------------------------------------------------------------------------------

    def _tell(self, job: Job, events: Sequence[Event]) -> None:
        for event in events:
            job.run.events.put((job.index, event))

    def _finish(self, job: Job, why: str) -> None:
        self._tell(job, job.voice.finish())
        if why == "stop" and job.voice.calls and job.voice.stop is None:
            why = "tool_calls"
        usage = Usage(len(job.prompt), job.cached, job.made, job.voice.reasoning_tokens)
        self._end(job, Done(why, usage, self._timings(job), job.voice.stop))

    def _timings(self, job: Job) -> Timings:
        times = [*job.times, time.monotonic()]
        spans = [b - a for a, b in zip(times, times[1:], strict=False)]
        if len(spans) == 3:
            self._mean_s += 0.2 * (spans[1] + spans[2] - self._mean_s)
        return Timings(*spans)

    def _fail(self, jobs: Sequence[Job], error: Exception, *, sound: bool = False) -> None:
        p = problem.of(error)
        if p.status >= 500:
            log.warn(f"server: {type(error).__name__}: {error}")
        for job in jobs:
            self._end(job, Failed(p), sound)

    def _end(self, job: Job, event: Done | Failed, sound: bool = True) -> None:
        """The last event of a job, and its timeline back to the pool."""
        self._last = time.monotonic()
        if job.timeline is not None:
            self._timelines.give(job.timeline, sound)
        with self._change:
            if job in self._running:
                self._running.remove(job)
        self.metrics.add("answers_total", end=event.finish if isinstance(event, Done) else "error")
        self._gauges()
        job.run.events.put((job.index, event))

    def _gauges(self) -> None:
        with self._change:
            self.metrics.set("requests_running", len(self._running))
            self.metrics.set("requests_waiting", len(self._queue))
        held = list(self._timelines.all)
        self.metrics.set("timelines", len(held))
        self.metrics.set("timeline_tokens", sum(len(t.session) for t in held))
        self.metrics.set("shelf_bytes", self._timelines.shelf.nbytes)
