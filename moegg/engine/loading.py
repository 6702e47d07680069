"""Finds every weight of a container in memory: the file's tables must be exactly what its description asks for.

The container has validated sizes and bounds; here each tensor's shape, layout and kind is held against the Model, so that the
C code reads what it was told. Nothing is copied.
"""
from collections.abc import Callable, Mapping

from moegg.arch import Model
from moegg.engine.program import Program
from moegg.engine.structs import MoeRef, WeightRef
from moegg.errors import FormatError
from moegg.formats.container import Container
from moegg.quants import layout_of

ANY = "any quant"


def all_f32(container: Container) -> bool:
    return (all(t.quant == "f32" for t in container.tensors.values())
            and all(p.quant == "f32" for layer in container.layers for p in layer.parts))


def _refuse(container: Container) -> Callable[[str, object, object], FormatError]:
    return lambda what, got, expected: FormatError(f"{container.path}: {what}: got {got}, expected {expected} from the stored config",
                                                   "arch-mismatch")


def form(shape: tuple[int, ...], gather: bool = False, role: str = "") -> tuple[str, str]:
    """(layout, quant) that kernels expect of a tensor or part; those that read vectors and `aux` know f32 alone."""
    return layout_of(shape, gather), "f32" if len(shape) == 1 or role == "aux" else ANY


def find_weights(container: Container, model: Model, addresses: Mapping[str, int], mapped: int) -> dict[str, WeightRef]:
    """Name -> WeightRef of all tensors outside records. addresses: of those that stay in memory; the others but looked-up tables
    stream. mapped: where byte 0 of the file would be, as looked-up tables see it. Raises FormatError for a tensor too many, too few or of another
    form."""
    refuse, refs = _refuse(container), {}
    wanted = {t.name: t for t in model.tensors()}
    if extra := sorted(container.tensors.keys() - wanted.keys()):
        raise refuse(f"tensor {extra[0]!r}", "a tensor", f"none of that name ({len(extra)} too many)")
    for name, t in wanted.items():
        info = container.tensors.get(name)
        vector = len(t.shape) == 1
        want = (t.shape, t.gather, *form(t.shape, t.gather, t.role))
        got = None if info is None else (info.shape, info.gather, info.layout, info.quant if want[3] == "f32" else ANY)
        if got != want:
            raise refuse(f"tensor {name!r}: shape, gather, layout, quant", got, want)
        address = mapped + info.offset if t.gather else addresses.get(name, 0)
        refs[name] = WeightRef(address, info.quant, *((1, t.shape[0]) if vector else t.shape), t.gather, -1 if name in addresses else info.offset)
    return refs


def find_experts(container: Container, program: Program) -> list[MoeRef]:
    """A MoeRef per MoE layer, in the program's order; records come from the store, so their addresses are unset.

    Raises FormatError where the record tables say something else."""
    refuse, refs = _refuse(container), []
    rows = {layer.layer: layer for layer in container.layers}
    if sorted(rows) != sorted(program.moe_layers):
        odd = min(rows.keys() ^ set(program.moe_layers))
        raise refuse(f"layers with experts, which differ at layer {odd}", len(rows), len(program.moe_layers))
    for m in program.moe:
        layer = rows[m.experts.layer]
        want = (m.experts.n, m.top_k, [(p.name, p.shape, *form(p.shape)) for p in m.experts.parts])
        got = (layer.n, layer.top_k, [(p.name, tuple(p.shape), p.layout, p.quant if len(p.shape) == 1 else ANY) for p in layer.parts])
        if got != want:
            raise refuse(f"experts of layer {m.experts.layer}: number, top-k, parts", got, want)
        refs.append(MoeRef(0, layer.stride, layer.slot, {
            p.name: (p.quant, *((1, p.shape[0]) if len(p.shape) == 1 else p.shape), p.offset) for p in layer.parts}))
    return refs
