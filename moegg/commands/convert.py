"""moegg convert - makes one .moegg file from a Hugging Face folder or a GGUF file

Usage: moegg convert [options] [--override=RULE]... SOURCE

SOURCE is a folder with config.json and safetensors files, a GGUF file, or
hf:USER/REPO[/FILE.gguf] on a hub, of which one shard at a time is on the disk. Without --out the
file is written into the current folder and named after SOURCE. Until it is complete its name is
FILE.partial; Ctrl-C and SIGTERM remove that.

Options:
  -o, --out=FILE           the file to write
  --quant=RECIPE           q8, q6, q5, q4, q3, q2, f16, bf16, f32, or keep, which takes the source's
                           quants over (default: keep for GGUF and quantised safetensors, else q4)
  --override=RULE          GLOB=QUANT, for weights whose name or role matches, such as
                           'layers.*.attn.*=q8_0' or 'expert=q3_k'; may be repeated, the last wins
  --imatrix=FILE           weigh rounding errors by what moegg calibrate has measured
  --dry-run                print the plan and the size; read no weights, write nothing
  --force                  replace an existing file
  --json                   print one JSON object
  --verbose                say more on stderr
  --debug                  show a traceback when something fails
  -h, --help               show this text
"""
import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from moegg import log
from moegg.commands.progress import bar
from moegg.converters.run import convert
from moegg.errors import ExitStatus
from moegg.units import fmt_bytes


def main(args: dict[str, Any]) -> ExitStatus:
    def show(plan: Any, file_bytes: int) -> None:
        if not args["--json"]:
            (print if args["--dry-run"] else log.info)("\n".join([*plan.lines(), f"  file: {fmt_bytes(file_bytes)}"]))

    with removing_when_told_to_end(), bar("convert") as progress:
        result = convert(args["SOURCE"], args["--out"], args["--quant"], overrides=args["--override"],
                         imatrix=args["--imatrix"], force=args["--force"], dry_run=args["--dry-run"],
                         on_plan=show, progress=progress, warn=log.warn)
    if args["--json"]:
        print(json.dumps({"path": str(result.path), "file_bytes": result.file_bytes, "dry_run": args["--dry-run"], **result.plan.to_dict()},
                         ensure_ascii=False))
    elif not args["--dry-run"]:
        print(f"{result.path}: {fmt_bytes(result.file_bytes)} written")
    return ExitStatus.OK


@contextmanager
def removing_when_told_to_end() -> Iterator[None]:
    """SIGTERM, and SIGHUP of a closed terminal unless nohup ignores it, end the block as Ctrl-C does, so that it can clean up."""
    def stop(signum: int, frame: Any) -> None:
        raise KeyboardInterrupt
    before = {}
    if threading.current_thread() is threading.main_thread():       # elsewhere Python allows no handlers
        before = {s: signal.signal(s, stop) for s in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) is signal.SIG_DFL}
    try:
        yield
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
