"""Random blocks with sane scales, the interleaved layout in numpy, and what an A8 activation row says; for the kernel tests."""
import numpy as np

from moegg.quants import GROUP_ROWS, INTERLEAVED, QUANTS, ROW_MAJOR

SCALES = {"q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q5_1": (0, 2), "q8_0": (0,), "q2_k": (80, 82), "q3_k": (108,),
          "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,)}                                              # where the f16 scales lie in a block
QUANTISED = tuple(SCALES)
FLOATS = ("f32", "f16", "bf16")
LEGACY = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0")
K = ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k")


def random_blocks(quant: str, rows: int, cols: int, rng: np.random.Generator, scale: float = 0.1) -> np.ndarray:
    """Row-major uint8 [rows, row_bytes]: code bytes random, f16 scales up to `scale` of either sign, some zero or subnormal."""
    q = QUANTS[quant]
    if quant in FLOATS:
        x = (rng.standard_normal((rows, cols)) * scale).astype(np.float32)
        if quant == "bf16":
            return (x.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return x.astype({"f32": np.float32, "f16": np.float16}[quant]).view(np.uint8)
    blocks = rng.integers(0, 256, (rows * cols // q.block_elems, q.block_bytes), dtype=np.uint8)
    for at in SCALES[quant]:
        d = (rng.uniform(-scale, scale, len(blocks))).astype(np.float16)
        d[rng.random(len(blocks)) < 0.05] = 0
        d[rng.random(len(blocks)) < 0.05] *= np.float16(1e-5)
        blocks[:, at:at + 2] = d.view(np.uint8).reshape(-1, 2)
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
