"""The table of README.md from comparisons: python bench/table.py FILE.json... [--into README.md]

Each file comes from bench/compare.py --out and becomes a row. --into replaces what stands between the lines <!-- bench --> and
<!-- /bench --> of a document; without it the table goes to standard output.
"""
import json
import re
import sys
from pathlib import Path

from common import parser

COLUMNS = (("prefill_tps", "prefill"), ("decode_tps", "decode"))


def build(comparisons: list[dict]) -> str:
    """Markdown: tok/s of both sides and their ratio, with the machine and the commits below."""
    a, b = comparisons[0]["names"]
    head = ["model", *(f"{label}: {what}" for _, label in COLUMNS for what in (a, b, "ratio"))]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for c in comparisons:
        cells = [c["title"] or Path(c["results"][0][0].get("file", "?")).stem]
        for key, _ in COLUMNS:
            r = c["table"].get(key)
            cells += [f"{r['a']['median']:.1f}", f"{r['b']['median']:.1f}", f"{r['ratio']:.2f}"] if r else ["", "", ""]
        lines.append(f"| {' | '.join(cells)} |")
    first = comparisons[0]
    ours, theirs = (side[0] for side in first["results"])
    runs = sorted({len(side) for c in comparisons for side in c["results"]})
    commits = sorted({f"{(c['commit'] or 'unknown')[:12]}{'+' if c['dirty'] else ''}" for c in comparisons})
    lines += ["", f"Tokens per second; medians of {' or '.join(map(str, runs))} alternating runs, {ours.get('threads', '?')} threads, {first['cpu']} "
              f"({ours.get('level', '?')}, {first['cores']} cores); {a} at {', '.join(commits)}, {b} {theirs.get('version', '')}".rstrip() + "."]
    doubts = [f"{c['title']}: {'; '.join(c['warnings'])}" for c in comparisons if c["warnings"]]
    return "\n".join(lines + [line for d in doubts for line in ("", f"No claim can be made of {d}.")])


def insert(document: str, table: str) -> str:
    """The document with the table between its marks. Raises ValueError if they are not there once each."""
    new, n = re.subn(r"(<!-- bench -->\n).*?(<!-- /bench -->)", lambda m: m[1] + table + "\n" + m[2], document, flags=re.S)
    if n != 1:
        raise ValueError(f"marks <!-- bench --> and <!-- /bench -->: got {n} pairs, expected 1")
    return new


def main() -> None:
    p = parser(__doc__)
    p.add_argument("files", nargs="+", type=Path, metavar="FILE")
    p.add_argument("--into", type=Path)
    a = p.parse_args()
    table = build([json.loads(f.read_text()) for f in a.files])
    if a.into is None:
        print(table)
        return
    try:
        a.into.write_text(insert(a.into.read_text(), table))
    except ValueError as e:
        sys.exit(f"{a.into}: {e}")


if __name__ == "__main__":
    main()
