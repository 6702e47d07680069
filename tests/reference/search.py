"""The searches of kernels/csrc/search_body.h in plain numpy: the same tries in the same order, sums in the same order, in float32.

All functions work on B blocks at once: x, w [B, n]; tries are [B, 16]; what was chosen is [B].
"""
import numpy as np

F = np.float32
SETTLE = 2
COUNT = np.arange(16, dtype=F)
FOURS, IN_FOUR = np.repeat(COUNT[:4], 4), np.tile(COUNT[:4], 4)
IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], F)
GRID, MAX = (-127, 113), np.finfo(F).max


def f16(x):
    with np.errstate(over="ignore"):
        return np.asarray(x, F).astype(np.float16).astype(F)


def inverse(d):
    d = np.asarray(d, F)
    return np.divide(F(1), d, out=np.zeros_like(d), where=d != 0)


def finite_inverse(d):
    with np.errstate(all="ignore"):
        return np.clip(F(1) / d, -MAX, MAX)


def total(x):
    """Four running sums over every fourth element, then the two pairs: what four lanes give."""
    s = np.zeros((len(x), 4), F)
    for i in range(0, x.shape[1], 4):
        s = s + x[:, i:i + 4]
    return (s[:, 0] + s[:, 2]) + (s[:, 1] + s[:, 3])


def tree(x):
    """16 lanes, summed in halves."""
    s = x[:, :16]
    for i in range(16, x.shape[1], 16):
        s = s + x[:, i:i + 16]
    while s.shape[1] > 1:
        s = s[:, :s.shape[1] // 2] + s[:, s.shape[1] // 2:]
    return s[:, 0]


def serial(x):
    s = np.zeros(len(x), F)
    for i in range(x.shape[1]):
        s = s + x[:, i]
    return s


def nearest(v, lo, hi):
    """Whole numbers in lo..hi; (lo, hi) = GRID: values of iq4."""
    if (lo, hi) == GRID:
        return IQ4[np.searchsorted((IQ4[:-1] + IQ4[1:]) / 2, v, "left")]
    return np.rint(np.clip(v, F(lo), F(hi)))


def at(t, lane):
    return np.take_along_axis(t, lane[:, None], 1)[:, 0]


def weigh(x, worth):
    square = tree(x * x) / F(x.shape[1])
    if worth is None:
        return np.sqrt(square)[:, None] + np.abs(x)
    return worth * np.sqrt(square[:, None] + x * x)


def extreme(x):
    return at(x, np.abs(x).argmax(1))


def tries(x, w, d, m, inv, lo, hi):
    """Sums of w e e, w q, w q q, w x q, each [B, 16]."""
    ee, q1, qq, xq = (np.zeros((len(x), 16), F) for _ in range(4))
    d, m, inv = (np.broadcast_to(np.asarray(v, F), ee.shape) for v in (d, m, inv))
    for i in range(x.shape[1]):
        xi, wi = x[:, i:i + 1], w[:, i:i + 1]
        y = xi - m
        q = nearest(y * inv, lo, hi)
        wq, e = wi * q, y - d * q
        ee, q1, qq, xq = ee + wi * e * e, q1 + wq, qq + wq * q, xq + wq * xi
    return ee, q1, qq, xq


@np.errstate(all="ignore")
def fit_scale(x, w, lo, hi):
    top, best, fit = extreme(x), np.zeros(len(x), F), np.zeros(len(x), F)
    step = F(2) if (lo, hi) == GRID else F(0.3)
    for end in (lo, hi):
        inv = (F(end) + (COUNT - F(8)) * step) / top[:, None]
        for _ in range(2):
            _, _, qq, xq = tries(x, w, 0, 0, inv, lo, hi)
            d = xq / qq
            gain, inv = d * xq, qq / xq
        gain = np.where(gain > 0, gain, F(0))
        lane = gain.argmax(1)
        better = at(gain, lane) > best
        best, fit = np.where(better, at(gain, lane), best), np.where(better, at(d, lane), fit)
    return np.where(top == 0, F(0), fit)


@np.errstate(all="ignore")
def fit_affine(x, w, top, below):
    """d, m, the mean code, and the sums of w and w x."""
    lo, hi = x.min(1), x.max(1)
    if below:
        lo = np.minimum(lo, F(0))
    span = hi - lo
    plain = np.where(span > 0, span / F(top), F(0))
    W, X = serial(w), serial(w * x)
    inv, m = (F(top) + (COUNT - F(8)) * F(0.15 if top < 8 else 0.3)) / span[:, None], lo[:, None]
    for _ in range(3):
        _, q1, qq, xq = tries(x, w, 0, m, inv, 0, top)
        det = W[:, None] * qq - q1 * q1
        d, m = (W[:, None] * xq - X[:, None] * q1) / det, (qq * X[:, None] - q1 * xq) / det
        if below:
            d, m = np.where(m > 0, xq / qq, d), np.where(m > 0, F(0), m)
        gain = d * xq + m * X[:, None]
        gain = np.where((det > 0) & (d > 0) & (gain > 0), gain, F(0))
        inv = F(1) / d
    lane = gain.argmax(1)
    better = (plain > 0) & (at(gain, lane) > 0)
    return np.where(better, at(d, lane), plain), np.where(better, at(m, lane), lo), np.where(better, at(q1, lane) / W, F(0)), W, X


def encode(x, w, d, m, lo, hi):
    """A block that is written: its error and codes."""
    d, m = np.broadcast_to(F(d), len(x))[:, None], np.broadcast_to(F(m), len(x))[:, None]
    t = x - m
    q = nearest(t * inverse(d), lo, hi)
    e = t - d * q
    return (serial if (lo, hi) == GRID else total)(w * e * e), q


def symmetric(x, lo, hi, worth):
    """q4_0, q5_0, iq4_nl: what a block means, [B, 32]."""
    w = weigh(x, worth)
    plain, fit = f16(extreme(x) / F(lo)), f16(fit_scale(x, w, lo, hi))
    err, q = encode(x, w, plain, 0, lo, hi)
    err_fit, q_fit = encode(x, w, fit, 0, lo, hi)
    better = (fit != 0) & (err_fit < err)
    return np.where(better, fit, plain)[:, None] * np.where(better[:, None], q_fit, q)


def affine(x, top, worth):
    """q4_1, q5_1."""
    w = weigh(x, worth)
    lo = x.min(1)
    plain, fit = (f16((x.max(1) - lo) / F(top)), f16(lo)), [f16(v) for v in fit_affine(x, w, top, False)[:2]]
    (err, q), (err_fit, q_fit) = encode(x, w, *plain, 0, top), encode(x, w, *fit, 0, top)
    better = err_fit < err
    d, m = (np.where(better, b, a)[:, None] for a, b in zip(plain, fit, strict=True))
    return d * np.where(better[:, None], q_fit, q) + m


def subblocks(x, worth, n):
    """x [S, 256] -> [S * 256 / n, n], and the worth of the columns likewise."""
    return x.reshape(-1, n), None if worth is None else worth.reshape(-1, n)


@np.errstate(all="ignore")
def affine_k(x, n, top, most, worth):
    """q2_k, q4_k, q5_k: what super-blocks [S, 256] mean."""
    S, J = len(x), 256 // n
    x, worth = subblocks(x, worth, n)
    w = weigh(x, worth)
    d, m, bend, W, X = fit_affine(x, w, top, True)
    du, mu = f16(d.reshape(S, J).max(1).clip(0) / F(most)), f16((-m).reshape(S, J).max(1).clip(0) / F(most))
    best, going = np.full(S, F(-1)), np.ones(S, bool)
    chosen = [np.zeros(S, F), np.zeros(S, F), np.zeros(len(x), F), np.zeros(len(x), F)]
    for _ in range(SETTLE + 1):
        D, M = np.repeat(du, J), np.repeat(mu, J)
        s0 = np.rint(np.clip(d * inverse(D), 0, most) - F(1.5))
        s = np.clip(s0[:, None] + FOURS, 0, most).astype(F)
        mean = m[:, None] + (d[:, None] - D[:, None] * s) * bend[:, None]
        k0 = np.rint(np.clip(-mean * inverse(M)[:, None], 0, most) - F(1.5))
        k = np.clip(k0 + IN_FOUR, 0, most).astype(F)
        ee, q1, qq, xq = tries(x, w, D[:, None] * s, -(M[:, None] * k), finite_inverse(D[:, None] * s), 0, top)
        lane = ee.argmin(1)
        s, k, ee, q1, qq, xq = (at(t, lane) for t in (s, k, ee, q1, qq, xq))
        err = serial(ee.reshape(S, J))
        going &= (best < 0) | (err < best)
        best = np.where(going, err, best)
        each = np.repeat(going, J)
        chosen = [np.where(g, new, old) for g, new, old in zip((going, going, each, each), (du, mu, s, k), chosen, strict=True)]
        ss, sm, mm, xs, xm = (serial(v.reshape(S, J)) for v in (s * s * qq, s * k * q1, k * k * W, s * xq, k * X))
        det = ss * mm - sm * sm
        du = f16(np.where(det > 0, (mm * xs - sm * xm) / det, xs * inverse(ss)))
        mu = f16(np.where(det > 0, (sm * xs - ss * xm) / det, F(0)))
        going &= (du > 0) & (du < 2.0**15) & (mu >= 0) & (mu < 2.0**15)
    D, M = (np.repeat(chosen[0], J) * chosen[2])[:, None], (np.repeat(chosen[1], J) * chosen[3])[:, None]
    return (D * nearest((x + M) * finite_inverse(D), 0, top) - M).reshape(S, 256)


@np.errstate(all="ignore")
def symmetric_k(x, n, lo, hi, most, worth):
    """q3_k, q6_k, iq4_xs."""
    S, J = len(x), 256 // n
    x, worth = subblocks(x, worth, n)
    w = weigh(x, worth)
    d = fit_scale(x, w, lo, hi)
    top = extreme(d.reshape(S, J))
    unit = f16(np.stack([top / F(v) for v in (-most, most - 1, -most + 1, most - 2)], 1))
    best, going = np.full(S, F(-1)), np.ones(S, bool)
    unit_best, sc = np.zeros(S, F), np.zeros((S, J), F)
    for _ in range(SETTLE + 1):
        du = np.repeat(np.repeat(unit, 4, axis=1), J, axis=0)
        s0 = np.rint(np.clip(d[:, None] * inverse(du), -most, most - 1) - F(1.5))
        s = np.clip(s0 + IN_FOUR, -most, most - 1).astype(F)
        ee, _, qq, xq = tries(x, w, du * s, 0, finite_inverse(du * s), lo, hi)
        lane = ee.reshape(-1, 4, 4).argmin(2)
        s, ee, qq, xq = (np.take_along_axis(t.reshape(-1, 4, 4), lane[..., None], 2)[..., 0].reshape(S, J, 4) for t in (s, ee, qq, xq))
        err, ss, xs = (np.stack([serial(v[:, :, u]) for u in range(4)], 1) for v in (ee, s * s * qq, s * xq))
        u = err.argmin(1)
        going &= (best < 0) | (at(err, u) < best)
        best, unit_best = np.where(going, at(err, u), best), np.where(going, at(unit, u), unit_best)
        sc = np.where(going[:, None], np.take_along_axis(s, u[:, None, None], 2)[..., 0], sc)
        after = f16(xs * inverse(ss))
        unit = np.where(np.abs(after) < 2.0**15, after, F(0))
    D = (unit_best[:, None] * sc).reshape(-1, 1)
    return (D * nearest(x * finite_inverse(D), lo, hi)).reshape(S, 256)


def q8(x, worth):
    w = weigh(x, worth)
    d = np.abs(x).max(1) / F(127)
    v = np.clip(x * inverse(d)[:, None], F(-127), F(127))
    whole = np.trunc(v)
    q = whole + (v - whole >= 0.5) - (v - whole <= -0.5)
    better_d = f16(total(w * q * x) * inverse(total(w * q * q)))
    err = encode(x, w, f16(d), 0, -127, 127)
    fit = encode(x, w, better_d, 0, -127, 127)
    better = fit[0] < err[0]
    return np.where(better, better_d, f16(d))[:, None] * np.where(better[:, None], fit[1], err[1])


BLOCK = {"q4_0": 32, "q4_1": 32, "q5_0": 32, "q5_1": 32, "q8_0": 32, "iq4_nl": 32}


def searched(quant: str, x: np.ndarray, worth: np.ndarray | None = None) -> np.ndarray:
    """What kernels.quantize(quant, x, search=True, worth=worth) means, f32 [N, K]."""
    n = BLOCK.get(quant, 256)
    blocks = x.reshape(-1, n)
    per = None if worth is None else np.broadcast_to(worth, x.shape).reshape(-1, n)
    how = {"q4_0": lambda: symmetric(blocks, -8, 7, per), "q5_0": lambda: symmetric(blocks, -16, 15, per),
           "iq4_nl": lambda: symmetric(blocks, *GRID, per), "q4_1": lambda: affine(blocks, 15, per),
           "q5_1": lambda: affine(blocks, 31, per), "q8_0": lambda: q8(blocks, per),
           "q2_k": lambda: affine_k(blocks, 16, 3, 15, per), "q4_k": lambda: affine_k(blocks, 32, 15, 63, per),
           "q5_k": lambda: affine_k(blocks, 32, 31, 63, per), "q3_k": lambda: symmetric_k(blocks, 16, -4, 3, 32, per),
           "q6_k": lambda: symmetric_k(blocks, 16, -32, 31, 128, per), "iq4_xs": lambda: symmetric_k(blocks, 32, *GRID, 32, per)}
    return how[quant]().astype(F).reshape(x.shape)
