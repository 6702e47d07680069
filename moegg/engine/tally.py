"""What calibration collects: for the inputs of every matrix, sums of squares per column and how many there were.

Filled inside a pass by the executor (kernels/csrc/exec.h, mg_tally), in the order of the tokens, in float64. Matrices that read the
same rows share a Tally.
"""
from dataclasses import replace

import numpy as np

from moegg.arch import Model
from moegg.engine.program import Program
from moegg.engine.structs import MoeRef, WeightRef


class Tally:
    """squares [n, cols] float64: sums of x^2; rows [n] int64: inputs seen. n: experts of a layer, or 1."""

    def __init__(self, n: int, cols: int):
        self.squares, self.rows = np.zeros((n, cols)), np.zeros(n, np.int64)
        self._struct = np.array([self.squares.ctypes.data, self.rows.ctypes.data], np.uintp)

    @property
    def address(self) -> int:
        return self._struct.ctypes.data


def tally_bytes(model: Model) -> int:
    """What the tallies of a model take."""
    inner = sum(e.n * (e.part("gate").shape[1] + e.part("down").shape[1]) for e in model.experts())
    return 8 * (inner + sum(t.shape[1] for t in model.tensors() if len(t.shape) == 2))


def with_tallies(weights: dict[str, WeightRef], experts: list[MoeRef],
                 program: Program) -> tuple[dict[str, WeightRef], list[MoeRef], dict[str, Tally]]:
    """The references with a tally for every product, and name -> Tally; experts as 'layers.3.experts.gate'."""
    weights, tallies = dict(weights), {}
    for op in program.ops:
        for i, linear in enumerate(op.linears if op.kind != "embed" else ()):
            name = linear.weight.name
            if i and op.kind == "linear":                   # its products read the same rows
                tallies[name] = tallies[op.linears[0].weight.name]
            else:
                tallies[name] = Tally(1, weights[name].cols)
                weights[name] = replace(weights[name], tally=tallies[name].address)
    out = []
    for moe, ref in zip(program.moe, experts, strict=True):
        prefix = f"layers.{moe.experts.layer}.experts"
        inner, outer = (Tally(moe.experts.n, moe.experts.part(name).shape[1]) for name in ("gate", "down"))
        tallies |= {f"{prefix}.gate": inner, f"{prefix}.up": inner, f"{prefix}.down": outer}
        out.append(replace(ref, tallies={"gate": inner.address, "down": outer.address}))         # up reads what gate reads
    return weights, out, tallies
