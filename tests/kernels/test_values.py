"""What blocks mean: values bit for bit those of ggml's gguf package, and its rounding; then the searching quantisers."""
import gguf
import numpy as np
import pytest

from moegg import kernels
from moegg.errors import BadRequest
from moegg.quants import QUANTS
from tests.kernels.blocks import ENCODED, FLOATS, LEGACY, QUANTISED, K, bits, random_blocks
from tests.reference import search

GGML = {name: gguf.GGMLQuantizationType[name.upper()] for name, q in QUANTS.items() if q.id < 64}
SYMMETRIC_TOP = {"q4_0": 8, "q5_0": 16}
AFFINE_TOP = {"q4_1": 15, "q5_1": 31}
COARSE = {"iq4_nl": 0.02, "iq4_xs": 0.02, "mxfp4": 0.5, "nvfp4": 0.13, "mlx4": 0.02}      # error of rounding 2 beside zeros


def theirs(quant: str, data: np.ndarray) -> np.ndarray:
    """Values by ggml's own package; of moegg's own rows by formats/FORMAT.md, in numpy."""
    if quant in GGML:
        return np.asarray(gguf.quants.dequantize(data, GGML[quant]), np.float32)
    blocks = data.reshape(-1, QUANTS[quant].block_bytes)
    if quant.startswith("fp8"):
        d, codes = np.ascontiguousarray(blocks[:, :4]).view("<f4"), blocks[:, 4:].astype(np.int32)
        e, m = codes >> 3 & 15, (codes & 7).astype(np.float32)
        q = np.where(e == 0, m * np.float32(2**-9), (8 + m) * np.exp2(e.astype(np.float32) - 10)).astype(np.float32)
        q[codes & 0x7f == 0x7f] = np.nan
        return (np.where(codes & 0x80, -q, q) * d).reshape(len(data), -1)
    wide = (lambda b: np.ascontiguousarray(b).view("<f2").astype(np.float32)) if quant == "mlx4_f16" else \
        (lambda b: (np.ascontiguousarray(b).view("<u2").astype(np.uint32) << 16).view(np.float32))
    if quant == "ternary":
        q = np.stack([blocks[:, 2:] >> 2 * k & 3 for k in range(4)], 1).reshape(len(blocks), -1).astype(np.float32)
        return (wide(blocks[:, :2]) * (q - 1)).reshape(len(data), -1)
    q = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], 1).astype(np.float32)
    return (wide(blocks[:, :2]) * q + wide(blocks[:, 2:4])).reshape(len(data), -1)


# --- values -------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("quant", QUANTS)
def test_dequantised_values_equal_ggml_bit_for_bit(quant):
    cols = 768 if quant in QUANTISED else 67
    data = random_blocks(quant, 33, cols, np.random.default_rng(1), scale=3)
    want = theirs(quant, data)
    assert np.array_equal(bits(kernels.dequantize(quant, data, cols)), bits(want))


def test_every_e4m3_code_and_scale_of_mx_and_nv_formats_has_its_value():
    """G4: 0x7F and 0xFF are NaN. e8m0 scales 0 and 1 are subnormal; ggml takes a ue4m3 scale of 0x7F for zero."""
    fp8 = np.zeros((2, 132), np.uint8)
    fp8[:, :4] = np.array([0.75], np.float32).view(np.uint8)
    fp8[:, 4:] = np.arange(256, dtype=np.uint8).reshape(2, 128)
    got, want = kernels.dequantize("fp8_128", fp8, 128), theirs("fp8_128", fp8)
    assert np.array_equal(np.isnan(got), fp8[:, 4:] & 0x7f == 0x7f)
    assert np.array_equal(bits(got)[~np.isnan(want)], bits(want)[~np.isnan(want)])
    assert got.max() is not None and np.nanmax(got) == 448 * 0.75
    mx = np.tile(np.arange(17, dtype=np.uint8) * 0x11, (256, 1))
    mx[:, 0] = np.arange(256)
    with np.errstate(over="ignore"):
        assert np.array_equal(bits(kernels.dequantize("mxfp4", mx, 32)), bits(theirs("mxfp4", mx)))
    nv = np.full((64, 36), 0x1b, np.uint8)
    nv[:, :4] = np.arange(256, dtype=np.uint8).reshape(64, 4) & 0x7f
    assert np.array_equal(bits(kernels.dequantize("nvfp4", nv, 64)), bits(theirs("nvfp4", nv)))


def test_fp8_rounding_is_to_nearest_even_and_saturates():
    """G3: values above 448 become the largest code, never NaN."""
    x = np.zeros((1, 32), np.float32)
    x[0, 0] = 448
    x[0, 1:13] = [1e-9, 2**-9, 2**-10, 3 * 2**-10, 17, 19, 447, 433, 431, -432, 2**-6 * 0.99, -1.0625]
    got = kernels.dequantize("fp8_32", kernels.quantize("fp8_32", x), 32)[0, 1:13]
    assert got.tolist() == [0, 2**-9, 0, 2**-8, 16, 20, 448, 448, 416, -448, 2**-6, -1]


@pytest.mark.parametrize("quant", ["f16", "bf16"])
def test_every_half_precision_pattern_widens_and_narrows(quant):
    data = np.arange(65536, dtype=np.uint16).view(np.uint8)[None]
    x = kernels.dequantize(quant, data, 65536)
    want = theirs(quant, data)
    finite = ~np.isnan(want)
    assert np.array_equal(np.isnan(x), ~finite)
    assert np.array_equal(bits(x)[finite], bits(want)[finite])
    back = kernels.quantize(quant, x)
    assert np.array_equal(back.view(np.uint16)[finite], data.view(np.uint16)[finite])
    assert np.isnan(kernels.dequantize(quant, back, 65536)[~finite]).all()


def test_f16_rounding_is_to_nearest_even_with_overflow_to_infinity():
    rng = np.random.default_rng(2)
    edges = np.array([65504, 65519.996, 65520, 1e9, 2**-14, 2**-24, 2**-25, 2**-25 * 1.0001, 3 * 2**-25, 6.1e-5, 0, -0.0, np.inf],
                     np.float32)
    x = np.concatenate([edges, -edges, rng.integers(0, 2**32, 50000, dtype=np.uint64).astype(np.uint32).view(np.float32)])
    x = x[~np.isnan(x)][None]
    with np.errstate(over="ignore"):
        want = x.astype(np.float16)
    assert np.array_equal(kernels.quantize("f16", x).view(np.uint16), want.view(np.uint16))


@pytest.mark.parametrize("quant", [q for q in QUANTISED if q in ENCODED])
def test_one_hot_columns_land_on_their_column_nibble_order(quant):
    """G9: int4 nibble order and offset."""
    cols = 256
    x = np.diag(np.linspace(-2, 2, cols, dtype=np.float32))
    x[128] = 0
    x[128, 128] = 1
    got = kernels.dequantize(quant, kernels.quantize(quant, x), cols)
    assert np.abs(got - x).max() <= COARSE.get(quant, 4e-3)
    assert np.array_equal(np.argmax(np.abs(got), axis=1), np.arange(cols))


# --- plain rounding -----------------------------------------------------------------------------------------------------

def awkward_rows(cols: int) -> np.ndarray:
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((40, cols)) * np.exp(rng.uniform(-8, 8, (40, 1)))).astype(np.float32)
    x[0] = 0
    x[1] = 0.25
    x[2] = -0.25
    x[3, ::2] = 0
    x[4] = np.arange(cols) - cols // 2                              # ties
    x[5] = (np.arange(cols) % 32 - 15.5) / 2
    x[6] *= np.float32(1e-6)
    x[7] = np.abs(x[7])
    x[8] = -np.abs(x[8])
    x[9, 1:] = 0
    return x


@pytest.mark.parametrize("quant", [*FLOATS, *LEGACY, "tq1_0", "tq2_0", "mxfp4"])
def test_plain_rounding_equals_ggml_bit_for_bit(quant):
    x = awkward_rows(256)
    want = gguf.quants.quantize(x, GGML[quant]).view(np.uint8).reshape(len(x), -1)
    assert np.array_equal(kernels.quantize(quant, x), want)


def half_step(quant: str, x: np.ndarray) -> np.ndarray:
    """The largest error of plain rounding, per block of 32: half a step, or one where the far end clips.

    To that comes the rounding of f16 scales: 2**-11 of their size, 2**-25 where they are subnormal, times the largest code.
    """
    b = x.reshape(len(x), -1, 32)
    top = np.abs(b).max(-1, keepdims=True)
    span = b.max(-1, keepdims=True) - b.min(-1, keepdims=True)
    if quant == "q8_0":
        step = top / 127 / 2
    else:
        step = top / SYMMETRIC_TOP[quant] if quant in SYMMETRIC_TOP else span / AFFINE_TOP[quant] / 2
    return np.broadcast_to(step * 1.001 + (top + span) * 2.0**-10 + 127 * 2.0**-25, b.shape).reshape(x.shape)


@pytest.mark.parametrize("quant", LEGACY)
def test_plain_rounding_error_is_within_half_a_step(quant):
    x = awkward_rows(256)
    assert (np.abs(kernels.dequantize(quant, kernels.quantize(quant, x), 256) - x) <= half_step(quant, x)).all()


# --- searches -----------------------------------------------------------------------------------------------------------

def weight_like(shape, rng, tail: bool) -> np.ndarray:
    x = rng.standard_t(4, shape) if tail else rng.standard_normal(shape)
    return (x * 0.03).astype(np.float32)


def rmse(quant: str, x: np.ndarray, **how) -> float:
    y = kernels.dequantize(quant, kernels.quantize(quant, x, **how), x.shape[1])
    return float(np.sqrt(np.mean((y.astype(np.float64) - x) ** 2)))


@pytest.mark.parametrize("tail", [False, True])
@pytest.mark.parametrize("quant", ["q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"])
def test_search_lowers_the_error_of_plain_rounding(quant, tail):
    x = weight_like((64, 512), np.random.default_rng(4), tail)
    assert rmse(quant, x, search=True) < 0.99 * rmse(quant, x)


def naive_k(quant: str, x: np.ndarray) -> float:
    """RMSE of a k-quant without any search: minimum and maximum per sub-block, scales rounded to their bits."""
    if quant in ("q3_k", "q6_k"):
        half, most = {"q3_k": (4, 31), "q6_k": (32, 127)}[quant]
        b = x.reshape(-1, 16, 16)
        ext = np.take_along_axis(b, np.abs(b).argmax(-1, keepdims=True), -1)
        d = ext / -half
        unit = np.abs(d).max(1, keepdims=True).astype(np.float16).astype(np.float32) / most
        d = np.round(d / unit) * unit
        y = d * np.clip(np.round(b / np.where(d == 0, 1, d)), -half, half - 1)
        return float(np.sqrt(np.mean((y.reshape(x.shape) - x) ** 2)))
    top, most, n = {"q2_k": (3, 15, 16), "q4_k": (15, 63, 8), "q5_k": (31, 63, 8)}[quant]
    b = x.reshape(-1, n, 256 // n)
    lo = np.minimum(b.min(-1, keepdims=True), 0)
    d = (b.max(-1, keepdims=True) - lo) / top
    du = (d.max(1, keepdims=True) / most).astype(np.float16).astype(np.float32)
    mu = (-lo.min(1, keepdims=True) / most).astype(np.float16).astype(np.float32)
    d, m = np.round(d / du) * du, np.round(-lo / np.where(mu == 0, 1, mu)) * mu
    y = d * np.clip(np.round((b + m) / np.where(d == 0, 1, d)), 0, top) - m
    return float(np.sqrt(np.mean((y.reshape(x.shape) - x) ** 2)))


@pytest.mark.parametrize("tail", [False, True])
@pytest.mark.parametrize("quant", K)
def test_k_quants_are_no_worse_than_without_a_search(quant, tail):
    x = weight_like((64, 512), np.random.default_rng(5), tail)
    assert rmse(quant, x) < naive_k(quant, x)


@pytest.mark.parametrize("quant, share", [("q2_k", 1 / 3), ("q3_k", 1 / 4), ("q4_k", 1 / 15), ("q5_k", 1 / 31),
                                          ("q6_k", 1 / 32)])
def test_k_quants_error_is_bounded_by_a_step_of_the_block(quant, share):
    """One step of the widest sub-block: half for rounding, the rest for rounded scales and what the search trades at the ends."""
    x = weight_like((64, 512), np.random.default_rng(6), True)
    b = x.reshape(-1, 256)
    step = (b.max(1) - np.minimum(b.min(1), 0)) * share
    err = np.abs(kernels.dequantize(quant, kernels.quantize(quant, x), 512) - x).reshape(b.shape)
    assert (err.max(1) <= 1.5 * step).all()


@pytest.mark.parametrize("search", [False, True])
@pytest.mark.parametrize("quant", [q for q in QUANTISED if q in ENCODED])
def test_zero_and_constant_rows_survive(quant, search):
    x = np.zeros((4, 256), np.float32)
    x[1], x[2], x[3] = 0.5, -0.5, 1e-7
    got = kernels.dequantize(quant, kernels.quantize(quant, x, search=search), 256)
    assert (got[0] == 0).all()
    rtol = 0.04 if quant == "nvfp4" else 4e-3
    assert np.allclose(got[1], 0.5, rtol=rtol) and np.allclose(got[2], -0.5, rtol=rtol)
    assert np.isfinite(got).all() and np.abs(got[3]).max() < 1e-5


@pytest.mark.parametrize("search", [False, True])
@pytest.mark.parametrize("quant", ENCODED)
def test_nan_infinity_and_huge_values_do_no_harm(quant, search):
    x = np.zeros((5, 256), np.float32)
    x[0, 3], x[1, 3], x[2, 3], x[3], x[4, ::2] = np.nan, np.inf, -np.inf, 3e38, -3e38
    assert kernels.quantize(quant, x, search=search).shape == (5, QUANTS[quant].row_bytes(256))


def test_quantising_twice_gives_the_same_bytes():
    x = weight_like((8, 512), np.random.default_rng(7), True)
    for quant in ENCODED:
        assert np.array_equal(kernels.quantize(quant, x, search=True), kernels.quantize(quant, x.copy(), search=True))


# --- searches against plain numpy, and with importance -------------------------------------------------------------------

def worth_of(cols: int, seed: int = 9) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).normal(0, 1.5, cols)).astype(np.float32)


@pytest.fixture(params=kernels.levels())
def level(request):
    before = kernels.level()
    kernels.select(request.param)
    yield request.param
    kernels.select(before)


@pytest.mark.parametrize("worth", [False, True])
@pytest.mark.parametrize("quant", [*LEGACY, *K, "iq4_nl", "iq4_xs"])
def test_searches_equal_plain_numpy_value_for_value_at_every_level(quant, worth, level):
    """G14: one quantiser, defined twice."""
    x = np.concatenate([weight_like((24, 256), np.random.default_rng(10), True), awkward_rows(256)])
    columns = worth_of(256) if worth else None
    got = kernels.dequantize(quant, kernels.quantize(quant, x, search=True, worth=columns), 256)
    np.testing.assert_array_equal(got, search.searched(quant, x, columns))


def test_huge_and_tiny_values_give_the_same_blocks_at_every_level(level):
    x = weight_like((4, 256), np.random.default_rng(15), True)
    x[0, ::7], x[1], x[2] = 3e38, 1e-44, 0
    for quant in (*LEGACY, *K, "iq4_nl", "iq4_xs"):
        got = kernels.quantize(quant, x, search=True)
        kernels.select("generic")
        want = kernels.quantize(quant, x, search=True)
        kernels.select(level)
        assert np.array_equal(got, want)


def weighted_error(quant: str, x: np.ndarray, columns: np.ndarray, **how) -> np.ndarray:
    """Per row, under the weights that the search minimises."""
    n = 16 if quant in ("q2_k", "q3_k", "q6_k") else 32
    w = search.weigh(x.reshape(-1, n), np.broadcast_to(columns, x.shape).reshape(-1, n)).reshape(x.shape)
    y = kernels.dequantize(quant, kernels.quantize(quant, x, **how), x.shape[1])
    return (w * (y.astype(np.float64) - x) ** 2).sum(1)


@pytest.mark.parametrize("tail", [False, True])
@pytest.mark.parametrize("quant", LEGACY)
def test_no_row_is_worse_than_plainly_rounded(quant, tail):
    x, columns = weight_like((64, 512), np.random.default_rng(11), tail), worth_of(512)
    plain, searched = weighted_error(quant, x, columns), weighted_error(quant, x, columns, search=True, worth=columns)
    assert (searched <= plain * (1 + 1e-5)).all() and searched.sum() < plain.sum()


@pytest.mark.parametrize("quant", [*LEGACY, *K])
def test_importance_moves_the_error_to_the_columns_that_matter_less(quant):
    x, columns = weight_like((64, 512), np.random.default_rng(12), False), worth_of(512)
    blind, seeing = weighted_error(quant, x, columns, search=True), weighted_error(quant, x, columns, search=True, worth=columns)
    assert seeing.sum() < 0.999 * blind.sum()


@pytest.mark.parametrize("quant", [*LEGACY, *K])
def test_only_ratios_of_importance_count(quant):
    x, columns = weight_like((8, 256), np.random.default_rng(13), True), worth_of(256)
    assert np.array_equal(kernels.quantize(quant, x, search=True, worth=columns), kernels.quantize(quant, x, search=True, worth=columns * 4))


def test_importance_of_another_width_is_refused():
    with pytest.raises(BadRequest, match=r"worth: got 31 columns, expected 32 \[kernel-shape\]"):
        kernels.quantize("q4_0", np.zeros((2, 32), np.float32), search=True, worth=np.ones(31, np.float32))


# --- refusals -----------------------------------------------------------------------------------------------------------

def test_wrong_arguments_are_named():
    x = np.zeros((2, 48), np.float32)
    with pytest.raises(BadRequest, match=r"q4_0: columns: got 48, expected a positive multiple of 32 \[kernel-shape\]"):
        kernels.quantize("q4_0", x)
    with pytest.raises(BadRequest, match=r"quant: got 'q9', expected one of f32, .*\[kernel-quant\]"):
        kernels.quantize("q9", x)
    with pytest.raises(BadRequest, match=r"iq2_xxs can only be read, not written \[kernel-quant\]"):
        kernels.quantize("iq2_xxs", np.zeros((1, 256), np.float32))
    with pytest.raises(BadRequest, match="expected float32 with 2 dimensions"):
        kernels.quantize("f32", x.astype(np.float64))
    with pytest.raises(BadRequest, match=r"dequantize: got uint8 \[2, 17\], expected uint8 \[N, 18\]"):
        kernels.dequantize("q4_0", np.zeros((2, 17), np.uint8), 32)
    with pytest.raises(BadRequest, match="expected a positive multiple"):
        kernels.dequantize("f32", np.zeros((2, 0), np.uint8), 0)


def test_unaligned_and_strided_arrays_are_taken():
    data = random_blocks("q4_k", 4, 256, np.random.default_rng(8))
    want = kernels.dequantize("q4_k", data, 256)
    shifted = np.zeros(data.size + 1, np.uint8)[1:].reshape(data.shape)
    shifted[:] = data
    assert np.array_equal(kernels.dequantize("q4_k", shifted, 256), want)
    assert np.array_equal(kernels.dequantize("q4_k", np.repeat(data, 2, axis=0)[::2], 256), want)
