"""What `moegg repack` could gain: reads per token if neighbouring records were fetched by one read, before and after, by budget.

    python bench/repack_report.py TRACE... [--synthetic 512] [--budgets 0.06,0.12,0.24,0.5] [--table]

The order of records is learned from the first half of a trace and judged on the second, through moegg's own cache policy. `reads`:
runs of absent records that lie side by side, per token; one of each run's records would be a read today. `adjacent`: share of
records that came with a neighbour. Bytes do not change: what is missing is missing in any order. No weights, no disk, no timing.
"""
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from cache_replay import synthetic, unions
from common import header, parser

from moegg.formats.repack import together
from moegg.io.trace import Trace, read
from moegg.kernels.store import ExpertPolicy


def halves(trace: Trace) -> tuple[Trace, Trace]:
    cut = len(trace.ids) // 2
    return tuple(replace(trace, ids=trace.ids[s], passes=trace.passes[s]) for s in (slice(0, cut), slice(cut, None)))


def orders(trace: Trace) -> list[np.ndarray]:
    """Slot of each expert by layer index, learned from a trace."""
    return [together(trace.ids[:, i], int(n)) for i, n in enumerate(trace.experts)]


def judge(trace: Trace, slots: list[np.ndarray], budget: int, half_life: float = 256.0) -> dict[str, float]:
    """Per token: records and bytes read, and reads if neighbours come together."""
    p = ExpertPolicy(trace.experts, trace.top_k, trace.record_bytes, budget, half_life)
    records = reads = nbytes = 0
    for _, n, layer, experts, uses in unions(trace):
        if layer == 0:
            p.begin(n, n * trace.top_k[0] >= trace.experts[0])
        absent = [int(e) for e in experts if p.state(p.id(layer, int(e))) == "absent"]
        p.access(layer, experts, uses)
        places = np.sort(slots[layer][absent])
        records, nbytes = records + len(places), nbytes + len(places) * int(trace.record_bytes[layer])
        reads += int((np.diff(places) != 1).sum()) + bool(len(places))
    tokens = max(len(trace.ids), 1)
    return {"records": records / tokens, "bytes": nbytes / tokens, "reads": reads / tokens, "adjacent": 1 - reads / max(records, 1)}


def main() -> None:
    p = parser(__doc__)
    p.add_argument("traces", nargs="*", type=Path, metavar="TRACE")
    p.add_argument("--synthetic", type=int, default=0, help="tokens of a generated trace (default: none)")
    p.add_argument("--budgets", type=lambda s: [float(x) for x in s.split(",")], default=[0.06, 0.12, 0.24, 0.5])
    p.add_argument("--table", action="store_true", help="a Markdown table instead of JSON lines")
    a = p.parse_args()
    traces = [(f.stem, read(f)) for f in a.traces] + ([(f"synthetic {a.synthetic}", synthetic(a.synthetic))] if a.synthetic else [])
    if a.table:
        print("| trace | budget | MiB per token | records per token | reads before | reads after | change |\n|---|---|---|---|---|---|---|")
    for name, trace in traces:
        learn, test = halves(trace)
        plain, packed = [np.arange(n) for n in trace.experts], orders(learn)
        for share in a.budgets:
            budget = int(share * trace.pool_bytes)
            before, after = judge(test, plain, budget), judge(test, packed, budget)
            if a.table:
                change = 100 * (after["reads"] / max(before["reads"], 1e-9) - 1)
                print(f"| {name} | {100 * share:.0f} % | {before['bytes'] / 2**20:.1f} | {before['records']:.1f} | {before['reads']:.1f} | "
                      f"{after['reads']:.1f} | {change:+.1f} % |", flush=True)
            else:
                print(json.dumps({"bench": "repack_report", **header(), "trace": name, "budget": share, "before": before, "after": after}),
                      flush=True)


if __name__ == "__main__":
    main()
