"""Expert cache policies over recorded routing, without weights: hit rates by budget.

    python bench/cache_replay.py TRACE... [--synthetic 256] [--budgets 0.06,0.12,0.24,0.35,0.5] [--warm 128] [--table] [--plot F.svg]

Traces come from `moegg run --trace FILE` or `moegg bench --trace FILE`; --synthetic N adds a generated one of N tokens with the
routing of the benchmark model (48 layers, 128 experts, top 8, popularity log-normal with sigma 0.95). Policies: moegg's own (the
compiled one that the engine uses), lru (global), lfu (all uses ever, history kept), belady (knows the future: the bound). A budget
is a share of all records' bytes. Prints one JSON line per trace and budget, or a table: hits of the tokens after --warm.
"""
import heapq
import json
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np
from common import header, parser
from plot import svg

from moegg.io.trace import Trace, read
from moegg.kernels.store import ExpertPolicy

SIGMA = 0.95
Hits = tuple[int, int]               # hits and uses after the warm-up


def synthetic(tokens: int, layers: int = 48, experts: int = 128, top_k: int = 8, seed: int = 0,
              record_bytes: int = 2654208) -> Trace:
    """Routing of independent tokens whose experts differ in popularity: normal scores with an expert's own log-normal spread."""
    rng = np.random.default_rng(seed)
    spread = np.exp(SIGMA * rng.standard_normal((layers, experts)))
    ids = np.empty((tokens, layers, top_k), np.int16)
    for t in range(tokens):
        ids[t] = np.argsort(-rng.standard_normal((layers, experts)) * spread, axis=-1, kind="stable")[:, :top_k]
    return Trace(ids, np.arange(tokens, dtype=np.int32), np.arange(layers, dtype=np.int32), np.full(layers, experts, np.int32),
                 np.full(layers, record_bytes, np.int64))


def unions(trace: Trace):
    """(first token of the pass, layer index, experts ascending, uses of each) in the order in which a run asks for them."""
    t = 0
    for ids in trace.by_pass():
        for layer in range(ids.shape[1]):
            experts, uses = np.unique(ids[:, layer][ids[:, layer] >= 0], return_counts=True)
            yield t, len(ids), layer, experts.astype(np.int32), uses.astype(np.int32)
        t += len(ids)


def moegg(trace: Trace, budget: int, warm: int, half_life: float) -> Hits:
    p = ExpertPolicy(trace.experts, trace.top_k, trace.record_bytes, budget, half_life)
    hits = asked = 0
    for t, n, layer, experts, uses in unions(trace):
        if layer == 0:
            p.begin(n, n * trace.top_k[0] >= trace.experts[0])
        found = p.access(layer, experts, uses)
        if t >= warm:
            hits, asked = hits + found, asked + len(experts)
    return hits, asked


def sequence(trace: Trace, warm: int) -> tuple[list[tuple[int, int]], list[int], int]:
    """All uses as (layer, expert), the bytes of each layer's record, and the index of the first use that counts."""
    seq, first = [], 0
    for t, _, layer, experts, _ in unions(trace):
        if t < warm:
            first += len(experts)
        seq += [(layer, int(e)) for e in experts]
    return seq, trace.record_bytes.tolist(), first


def lru(trace: Trace, budget: int, warm: int, half_life: float) -> Hits:
    seq, size, first = sequence(trace, warm)
    held, used, hits = OrderedDict(), 0, 0
    for i, x in enumerate(seq):
        if x in held:
            held.move_to_end(x)
            hits += i >= first
            continue
        used += size[x[0]]
        while used > budget:
            used -= size[held.popitem(last=False)[0][0]]
        held[x] = True
    return hits, len(seq) - first


def _by_heap(seq, size, first, budget, worth: Callable[[int, tuple[int, int]], float]) -> Hits:
    """Evicts the least worth; worth(i, x) is the key of x when it was used at i. Old heap entries are skipped."""
    held: dict[tuple[int, int], float] = {}
    heap, used, hits = [], 0, 0
    for i, x in enumerate(seq):
        hits += i >= first and x in held
        key = worth(i, x)
        if x not in held:
            used += size[x[0]]
            while used > budget:
                k, victim = heapq.heappop(heap)
                if held.get(victim) == k:
                    used -= size[victim[0]]
                    del held[victim]
        held[x] = key
        heapq.heappush(heap, (key, x))
    return hits, len(seq) - first


def lfu(trace: Trace, budget: int, warm: int, half_life: float) -> Hits:
    seq, size, first = sequence(trace, warm)
    counts: dict[tuple[int, int], int] = {}

    def worth(i, x):
        counts[x] = counts.get(x, 0) + 1
        return counts[x] + i / len(seq)              # of equals the older one goes
    return _by_heap(seq, size, first, budget, worth)


def belady(trace: Trace, budget: int, warm: int, half_life: float) -> Hits:
    """Exact for records of equal size."""
    seq, size, first = sequence(trace, warm)
    following, later = [0] * len(seq), {}
    for i in range(len(seq) - 1, -1, -1):
        following[i] = later.get(seq[i], 1 << 60)
        later[seq[i]] = i
    return _by_heap(seq, size, first, budget, lambda i, x: -following[i])


POLICIES: dict[str, Callable[[Trace, int, int, float], Hits]] = {"moegg": moegg, "lru": lru, "lfu": lfu, "belady": belady}


def replay(trace: Trace, share: float, warm: int, half_life: float) -> dict[str, float]:
    """Hit rate by policy at a budget of `share` of all records."""
    budget = int(share * trace.pool_bytes)
    out = {}
    for name, policy in POLICIES.items():
        hits, asked = policy(trace, budget, warm, half_life)
        out[name] = hits / max(asked, 1)
    return out


def main() -> None:
    p = parser(__doc__)
    p.add_argument("traces", nargs="*", type=Path, metavar="TRACE")
    p.add_argument("--synthetic", type=int, default=0, help="tokens of a generated trace (default: none)")
    p.add_argument("--budgets", type=lambda s: [float(x) for x in s.split(",")], default=[0.06, 0.12, 0.18, 0.24, 0.35, 0.5])
    p.add_argument("--warm", type=int, default=128, help="tokens that do not count (default: 128)")
    p.add_argument("--half-life", type=float, default=256.0)
    p.add_argument("--table", action="store_true", help="a Markdown table instead of JSON lines")
    p.add_argument("--plot", type=Path, help="write the curves of the last trace as SVG")
    a = p.parse_args()
    traces = [(f.stem, read(f)) for f in a.traces]
    if a.synthetic:
        traces.append((f"synthetic {a.synthetic}", synthetic(a.synthetic)))
    if a.table:
        print(f"| trace | budget | {' | '.join(POLICIES)} |\n|---|---|{'---|' * len(POLICIES)}")
    for name, trace in traces:
        curves = {policy: [] for policy in POLICIES}
        for share in a.budgets:
            rates = replay(trace, share, a.warm, a.half_life)
            for policy, rate in rates.items():
                curves[policy].append((100 * share, 100 * rate))
            if a.table:
                print(f"| {name} | {100 * share:.0f} % | {' | '.join(f'{100 * r:.1f}' for r in rates.values())} |", flush=True)
            else:
                print(json.dumps({"bench": "cache_replay", **header(), "trace": name, "budget": share, "warm": a.warm,
                                  "half_life": a.half_life, **{k: round(v, 4) for k, v in rates.items()}}), flush=True)
        if a.plot:
            a.plot.write_text(svg(f"Expert cache: {name}", "budget, % of all records", "hits, %", curves, fit=False))


if __name__ == "__main__":
    main()
