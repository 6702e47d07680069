"""Time per token over the length of the context, up to very long ones: JSON lines, and a plot with straight fits.

    python bench/context.py MODEL [--lengths 1024,2048,4096,8192,16384,32768] [--gen N] [--threads N] [--svg FILE]

One session grows. At each length some tokens are decoded one by one; the tokens between two lengths are a prompt whose time counts
too. Each line has the memory of the plan and what the process really took. Attention costs time in proportion to the context, so
decode should be a straight line.
"""
import json
import statistics
import sys
import time
from pathlib import Path

from common import header, numbers, parser, storage
from plot import svg

from moegg import kernels
from moegg.commands.measure import Others, Work, machine, memory, touch
from moegg.commands.opening import describe, open_container
from moegg.engine import Engine


def grow(engine: Engine, lengths: list[int], gen: int, seed: int):
    """Yields {ctx_depth, prefill_ms, decode_ms (medians per token), decode_spread_ms} at each length."""
    ids = Work(0, 0, 0, lengths[-1] + gen, seed).draw(engine.vocab).gen
    session = engine.session()
    for length in lengths:
        at = len(session)
        start = time.perf_counter()
        engine.step([(session, ids[at:length])])
        prefill = (time.perf_counter() - start) / (length - at)
        times = []
        for t in ids[length:length + gen]:
            start = time.perf_counter()
            session.eval(t)
            times.append(1000 * (time.perf_counter() - start))
        yield {"ctx_depth": length, "prefill_tokens": length - at, "prefill_ms": 1000 * prefill, "gen": gen,
               "decode_ms": statistics.median(times), "decode_spread_ms": [min(times), max(times)]}


def main() -> None:
    p = parser(__doc__)
    p.add_argument("model")
    p.add_argument("--lengths", type=numbers, default=[1024, 2048, 4096, 8192, 12288, 16384, 20480, 24576, 28672, 32768])
    p.add_argument("--gen", type=int, default=16)
    p.add_argument("--threads", type=int)
    p.add_argument("--seed", type=int, default=7)
    p.add_argument("--svg", type=Path)
    a = p.parse_args()
    if any(y - x <= a.gen for x, y in zip([0, *a.lengths], a.lengths, strict=False)):
        p.error("--lengths: expected ascending lengths, further apart than --gen")
    container = open_container(Path(a.model))
    engine = Engine(container, describe(container), ctx=a.lengths[-1] + a.gen, n_threads=a.threads)
    touch(engine)
    facts = {"bench": "context", **header(), **machine(), "level": kernels.level(), "threads": engine.n_threads, "kv": engine.kv, "seed": a.seed,
             "file": a.model, "name": container.name, "root": container.root.hex(), "storage": storage(a.model),
             "page_cache": "warm: all pages were touched", "planned_anonymous_bytes": engine.plan.anonymous}
    points, others = [], Others()
    for point in grow(engine, a.lengths, a.gen, a.seed):
        print(json.dumps(facts | point | memory() | {"others_load": others.load()}), flush=True)
        points.append(point)
    if a.svg:
        series = {label: [(q["ctx_depth"], q[key]) for q in points] for label, key in (("decode", "decode_ms"), ("prefill", "prefill_ms"))}
        title = f"{container.name}: time per token, {engine.n_threads} threads, {kernels.level()}"
        a.svg.write_text(svg(title, "tokens in the context", "ms per token", series), encoding="utf-8")
        print(f"{a.svg}: written", file=sys.stderr)


if __name__ == "__main__":
    main()
