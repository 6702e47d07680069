"""Progress bars on stderr, only where a person watches; the libraries below see a plain callable."""
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

tqdm.monitor_interval = 0       # no watcher thread: moegg counts its own threads


@contextmanager
def bar(label: str, unit: str = "B", delay: float = 0.0) -> Iterator[Callable[[int, int], None]]:
    """A callable (done, total) that draws; with `delay` seconds of silence first. Units other than bytes are counted plainly.

    The bar is removed at the end, so that what stays on the terminal is the result.
    """
    scale = {"unit_scale": True, "unit_divisor": 1024} if unit == "B" else {}
    shown = tqdm(desc=label, unit=unit, file=sys.stderr, disable=not sys.stderr.isatty(), leave=False, delay=delay, **scale)

    def update(done: int, total: int) -> None:
        shown.total = total
        shown.update(done - shown.n)
    try:
        yield update
    finally:
        shown.close()
