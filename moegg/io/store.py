"""The expert store of one container: the compiled Store made from plain sizes, the residency and the machine profile, with its usage
history. The engine reads through it; nothing here computes.
"""
import ctypes
import os
from collections.abc import Callable, Sequence

import numpy as np

from moegg.errors import NoRoom
from moegg.io.profile import COPY, Settings
from moegg.io.residency import Residency
from moegg.io.usage import UsageFile
from moegg.kernels.store import Store
from moegg.units import fmt_bytes

HALF_LIFE_TOKENS = 256.0        # bench/cache_replay.py: flat from 64 to 512 on real text, worse beyond; independent tokens want 128
LOAD_STEP = 64 << 20            # resident weights between two looks at cancel and progress


class ExpertStore(Store):
    """Store of a container. layers: the container's (layer, n, top_k, base, stride, record_bytes, slot); budget: bytes of experts.

    parts: (path, identity) of each, if the file lies on the disk in several.
    usage: the history that seeds the cache and gets this run's uses, or None. keep: records per layer that stay for good.
    Raises BudgetTooSmall, IOFailure.
    """

    def __new__(cls, path: str | os.PathLike, identity: Sequence[int], layers: Sequence, budget: int, residency: Residency, *,
                parts: Sequence = (), settings: Settings | None = None, usage: UsageFile | None = None, keep: int = 0,
                max_rows: int = 1, hook: int = 0):
        settings = settings or Settings()
        rows = [(x.n, x.top_k, x.base, x.stride, x.record_bytes, x.slot) for x in layers]
        copy = settings.fill == COPY or not residency.exact      # reads make larger folios than advice: cheaper to map
        return super().__new__(cls, path, identity, rows, [x.layer for x in layers], budget, parts=parts, direct=residency.direct,
                               exact=residency.exact, fresh=residency.exact, copy=copy, n_threads=settings.n_threads, min_part=settings.min_part,
                               half_life=HALF_LIFE_TOKENS, max_rows=max_rows, hook=hook)

    def __init__(self, path, identity, layers, budget, residency, *, parts=(), settings=None, usage=None, keep=0, max_rows=1, hook=0):
        self.residency, self._usage, self._saved = residency, usage, np.zeros(self.count)
        self.size = sum(one[2] for _, one in parts) or identity[2]
        self._saved_tokens = 0
        self.n_threads, self.kept = (settings or Settings()).n_threads, 0
        if self.count and (usage or keep):
            seed = usage.load().seed(HALF_LIFE_TOKENS) if usage else np.zeros(self.count)
            self.kept = self.seed(seed, keep)

    def resident(self, offset: int, nbytes: int, progress: Callable[[int, int], None] | None = None) -> int:
        """Brings the resident region in and returns where it is: in memory of its own (direct), or in the mapping.

        Raises NoRoom, IOFailure, Cancelled.
        """
        at = 0
        if self.residency.direct and nbytes:
            try:
                at = self.alloc(nbytes + 4096)            # the last read is a whole page
            except MemoryError:
                raise NoRoom(f"{self.path}: resident weights of {fmt_bytes(nbytes)}: the system gives no memory", "no-memory") from None
        for start in range(0, nbytes, LOAD_STEP):
            n = min(LOAD_STEP, nbytes - start)
            self.load(offset + start, n, at + start if at else 0)
            if progress:
                progress(start + n, nbytes)
        return at or self.map_address + offset

    def mapping(self) -> np.ndarray:
        """The whole file, uint8 [bytes], while this store lives; what is not in memory is read by a fault when it is touched."""
        return np.frombuffer((ctypes.c_uint8 * self.size).from_address(self.map_address), np.uint8)

    def save_usage(self) -> None:
        """Adds what was used since the last call to the history; real uses only, each once."""
        tokens = self.counters()["tokens"]
        if self._usage is None or tokens == self._saved_tokens or not self.count:
            return
        uses = self.uses()
        self._usage.add(uses - self._saved, tokens - self._saved_tokens)
        self._saved, self._saved_tokens = uses, tokens


def describe(counters: dict) -> str:
    """One line for --stats."""
    asked = counters["hits"] + counters["misses"]
    if not asked:
        return "experts: none used"
    per_token = counters["demanded"] / max(counters["tokens"], 1)
    text = (f"experts: {100 * counters['hits'] / asked:.1f} % hits, {fmt_bytes(per_token)} read per token, "
            f"{counters['wait_ns'] / 1e9:.2f} s waited, cache {fmt_bytes(counters['cache_bytes'])} of {fmt_bytes(counters['budget'])}")
    if counters["predicted"]:
        text += f", {fmt_bytes(counters['predicted'])} guessed ({100 * counters['wasted'] / counters['predicted']:.0f} % wasted)"
    return text + (f", {counters['retries']} retries" if counters["retries"] else "")
