"""The store of one container, of expert records or of a dense model's layers: the compiled Store made from plain sizes, the
residency and the machine profile, with its usage history. The engine reads through it; nothing here computes.
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
ALIGN = 16 << 10                # of offsets and addresses of a load
LINE = 64                       # of a tensor in memory


class ExpertStore(Store):
    """Store of a container. layers: the container's (layer, n, top_k, base, stride, record_bytes, slot); budget: bytes of experts.

    parts: (path, identity) of each, if the file lies on the disk in several.
    usage: the history that seeds the cache and gets this run's uses, or None. keep: records per layer that stay for good.
    kept: None, or of the layers of a dense model (one record each): the indices of those that stay. Raises BudgetTooSmall, IOFailure.
    """

    def __new__(cls, path: str | os.PathLike, identity: Sequence[int], layers: Sequence, budget: int, residency: Residency, *,
                parts: Sequence = (), settings: Settings | None = None, usage: UsageFile | None = None, keep: int = 0,
                kept: Sequence[int] | None = None, max_rows: int = 1, hook: int = 0):
        settings = settings or Settings()
        rows = [(x.n, x.top_k, x.base, x.stride, x.record_bytes, x.slot) for x in layers]
        copy = settings.fill == COPY or not residency.exact      # reads make larger folios than advice: cheaper to map
        return super().__new__(cls, path, identity, rows, [x.layer for x in layers], budget, parts=parts, kept=kept, direct=residency.direct,
                               exact=residency.exact, fresh=residency.exact, copy=copy, n_threads=settings.n_threads, min_part=settings.min_part,
                               half_life=HALF_LIFE_TOKENS, max_rows=max_rows, hook=hook)

    def __init__(self, path, identity, layers, budget, residency, *, parts=(), settings=None, usage=None, keep=0, kept=None, max_rows=1, hook=0):
        self.residency, self._usage, self._saved = residency, usage, np.zeros(self.count)
        self.size = sum(one[2] for _, one in parts) or identity[2]
        self._saved_tokens = 0
        self.n_threads, self.kept = (settings or Settings()).n_threads, 0
        if self.count and (usage or keep):
            seed = usage.load().seed(HALF_LIFE_TOKENS) if usage else np.zeros(self.count)
            self.kept = self.seed(seed, keep)

    def resident(self, ranges: Sequence[tuple[int, int]], progress: Callable[[int, int], None] | None = None) -> list[int]:
        """Brings (offset, bytes) of resident weights in and returns where each is: in memory of its own (direct), or in the mapping.

        Raises NoRoom, IOFailure, Cancelled.
        """
        done, total = 0, sum(n for _, n in ranges)
        at = self._take(sum(map(span, ranges))) if self.residency.direct and total else 0
        out = []
        for offset, nbytes in ranges:
            lead = offset % ALIGN
            for start in range(0, lead + nbytes, LOAD_STEP):
                n = min(LOAD_STEP, lead + nbytes - start)
                self.load(offset - lead + start, n, at + start if at else 0)
                if progress:
                    progress(min(done + start + n, total), total)
            done += nbytes
            out.append(at + lead if at else self.map_address + offset)
            at += span((offset, nbytes)) if at else 0
        return out

    def copied(self, ranges: Sequence[tuple[int, int]]) -> list[int]:
        """As resident(), for small ranges between records: copies that lie close together in memory of their own."""
        if not ranges:
            return []
        out, scratch = [], self._take(copied_bytes(ranges))
        at = scratch + max(map(span, ranges))
        for offset, nbytes in ranges:
            lead = offset % ALIGN
            self.load(offset - lead, lead + nbytes, scratch)
            ctypes.memmove(at, scratch + lead, nbytes)
            out.append(at)
            at += -(-nbytes // LINE) * LINE
        return out

    def _take(self, nbytes: int) -> int:
        try:
            return self.alloc(nbytes)
        except MemoryError:
            raise NoRoom(f"{self.path}: resident weights of {fmt_bytes(nbytes)}: the system gives no memory", "no-memory") from None

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


def span(part: tuple[int, int]) -> int:
    """Bytes of memory for (offset, bytes) of a file: whole blocks of ALIGN."""
    offset, nbytes = part
    return -(-(offset % ALIGN + nbytes) // ALIGN) * ALIGN


def copied_bytes(ranges: Sequence[tuple[int, int]]) -> int:
    """What ExpertStore.copied takes for them."""
    return max(map(span, ranges), default=0) + sum(-(-n // LINE) * LINE for _, n in ranges)


def describe(counters: dict, noun: str = "expert") -> str:
    """One line for --stats. noun: Store's."""
    asked = counters["hits"] + counters["misses"]
    if not asked:
        return f"{noun}s: none used"
    per_token = counters["demanded"] / max(counters["tokens"], 1)
    text = (f"{noun}s: {100 * counters['hits'] / asked:.1f} % hits, {fmt_bytes(per_token)} read per token, "
            f"{counters['wait_ns'] / 1e9:.2f} s waited, cache {fmt_bytes(counters['cache_bytes'])} of {fmt_bytes(counters['budget'])}")
    if counters["predicted"]:
        text += f", {fmt_bytes(counters['predicted'])} guessed ({100 * counters['wasted'] / counters['predicted']:.0f} % wasted)"
    return text + (f", {counters['retries']} retries" if counters["retries"] else "")
