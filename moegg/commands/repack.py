"""moegg repack - copies a file with its experts in another order

Usage: moegg repack [options] MODEL --profile=TRACE --out=FILE

Experts that were chosen together in TRACE (moegg run --trace) lie side by side in the new file,
so that a disk which reads ahead brings what is wanted next. Answers stay the same, bit by bit; so
does the content id. Whether it pays is for bench/repack_report.py to say: it depends on model,
disk and text.

Options:
  --profile=TRACE          recorded routing of the same model
  -o, --out=FILE           the file to write
  --force                  replace an existing file
  --verbose                say more on stderr
  --debug                  show a traceback when something fails
  -h, --help               show this text
"""
from typing import Any

from moegg.commands.opening import open_container
from moegg.commands.progress import bar
from moegg.errors import BadRequest, ExitStatus
from moegg.formats.container import Container
from moegg.formats.repack import repack, together
from moegg.io import trace as traces
from moegg.units import fmt_bytes


def main(args: dict[str, Any]) -> ExitStatus:
    container, trace = open_container(args["MODEL"]), traces.read(args["--profile"])
    check(container, trace)
    slots = {int(layer): together(trace.ids[:, i], int(trace.experts[i])) for i, layer in enumerate(trace.layers)}
    with bar("repack") as progress:
        new = repack(container, args["--out"], slots, force=args["--force"], progress=progress)
    print(f"{new.path}: {fmt_bytes(new.file_bytes)} written, {len(slots)} layers in the order of {len(trace.ids)} tokens")
    return ExitStatus.OK


def check(container: Container, trace: traces.Trace) -> None:
    """Raises BadRequest unless the trace is of a model with these layers and experts."""
    want, got = [(e.layer, e.n) for e in container.layers], list(zip(trace.layers.tolist(), trace.experts.tolist(), strict=True))
    if want != got:
        raise BadRequest(f"trace: is of another model: got {len(got)} layers of {sorted({n for _, n in got})} experts, expected "
                         f"{len(want)} of {sorted({n for _, n in want})}", "trace-model")
