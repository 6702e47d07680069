"""Random blocks with sane scales, the interleaved layout in numpy, and what an A8 activation row says; for the kernel tests."""
import numpy as np

from moegg.quants import GROUP_ROWS, INTERLEAVED, QUANTS, ROW_MAJOR

SCALES = {                                                             # where the scales lie in a block
    "q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q5_1": (0, 2), "q8_0": (0,), "q2_k": (80, 82), "q3_k": (108,), "q4_k": (0, 2),
    "q5_k": (0, 2), "q6_k": (208,), "iq4_nl": (0,), "iq4_xs": (0,), "iq2_xxs": (0,), "iq2_xs": (0,), "iq2_s": (0,),
    "iq3_xxs": (0,), "iq3_s": (0,), "iq1_s": (0,), "iq1_m": (), "tq1_0": (52,), "tq2_0": (64,), "mxfp4": (), "nvfp4": (),
    "ternary": (0,), "mlx4": (0, 2), "mlx4_f16": (0, 2), "fp8_32": (0,), "fp8_128": (0,)}
QUANTISED = tuple(SCALES)
FLOATS = ("f32", "f16", "bf16")
ENCODED = tuple(q.name for q in QUANTS.values() if q.encodes)
LEGACY = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0")
K = ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k")


def random_blocks(quant: str, rows: int, cols: int, rng: np.random.Generator, scale: float = 0.1) -> np.ndarray:
    """Row-major uint8 [rows, row_bytes]: code bytes random, scales up to `scale` of either sign, some zero or subnormal.

    fp4 rows have scales of powers of two up to `scale`, or e4m3 ones of any size; fp8 rows have no NaN.
    """
    q = QUANTS[quant]
    if quant in FLOATS:
        x = (rng.standard_normal((rows, cols)) * scale).astype(np.float32)
        if quant == "bf16":
            return (x.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return x.astype({"f32": np.float32, "f16": np.float16}[quant]).view(np.uint8)
    wide = {"ternary": 2, "mlx4": 2, "fp8_32": 4, "fp8_128": 4}.get(quant)       # bf16 and f32 scales: the upper bytes of an f32
    blocks = rng.integers(0, 256, (rows * cols // q.block_elems, q.block_bytes), dtype=np.uint8)
    for at in SCALES[quant]:
        d = (rng.uniform(-scale, scale, len(blocks))).astype(np.float32 if wide else np.float16)
        d[rng.random(len(blocks)) < 0.05] = 0
        d[rng.random(len(blocks)) < 0.05] *= d.dtype.type(1e-5)
        size = wide or 2
        blocks[:, at:at + size] = d.view(np.uint8).reshape(len(blocks), -1)[:, -size:]
    if quant == "iq1_m":                                                # its scale is in the upper nibbles of four words
        d = rng.uniform(-scale, scale, len(blocks)).astype(np.float16).view(np.uint16)
        for i in range(4):
            blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 15 | (d >> 4 * i & 15) << 4
    if quant == "mxfp4":
        top = 127 + int(np.log2(scale))
        blocks[:, 0] = rng.integers(top - 8, top, len(blocks))
        blocks[rng.random(len(blocks)) < 0.05, 0] = rng.integers(0, 3)
    if quant.startswith("fp8"):
        codes = blocks[:, 4:]
        codes[codes & 0x7f == 0x7f] = 0x30
    return blocks.reshape(rows, -1)


def layout(quant: str, data: np.ndarray, cols: int) -> np.ndarray:
    """The interleaved bytes of row-major `data`, straight from the rule in moegg/quants.py."""
    q = QUANTS[quant]
    rows = len(data)
    padded = np.zeros((rows + -rows % GROUP_ROWS, q.row_bytes(cols, INTERLEAVED)), np.uint8)
    padded[:rows, :q.row_bytes(cols, ROW_MAJOR)] = data
    out = []
    for group in padded.reshape(-1, GROUP_ROWS, padded.shape[1]):
        at = 0
        while at < group.shape[1]:
            for size in q.units:
                out.append(group[:, at:at + size].reshape(-1))
                at += size
    return np.concatenate(out)


def a8(rows: np.ndarray, cols: int) -> dict[str, np.ndarray]:
    """Fields of A8 rows uint8 [T, bytes]: q int8 [T, cols], d, ds f32 [T, cols/32], s int32, half int16 [T, cols/32, 2]."""
    at = cols + -cols % 64
    table = np.ascontiguousarray(rows[:, at:at + cols // 32 * 16]).view(
        [("d", "<f4"), ("ds", "<f4"), ("s", "<i4"), ("half", "<i2", 2)])
    return {"q": rows[:, :cols].view(np.int8), **{name: table[name] for name in table.dtype.names}}


def bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(np.uint32)
