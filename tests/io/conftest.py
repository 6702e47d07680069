"""A file of expert records whose every word tells layer, expert and place, and stores over it."""
import os

import numpy as np
import pytest

from moegg.kernels.store import Store

ABSENT, LOADING, READY, DONE = range(4)


class RecordFile:
    """Records of `sizes` bytes per layer from 16 KiB on, in a slot order of their own."""

    def __init__(self, path, n=12, top_k=2, sizes=(40_000, 40_000, 70_004)):
        self.path, self.n, self.top_k = path, n, top_k
        rng, at, self.layers = np.random.default_rng(7), 16384, []
        with open(path, "wb") as f:
            for layer, size in enumerate(sizes):
                stride, slot = -(-size // 16384) * 16384, rng.permutation(n).astype(np.int32)
                self.layers.append((n, top_k, at, stride, size, slot))
                for e in range(n):
                    f.seek(at + stride * int(slot[e]))
                    f.write(self.record(layer, e, size).tobytes())
                at += stride * n
            f.truncate(at)
        self.identify()

    def identify(self):
        s = os.stat(self.path)
        self.identity = (s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns)

    @staticmethod
    def record(layer, expert, size):
        words = np.arange(-(-size // 4), dtype=np.uint32) * np.uint32(2654435761) + np.uint32(layer * 1009 + expert)
        return words.view(np.uint8)[:size]

    def slot_bytes(self, layer=None):
        return max(x[3] for x in self.layers) if layer is None else self.layers[layer][3]

    def store(self, records=None, **options):
        """A store with room for `records` of the largest kind; None: the least."""
        budget = options.pop("budget", (records or 2 * self.top_k) * self.slot_bytes())
        return Reader(self, Store(self.path, self.identity, self.layers, [10 + i for i in range(len(self.layers))], budget,
                                  **{"direct": True, "exact": True, "min_part": 16384, "max_part": 32768} | options))


class Reader:
    """Fetches experts as the executor does, and compares every byte while the record is pinned."""

    def __init__(self, file, store):
        self.file, self.store = file, store

    def fetch(self, layer, experts, uses=None, begin=1):
        """All of `experts`, in waves; the order in which they came."""
        experts = np.array(sorted(experts), np.int32)
        uses = np.ones(len(experts), np.int32) if uses is None else np.array(uses, np.int32)
        state, records, order = np.zeros(len(experts), np.uint8), np.zeros(len(experts), np.uint64), []
        if begin:
            self.store.begin(begin)
        try:
            while (state != DONE).any():
                if (state == ABSENT).any():
                    self.store.request(layer, experts, uses, records, state)
                    uses = None
                ready = np.flatnonzero(state == READY).astype(np.int32)
                if not len(ready):
                    self.store.wait(layer, experts, records, state)
                    continue
                for i in ready:
                    self.compare(layer, int(experts[i]), int(records[i]))
                    order.append(int(experts[i]))
                self.store.release(layer, ready, experts, state)
        finally:
            self.store.release(layer, np.arange(len(experts), dtype=np.int32), experts, state)
        return order

    def compare(self, layer, expert, address):
        import ctypes
        size = self.file.layers[layer][4]
        got = np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)
        np.testing.assert_array_equal(got, self.file.record(layer, expert, size), f"layer {layer} expert {expert}")

    def counters(self):
        return self.store.counters()


@pytest.fixture(scope="session")
def record_file(tmp_path_factory):
    return RecordFile(tmp_path_factory.mktemp("records") / "records.bin")
