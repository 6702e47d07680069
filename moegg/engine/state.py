"""SessionState: what one session remembers, in memory: keys and values, and the float states of mixers. Saving and restoring it.

K is [Hkv, cap / 16, Dh, 16], V is [Hkv, cap, pad16(Dh)] (kernels/csrc/ops.h); position p lives at p % cap; latent attention
keeps one row for both, as K, by position. A layer without a window
keeps all positions and can go back to any of them; a ring can go back as far as its last `cap` positions reach. A mixer's state
(kernels/csrc/mixers.h) cannot go back: beside the live one there are MARKS copies, which a pass makes on its way through a prompt.
Token ids are the session's business. Sizes in bytes.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moegg.arch import Gqa, Mixer, Mla, Ple
from moegg.errors import BadRequest
from moegg.planner import MARKS, kv_positions

BLOCK = 16                      # positions per block of K
MARK_BACK = 16                  # tokens before the end of a prompt: what a chat template writes anew there


def pad16(n: int) -> int:
    return -(-n // 16) * 16


def zeros(shape: Sequence[int], dtype: type) -> np.ndarray:
    """A zeroed array that starts at a multiple of 64 bytes; the system gives its pages when they are touched."""
    n = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    raw = np.zeros(n + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start:start + n].view(dtype).reshape(shape)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The state after `tokens`, apart from any session. logits [V] float32 of the last token, or None. parts: one array per piece of
    state; engines with the same file, context, ubatch and kv agree on their order and shapes. high: as SessionState's."""
    tokens: tuple[int, ...]
    logits: np.ndarray | None
    high: int
    parts: tuple[np.ndarray, ...]

    @property
    def nbytes(self) -> int:
        return sum(p.nbytes for p in self.parts) + 8 * len(self.tokens) + (0 if self.logits is None else self.logits.nbytes)


class SessionState:
    """attn, mixers: layers with a state in the program's order; capacity: positions that each attention layer keeps.

    high: one past the highest position written since the start, whatever was forgotten later: a ring begins at high - cap.
    at: tokens that the mixers' live states hold; marks: and their copies, -1 for none.
    """

    def __init__(self, attn: Sequence[Gqa | Mla], mixers: Sequence[Mixer | Ple], ctx: int, ubatch: int, kv: str):
        dtype = np.float32 if kv == "f32" else np.float16
        self.high = self.at = 0
        self.capacity = [kv_positions(a, ctx, ubatch) for a in attn]
        self._attn = list(attn)
        # both as [Hkv, cap / 16, values of 16 positions]
        self._kv = [tuple(zeros((a.kept[0], cap // BLOCK, BLOCK * n), dtype) for n in a.kept[1:])
                    for a, cap in zip(attn, self.capacity, strict=True)]
        self._floats = [zeros((1 + MARKS, m.state_floats), np.float32) for m in mixers]          # the live one first
        self.marks = [-1] * MARKS
        self.mark_at = self._mark = self._prompt_end = -1    # of the pass that runs, of its call; where the last marked call ended
        self.mark_slot = 0
        # of indexers: raw keys by position and those of complete blocks [blocks / 16, dim, 16]; a block of one token needs no raw key,
        # and its key is kept as keys are
        self._index = [(zeros((cap if a.indexer.ratio > 1 else 0, a.indexer.dim), np.float32),
                        zeros((-(-cap // a.indexer.ratio // BLOCK), BLOCK * a.indexer.dim), np.float32 if a.indexer.ratio > 1 else dtype))
                       for a, cap in zip(attn, self.capacity, strict=True) if a.indexer]
        self.index = np.array([[k.ctypes.data, b.ctypes.data] for k, b in self._index], np.uintp)      # mg_index [layers]
        self.ids = np.zeros(ctx if any(isinstance(m, Ple) for m in mixers) else 0, np.int32)           # by position, for n-grams
        self.entries = np.array([[k.ctypes.data, v.ctypes.data] for k, v in self._kv], np.uintp)       # mg_kv [layers]
        self.states = np.array([x.ctypes.data for x in self._floats], np.uintp)                        # float * [layers]

    @property
    def nbytes(self) -> int:
        return sum(k.nbytes + v.nbytes for k, v in self._kv) + sum(x.nbytes for x in self._floats) + sum(
            k.nbytes + b.nbytes for k, b in self._index) + self.ids.nbytes

    def prompt(self, first: int, last: int) -> None:
        """A call is about to take in positions [first, last) in one or more passes. More than one token are a prompt, which gets a mark
        MARK_BACK tokens before its end; one that comes in several calls keeps the last mark alone."""
        mark = max(first, last - MARK_BACK)
        self._mark = mark if self._floats and last - first > 1 and mark > 0 else -1
        if self._mark >= 0:
            self.mark_slot = self.mark_slot if first == self._prompt_end else self._spare(mark)
            self._prompt_end = last

    def begin(self, first: int, last: int) -> None:
        """A pass is about to take in positions [first, last)."""
        self.high, self.at = max(self.high, last), -1
        self.mark_at = self._mark if first <= self._mark < last else -1
        if self.mark_at >= 0:
            self.marks[self.mark_slot] = -1

    def commit(self, last: int) -> None:
        """The pass is done."""
        if self.mark_at >= 0:
            self.marks[self.mark_slot] = self.mark_at
        self.at, self.mark_at = last, -1

    def _spare(self, mark: int) -> int:
        """An empty mark, or the one that is nearest to what comes after it."""
        if -1 in self.marks:
            return self.marks.index(-1)
        later = sorted([*self.marks, mark])
        return min(range(MARKS), key=lambda i: (later[later.index(self.marks[i]) + 1] - self.marks[i], -self.marks[i]))

    def reach(self, n: int) -> int:
        """The most tokens, at most n, for which all state is still there; 0 where something was forgotten."""
        choices = [n] if not self._floats or n == self.at else sorted((m for m in self.marks if 0 < m <= n), reverse=True)
        return next((m for m in choices if self._rings_hold(m)), 0)

    def _rings_hold(self, n: int) -> bool:
        return all(not a.span or self.high - cap <= a.oldest(n) for a, cap in zip(self._attn, self.capacity, strict=True))

    @property
    def rewinds(self) -> bool:
        """Whether nothing is ever forgotten: any n is in reach."""
        return not self._floats and not any(a.span for a in self._attn)

    def saved_bytes(self, n: int) -> int:
        """Bytes of save(n)."""
        return sum(x.nbytes for x in self._pieces(n, 0))

    def rewind(self, n: int) -> None:
        """Only the first n tokens count from now on; n in reach."""
        if n == 0:
            self.high = 0
        if self._floats and 0 < n != self.at:
            for x in self._floats:
                x[0] = x[1 + self.marks.index(n)]
        self.at, self._prompt_end = n, -1
        self.marks = [m if m <= n else -1 for m in self.marks]

    def save(self, n: int) -> tuple[np.ndarray, ...]:
        """Copies of what the first n tokens left; n in reach."""
        return tuple(x.copy() for x in self._pieces(n, self._slot(n)))

    def load(self, n: int, high: int, parts: Sequence[np.ndarray]) -> None:
        """Takes over what save(n) of a state with that `high` gave. Raises BadRequest for parts of another engine."""
        kept, self.high = self.high, high
        mine = self._pieces(n, 0)
        if [(x.shape, x.dtype) for x in mine] != [(x.shape, x.dtype) for x in parts]:
            self.high = kept
            raise BadRequest("session state: got one of another model, context, ubatch or kv, expected this engine's", "state-mismatch")
        for x, part in zip(mine, parts, strict=True):
            x[...] = part
        self.at, self.marks, self._prompt_end = n, [-1] * MARKS, -1

    def copy_from(self, other: SessionState, n: int) -> None:
        """As load(n, other.high, other.save(n)), with one copy less."""
        self.load(n, other.high, other._pieces(n, other._slot(n)))

    def _slot(self, n: int) -> int:
        return 0 if not self._floats or n in (0, self.at) else 1 + self.marks.index(n)

    def _pieces(self, n: int, slot: int) -> list[np.ndarray]:
        """Views of what the first n tokens left: their blocks, or all of a ring that has turned, and the floats."""
        out = []
        for (k, v), cap in zip(self._kv, self.capacity, strict=True):
            blocks = -(-n // BLOCK) if max(n, self.high) <= cap else cap // BLOCK
            out += [k[:, :blocks], v[:, :blocks]]
        for keys, blocks in self._index:
            out += [keys[:n], blocks[:n // BLOCK + 1]]
        return [*out, self.ids[:n], *(x[slot] for x in self._floats)]
