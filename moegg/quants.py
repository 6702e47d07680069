"""The quant table seen from Python: names, ids and byte sizes. Reads kernels/csrc/quants.def, the one source of truth.

A matrix [N, K] is stored row-major (N rows of `row_bytes`) or interleaved: groups of GROUP_ROWS rows, the last group padded
with zero rows; inside a group, block column by block column, each block cut into units and unit u of all 16 rows side by side.
"""
import re
from dataclasses import dataclass
from pathlib import Path

GROUP_ROWS = 16
ROW_MAJOR, INTERLEAVED = "row-major", "interleaved"


@dataclass(frozen=True)
class Quant:
    """One storage format. units: bytes of each unit of a block (of a 4-byte element pair for f16 and bf16), in order.

    act: 'A8' or 'F32', the activation format that its kernels read. scales: where f16 scales lie in a block, if finite ones make all
    values finite; empty otherwise. encodes: floats can be written in it.
    """
    id: int
    name: str
    block_elems: int
    block_bytes: int
    act: str
    units: tuple[int, ...]
    scales: tuple[int, ...]
    encodes: bool

    @property
    def is_float(self) -> bool:
        """True for f32, f16 and bf16: one element per block, no scale."""
        return self.block_elems == 1

    @property
    def bpw(self) -> float:
        """Bits per weight, scales included."""
        return 8 * self.block_bytes / self.block_elems

    def fits(self, cols: int) -> bool:
        """True if a row of `cols` elements is a whole number of blocks."""
        return cols % self.block_elems == 0

    def row_bytes(self, cols: int, layout: str = ROW_MAJOR) -> int:
        """Bytes of one row; interleaved f16/bf16 rows are padded to an even number of elements."""
        if cols % self.block_elems:
            raise ValueError(f"{self.name}: a row of {cols} elements is not a whole number of blocks of {self.block_elems}")
        n = cols // self.block_elems * self.block_bytes
        return n + (-n % 4) if layout == INTERLEAVED and self.is_float else n

    def matrix_bytes(self, rows: int, cols: int, layout: str) -> int:
        """Bytes of a [rows, cols] matrix in `layout`, padding rows of the last group included."""
        if layout == INTERLEAVED:
            rows += -rows % GROUP_ROWS
        return rows * self.row_bytes(cols, layout)


def _load() -> dict[str, Quant]:
    text = (Path(__file__).parent / "kernels" / "csrc" / "quants.def").read_text()
    table = {}
    for m in re.finditer(r'^(Q|PLAIN|READ_ONLY)\(\s*(\d+), (\w+),\s*(\d+),\s*(\d+), (\w+),\s*"([^"]+)", "([^"]*)"\)', text, re.M):
        units = tuple(int(s) for part in m[7].split() for s, n in [part.split("x")] for _ in range(int(n)))
        table[m[3]] = Quant(int(m[2]), m[3], int(m[4]), int(m[5]), m[6], units, tuple(map(int, m[8].split())), m[1] != "READ_ONLY")
    return table


QUANTS: dict[str, Quant] = _load()
BY_ID: dict[int, Quant] = {q.id: q for q in QUANTS.values()}


def layout_of(shape: tuple[int, ...], gather: bool = False) -> str:
    """How a weight lies in a file: a matrix that is multiplied with interleaved, a vector or a table that is only looked up row-major."""
    return ROW_MAJOR if gather or len(shape) < 2 else INTERLEAVED
