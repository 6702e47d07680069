"""moegg.converters.source: the steps of a Src against plain numpy, by rows and as a whole."""
import numpy as np
import pytest

from moegg.arch import Src
from moegg.converters.source import SourceTensor, clean_name, find_view, source_quant
from moegg.errors import FormatError

RNG = np.random.default_rng(0)
STACK, FUSED, PLAIN, VECTOR = (RNG.standard_normal(s).astype("f4") for s in ((3, 6, 4), (3, 4, 12), (7, 4), (9,)))
DATA = {"stack": STACK, "fused_t": FUSED, "plain": PLAIN, "vector": VECTOR, "biases": RNG.standard_normal((3, 8)).astype("f4"),
        "conv": RNG.standard_normal((6, 1, 4)).astype("f4"), "plain8": RNG.standard_normal((8, 3)).astype("f4"),
        "boxed": RNG.standard_normal((1, 1, 5, 1)).astype("f4"), "number": np.array(0.5, "f4")}


class Fake:
    kind, name = "safetensors", "fake"
    tensors = {n: SourceTensor(n, x.shape, "F32", "f32") for n, x in DATA.items()}

    def rows(self, name, start, stop):
        x = DATA[name].reshape(-1, *DATA[name].shape[-1:])[start:stop]
        assert len(x) == stop - start
        return np.ascontiguousarray(x).view(np.uint8)


CASES = {
    "plain": (Src("plain"), None, PLAIN),
    "rows": (Src("plain", rows=(2, 6, 1)), None, PLAIN[2:6]),
    "every second row": (Src("plain", rows=(1, 7, 2)), None, PLAIN[1:7:2]),
    "transpose": (Src("plain", transpose=True), None, PLAIN.T),
    "stacked": (Src("stack", stacked=True), 2, STACK[2]),
    "stacked rows": (Src("stack", stacked=True, rows=(3, 6, 1)), 1, STACK[1][3:6]),
    "interleaved gate and up": (Src("stack", stacked=True, rows=(1, 6, 2)), 1, STACK[1][1:6:2]),
    "stacked transposed rows": (Src("fused_t", stacked=True, transpose=True, rows=(6, 12, 1)), 1, FUSED[1].T[6:12]),
    "add": (Src("plain", add=1.0), None, PLAIN + np.float32(1)),
    "parts of groups turned": (Src("plain8", rows=(1, 3, 1), groups=2, turn=True),
                               None, DATA["plain8"].reshape(2, 4, 3)[:, 1:3].swapaxes(1, 2).reshape(6, 2)),
    "a stack as one matrix": (Src("stack", flat=True), None, STACK.reshape(18, 4)),
    "vector": (Src("vector"), None, VECTOR),
    "vector plus one": (Src("vector", add=1.0), None, VECTOR + np.float32(1)),
    "slice of a vector": (Src("vector", rows=(1, 9, 2)), None, VECTOR[1:9:2]),
    "rows of groups": (Src("conv", squeeze=True, rows=(0, 1, 1), groups=3), None, DATA["conv"][[0, 2, 4], 0]),
    "slice of a vector's groups": (Src("boxed", squeeze=True, rows=(1, 5, 2), groups=1), None, DATA["boxed"].ravel()[1:5:2]),
    "groups of a vector": (Src("vector", rows=(1, 3, 1), groups=3), None, VECTOR.reshape(3, 3)[:, 1:].ravel()),
    "axes of size 1": (Src("conv", squeeze=True), None, DATA["conv"][:, 0]),
    "a vector in a box": (Src("boxed", squeeze=True), None, DATA["boxed"].ravel()),
    "a number": (Src("number", squeeze=True), None, DATA["number"].reshape(1)),
    "stacked vectors": (Src("biases", stacked=True), 2, DATA["biases"][2]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_view_is_what_numpy_makes_of_the_same_steps(case):
    src, expert, want = CASES[case]
    view = find_view(Fake(), (Src("absent"), src), expert, 3)
    assert view.shape == want.shape
    want = np.atleast_2d(want)
    np.testing.assert_array_equal(view.floats(0, view.n_rows), want)
    for start in range(view.n_rows):
        for stop in range(start + 1, view.n_rows + 1):
            np.testing.assert_array_equal(view.floats(start, stop), want[start:stop])
            if view.exact:
                np.testing.assert_array_equal(view.blocks(start, stop).view("<f4"), want[start:stop])


@pytest.mark.parametrize("case", CASES)
def test_an_element_is_named_by_its_place_in_the_source(case):
    src, expert, want = CASES[case]
    view = find_view(Fake(), (src,), expert, 3)
    row, col = view.n_rows - 1, max(0, view.shape[-1] - 2)
    name, _, place = view.element(row, col).rstrip("]").partition("[")
    assert DATA[name][tuple(map(int, place.split(", "))) if place else ()] + np.float32(src.add) == np.atleast_2d(want)[row, col]


def test_the_first_alternative_that_exists_is_used():
    assert find_view(Fake(), (Src("absent"), Src("plain"), Src("stack"))).tensor.name == "plain"
    assert find_view(Fake(), (Src("absent.{e}"),), 1, 3) is None


@pytest.mark.parametrize("src, n, says", [
    (Src("stack", stacked=True), 4, "stack of 4 experts"), (Src("stack", stacked=True), 2, "stack of 2 experts"),
    (Src("vector", stacked=True), 9, "stack of 9"), (Src("stack"), 3, "a vector or a matrix"),
    (Src("vector", transpose=True), 3, "a vector or a matrix"), (Src("conv"), 3, "a vector or a matrix"),
    (Src("plain", rows=(0, 1, 1), groups=3), 3, "rows in 3 equal groups")])
def test_steps_that_do_not_fit_the_axes_are_a_shape_error(src, n, says):
    with pytest.raises(FormatError, match=says) as e:
        find_view(Fake(), (src,), 0, n)
    assert e.value.slug == "arch-shape"


def test_quants_are_found_by_the_names_of_both_formats():
    assert source_quant("BF16") == "bf16" and source_quant("q4_k") == "q4_k" and source_quant("F32") == "f32"
    assert source_quant("F8_E4M3") is None and source_quant("q8_k") is None and source_quant("F64") is None


@pytest.mark.parametrize("name, clean", [
    ("a  b\nc", "a b c"), ("x\x1b[31m", "x [31m"), ("ü" * 300, "ü" * 100), ("", "model"), ("\n", "model")])
def test_a_name_is_one_short_printable_line(name, clean):
    assert clean_name(name) == clean
