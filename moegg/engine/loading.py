"""Maps a container and finds every weight in it: the file's tables must be exactly what its description asks for.

The container has validated sizes and bounds; here each tensor's shape, layout and kind is held against the Model, so that the
C code reads what it was told. Nothing is copied.
"""
import mmap
import os
from collections.abc import Callable

import numpy as np

from moegg import kernels
from moegg.arch import Model
from moegg.engine.forward import MoeRef, WeightRef
from moegg.engine.program import Program
from moegg.errors import FormatError, IOFailure
from moegg.formats.container import Container
from moegg.quants import INTERLEAVED, ROW_MAJOR


class Mapping:
    """The file in memory, read-only; `address` of its first byte. A cut or failing file ends the process with one line."""

    def __init__(self, container: Container, available: int | None):
        path = container.path
        try:
            fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except OSError as e:
            raise IOFailure(f"{path}: cannot be opened: {e.strerror}", "io-open") from e
        try:
            st = os.fstat(fd)
            self._map = mmap.mmap(fd, container.file_bytes, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as e:               # ValueError: the file has become shorter
            raise IOFailure(f"{path}: cannot be mapped: {e}", "io-map") from e
        finally:
            os.close(fd)
        if (st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns) != container.identity:
            raise IOFailure(f"{path}: file changed since it was opened: got {st.st_size} bytes, expected the {container.file_bytes} bytes "
                            "that were read; start again", "file-changed")
        if hasattr(mmap, "MADV_WILLNEED") and (available or 0) > st.st_size:
            self._map.madvise(mmap.MADV_WILLNEED)
        self.bytes = np.frombuffer(self._map, np.uint8)
        self.address = self.bytes.ctypes.data
        kernels.guard_mapping(self.address, len(self.bytes), str(path))

    def __del__(self):
        if hasattr(self, "address"):
            kernels.unguard_mapping(self.address)


def all_f32(container: Container) -> bool:
    return (all(t.quant == "f32" for t in container.tensors.values())
            and all(p.quant == "f32" for layer in container.layers for p in layer.parts))


def _refuse(container: Container) -> Callable[[str, object, object], FormatError]:
    return lambda what, got, expected: FormatError(f"{container.path}: {what}: got {got}, expected {expected} from the stored config",
                                                   "arch-mismatch")


def find_weights(container: Container, model: Model, base: int) -> dict[str, WeightRef]:
    """Name -> WeightRef of all tensors outside records. Raises FormatError for a tensor too many, too few or of another form."""
    refuse, refs = _refuse(container), {}
    wanted = {t.name: t for t in model.tensors()}
    if extra := sorted(container.tensors.keys() - wanted.keys()):
        raise refuse(f"tensor {extra[0]!r}", "a tensor", f"none of that name ({len(extra)} too many)")
    for name, t in wanted.items():
        info = container.tensors.get(name)
        vector = len(t.shape) == 1
        want = (t.shape, t.gather, ROW_MAJOR if vector or t.gather else INTERLEAVED, "f32" if vector else "any quant")
        got = None if info is None else (info.shape, info.gather, info.layout, info.quant if vector else "any quant")
        if got != want:
            raise refuse(f"tensor {name!r}: shape, gather, layout, quant", got, want)
        refs[name] = WeightRef(base + info.offset, info.quant, *((1, t.shape[0]) if vector else t.shape), t.gather)
    return refs


def find_experts(container: Container, program: Program, base: int) -> list[MoeRef]:
    """A MoeRef per MoE layer, in the program's order. Raises FormatError where the record tables say something else."""
    refuse, refs = _refuse(container), []
    rows = {layer.layer: layer for layer in container.layers}
    if sorted(rows) != sorted(program.moe_layers):
        raise refuse("layers with experts", sorted(rows), sorted(program.moe_layers))
    for m in program.moe:
        layer = rows[m.experts.layer]
        want = (m.experts.n, m.top_k, [(p.name, p.shape, INTERLEAVED) for p in m.experts.parts])
        got = (layer.n, layer.top_k, [(p.name, tuple(p.shape), p.layout) for p in layer.parts])
        if got != want:
            raise refuse(f"experts of layer {m.experts.layer}: number, top-k, parts", got, want)
        refs.append(MoeRef(base + layer.base, layer.stride, layer.slot, tuple((p.quant, *p.shape, p.offset) for p in layer.parts)))
    return refs
