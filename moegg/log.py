"""What moegg tells a person while it works: notes, details and warnings, through the standard logger named "moegg".

The command line shows them on stderr; a Python program that imports moegg sees warnings only, or decides itself. Nothing here
writes to stdout. Progress bars are the commands' business: libraries take a `progress(done, total)` callable.
"""
import logging
import re
import sys

from moegg.errors import printable

LOGGER = logging.getLogger("moegg")
_warned: set[str] = set()


def info(text: str) -> None:
    """A note that a person wants to see without asking for it."""
    LOGGER.info("%s", text)


def detail(text: str) -> None:
    """A note that only --verbose shows."""
    LOGGER.debug("%s", text)


def warn(text: str) -> None:
    """Something is odd but work goes on; the same text is shown once per command."""
    if text not in _warned:
        _warned.add(text)
        LOGGER.warning("%s", text)


def readable(text: str) -> str:
    r"""`text` for a terminal: control characters escaped, lines after the first set in, so that none looks like moegg's own.

    File names that are not UTF-8 as \xff, not as the surrogates that Python keeps their bytes in, be it as such or in a repr.
    """
    text = re.sub("[\udc80-\udcff]", lambda m: f"\\x{ord(m[0]) - 0xDC00:02x}", text)
    text = re.sub(r"\\udc([89a-f][0-9a-f])", r"\\x\1", text)
    first, *others = text.split("\n")
    return "\n".join([printable(first), *(f"  {printable(line.removeprefix('  '))}" for line in others)])


class _Stderr(logging.Handler):
    """Looks sys.stderr up at every record, so that redirected and captured streams work."""

    def emit(self, record: logging.LogRecord) -> None:
        mark = "warning: " if record.levelno >= logging.WARNING else ""
        sys.stderr.write(f"moegg: {mark}{readable(record.getMessage())}\n")


def configure(verbose: bool) -> None:
    """Show records on stderr, details too if `verbose`. cli.py calls it once per command."""
    _warned.clear()
    LOGGER.handlers[:] = [_Stderr()]
    LOGGER.propagate = False
    LOGGER.setLevel(logging.DEBUG if verbose else logging.INFO)
