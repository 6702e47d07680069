"""The interleaved layout: bytes where moegg/quants.py says, a bijection, sizes as Python computes them."""
import numpy as np
import pytest

from moegg import kernels
from moegg.errors import BadRequest
from moegg.quants import INTERLEAVED, QUANTS
from tests.kernels.blocks import FLOATS, layout, random_blocks

SHAPES = [(1, 256), (15, 256), (16, 512), (17, 256), (48, 256)]
FLOAT_SHAPES = [(1, 1), (16, 2), (17, 7), (33, 48)]


def cases():
    return [(quant, rows, cols) for quant in QUANTS for rows, cols in (FLOAT_SHAPES if quant in FLOATS else SHAPES)]


@pytest.mark.parametrize("quant, rows, cols", cases())
def test_interleaving_follows_the_rule_and_is_undone(quant, rows, cols):
    data = random_blocks(quant, rows, cols, np.random.default_rng(rows * cols))
    matrix = kernels.interleave(quant, data, cols)
    assert matrix.size == QUANTS[quant].matrix_bytes(rows, cols, INTERLEAVED)
    assert np.array_equal(matrix, layout(quant, data, cols))
    assert np.array_equal(kernels.deinterleave(quant, matrix, rows, cols), data)


@pytest.mark.parametrize("quant, rows, cols", cases())
def test_one_row_is_read_back_as_from_row_major(quant, rows, cols):
    data = random_blocks(quant, rows, cols, np.random.default_rng(rows * cols))
    matrix = kernels.interleave(quant, data, cols)
    want = kernels.dequantize(quant, data, cols)
    for row in {0, rows // 2, rows - 1}:
        assert np.array_equal(kernels.dequantize_row(quant, matrix, rows, cols, row), want[row])


def test_wrong_sizes_are_refused():
    matrix = np.zeros(16 * 18, np.uint8)
    with pytest.raises(BadRequest, match=r"deinterleave: got uint8 \[288\], expected uint8 \[576\]"):
        kernels.deinterleave("q4_0", matrix, 17, 32)
    with pytest.raises(BadRequest, match=r"dequantize_row: row: got 3, expected 0 to 2"):
        kernels.dequantize_row("q4_0", matrix, 3, 32, 3)
