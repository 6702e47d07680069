"""Re-layout: the same model with the expert records of each layer in another order, which its slot tables tell.

Content id, tensors, sections and all expert ids stay; root and offsets change. A reader that fetches neighbours together, or a disk
that reads ahead, gains if experts that are wanted together lie side by side. The order comes from recorded routing (moegg/io/trace.py).
"""
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from moegg.errors import BadRequest
from moegg.formats.container import Container
from moegg.formats.reader import Reader
from moegg.formats.writer import ContainerWriter, ExpertSpec, PartSpec, TensorSpec

PIECE_BYTES = 4 << 20


def together(ids: np.ndarray, n: int) -> np.ndarray:
    """Slot of each expert, int32 [n], from the choices ids [T, K] of one layer (-1: none): a chain from the expert used most, each
    next one that of those left which was chosen beside the last most often; among equals the one used more, then the lower id.
    """
    chosen = np.zeros((len(ids), n), np.float32)
    rows, _ = np.nonzero(ids >= 0)
    chosen[rows, ids[ids >= 0]] = 1
    pairs, uses = chosen.T @ chosen, chosen.sum(axis=0)
    slot, left = np.empty(n, np.int32), np.ones(n, bool)
    last = int(uses.argmax()) if n else 0
    for place in range(n):
        slot[last], left[last] = place, False
        score = np.where(left, pairs[last] * (len(ids) + 1.0) + uses, -1.0)
        last = int(score.argmax())
    return slot


def repack(container: Container, out: str | os.PathLike, slots: Mapping[int, np.ndarray], *, force: bool = False,
           progress: Callable[[int, int], Any] | None = None) -> Container:
    """Writes the container with the records of each layer at `slots`: layer -> slot of each expert id; layers left out stay.

    The content id, so every byte of the weights, is compared before the file gets its name. Raises BadRequest for what is no permutation,
    FormatError, UsageError, NoRoom, NotFound, IOFailure.
    """
    c, out = container, Path(out)
    known = {e.layer: e for e in c.layers}
    for layer, slot in slots.items():
        if layer not in known or not np.array_equal(np.sort(slot), np.arange(known[layer].n)):
            raise BadRequest(f"{c.path}: slots of layer {layer}: expected a permutation of the experts of one of its layers",
                             "expert-range")
    sections = {s.name: (s.media, c.read_section(s.name)) for s in c.sections.values() if s.kind == "opaque"}
    writer = ContainerWriter(
        out, arch=c.arch, name=c.name, config=c.config, meta=c.meta, sections=sections, force=force,
        tensors=[TensorSpec(t.name, t.shape, t.quant, t.layout, t.role, t.layer, t.gather) for t in c.tensors.values()],
        experts=[ExpertSpec(e.layer, e.n, e.top_k, tuple(PartSpec(p.name, p.shape, p.quant, p.layout) for p in e.parts),
                            tuple(map(int, slots.get(e.layer, e.slot)))) for e in c.layers])
    done, total = 0, sum(t.nbytes for t in c.tensors.values()) + sum(e.n * e.record_bytes for e in c.layers)
    with c.opened() as f, writer:
        for t in c.tensors.values():
            writer.put_tensor(t.name, _pieces(f, t.offset, t.nbytes))
            done = _told(progress, done + t.nbytes, total)
        for e in c.layers:
            for expert in range(e.n):
                offset, nbytes = c.record(e.layer, expert)
                data = f.read(offset, nbytes)
                writer.put_record(e.layer, expert, [memoryview(data)[p.offset:p.offset + p.nbytes] for p in e.parts])
                done = _told(progress, done + nbytes, total)
        writer.finish(c.content_id)
    return Container.open(out)


def _pieces(f: Reader, offset: int, nbytes: int):
    return (f.read(at, min(PIECE_BYTES, offset + nbytes - at)) for at in range(offset, offset + nbytes, PIECE_BYTES))


def _told(progress: Callable[[int, int], Any] | None, done: int, total: int) -> int:
    if progress:
        progress(done, total)
    return done
