"""moegg calibrate - measures on a text which weights matter most, for better quantisation

Usage: moegg calibrate [options] MODEL FILE --out=FILE

MODEL is a .moegg file at many bits (bf16 or q8); FILE is UTF-8 text of the kind that the model will
see, '-' standard input. Written are, for every matrix, the sums of squares of its inputs column by
column, and for every expert how many tokens it saw: a safetensors file, described in
formats/importance.py. 'moegg convert --imatrix' weighs rounding errors by it.

Options:
  -o, --out=FILE           the file to write
  --ctx=N                  tokens per window (default: the trained length, at most 512)
  --ram=SIZE               memory for everything, such as 8G (default: auto, what is available)
  --io=MODE                how what streams is read: auto, page-cache or direct (default: auto)
  --threads=N              compute threads (default: the cores it may use)
  --force                  replace an existing file
  --json                   print one JSON object
  --verbose                say more on stderr
  --debug                  show a traceback when something fails
  -h, --help               show this text
"""
import hashlib
import json
from typing import Any

import numpy as np

from moegg.arch import F32_MAX
from moegg.commands.opening import describe, open_container, read_file_or_stdin
from moegg.commands.perplexity import windows_of
from moegg.commands.progress import bar
from moegg.commands.start import bring, started
from moegg.engine.tally import tally_bytes
from moegg.errors import BadRequest, ExitStatus
from moegg.formats.importance import PRIOR_ROWS, write_importance
from moegg.formats.writer import check_target


def main(args: dict[str, Any]) -> ExitStatus:
    out = args["--out"]
    check_target(out, args["--force"])
    text = read_file_or_stdin(args["FILE"])
    container = open_container(args["MODEL"], here=False)
    model = describe(container)
    windows = windows_of(container, model, text, args["--ctx"])
    needs = {"ctx": len(windows[0]), "beside": tally_bytes(model)}
    container = bring(args, container, model, **needs)
    with started(args, container, model, calibrate=True, **needs) as engine, \
            bar("calibrate", unit="windows") as progress:
        progress(0, len(windows))
        for i, window in enumerate(windows):
            for _ in engine.positions(window, first=len(window) - len(window) // 8):      # some logits, for the inputs of the head
                pass
            progress(i + 1, len(windows))
    names: dict[int, str] = {}
    for name, tally in engine.tallies.items():
        names.setdefault(id(tally), name)
    stored = {name: engine.tallies[name] for name in names.values()}
    if bad := next((name for name, t in stored.items() if not (t.squares <= F32_MAX).all()), None):
        raise BadRequest(f"{container.path}: the inputs of {bad!r}: got values that are no numbers or too large, expected finite ones; the file is "
                         "damaged, or the model cannot compute this text", "logits-nan")
    same = {name: names[id(t)] for name, t in engine.tallies.items() if name not in stored}
    about = {"model": container.name, "content_id": container.content_id.hex(), "windows": len(windows), "ctx": len(windows[0]),
             "tokens": sum(map(len, windows)), "text_bytes": len(text.encode()), "text_sha256": hashlib.sha256(text.encode()).hexdigest()}
    write_importance(out, {n: t.squares for n, t in stored.items()}, {n: t.rows for n, t in stored.items()}, same, about)
    experts = np.concatenate([np.zeros(0, np.int64)] + [t.rows for n, t in stored.items() if n.endswith(".experts.gate")])
    report = {"out": str(out), **about, "matrices": len(engine.tallies), "experts": len(experts),
              "least_tokens": int(experts.min(initial=1 << 62)) if len(experts) else None,
              "experts_on_prior": int((experts < PRIOR_ROWS).sum())}
    if args["--json"]:
        print(json.dumps(report))
    else:
        print("\n".join(lines(report)))
    return ExitStatus.OK


def lines(r: dict[str, Any]) -> list[str]:
    """The result for people."""
    out = [f"{r['out']}: {r['matrices']} matrices, {r['tokens']} tokens in {r['windows']} windows of {r['ctx']}"]
    if r["experts"]:
        out.append(f"  {r['experts']} experts saw {r['least_tokens']} tokens or more; {r['experts_on_prior']} of them fewer than "
                   f"{PRIOR_ROWS}, so they lean on the average of their layer")
    return out
