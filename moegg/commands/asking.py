"""Asks before what cannot be undone or is seen by others."""
import sys

from moegg.errors import Cancelled, UsageError, printable


def confirm(question: str, yes: bool) -> None:
    """Returns if the person at the terminal says yes. Raises Cancelled if not, UsageError where nobody can be asked."""
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(f"{question} nobody can be asked: standard input is no terminal; give --yes to go on", "confirm")
    print(printable(question), "[y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Cancelled("nothing was done", "cancelled")
