"""SessionState: what one session remembers, in memory: keys and values per attention layer. Copying, saving and restoring it.

K is [Hkv, cap / 16, Dh, 16], V is [Hkv, cap, pad16(Dh)] (kernels/csrc/ops.h); position p lives at p % cap. A layer without a window
keeps all positions and can go back to any of them; a ring can go back as far as its last `cap` positions reach.
Token ids are the session's business. Sizes in bytes.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moegg.arch import Gqa
from moegg.errors import BadRequest
from moegg.planner import kv_positions

BLOCK = 16                      # positions per block of K


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
    """attn: the attention layers in the program's order; capacity: positions that each of them keeps. high: one past the highest
    position written since the start, whatever was forgotten later: what a ring holds begins at high - cap."""

    def __init__(self, attn: Sequence[Gqa], ctx: int, ubatch: int, kv: str):
        dtype = np.float32 if kv == "f32" else np.float16
        self.high = 0
        self.capacity = [kv_positions(a, ctx, ubatch) for a in attn]
        self._windows = [a.window for a in attn]
        # both as [Hkv, cap / 16, values of 16 positions]
        self._kv = [(zeros((a.n_kv_head, cap // BLOCK, BLOCK * a.head_dim), dtype),
                     zeros((a.n_kv_head, cap // BLOCK, BLOCK * pad16(a.head_dim)), dtype))
                    for a, cap in zip(attn, self.capacity, strict=True)]
        self.entries = np.array([[k.ctypes.data, v.ctypes.data] for k, v in self._kv], np.uintp)       # mg_kv [layers]

    @property
    def nbytes(self) -> int:
        return sum(k.nbytes + v.nbytes for k, v in self._kv)

    def extend(self, n: int) -> None:
        """A pass is about to write positions below n."""
        self.high = max(self.high, n)

    def reach(self, n: int) -> int:
        """The most tokens, at most n, for which all state is still there; 0 where something was forgotten."""
        for window, cap in zip(self._windows, self.capacity, strict=True):
            if window and self.high - cap > max(0, n - window + 1):
                return 0
        return n

    def rewind(self, n: int) -> None:
        """Only the first n tokens count from now on; n in reach."""
        if n == 0:
            self.high = 0

    def save(self, n: int) -> tuple[np.ndarray, ...]:
        """Copies of what the first n tokens left; n in reach."""
        return tuple(x.copy() for x in self._pieces(n))

    def load(self, n: int, high: int, parts: Sequence[np.ndarray]) -> None:
        """Takes over what save(n) of a state with that `high` gave. Raises BadRequest for parts of another engine."""
        kept, self.high = self.high, high
        mine = self._pieces(n)
        if [(x.shape, x.dtype) for x in mine] != [(x.shape, x.dtype) for x in parts]:
            self.high = kept
            raise BadRequest("session state: got one of another model, context, ubatch or kv, expected this engine's", "state-mismatch")
        for x, part in zip(mine, parts, strict=True):
            x[...] = part

    def copy_from(self, other: SessionState, n: int) -> None:
        """As load(n, other.high, other.save(n)), with one copy less."""
        self.load(n, other.high, other._pieces(n))

    def _pieces(self, n: int) -> list[np.ndarray]:
        """Views of what the first n tokens left: their blocks, or all of a ring that has turned."""
        out = []
        for (k, v), cap in zip(self._kv, self.capacity, strict=True):
            blocks = -(-n // BLOCK) if self.high <= cap else cap // BLOCK
            out += [k[:, :blocks], v[:, :blocks]]
        return out
