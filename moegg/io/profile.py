"""The machine profile: what reading expert records costs here, by mode, block and depth. Measured once per disk, a few seconds.

Reads random extents of a model file through the same store that the engine uses, and weighs bytes per second against CPU seconds
per GB, which the computing threads lose. Stored as JSON under the XDG cache, keyed by the device that holds the file and the kernel.
Rates in bytes per second, CPU in seconds per 10**9 bytes.
"""
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from moegg import log
from moegg.files import whole_file
from moegg.io.residency import DIRECT, PAGE_CACHE
from moegg.io.usage import cache_folder
from moegg.kernels.store import Store
from moegg.units import fmt_bytes, fmt_rate

VERSION = 1
ADVICE, COPY = "advice", "copy"                    # how the page cache is filled: diskfile.h
KINDS = ((DIRECT, ""), (PAGE_CACHE, ADVICE), (PAGE_CACHE, COPY))
BLOCKS, DEPTHS = (256 << 10, 1 << 20, 2560 << 10), (1, 4, 8)
GUESS_CPU = 0.1                                    # CPU seconds per GB up to which reading on a guess costs nobody anything
LEAST_FILE = 256 << 20                             # below this there is nothing to measure, and nothing to gain
PROBE_BYTES, MOST_BYTES, RUN_S, TOTAL_S = 16 << 20, 128 << 20, 0.25, 8.0


@dataclass(frozen=True)
class Reading:
    """One measurement: `depth` threads reading random extents of `block` bytes."""
    mode: str
    fill: str
    block: int
    depth: int
    rate: float
    cpu_per_gb: float

    def cost(self, cores: int) -> float:
        """Seconds that one GB costs a machine of so many computing cores, if reading and computing overlap: both matter."""
        return 1e9 / self.rate + self.cpu_per_gb / max(cores, 1)


@dataclass(frozen=True)
class Settings:
    """How the store should read: threads, smallest part of a record that is worth a read of its own, fill of the page cache, and
    whether it pays to read what the next layer will probably choose."""
    n_threads: int = 4
    min_part: int = 256 << 10
    fill: str = ADVICE
    guess: bool = False


@dataclass(frozen=True)
class Profile:
    """key: which device and kernel. memory_rate: bytes per second of reading memory, 0: not measured. direct: the disk takes it."""
    key: str
    cores: int
    readings: tuple[Reading, ...] = ()
    memory_rate: float = 0.0
    direct: bool = True
    version: int = field(default=VERSION)

    def best(self, mode: str) -> Reading | None:
        """The cheapest way to read large extents in a mode; of about equal ones the one with fewer threads."""
        large = max((r.block for r in self.readings), default=0)
        found = [r for r in self.readings if r.mode == mode and r.block == large]
        if not found:
            return None
        least = min(r.cost(self.cores) for r in found)
        return min((r for r in found if r.cost(self.cores) <= 1.05 * least), key=lambda r: r.depth)

    def cost(self, mode: str) -> float | None:
        """Seconds per GB, CPU weighed in; None if the mode was not measured. See residency.choose."""
        best = self.best(mode)
        return best.cost(self.cores) if best and (mode != DIRECT or self.direct) else None

    def settings(self, mode: str) -> Settings:
        """Threads and parts for the store. A lone record is cut into the parts that are fastest when just these are read."""
        best = self.best(mode)
        if best is None:
            return Settings()
        same = [r for r in self.readings if (r.mode, r.fill) == (mode, best.fill)]
        lone: dict[int, float] = {}
        for r in sorted(same, key=lambda r: r.depth):
            if r.depth * r.block >= best.block:
                lone.setdefault(r.block, r.rate)             # the fewest threads that read a whole record at once
        fastest = max(lone.values(), default=0.0)
        part = max((b for b, rate in lone.items() if rate >= 0.9 * fastest), default=best.block)
        return Settings(max(best.depth, 2), part, best.fill or ADVICE, best.cpu_per_gb <= GUESS_CPU)

    def advice(self) -> list[str]:
        """What the numbers mean, in plain words."""
        out = []
        for mode, name in ((DIRECT, "past the page cache"), (PAGE_CACHE, "through the page cache")):
            if (best := self.best(mode)) is not None:
                out.append(f"reading experts {name}: {fmt_rate(best.rate)} with {best.depth} threads, "
                           f"{best.cpu_per_gb:.2f} CPU seconds per GB")
        if not self.readings:
            return ["the disk was not measured: the file is too small for it to matter"]
        if not self.direct:
            out.append("this file system refuses direct reads; records are read through the page cache and dropped from it")
        costs = {m: self.cost(m) for m in (DIRECT, PAGE_CACHE)}
        if all(costs.values()):
            better, other = sorted(costs, key=lambda m: costs[m])
            out.append(f"--io {better} is the better choice under a budget here, {costs[other] / costs[better]:.1f} times")
        fastest = max(r.rate for r in self.readings)
        if fastest < 300e6:
            out.append("this disk is slow for streaming: expect seconds per token unless nearly all experts fit into memory")
        if self.memory_rate:
            out.append(f"memory reads at {fmt_rate(self.memory_rate)}, {self.memory_rate / fastest:.0f} times the disk")
        return out

    def to_dict(self) -> dict:
        return asdict(self)


# --- measuring ----------------------------------------------------------------------------------------------------------

def measure(path: str | os.PathLike, identity: Sequence[int], *, cores: int, memory_rate: float = 0.0, kinds=KINDS, blocks=BLOCKS,
            depths=DEPTHS, total_s: float = TOTAL_S, least_file: int = LEAST_FILE,
            progress: Callable[[int, int], None] | None = None) -> Profile:
    """Measures the disk under `path` (identity: device, inode, bytes, mtime_ns, as the container's). Large blocks come first, so
    that a slow disk, which uses up total_s, leaves out the least telling numbers. Raises IOFailure.
    """
    key, size = device_key(path), identity[2]
    if size < least_file:
        return Profile(key, cores, memory_rate=memory_rate)
    telling = sorted(depths, key=lambda d: d != 4)
    work = [(k, b, d) for b in sorted(blocks, reverse=True) if b <= size // 8 for d in telling for k in kinds]
    readings, direct, end = [], True, time.monotonic() + total_s
    for i, ((mode, fill), block, depth) in enumerate(work):
        if time.monotonic() > end and readings:
            break
        rate, cpu, is_direct = _one(path, identity, mode, fill, block, depth, seed=i)
        direct &= is_direct or mode != DIRECT
        readings.append(Reading(mode, fill, block, depth, rate, cpu))
        if progress:
            progress(i + 1, len(work))
    return Profile(key, cores, tuple(readings), memory_rate, direct)


def _one(path, identity, mode: str, fill: str, block: int, depth: int, seed: int) -> tuple[float, float, bool]:
    """(bytes per second, CPU seconds per GB, reads were direct): a short probe, then as much as takes RUN_S."""
    rate = cpu = 0.0
    for step in range(2):
        nbytes = PROBE_BYTES if step == 0 else min(MOST_BYTES, max(PROBE_BYTES, int(rate * RUN_S)))
        n = max(depth, min(nbytes, identity[2] // 4) // block)
        store, experts = _scattered(path, identity, mode, fill, block, depth, n, seed + 1000 * step)
        _fetch(store, experts[:n])                           # first touch of the memory is not the disk's fault
        _forget(path, store.offsets[experts[n:]], block)
        wall, used = time.perf_counter(), time.process_time()
        _fetch(store, experts[n:])
        wall, used = time.perf_counter() - wall, time.process_time() - used
        rate, cpu = n * block / wall, used * 1e9 / (n * block)
        direct = bool(store.counters()["direct"])
    return rate, cpu, direct


class _Extents(Store):
    """A store whose records are extents of any file."""
    offsets: np.ndarray


def _scattered(path, identity, mode, fill, block, depth, n, seed) -> tuple[_Extents, np.ndarray]:
    """A store over the whole file cut into blocks, room for n of them, and 2 n different blocks in random order."""
    blocks = identity[2] // block
    layers = [(blocks, 1, 0, block, block, np.arange(blocks, dtype=np.int32))]
    store = _Extents(path, identity, layers, [0], max(n, 2) * block, direct=mode == DIRECT, exact=True, copy=fill == COPY,
                     n_threads=depth, min_part=block, max_part=block)
    store.offsets = np.arange(blocks, dtype=np.int64) * block
    return store, np.random.default_rng(seed).choice(blocks, 2 * n, replace=False).astype(np.int32)


def _fetch(store: Store, experts: np.ndarray) -> None:
    experts = np.sort(experts)
    records, state = np.zeros(len(experts), np.uint64), np.zeros(len(experts), np.uint8)
    store.begin(1)
    store.request(0, experts, np.ones(len(experts), np.int32), records, state)
    while (state < READY).any():
        store.wait(0, experts, records, state)
    store.release(0, np.arange(len(experts), dtype=np.int32), experts, state)


READY = 2                                                    # csrc/policy.h, MG_READY


def _forget(path, offsets: np.ndarray, block: int) -> None:
    """Drops the extents from the page cache, where the system can, so that the disk is measured."""
    if hasattr(os, "posix_fadvise"):
        fd = os.open(path, os.O_RDONLY)
        try:
            for at in offsets.tolist():
                os.posix_fadvise(fd, at, block, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


# --- keeping ------------------------------------------------------------------------------------------------------------

def device_key(path: str | os.PathLike) -> str:
    """Which disk holds the file, under which kernel: what a profile is good for."""
    dev = os.stat(path).st_dev
    return f"{platform.node()}:{os.major(dev)}:{os.minor(dev)}:{platform.system()}-{platform.release()}"


def profile_path() -> Path:
    return cache_folder() / "profile.json"


def load(path: str | os.PathLike, file: Path | None = None) -> Profile | None:
    """The stored profile of the disk that holds `path`, or None."""
    found = _read(file or profile_path()).get(device_key(path))
    try:
        if found["version"] != VERSION:
            return None
        return Profile(**found | {"readings": tuple(Reading(**r) for r in found["readings"])})
    except (TypeError, KeyError):
        return None


def save(profile: Profile, file: Path | None = None) -> None:
    """Adds a profile to the file, replacing the one of the same disk. Failing to write is a note, not an error."""
    file = file or profile_path()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(_read(file) | {profile.key: profile.to_dict()}, indent=1, sort_keys=True)
        with whole_file(file, 0o600) as f:
            f.write(f"{text}\n".encode())
    except OSError as e:
        log.warn(f"machine profile {file}: not saved: {e.strerror}")


def _read(file: Path) -> dict:
    try:
        data = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def table(profile: Profile) -> list[str]:
    """The readings as lines of text."""
    rows = [f"{'mode':<20}{'block':>10}{'threads':>9}{'rate':>12}{'CPU s/GB':>10}"]
    for r in profile.readings:
        name = f"{r.mode} {r.fill}"
        rows.append(f"{name:<20}{fmt_bytes(r.block):>10}{r.depth:>9}{fmt_rate(r.rate):>12}{r.cpu_per_gb:>10.2f}")
    return rows
