"""The float kernels against float64 numpy, and every CPU level against plain C, bit for bit."""
import numpy as np
import pytest

from moegg import kernels
from moegg.errors import BadRequest
from moegg.kernels import ops

SIZES = [1, 15, 16, 17, 64, 100, 257]
RNG = np.random.default_rng(11)


@pytest.fixture(params=kernels.levels())
def level(request):
    kernels.select(request.param)
    yield request.param
    kernels.select(None)


def generic(fn, *args, **kw):
    here = kernels.level()
    kernels.select("generic")
    try:
        return fn(*args, **kw)
    finally:
        kernels.select(here)


def agree(fn, *args, want, rtol=2e-6, atol=1e-6, **kw):
    """Close to `want`, and the same bits as plain C."""
    got = fn(*args, **kw)
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
    np.testing.assert_array_equal(got, generic(fn, *args, **kw))


@pytest.mark.parametrize("n", SIZES)
def test_rmsnorm(level, n):
    x, w = RNG.standard_normal(n) * 3, RNG.standard_normal(n)
    x, w = x.astype(np.float32), w.astype(np.float32)
    agree(ops.rmsnorm, x, w, 1e-6, want=x / np.sqrt((x.astype(float) ** 2).mean() + 1e-6) * w)


@pytest.mark.parametrize("n", SIZES)
def test_norms_with_and_without_weights(level, n):
    x, w, b = (RNG.standard_normal(n).astype(np.float32) for _ in range(3))
    agree(ops.rmsnorm, x, None, 1e-3, want=x / np.sqrt((x.astype(float) ** 2).mean() + 1e-3))
    for shift in (0, 300):                  # a mean much larger than the spread must not cancel it
        d = (x + np.float32(shift)).astype(float)
        want = (d - d.mean()) / np.sqrt(d.var() + 1e-3)
        agree(ops.layernorm, x + np.float32(shift), None, None, 1e-3, want=want, atol=1e-3 if shift else 2e-6)
        agree(ops.layernorm, x + np.float32(shift), w, b, 1e-3, want=want * w + b, atol=1e-3 if shift else 4e-6)


@pytest.mark.parametrize("half", [1, 8, 16, 19, 64])
@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_rotates_pairs_and_leaves_the_rest(level, half, interleaved):
    x, angle = RNG.standard_normal(2 * half + 5).astype(np.float32), RNG.uniform(-9, 9, half).astype(np.float32)
    c, s = np.cos(angle), np.sin(angle)
    want = x.copy()
    a, b = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(0, half), slice(half, 2 * half))
    want[a], want[b] = x[a] * c - x[b] * s, x[b] * c + x[a] * s
    agree(ops.rope, x, c, s, interleaved, want=want)


@pytest.mark.parametrize("n", SIZES)
def test_activations(level, n):
    x = (RNG.standard_normal(n) * 6).astype(np.float32)
    d = x.astype(float)
    agree(ops.act, "silu", x, want=d / (1 + np.exp(-d)))
    agree(ops.act, "sigmoid", x, want=1 / (1 + np.exp(-d)))
    agree(ops.act, "gelu_tanh", x, want=0.5 * d * (1 + np.tanh(np.sqrt(2 / np.pi) * (d + 0.044715 * d ** 3))), atol=3e-6)
    agree(ops.glu, "sigmoid", x, x, want=d / (1 + np.exp(-d)))


def xielu(x, a, b, beta, eps):
    """In float64; the values are those of f32."""
    d = x.astype(float)
    return np.where(d > 0, a * d * d + beta * d, b * (np.expm1(np.minimum(d, eps)) - d) + beta * d)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("values", [(0.8, 0.8, 0.5, -1e-6), (0.3, 2.25, 0.125, -0.5), (0.0, 0.0, 0.0, 0.0)])
def test_xielu(level, n, values):
    x = (RNG.standard_normal(n) * RNG.choice([1e-3, 1.0, 30.0], n)).astype(np.float32)
    values = np.array(values, np.float32)
    agree(ops.act, "xielu", x, values, want=xielu(x, *map(float, values)), atol=2e-7 * max(1, np.abs(x).max()))


def test_xielu_at_the_ends_of_the_range(level):
    """Small negative inputs keep their digits, exp(x) - 1 would not; -0 and 0 give 0; large ones have no overflow on the other side."""
    values = np.array([0.8, 0.75, 0.5, -1e-6], np.float32)
    small = -np.logspace(-9, 0, 64).astype(np.float32)
    np.testing.assert_allclose(ops.act("xielu", small, values), xielu(small, *map(float, values)), rtol=4e-7, atol=1e-12)
    np.testing.assert_array_equal(ops.act("xielu", [-1e4, 1e4], values), np.float32([-5000 + 0.75 * 9999, 80005000]))
    assert np.isnan(ops.act("xielu", [np.nan], values)).all() and (np.abs(ops.act("xielu", [0.0, -0.0], values)) < 1e-6).all()
    with pytest.raises(BadRequest):
        ops.act("xielu", [1.0], values[:3])


@pytest.mark.parametrize("n", SIZES)
def test_gated_activations(level, n):
    g, u = (RNG.standard_normal(n) * 6).astype(np.float32), RNG.standard_normal(n).astype(np.float32)
    d = g.astype(float)
    agree(ops.glu, "silu", g, u, want=d / (1 + np.exp(-d)) * u)
    agree(ops.glu, "gelu_tanh", g, u, want=0.5 * d * (1 + np.tanh(np.sqrt(2 / np.pi) * (d + 0.044715 * d ** 3))) * u, atol=3e-6)


def test_activations_at_the_ends_of_the_range(level):
    """known_failures G12, G13: exp must not overflow into NaN; a NaN must stay one."""
    x = np.array([-1e30, -200, -88, -87, 0, 87, 88, 200, 1e30], np.float32)
    y = ops.glu("silu", x, np.ones_like(x))
    assert np.isfinite(y).all() and y[4] == 0
    np.testing.assert_allclose(y[5:], x[5:], rtol=1e-6)
    np.testing.assert_allclose(y[:4], 0, atol=1e-8)          # exp is clamped at 88: -1e30 gives -6e-9
    assert np.isnan(ops.glu("silu", [np.nan], [1.0])).all() and np.isnan(ops.softcap([np.nan], 30.0)).all()


@pytest.mark.parametrize("n", SIZES)
def test_softmax_and_softcap(level, n):
    x = (RNG.standard_normal(n) * 10).astype(np.float32)
    e = np.exp(x.astype(float) - x.max())
    agree(ops.softmax, x, want=e / e.sum(), rtol=4e-6)
    agree(ops.softcap, x, 30.0, want=30 * np.tanh(x.astype(float) / 30), atol=1e-5)


@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000, 5000])
def test_kth_largest_is_the_one_a_sort_finds(level, n):
    x = RNG.integers(-40, 40, n).astype(np.float32)
    x[RNG.integers(0, n, n // 10)] = -np.inf
    for k in {1, min(2, n), min(40, n), n}:
        assert ops.kth_largest(x, k) == np.sort(x)[-k]
    with pytest.raises(BadRequest):
        ops.kth_largest(x, n + 1)


def softmax_attention(q, k, v, pos, scale, window, cap):
    out = []
    for row, p in zip(q.astype(float), pos, strict=True):
        s = k[:p + 1].astype(float) @ row * scale
        s = cap * np.tanh(s / cap) if cap else s
        s[:max(0, p - window + 1) if window else 0] = -np.inf
        w = np.exp(s - s.max())
        out.append(w / w.sum() @ v[:p + 1].astype(float))
    return np.array(out)


@pytest.mark.parametrize("f16", [False, True])
@pytest.mark.parametrize("dim", [16, 18, 64])
@pytest.mark.parametrize("pos", [[0], [63], [64, 65], [3, 4, 5, 6, 7], [510, 511, 512, 513], [1199]], ids=str)
@pytest.mark.parametrize("window", [0, 32, 600])
def test_attention(level, f16, dim, pos, window):
    total = pos[-1] + 1
    q, k, v = (RNG.standard_normal((n, dim)).astype(np.float32) for n in (len(pos), total, total))
    if f16:
        k, v = (a.astype(np.float16).astype(np.float32) for a in (k, v))
    for cap in (0.0, 5.0):
        want = softmax_attention(q, k, v, pos, 0.3, window, cap)
        agree(ops.attention, q, k, v, pos, 0.3, window=window, softcap=cap, f16=f16, want=want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("pos", [[0], [31, 32, 33], [62, 63, 64, 65], [510, 511, 512, 513], [800]], ids=str)
def test_attention_in_chunks_and_with_a_sink(level, pos):
    """A sink takes probability and gives nothing; the first query of a chunk sees itself alone."""
    total = pos[-1] + 1
    q, k, v = (RNG.standard_normal((n, 20)).astype(np.float32) for n in (len(pos), total, total))
    for chunk, sink in ((32, -np.inf), (48, 1.5), (0, 40.0), (0, -300.0)):
        want = []
        for row, p in zip(q.astype(float), pos, strict=True):
            first = p - p % chunk if chunk else 0
            s = np.append(k[first:p + 1].astype(float) @ row * 0.3, sink)
            w = np.exp(s - s.max())
            want.append((w / w.sum())[:-1] @ v[first:p + 1].astype(float))
        for cap in {0, 192 if chunk else 0}:
            agree(ops.attention, q, k, v, pos, 0.3, chunk=chunk, sink=sink, cap=cap, want=np.array(want), rtol=2e-5, atol=2e-5)


def test_attention_rows_do_not_depend_on_their_neighbours(level):
    """A row alone and in a block of eight gives the same bits, windows and ring included."""
    pos = list(range(700, 708))
    q, k, v = (RNG.standard_normal((n, 20)).astype(np.float32) for n in (8, 708, 708))
    for kw in ({}, {"window": 100}, {"window": 100, "cap": 192}, {"chunk": 50, "cap": 192}):
        block = ops.attention(q, k, v, pos, 0.2, **kw)
        for i, p in enumerate(pos):
            np.testing.assert_array_equal(ops.attention(q[i:i + 1], k[:p + 1], v[:p + 1], [p], 0.2, **kw)[0], block[i])


@pytest.mark.parametrize("f16", [False, True])
@pytest.mark.parametrize("dim", [20, 64, 80])
def test_attention_of_any_number_of_rows_gives_the_same_bits(level, f16, dim):
    """Kernels take 1 to 4 blocks of keys at once, by the number of rows; what is left over is taken one by one."""
    pos = list(range(1100, 1108))
    q, k, v = (RNG.standard_normal((n, dim)).astype(np.float32) for n in (8, 1108, 1108))
    for window in (0, 300):
        block = generic(ops.attention, q, k, v, pos, 0.2, f16=f16, window=window)
        for n in range(1, 9):
            np.testing.assert_array_equal(ops.attention(q[:n], k, v, pos[:n], 0.2, f16=f16, window=window), block[:n])
