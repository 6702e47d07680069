"""Tensors and expert records: name, shape as stored, role, and where sources keep them. Holds no values."""
from __future__ import annotations

from dataclasses import dataclass

ROLES = ("embed", "norm", "attn", "dense", "shared", "router", "head", "bias", "aux")


@dataclass(frozen=True)
class Src:
    """Where one matrix lies in a source: `name` (may hold {e}), then these pure steps in this order.

    squeeze: leave out axes of size 1 (convolutions [C, 1, taps]; a number without axes is a vector of one), those at `ones` if a GGUF is written;
    stacked: take slice e of axis 0; transpose: swap the last two axes; rows: keep rows[start:stop:step] of axis 0 of the matrix (fused gate_up,
    interleaved gate/up), of each of `groups` equal parts of it if that is not 0 (projections fused per head); turn: transpose what is kept of each
    group; add: add a constant in f32 (gemma's 1 + w norms); log: not 0, the logarithm of log * x (GGUF keeps -exp(A_log), or exp). flat: before all
    of them, the axes before the last become one; its value is the length of the first.
    """
    name: str
    stacked: bool = False
    transpose: bool = False
    rows: tuple[int, int, int] | None = None
    add: float = 0.0
    groups: int = 0
    squeeze: bool = False
    ones: tuple[int, ...] = ()
    flat: int = 0
    turn: bool = False
    log: int = 0


@dataclass(frozen=True)
class Tensor:
    """One resident or row-gather weight. `hf`, `gguf`: alternatives, the first that the source has is used."""
    name: str
    shape: tuple[int, ...]
    role: str
    hf: tuple[Src, ...]
    gguf: tuple[Src, ...] = ()
    layer: int = -1
    gather: bool = False        # only looked up by row (an untied embedding): row-major, not resident


@dataclass(frozen=True)
class Part:
    """One matrix, or bias vector, of an expert record; Src names hold {e}, or are stacked over experts."""
    name: str
    shape: tuple[int, ...]
    hf: tuple[Src, ...]
    gguf: tuple[Src, ...] = ()


@dataclass(frozen=True)
class Experts:
    """The n expert records of one layer; parts in record order."""
    layer: int
    n: int
    parts: tuple[Part, ...]

    def part(self, name: str) -> Part:
        return next(p for p in self.parts if p.name == name)

    @property
    def width(self) -> int:
        """F, the rows of gate and up."""
        return self.part("gate").shape[0]
