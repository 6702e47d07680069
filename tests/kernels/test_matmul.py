"""Products: every CPU level has the bits of the plain C kernels, for any number of rows and threads; and those are right.

The bound against float64 counts roundings only, because the activations' int8 step is taken out by using what they decode to.
"""
import numpy as np
import pytest

from moegg import kernels
from moegg.errors import BadRequest
from moegg.quants import QUANTS
from tests.kernels.blocks import FLOATS, QUANTISED, a8, bits, random_blocks

FAST = [level for level in kernels.levels() if level != "generic"]
EPS = 2.0**-24


@pytest.fixture(autouse=True)
def restore_level():
    before = kernels.level()
    yield
    kernels.select(before)


def some_x(n: int, cols: int, rng, scale: float = 1) -> np.ndarray:
    x = (rng.standard_normal((n, cols)) * scale).astype(np.float32)
    x[rng.random(x.shape) < 0.1] = 0
    if n > 2:
        x[1] = 0
    return x


def shapes(quant: str):
    if quant in FLOATS:
        return [(1, 1), (16, 2), (17, 7), (15, 48), (48, 131)]
    n = QUANTS[quant].block_elems
    return [(1, n), (15, 2 * n), (17, 3 * n), (48, 1024)]


# --- levels -------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("level", FAST)
@pytest.mark.parametrize("quant", QUANTS)
def test_level_has_the_bits_of_plain_c(quant, level):
    rng = np.random.default_rng(10)
    for rows, cols in shapes(quant):
        w = kernels.interleave(quant, random_blocks(quant, rows, cols, rng), cols)
        x = some_x(17, cols, rng)
        kernels.select("generic")
        want = bits(kernels.matmul(quant, w, rows, cols, x))
        kernels.select(level)
        for n in (*range(1, 10), 17):
            assert np.array_equal(bits(kernels.matmul(quant, w, rows, cols, x[:n])), want[:n]), (rows, cols, n)


@pytest.mark.parametrize("level", FAST)
@pytest.mark.parametrize("quant", QUANTS)
def test_level_agrees_where_results_are_subnormal_or_huge(quant, level):
    rng = np.random.default_rng(11)
    cols = 256
    for w_scale, x_scale in ((1e-4, 1e-35), (6e4, 1e33)):
        with np.errstate(over="ignore"):
            w = kernels.interleave(quant, random_blocks(quant, 16, cols, rng, w_scale), cols)
        x = some_x(4, cols, rng, x_scale)
        kernels.select("generic")
        want = kernels.matmul(quant, w, 16, cols, x)
        kernels.select(level)
        got = kernels.matmul(quant, w, 16, cols, x)
        assert np.array_equal(np.isnan(got), np.isnan(want))
        assert np.array_equal(bits(got)[~np.isnan(want)], bits(want)[~np.isnan(want)])


@pytest.mark.parametrize("level", FAST)
def test_activation_rows_have_the_bits_of_plain_c(level):
    x = some_x(9, 1024, np.random.default_rng(12))
    x[3] *= np.float32(1e-38)
    x[4] *= np.float32(1e-30)
    x[5] = np.round(x[5] * 4)                       # ties
    x[6, :32] = np.nan
    x[7, 40] = np.inf
    x[8] = 3e38
    kernels.select("generic")
    want = kernels.activations("q4_0", x)
    kernels.select(level)
    assert np.array_equal(kernels.activations("q4_0", x), want)


# --- right ---------------------------------------------------------------------------------------------------------------

def decoded(quant: str, x: np.ndarray) -> np.ndarray:
    """The activations as the kernels see them, float64."""
    if QUANTS[quant].act == "F32":
        return x.astype(np.float64)
    a = a8(kernels.activations(quant, x), x.shape[1])
    return a["q"] * np.repeat(a["d"].astype(np.float64), 32, axis=1)


@pytest.mark.parametrize("quant", QUANTS)
def test_product_equals_float64_within_its_roundings(quant):
    """Per term: one rounding of the sum, three of the factors; two terms per sub-block of affine formats, one per float.

    A block's d * q and m may cancel, so magnitudes are bounded by four times the largest value of the row's block.
    """
    rng = np.random.default_rng(13)
    cols, rows = (1024, 33) if quant in QUANTISED else (131, 33)
    data = random_blocks(quant, rows, cols, rng)
    x = some_x(6, cols, rng)
    got = kernels.matmul(quant, kernels.interleave(quant, data, cols), rows, cols, x)
    w, seen = kernels.dequantize(quant, data, cols).astype(np.float64), decoded(quant, x)
    size = QUANTS[quant].block_elems
    amax = np.repeat(np.abs(w.reshape(rows, -1, size)).max(-1), size, axis=1)
    terms = cols if QUANTS[quant].act == "F32" else 2 * cols // 32
    bound = (terms + 4) * EPS * (np.abs(seen) @ (amax if quant in FLOATS else 4 * amax).T) + 1e-30
    assert (np.abs(got - seen @ w.T) <= bound).all()


@pytest.mark.parametrize("quant", QUANTISED)
def test_one_hot_activations_pick_their_column(quant):
    """G9: a swapped nibble, half or sub-block would pick another column. One-hot rows are exact: q = 127, d = 1."""
    cols = 512
    data = random_blocks(quant, 16, cols, np.random.default_rng(14))
    got = kernels.matmul(quant, kernels.interleave(quant, data, cols), 16, cols, 127 * np.eye(cols, dtype=np.float32))
    want = 127 * kernels.dequantize(quant, data, cols).T.astype(np.float64)
    assert np.allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


def test_activation_row_is_what_its_header_says():
    """kernels.h: d = amax / 127, q to nearest even, sums exact; zero blocks and scales below the normal range are zero."""
    x = some_x(5, 256, np.random.default_rng(15))
    x[2] *= np.float32(1e-38)
    a = a8(kernels.activations("q8_0", x), 256)
    b = x.reshape(5, 8, 32)
    d = np.abs(b).max(-1) / np.float32(127)
    d[d < np.float32(2.0**-126)] = 0
    inverse = np.divide(np.float32(1), d, out=np.zeros_like(d), where=d > 0)
    q = np.rint(b * inverse[..., None]).astype(np.int32)
    assert np.array_equal(a["d"], d) and np.array_equal(a["q"].reshape(b.shape), q) and np.abs(q).max() == 127
    assert np.array_equal(a["half"], q.reshape(5, 8, 2, 16).sum(-1)) and np.array_equal(a["s"], q.sum(-1))
    assert np.array_equal(a["ds"], d * q.sum(-1).astype(np.float32))


# --- the same for any split ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize("quant", ["f32", "bf16", "q4_0", "q8_0", "q4_k", "q6_k"])
def test_threads_and_batch_do_not_change_bits(quant):
    rng = np.random.default_rng(16)
    rows, cols = 200, 256
    w = kernels.interleave(quant, random_blocks(quant, rows, cols, rng), cols)
    x = some_x(11, cols, rng)
    want = bits(kernels.matmul(quant, w, rows, cols, x))
    for n_threads in (2, 3, 8):
        assert np.array_equal(bits(kernels.matmul(quant, w, rows, cols, x, n_threads)), want)
    for t in range(len(x)):
        assert np.array_equal(bits(kernels.matmul(quant, w, rows, cols, x[t:t + 1])), want[t:t + 1])


@pytest.mark.parametrize("level", kernels.levels())
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("quant", [q for q in QUANTISED if QUANTS[q].act == "A8"])
def test_nan_and_infinity_in_activations_reach_every_output(quant, bad, level):
    """A plausible number instead would hide that a layer has overflowed (G11)."""
    kernels.select(level)
    x = np.ones((5, 512), np.float32)
    x[2, 300] = bad
    w = kernels.interleave(quant, random_blocks(quant, 16, 512, np.random.default_rng(17)), 512)
    got = kernels.matmul(quant, w, 16, 512, x)
    assert np.isnan(got[2]).all() and np.isfinite(np.delete(got, 2, 0)).all()


def test_unaligned_weights_and_no_activation_rows():
    rng = np.random.default_rng(18)
    w = kernels.interleave("q4_0", random_blocks("q4_0", 20, 64, rng), 64)
    x = some_x(3, 64, rng)
    shifted = np.zeros(w.size + 1, np.uint8)[1:]
    shifted[:] = w
    assert np.array_equal(kernels.matmul("q4_0", shifted, 20, 64, x), kernels.matmul("q4_0", w, 20, 64, x))
    assert kernels.matmul("q4_0", w, 20, 64, x[:0]).shape == (0, 20)


def test_wrong_arguments_are_named():
    w, x = np.zeros(16 * 18, np.uint8), np.zeros((1, 32), np.float32)
    with pytest.raises(BadRequest, match=r"matmul: x: got \[1, 32\], expected \[T, 64\]"):
        kernels.matmul("q4_0", w, 16, 64, x)
    with pytest.raises(BadRequest, match=r"matmul: got uint8 \[288\], expected uint8 \[576\]"):
        kernels.matmul("q4_0", w, 17, 32, x)
    with pytest.raises(BadRequest, match=r"threads: got 0, expected 1 to 1024"):
        kernels.matmul("q4_0", w, 16, 32, x, 0)
