"""What `moegg bench` measures and how: which tokens, which stretches are timed, what a token costs, what the machine could do.

Prints nothing. Units: seconds, bytes, operations (a multiply and its add are two); rates per second, GB and GOP are 10**9.
"""
import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from moegg.arch import Mixer, Model
from moegg.engine import Engine
from moegg.engine.cpus import default_threads
from moegg.formats.container import Container
from moegg.io.memory import own_bytes, peak_bytes
from moegg.kernels import Pool

READ_BYTES = 256 << 20          # far more than a last-level cache holds
READ_AHEAD = (0, 4096, 8192)    # bytes of software prefetch; which is best differs between machines
INT8_ITEMS = 1024               # per thread: milliseconds with vector instructions
LIMIT_ROUNDS = 5
PAGE_KEYS = ("Size", "Rss", "AnonHugePages", "FilePmdMapped", "ShmemPmdMapped", "KernelPageSize")


# --- work ---------------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Work:
    """Token counts of one run, in the order in which they are evaluated: untimed, timed, untimed, timed."""
    depth: int
    prompt: int
    warm: int
    gen: int
    seed: int

    @property
    def total(self) -> int:
        return self.depth + self.prompt + self.warm + self.gen

    def draw(self, vocab: int) -> "Tokens":
        """One stream of random ids for all four parts, so that any engine that draws alike sees the same routing."""
        rnd = random.Random(self.seed)
        return Tokens(*([rnd.randrange(vocab) for _ in range(n)] for n in (self.depth, self.prompt, self.warm, self.gen)))


@dataclass(frozen=True)
class Tokens:
    depth: list[int]
    prompt: list[int]
    warm: list[int]
    gen: list[int]


@dataclass(frozen=True)
class Run:
    """One repetition; None for what it did not contain. experts: what the store did meanwhile, see _experts; empty if nothing streams."""
    prefill_tps: float | None = None
    ttft_s: float | None = None
    decode_tps: float | None = None
    experts: dict[str, float] = field(default_factory=dict)


RATES = ("prefill_tps", "ttft_s", "decode_tps")


def repeat(engine: Engine, tokens: Tokens, runs: int, progress: Callable[[int, int], None] = lambda done, total: None, *,
           warm_up: bool = True) -> list[Run]:
    """Runs, with `warm_up` after one shorter, untimed one. The same session serves all, so that its memory is paid for once."""
    session, depth = engine.session(), tokens.depth
    if warm_up:
        if first := (depth + tokens.prompt)[:engine.ubatch]:
            engine.step([(session, first)])
        for t in tokens.warm:
            session.eval(t)
        session.rewind(0)
    done = []
    for i in range(runs):
        kept = session.rewind(len(depth))           # 0 where a sliding window has forgotten the depth
        if kept < len(depth):
            engine.step([(session, depth[kept:])])
        done.append(_run(engine, session, tokens))
        progress(i + 1, runs)
    return done


def _run(engine: Engine, session: Any, tokens: Tokens) -> Run:
    prefill_tps = ttft_s = decode_tps = None
    experts: dict[str, float] = {}
    if tokens.prompt:
        before = _counters(engine)
        start = time.perf_counter()
        logits = engine.step([(session, tokens.prompt)])[0]
        prefill_tps = len(tokens.prompt) / (time.perf_counter() - start)
        logits.argmax()
        ttft_s = time.perf_counter() - start
        if before:
            experts["prompt_read_bytes"] = _read(before, _counters(engine))
    for t in tokens.warm:
        session.eval(t)
    if tokens.gen:
        before = _counters(engine)
        start = time.perf_counter()
        for t in tokens.gen:
            session.eval(t)
        decode_tps = len(tokens.gen) / (time.perf_counter() - start)
        experts |= _experts(before, _counters(engine), len(tokens.gen)) if before else {}
    return Run(prefill_tps, ttft_s, decode_tps, experts)


def _counters(engine: Engine) -> dict[str, int]:
    return engine.store.counters() if engine.plan.experts else {}


def _read(before: dict[str, int], after: dict[str, int]) -> int:
    """Bytes of records that were read between two looks at the counters, for whatever reason."""
    return sum(after[k] - before[k] for k in ("demanded", "predicted", "warmed"))


def _experts(before: dict[str, int], after: dict[str, int], n: int) -> dict[str, float]:
    """Of an answer of n tokens: hits among the records it needed, bytes and reads per token, bytes guessed in vain, seconds per
    token in which nothing could be computed, pages that the computing threads had to wait for.
    """
    d = {k: after[k] - before[k] for k in before}
    return {"hit_rate": d["hits"] / max(d["hits"] + d["misses"], 1), "read_bytes_per_token": _read(before, after) / n,
            "reads_per_token": d["reads"] / n, "wasted_bytes_per_token": d["wasted"] / n, "wait_s_per_token": d["wait_ns"] / 1e9 / n,
            "major_faults_per_token": d["faults"] / n}


def summary(runs: list[Run]) -> dict[str, Any]:
    """Medians of the rates under their names and of 'experts', and 'spread': {rate: [least, most]}; None where there is nothing."""
    names = runs[0].experts if runs else {}
    out: dict[str, Any] = {"spread": {}, "experts": {name: statistics.median(r.experts[name] for r in runs) for name in names}}
    for name in RATES:
        values = [v for r in runs if (v := getattr(r, name)) is not None]
        out[name] = statistics.median(values) if values else None
        out["spread"][name] = [min(values), max(values)] if values else None
    return out


# --- what a token costs -------------------------------------------------------------------------------------------------

def decode_bytes(container: Container, model: Model, kv: str, first: int, n: int) -> int:
    """Bytes that one decoded token reads, on average over `n` tokens from position `first` on.

    Resident tensors without row-gather tables, top-k expert records per layer, the keys and values in reach, the states of mixers.
    """
    weights = sum(t.nbytes for t in container.tensors.values() if not t.gather) + sum(e.top_k * e.record_bytes for e in container.layers)
    state = 0
    for a in (layer.attn for layer in model.layers):
        if isinstance(a, Mixer):
            state += 4 * a.state_floats * n
            continue
        per_position = a.kept[0] * sum(a.kept[1:]) * (4 if kv == "f32" else 2)
        state += per_position * sum(p + 1 - a.oldest(p) for p in range(first, first + n))
    return weights + state // max(n, 1)


def prefill_ops(container: Container) -> int:
    """Operations of one prompt token in matrix products: all but the head, which only the last token meets, and attention."""
    dense = sum(t.shape[0] * t.shape[1] for t in container.tensors.values() if len(t.shape) == 2 and t.role not in ("embed", "head"))
    return 2 * (dense + sum(e.top_k * p.shape[0] * p.shape[1] for e in container.layers for p in e.parts))


# --- what the machine can do --------------------------------------------------------------------------------------------

def _best(amount: float, work: Callable[[], Any]) -> float:
    """The highest rate of some repetitions: a limit is what was reached once."""
    times = []
    for _ in range(LIMIT_ROUNDS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return amount / min(times)


def read_rate(n_threads: int, data: np.ndarray | None = None) -> float:
    """Bytes per second that n_threads read from memory, measured on `data` (uint8) or a buffer of READ_BYTES."""
    data = np.full(READ_BYTES, 1, np.uint8) if data is None else data
    pool = Pool(n_threads)
    return max(_best(data.nbytes, partial(pool.read, data, ahead)) for ahead in READ_AHEAD)


def int8_rate(n_threads: int) -> float:
    """int8 operations per second of n_threads, with the instruction of the CPU level in force and operands in registers."""
    pool = Pool(n_threads)
    items = INT8_ITEMS * n_threads
    return _best(pool.int8(items), partial(pool.int8, items))


def fma_rate(n_threads: int) -> float:
    """Float operations per second of n_threads, likewise."""
    pool = Pool(n_threads)
    items = INT8_ITEMS * n_threads
    return _best(pool.fma(items), partial(pool.fma, items))


def machine() -> dict[str, Any]:
    """What the numbers belong to."""
    cpu = [line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    ram = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else None
    return {"cpu": cpu[0] if cpu else platform.processor() or platform.machine(), "cores": default_threads(), "ram_bytes": ram,
            "system": f"{platform.system()} {platform.release()}"}


class Others:
    """How much of the machine others used since this was made. Linux; elsewhere load() is None."""

    def __init__(self) -> None:
        self._start = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float] | None:
        """(clock, CPU seconds of everyone, stolen ones included, CPU seconds of this process and the children it waited for)."""
        line = next((x for x in _lines("/proc/stat") if x.startswith("cpu ")), None)
        if line is None:
            return None
        user, nice, system, _, _, irq, softirq, steal = map(int, line.split()[1:9])
        busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
        return time.monotonic(), busy, sum(os.times()[:4])

    def load(self) -> float | None:
        """Cores that others kept busy, on average."""
        now = self._now()
        if now is None or self._start is None:
            return None
        wall, busy, own = (b - a for a, b in zip(self._start, now, strict=True))
        return max(0.0, busy - own) / max(wall, 1e-9)


# --- memory -------------------------------------------------------------------------------------------------------------

def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []


def touch(engine: Engine, progress: Callable[[int, int], None] = lambda done, total: None) -> float:
    """Waits for the warm-up and, if everything fits, reads a byte of every page; returns the seconds it took."""
    start = time.perf_counter()
    engine.settle(progress)
    if engine.plan.all_fits:
        engine.mapped[::4096].max()
    return time.perf_counter() - start


def memory() -> dict[str, int | None]:
    """Bytes: the most this process ever had resident, and what of it is now anonymous (not pages of a file)."""
    return {"peak_memory_bytes": peak_bytes(), "anonymous_bytes": own_bytes() or None}


def pages(path: Path, smaps: list[str] | None = None) -> dict[str, int] | None:
    """Which pages the mapping of `path` got, by the kernel's names (PAGE_KEYS), in bytes. If the file is not mapped, the largest
    mapping counts. None where the system does not say."""
    maps: list[tuple[str, dict[str, int]]] = []
    for line in _lines("/proc/self/smaps") if smaps is None else smaps:
        words = line.split(maxsplit=5)
        if not words[0].endswith(":"):
            maps.append((words[5] if len(words) > 5 else "", dict.fromkeys(PAGE_KEYS, 0)))
        elif (key := words[0][:-1]) in PAGE_KEYS:
            maps[-1][1][key] += int(words[1]) * 1024
    if not maps:
        return None
    found = [m for name, m in maps if name == str(path.resolve())] or [max((m for _, m in maps), key=lambda m: m["Size"])]
    return {key: sum(m[key] for m in found) for key in PAGE_KEYS[:-1]} | {"KernelPageSize": found[0]["KernelPageSize"]}


# --- all of it ----------------------------------------------------------------------------------------------------------

def limits(r: dict[str, Any], read: float, int8: float) -> dict[str, Any]:
    """What a measurement adds to `r` once the machine's rates are known: bytes and int8 operations per second."""
    decode = None if r["decode_gbps"] is None else r["decode_gbps"] * 1e9 / read
    ops = None if r["prefill_gops"] is None else r["prefill_gops"] * 1e9 / int8
    return {"read_gbps": read / 1e9, "fraction_of_read_bandwidth": decode, "int8_gops": int8 / 1e9, "fraction_of_int8": ops}


def report(engine: Engine, work: Work, runs: list[Run], others: Others) -> dict[str, Any]:
    """The JSON object of a measurement, without what only the command knows, and without `limits`."""
    c, m = engine.container, summary(runs)
    used = memory() | {"pages": pages(c.path)}
    token_bytes = decode_bytes(c, engine.model, engine.kv, work.depth + work.prompt + work.warm, work.gen)
    decode = None if m["decode_tps"] is None else m["decode_tps"] * token_bytes
    ops = None if m["prefill_tps"] is None else m["prefill_tps"] * prefill_ops(c)
    return m | {
        "decode_bytes_per_token": token_bytes, "decode_gbps": decode and decode / 1e9,
        "prefill_ops_per_token": prefill_ops(c), "prefill_gops": ops and ops / 1e9,
        **used, "ram": engine.plan.budget, "planned_bytes": engine.plan.total, "cache_bytes": engine.plan.cache, "experts_bytes": engine.plan.experts,
        "records": f"{engine.store.noun}s", "io": engine.residency.mode,
        "io_threads": engine.store.n_threads, "planned_anonymous_bytes": engine.plan.anonymous, "others_load": others.load(),
        "runs": [asdict(r) for r in runs], "prompt": work.prompt, "warm": work.warm, "gen": work.gen, "ctx_depth": work.depth,
        "seed": work.seed, "vocab": engine.vocab, "threads": engine.n_threads, "kv": engine.kv, "ubatch": engine.ubatch,
        "file": str(c.path), "file_bytes": c.file_bytes, "root": c.root.hex(), "name": c.name, "arch": c.arch,
        "recipe": c.about.recipe, **machine()}
