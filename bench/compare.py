"""Two engines, or two versions, measured alternately: medians, ranges and ratios as a Markdown table.

    python bench/compare.py COMMAND_A COMMAND_B [--names A,B] [--rounds N] [--block N] [--title TEXT] [--out FILE.json]

A command prints a JSON object on its last line, as `moegg bench --json` and bench/peer_llama_cpp.py do. Each round runs A, then B;
with --block N, A N times, then B N times, for models that do not fit into the page cache together: the first run of a block, which
reads from disk, is not counted then. --out keeps everything, for bench/table.py. Says so if the numbers allow no claim.

    python bench/compare.py --names moegg,llama.cpp "moegg bench m.moegg --json --runs 1" "python bench/peer_llama_cpp.py m.gguf --runs 1"
"""
import json
import shlex
import statistics
import sys
from pathlib import Path

from common import header, last_json, parser

from moegg.commands.measure import Others, machine

METRICS = {"prefill_tps": ("prefill, tok/s", 1, 1), "decode_tps": ("decode, tok/s", 1, 1), "ttft_s": ("first token, s", 1, -1),
           "peak_memory_bytes": ("peak memory, MiB", 1 << 20, -1)}          # label, unit, and 1 if more is better
SAME = ("vocab", "seed", "threads", "prompt", "warm", "gen", "ctx_depth")   # what both must agree in
NOISE = 0.1


def measure(commands: list[str], rounds: int, block: int) -> tuple[list[list[dict]], float | None]:
    """Results of both commands, in the order in which they came, and how many cores others kept busy."""
    results, others = [[], []], Others()
    for i in range(rounds):
        for side, command in enumerate(commands):
            for k in range(block + (block > 1)):
                print(f"round {i + 1} of {rounds}: {command}", file=sys.stderr)
                got = last_json(shlex.split(command))
                if k or block == 1:
                    results[side].append(got)
    return results, others.load()


def rows(results: list[list[dict]]) -> dict[str, dict]:
    """Per metric that both sides have: median, least and most of each side, the ratio of A to B (above 1: A is better)."""
    out = {}
    for key, (label, unit, sign) in METRICS.items():
        sides = [[r[key] / unit for r in side if r.get(key)] for side in results]
        if not all(sides):
            continue
        a, b = ({"median": statistics.median(v), "least": min(v), "most": max(v)} for v in sides)
        overlap = a["least"] <= b["most"] and b["least"] <= a["most"]
        out[key] = {"label": label, "a": a, "b": b, "ratio": (a["median"] / b["median"]) ** sign, "overlap": overlap}
    return out


def warnings(table: dict[str, dict], results: list[list[dict]], names: list[str], others: float | None) -> list[str]:
    out = []
    for key in SAME:
        seen = [{r[key] for r in side if r.get(key) is not None} for side in results]
        if all(seen) and seen[0] != seen[1]:
            out.append(f"not the same work: {key} is {seen[0]} and {seen[1]}")
    for row in table.values():
        gap = max(row["a"]["least"], row["b"]["least"]) - min(row["a"]["most"], row["b"]["most"])
        if gap > max(side["most"] - side["least"] for side in (row["a"], row["b"])):
            continue                            # so far apart that their spread is no doubt
        for name, side in zip(names, (row["a"], row["b"]), strict=True):
            if side["most"] > side["least"] * (1 + NOISE):
                out.append(f"{row['label']} of {name} differs by {100 * (side['most'] / side['least'] - 1):.0f} % between runs")
        if row["overlap"]:
            out.append(f"{row['label']}: the ranges overlap, so this is no difference")
    if others and others > NOISE:
        out.append(f"other programs kept {others:.1f} cores busy")
    return out


def markdown(table: dict[str, dict], names: list[str], notes: list[str]) -> str:
    def cell(side: dict) -> str:
        return f"{side['median']:.5g} ({side['least']:.5g} to {side['most']:.5g})"
    lines = [f"| | {names[0]} | {names[1]} | ratio (above 1: {names[0]} is better) |", "|---|---|---|---|"]
    lines += [f"| {r['label']} | {cell(r['a'])} | {cell(r['b'])} | {r['ratio']:.2f}{' (no difference)' if r['overlap'] else ''} |"
              for r in table.values()]
    return "\n".join(lines + [""] * bool(notes) + [f"Warning: {n}." for n in notes])


def main() -> None:
    p = parser(__doc__)
    p.add_argument("commands", nargs=2, metavar="COMMAND")
    p.add_argument("--names", type=lambda s: s.split(","), default=["A", "B"])
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--block", type=int, default=1)
    p.add_argument("--title", default="")
    p.add_argument("--out", type=Path)
    a = p.parse_args()
    if len(a.names) != 2:
        p.error("--names: expected two names with a comma between them")
    results, others = measure(a.commands, a.rounds, a.block)
    table = rows(results)
    notes = warnings(table, results, a.names, others)
    print(markdown(table, a.names, notes))
    if a.out:
        a.out.write_text(json.dumps({"title": a.title, "names": a.names, "commands": a.commands, **header(), **machine(), "others_load": others,
                                     "table": table, "warnings": notes, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
