"""Matrix times vector of every quant at every CPU level, from memory: GB/s, and the share of what the same threads can read.

    python bench/gemv.py [--quants q4_0,q6_k] [--levels avx512] [--threads 1,2] [--mib 512] [--cols 4096] [--table]

Prints one JSON line per quant, level and thread count (medians with range), or a Markdown table. The matrix is far larger than the
last-level cache. Its bytes are random, but each between 0x20 and 0x3f, so that every float in them is an ordinary number.
"""
import json
import statistics
import time

import numpy as np
from common import header, numbers, parser

from moegg import kernels
from moegg.commands.measure import machine, read_rate
from moegg.quants import GROUP_ROWS, INTERLEAVED, QUANTS


def rates(quant: str, data: np.ndarray, cols: int, pool: kernels.Pool, runs: int) -> list[float]:
    """Bytes per second of each run over all of `data` that is whole groups of rows."""
    group = QUANTS[quant].matrix_bytes(GROUP_ROWS, cols, INTERLEAVED)
    rows = data.nbytes // group * GROUP_ROWS
    w = data[:data.nbytes // group * group]
    x = np.random.default_rng(1).standard_normal((1, cols), np.float32)
    kernels.matmul(quant, w[:group], GROUP_ROWS, cols, x, pool)
    out = []
    for _ in range(runs):
        start = time.perf_counter()
        kernels.matmul(quant, w, rows, cols, x, pool)
        out.append(w.nbytes / (time.perf_counter() - start))
    return out


def main() -> None:
    p = parser(__doc__)
    p.add_argument("--quants", type=lambda s: s.split(","), default=list(QUANTS))
    p.add_argument("--levels", type=lambda s: s.split(","), default=kernels.levels())
    p.add_argument("--threads", type=numbers, default=[1, 2])
    p.add_argument("--mib", type=int, default=512, help="size of the matrix (default: 512)")
    p.add_argument("--cols", type=int, default=4096, help="a multiple of 256 (default: 4096)")
    p.add_argument("--runs", type=int, default=7)
    p.add_argument("--table", action="store_true", help="a Markdown table instead of JSON lines")
    a = p.parse_args()
    data = np.random.default_rng(0).integers(0x20, 0x40, a.mib << 20, np.uint8)
    facts = {"bench": "gemv", **header(), **machine(), "mib": a.mib, "cols": a.cols}
    if a.table:
        print("| level | threads | read GB/s | quant | GB/s | least to most | share |\n|---|---|---|---|---|---|---|")
    for level in a.levels:
        kernels.select(level)
        for threads in a.threads:
            for quant in a.quants:
                read = read_rate(threads, data)
                got = [r / 1e9 for r in rates(quant, data, a.cols, kernels.Pool(threads), a.runs)]
                median, share = statistics.median(got), statistics.median(got) * 1e9 / read
                if a.table:
                    print(f"| {level} | {threads} | {read / 1e9:.1f} | {quant} | {median:.1f} | {min(got):.1f} to {max(got):.1f} | "
                          f"{100 * share:.0f} % |",
                          flush=True)
                else:
                    print(json.dumps(facts | {"level": level, "threads": threads, "quant": quant, "gbps": round(median, 2),
                                              "spread": [round(min(got), 2), round(max(got), 2)], "runs": a.runs,
                                              "read_gbps": round(read / 1e9, 2), "fraction_of_read_bandwidth": round(share, 3)}), flush=True)
    kernels.select()


if __name__ == "__main__":
    main()
