"""moegg verify - recomputes every checksum of a file and names the first part that is damaged

Usage: moegg verify [options] MODEL

MODEL is a .moegg file, a name of the local store, hf:USER/REPO[/FILE], or 'demo'. Reads the whole
file once. Exit code 0 if every byte is as it was written, else 3.

Options:
  --verbose                say more on stderr
  --debug                  show a traceback when something fails
  -h, --help               show this text
"""
from typing import Any

from moegg.commands.opening import open_container
from moegg.commands.progress import bar
from moegg.errors import ExitStatus
from moegg.units import fmt_bytes


def main(args: dict[str, Any]) -> ExitStatus:
    container = open_container(args["MODEL"])
    with bar("verify") as progress:
        container.verify(progress)
    records = sum(layer.n for layer in container.layers)
    print(f"{container.path}: ok: {fmt_bytes(container.file_bytes)}, {records} expert records, {len(container.tensors)} other tensors, "
          f"{len(container.sections)} sections, root {container.root.hex()}")
    return ExitStatus.OK
