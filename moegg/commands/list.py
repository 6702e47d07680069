"""moegg list - shows the models of the local store

Usage: moegg list [options]

The store is the folder 'models' in MOEGG_HOME, by default in ~/.local/share/moegg. What 'moegg
pull' fetches, and any .moegg file that you move or link into it, can be named wherever a command
takes MODEL: by NAME, or as much of its end as is unique.

Options:
  --json                   print one JSON object
  --verbose                say more on stderr
  --debug                  show a traceback when something fails
  -h, --help               show this text
"""
import json
from typing import Any

from moegg import library, log
from moegg.errors import ExitStatus, MoeggError, printable
from moegg.formats.container import Container
from moegg.units import fmt_bytes


def main(args: dict[str, Any]) -> ExitStatus:
    rows = [row(e) for e in library.entries()]
    if args["--json"]:
        print(json.dumps({"folder": str(library.models_folder()), "models": rows}))
        return ExitStatus.OK
    if not rows:
        log.info(f"no models in '{library.models_folder()}'; 'moegg pull USER/REPO' fetches one")
        return ExitStatus.OK
    table = [("NAME", "SIZE", "ARCHITECTURE", "QUANT")]
    table += [(r["name"], fmt_bytes(r["bytes"]), r["arch"] or r["state"], r["quant"] or "") for r in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for name, size, arch, quant in table:
        print(printable(f"{name:<{widths[0]}}  {size:>{widths[1]}}  {arch:<{widths[2]}}  {quant}".rstrip()))
    return ExitStatus.OK


def row(entry: library.Entry) -> dict[str, Any]:
    """One model in plain JSON types; state is 'ok', 'incomplete' or what is wrong with the file."""
    out = {"name": entry.name, "path": str(entry.path), "bytes": entry.nbytes, "state": "ok", "arch": None, "quant": None}
    if entry.partial:
        return out | {"state": "incomplete"}
    try:
        c = Container.open(entry.path)
    except MoeggError as e:
        return out | {"state": f"damaged ({e.slug})"}
    return out | {"arch": c.arch, "quant": c.about.recipe}
