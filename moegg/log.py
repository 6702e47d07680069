"""What moegg tells a person while it works: notes, details and warnings, through the standard logger named "moegg".

The command line shows them on stderr; a Python program that imports moegg sees warnings only, or decides itself. Nothing here
writes to stdout. Progress bars are the commands' business: libraries take a `progress(done, total)` callable.
"""
import logging
import sys

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


class _Stderr(logging.Handler):
    """Looks sys.stderr up at every record, so that redirected and captured streams work."""

    def emit(self, record: logging.LogRecord) -> None:
        mark = "warning: " if record.levelno >= logging.WARNING else ""
        sys.stderr.write(f"moegg: {mark}{record.getMessage()}\n")


def configure(verbose: bool) -> None:
    """Show records on stderr, details too if `verbose`. cli.py calls it once per command."""
    _warned.clear()
    LOGGER.handlers[:] = [_Stderr()]
    LOGGER.propagate = False
    LOGGER.setLevel(logging.DEBUG if verbose else logging.INFO)
