"""The layers of a dense model as records that stream: which matrices, where in the file, and where all other weights lie meanwhile.

A record is the range of the file from the first to the last matrix that the products of one layer read (kernels/csrc/layers.c). What
is no such matrix stays in memory: the embedding and the head, norms and biases. A model with experts streams those instead, and a
file whose layers do not lie one after another cannot stream. Sizes in bytes.
"""
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from moegg.arch import Model
from moegg.engine.program import Program, lower
from moegg.formats.container import Container, ExpertLayer
from moegg.io.store import ALIGN, ExpertStore, copied_bytes, span
from moegg.planner import FileSizes

SMALL = 1 << 20         # of a run of tensors: smaller ones are copied, so that they do not cost whole pages
PRODUCTS = ("linear", "heads")


@dataclass(frozen=True)
class Run:
    """Tensors that stay, one after another in the file."""
    offset: int
    nbytes: int
    tensors: tuple[tuple[str, int], ...]        # name, offset in the run


@dataclass(frozen=True)
class DenseLayers:
    """records: one "expert" per layer, by layer. large, small: runs of what stays."""
    records: tuple[ExpertLayer, ...]
    large: tuple[Run, ...]
    small: tuple[Run, ...]

    @property
    def places(self) -> dict[int, tuple[int, int]]:
        """Decoder layer -> (index of its record, offset)."""
        return {r.layer: (i, r.base) for i, r in enumerate(self.records)}

    @property
    def rest(self) -> int:
        """What stays takes of memory; pages that records share with what is not theirs are never given back to the page cache."""
        shared = 2 * ALIGN * len(self.records)
        return sum(span((r.offset, r.nbytes)) for r in self.large) + copied_bytes([(r.offset, r.nbytes) for r in self.small]) + shared

    def load(self, store: ExpertStore, progress: Callable[[int, int], None] | None = None) -> dict[str, int]:
        """Brings in what stays; name -> address. Raises NoRoom, IOFailure, Cancelled."""
        at = store.resident([(r.offset, r.nbytes) for r in self.large], progress) + store.copied([(r.offset, r.nbytes) for r in self.small])
        return {name: start + skip for start, r in zip(at, (*self.large, *self.small), strict=True) for name, skip in r.tensors}


def find(container: Container, program: Program) -> DenseLayers | None:
    """The layers of `program` in `container`; None if they cannot stream."""
    streamed = _matrices(container, program)
    layers = sorted(set(streamed.values()))
    records = []
    for layer in layers:
        own = [container.tensors[name] for name, x in streamed.items() if x == layer]
        records.append((min(t.offset for t in own), max(t.offset + t.nbytes for t in own), layer))
    inside = sorted(records)
    if container.layers or len(records) < 2 or any(a[1] > b[0] for a, b in zip(inside, inside[1:], strict=False)):
        return None
    rows = []
    for start, end, layer in records:
        base = start // ALIGN * ALIGN
        rows.append(ExpertLayer(layer, 1, 1, base, -(-(end - base) // ALIGN) * ALIGN, end - base, (), np.zeros(1, np.int32)))
    runs = _runs(container, streamed)
    return DenseLayers(tuple(rows), tuple(r for r in runs if r.nbytes >= SMALL), tuple(r for r in runs if r.nbytes < SMALL))


def sizes(container: Container, model: Model) -> FileSizes:
    """For the planner, streaming layers included."""
    plain = FileSizes.of(container)
    found = None if container.layers else find(container, lower(model))
    return replace(plain, dense=tuple(r.record_bytes for r in found.records), rest=found.rest) if found else plain


def _matrices(container: Container, program: Program) -> dict[str, int]:
    """Name -> layer of the matrices that only products of that layer read."""
    users: dict[str, set[int]] = {}
    for op in program.ops:
        for linear in op.linears:
            users.setdefault(linear.weight.name, set()).add(op.layer if op.kind in PRODUCTS else -1)
    return {name: min(by) for name, by in users.items() if len(by) == 1 and min(by) >= 0
            and name in container.tensors and not container.tensors[name].gather}


def _runs(container: Container, streamed: dict[str, int]) -> list[Run]:
    """What is neither streamed nor looked up by row, cut where something streamed lies between."""
    groups: list[list] = [[]]
    for t in sorted(container.tensors.values(), key=lambda t: t.offset):
        if t.name in streamed:
            groups.append([])
        elif not t.gather:
            groups[-1].append(t)
    return [Run(g[0].offset, g[-1].offset + g[-1].nbytes - g[0].offset, tuple((t.name, t.offset - g[0].offset) for t in g)) for g in groups if g]
