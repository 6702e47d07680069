"""moegg export - writes a file as a GGUF

Usage: moegg export [options] MODEL

MODEL is a .moegg file. If it was converted from a GGUF and kept its quants, tensors and metadata
are the same again bit by bit. For other files the metadata is made from the config, if GGUF can
say the same model. Until the GGUF is complete its name is FILE.partial; Ctrl-C and SIGTERM remove
that.

Options:
  -o, --out=FILE           the GGUF to write (default: the name of MODEL with .gguf, in this folder)
  --force                  replace an existing file
  --json                   print one JSON object
  --verbose                say more on stderr
  --debug                  show a traceback when something fails
  -h, --help               show this text
"""
import json
from pathlib import Path
from typing import Any

from moegg.commands.convert import removing_when_told_to_end
from moegg.commands.opening import open_container
from moegg.commands.progress import bar
from moegg.converters.export import export
from moegg.errors import ExitStatus
from moegg.units import fmt_bytes


def main(args: dict[str, Any]) -> ExitStatus:
    container = open_container(args["MODEL"])
    out = args["--out"] or Path(container.path.name).with_suffix(".gguf")
    with removing_when_told_to_end(), bar("export") as progress:
        result = export(container, out, force=args["--force"], progress=progress)
    if args["--json"]:
        print(json.dumps({"path": str(result.path), "file_bytes": result.file_bytes, "types": result.types}, ensure_ascii=False))
    else:
        types = ", ".join(f"{n} {kind}" for kind, n in result.types.items())
        print(f"{result.path}: {fmt_bytes(result.file_bytes)} written, tensors: {types}")
    return ExitStatus.OK
