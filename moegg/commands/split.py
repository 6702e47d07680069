"""moegg split - cuts a file into parts, for file systems and services that take no large files

Usage: moegg split [options] MODEL --size=SIZE

Writes NAME.00001-of-00003 and so on, verifies them, and leaves the file as it is. Parts lie side by
side in one folder and are opened there: give NAME, or any part. 'cat NAME.0*' joins them.

Options:
  --size=SIZE              bytes of a part, such as 20G; rounded down to a multiple of 2 MiB
  -o, --out=FILE           NAME of the parts (default: that of MODEL)
  --force                  replace an existing file
  --verbose                say more on stderr
  --debug                  show a traceback when something fails
  -h, --help               show this text
"""
from typing import Any

from moegg.commands.opening import open_container
from moegg.commands.progress import bar
from moegg.errors import ExitStatus, UsageError
from moegg.formats.container import Container
from moegg.formats.split import split
from moegg.units import fmt_bytes


def main(args: dict[str, Any]) -> ExitStatus:
    container = open_container(args["MODEL"])
    if container.parts:
        raise UsageError(f"{container.path}: is a part of a split file already; join them with cat first", "split-size")
    with bar("split") as progress:
        paths = split(container, args["--out"] or container.path, args["--size"], force=args["--force"], progress=progress)
    with bar("verify") as progress:
        Container.open(paths[0]).verify(progress)
    print(f"{paths[0]} to {paths[-1].name}: {fmt_bytes(container.file_bytes)} in {len(paths)} parts, every checksum right")
    return ExitStatus.OK
