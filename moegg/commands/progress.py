"""Progress bars on stderr, only where a person watches; the libraries below see a plain callable."""
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

tqdm.monitor_interval = 0       # no watcher thread: moegg counts its own threads


@contextmanager
def bar(label: str, unit: str = "B", delay: float = 0.0) -> Iterator[Callable[[int, int], None]]:
    """A callable (done, total) that draws; with `delay` seconds of silence first. Units other than bytes are counted plainly.

    The bar appears with its first call, below what was said before, and is removed at the end: what stays is the result.
    """
    form: dict[str, Any] = {"unit": "B", "unit_scale": True, "unit_divisor": 1024}
    if unit != "B":
        form = {"bar_format": f"{{l_bar}}{{bar}}| {{n_fmt}}/{{total_fmt}} {unit} [{{elapsed}}<{{remaining}}]"}
    start, shown = time.time(), None

    def update(done: int, total: int) -> None:
        nonlocal shown
        if shown is None:
            left = max(0.0, delay + start - time.time())
            shown = tqdm(desc=label, total=total, file=sys.stderr, disable=not sys.stderr.isatty(), leave=False, delay=left, **form)
        shown.total = total
        shown.update(done - shown.n)
    try:
        yield update
    finally:
        if shown is not None:
            shown.close()
