"""The searches of kernels/csrc/quantize.c in plain numpy: the same candidates in the same order, sums in the same order, in float32.

All functions work on B blocks at once: x, w, q [B, n]; d, m and errors [B].
"""
import numpy as np

F = np.float32
SETTLE = 3


def f16(x):
    with np.errstate(over="ignore"):
        return np.asarray(x, F).astype(np.float16).astype(F)


def inverse(d):
    d = np.asarray(d, F)
    return np.divide(F(1), d, out=np.zeros_like(d), where=d != 0)


def total(x):
    """Four running sums over every fourth element, then the two pairs: what four lanes give."""
    s = np.zeros((len(x), 4), F)
    for i in range(0, x.shape[1], 4):
        s = s + x[:, i:i + 4]
    return (s[:, 0] + s[:, 2]) + (s[:, 1] + s[:, 3])


def serial(x):
    s = np.zeros(len(x), F)
    for i in range(x.shape[1]):
        s = s + x[:, i]
    return s


def rounded(x, lo, hi):
    return np.rint(np.clip(x, F(lo), F(hi)))


def weigh(x, worth):
    square = total(x * x) / F(x.shape[1])
    if worth is None:
        return np.sqrt(square)[:, None] + np.abs(x)
    return worth * np.sqrt(square[:, None] + x * x)


def encode(x, w, d, m, lo, hi):
    d, m = np.broadcast_to(F(d), len(x))[:, None], np.broadcast_to(F(m), len(x))[:, None]
    q = rounded((x - m) * inverse(d), lo, hi)
    e = x - d * q - m
    return total(w * e * e), q


def sums(x, w, q):
    return total(w * q), total(w * q * q), total(w * q * x)


def fit_scale(x, w, lo, hi):
    top = np.take_along_axis(x, np.abs(x).argmax(1)[:, None], 1)[:, 0]
    best, d = np.zeros(len(x), F), np.zeros(len(x), F)
    with np.errstate(all="ignore"):
        for k in range(-9, 10):
            for end in (lo, hi):
                inv = (F(end) + F(0.1) * F(k)) / top
                q = rounded(x * inv[:, None], lo, hi)
                _, qq, xq = sums(x, w, q)
                better = xq * xq > best * qq
                best, d = np.where(better, xq * xq / qq, best), np.where(better, xq / qq, d)
        alive = d != 0
        for _ in range(SETTLE):
            _, qq, xq = sums(x, w, encode(x, w, d, 0, lo, hi)[1])
            alive &= xq * xq > best * qq
            best, d = np.where(alive, xq * xq / qq, best), np.where(alive, xq / qq, d)
    return np.where(top == 0, F(0), d)


def solve(x, w, q, W, X, below):
    q1, q2, xq = sums(x, w, q)
    det = W * q2 - q1 * q1
    d, m = (W * xq - X * q1) / det, (q2 * X - q1 * xq) / det
    if below:
        d, m = np.where(m > 0, xq / q2, d), np.where(m > 0, F(0), m)
    return (det > 0) & (d > 0), d, m


def fit_affine(x, w, top, below):
    """d, m, codes."""
    lo, hi = x.min(1), x.max(1)
    if below:
        lo = np.minimum(lo, F(0))
    step = hi - lo
    d_best, m_best = np.where(step > 0, step / F(top), F(0)), lo
    best, q_best = encode(x, w, d_best, m_best, 0, top)
    W, X = serial(w), serial(w * x)
    alive = d_best > 0
    with np.errstate(all="ignore"):
        for k in range(-10, 11 + SETTLE):
            q = encode(x, w, step / (F(top) + F(0.1) * F(k)), lo, 0, top)[1] if k <= 10 else q_best
            ok, d, m = solve(x, w, q, W, X, below)
            err, q = encode(x, w, np.where(ok, d, F(1)), np.where(ok, m, F(0)), 0, top)
            better = alive & ok & (err < best)
            best, d_best, m_best = np.where(better, err, best), np.where(better, d, d_best), np.where(better, m, m_best)
            q_best = np.where(better[:, None], q, q_best)
            if k > 10:
                alive &= better | ~ok
    return d_best, m_best, q_best


def symmetric(x, half, worth):
    """q4_0, q5_0: what a block means, [B, 32]."""
    w = weigh(x, worth)
    top = np.take_along_axis(x, np.abs(x).argmax(1)[:, None], 1)[:, 0]
    plain, fit = f16(top / F(-half)), f16(fit_scale(x, w, -half, half - 1))
    err, q = encode(x, w, plain, 0, -half, half - 1)
    err_fit, q_fit = encode(x, w, fit, 0, -half, half - 1)
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


def affine_k(x, n, top, most, worth):
    """q2_k, q4_k, q5_k: what super-blocks [S, 256] mean."""
    S, J = len(x), 256 // n
    x, worth = subblocks(x, worth, n)
    w = weigh(x, worth)
    d, m, q = fit_affine(x, w, top, True)
    bend = serial(w * q) * inverse(serial(w))
    du, mu = f16(d.reshape(S, J).max(1).clip(0) / F(most)), f16((-m).reshape(S, J).max(1).clip(0) / F(most))
    W, X = serial(w), serial(w * x)
    best, out, going = np.full(S, F(-1)), np.zeros((S, 256), F), np.ones(S, bool)
    for _ in range(SETTLE + 1):
        D, M = np.repeat(du, J), np.repeat(mu, J)
        s0 = rounded(d * inverse(D), 0, most)
        least, sc, mn, codes = np.full(len(x), F(-1)), np.zeros(len(x), F), np.zeros(len(x), F), np.zeros_like(x)
        for s in (s0 - 1, s0, s0 + 1):
            m0 = rounded(-(m + (d - D * s) * bend) * inverse(M), 0, most)
            for k in (m0 - 1, m0, m0 + 1):
                err, q = encode(x, w, D * s, -(M * k), 0, top)
                better = (s >= 0) & (s <= most) & (k >= 0) & (k <= most) & ((least < 0) | (err < least))
                least, sc, mn = np.where(better, err, least), np.where(better, s, sc), np.where(better, k, mn)
                codes = np.where(better[:, None], q, codes)
        err = serial(least.reshape(S, J))
        going &= (best < 0) | (err < best)
        best = np.where(going, err, best)
        out[going] = ((D * sc)[:, None] * codes - (M * mn)[:, None]).reshape(S, 256)[going]
        q1, q2, xq = sums(x, w, codes)
        ss, sm, mm, xs, xm = (serial(v.reshape(S, J)) for v in (sc * sc * q2, sc * mn * q1, mn * mn * W, sc * xq, mn * X))
        det = ss * mm - sm * sm
        with np.errstate(all="ignore"):
            nd = np.where(det > 0, (mm * xs - sm * xm) / det, xs * inverse(ss))
            nm = np.where(det > 0, (sm * xs - ss * xm) / det, F(0))
        going &= (nd > 0) & (nd < 2.0**15) & (nm >= 0) & (nm < 2.0**15)
        du, mu = np.where(going, f16(nd), du), np.where(going, f16(nm), mu)
    return out


def symmetric_k(x, half, most, worth):
    """q3_k, q6_k."""
    S = len(x)
    x, worth = subblocks(x, worth, 16)
    w = weigh(x, worth)
    d = fit_scale(x, w, -half, half - 1)
    per = d.reshape(S, 16)
    du = f16(np.take_along_axis(per, np.abs(per).argmax(1)[:, None], 1)[:, 0] / F(-most))
    best, out, going = np.full(S, F(-1)), np.zeros((S, 256), F), np.ones(S, bool)
    for _ in range(SETTLE + 1):
        D = np.repeat(du, 16)
        s0 = rounded(d * inverse(D), -most, most - 1)
        least, sc, codes = np.full(len(x), F(-1)), np.zeros(len(x), F), np.zeros_like(x)
        for s in (s0 - 1, s0, s0 + 1):
            err, q = encode(x, w, D * s, 0, -half, half - 1)
            better = (s >= -most) & (s < most) & ((least < 0) | (err < least))
            least, sc, codes = np.where(better, err, least), np.where(better, s, sc), np.where(better[:, None], q, codes)
        err = serial(least.reshape(S, 16))
        going &= (best < 0) | (err < best)
        best = np.where(going, err, best)
        out[going] = ((D * sc)[:, None] * codes).reshape(S, 256)[going]
        _, q2, xq = sums(x, w, codes)
        du = np.where(going, f16(serial((sc * xq).reshape(S, 16)) * inverse(serial((sc * sc * q2).reshape(S, 16)))), du)
        going &= np.abs(du) < 2.0**15
    return out


def q8(x, worth):
    w = weigh(x, worth)
    d = np.abs(x).max(1) / F(127)
    v = np.clip(x * inverse(d)[:, None], F(-127), F(127))
    whole = np.trunc(v)
    q = whole + (v - whole >= 0.5) - (v - whole <= -0.5)
    _, qq, xq = sums(x, w, q)
    better_d = f16(xq * inverse(qq))
    err = encode(x, w, f16(d), 0, -127, 127)
    fit = encode(x, w, better_d, 0, -127, 127)
    better = fit[0] < err[0]
    return np.where(better, better_d, f16(d))[:, None] * np.where(better[:, None], fit[1], err[1])


BLOCK = {"q4_0": 32, "q4_1": 32, "q5_0": 32, "q5_1": 32, "q8_0": 32}


def searched(quant: str, x: np.ndarray, worth: np.ndarray | None = None) -> np.ndarray:
    """What kernels.quantize(quant, x, search=True, worth=worth) means, f32 [N, K]."""
    n = BLOCK.get(quant, 256)
    blocks = x.reshape(-1, n)
    per = None if worth is None else np.broadcast_to(worth, x.shape).reshape(-1, n)
    how = {"q4_0": lambda: symmetric(blocks, 8, per), "q5_0": lambda: symmetric(blocks, 16, per),
           "q4_1": lambda: affine(blocks, 15, per), "q5_1": lambda: affine(blocks, 31, per), "q8_0": lambda: q8(blocks, per),
           "q2_k": lambda: affine_k(blocks, 16, 3, 15, per), "q4_k": lambda: affine_k(blocks, 32, 15, 63, per),
           "q5_k": lambda: affine_k(blocks, 32, 31, 63, per), "q3_k": lambda: symmetric_k(blocks, 4, 32, per),
           "q6_k": lambda: symmetric_k(blocks, 32, 128, per)}
    return how[quant]().astype(F).reshape(x.shape)
