"""moegg rm - deletes models of the local store

Usage: moegg rm [options] NAME...

NAME as 'moegg list' shows it, or as much of its end as is unique. Asks before it deletes. Files
outside the store are never touched.

Options:
  -y, --yes                do not ask
  --verbose                say more on stderr
  --debug                  show a traceback when something fails
  -h, --help               show this text
"""
from typing import Any

from moegg import library
from moegg.commands.asking import confirm
from moegg.errors import ExitStatus
from moegg.units import fmt_bytes


def main(args: dict[str, Any]) -> ExitStatus:
    among = library.entries()
    found = dict.fromkeys(entry for name in args["NAME"] for entry in chosen(name, among))
    confirm(f"delete {', '.join(e.name for e in found)} ({fmt_bytes(sum(e.nbytes for e in found))})?", args["--yes"])
    for entry in found:
        library.remove(entry)
        print(f"{entry.path}: deleted")
    return ExitStatus.OK


def chosen(name: str, among: list[library.Entry]) -> list[library.Entry]:
    """One model, with what an interrupted pull left of it."""
    found = library.matching(name, among)
    if len({e.name for e in found}) == 1:
        return found
    return [library.one(name, found)]
