"""Exact reads at offsets from one regular file: what the GGUF and safetensors readers share.

Refuses anything but regular files (opening a FIFO would hang). No mmap here: a file that is cut while it is mapped kills the
process, and mapped source pages would count as the converter's memory. Offsets and sizes in bytes.
"""
import os
import stat
from pathlib import Path

import numpy as np

from moegg.errors import FormatError, IOFailure, NotFound
from moegg.units import fmt_bytes

COUNT_LIMIT = 1 << 62       # elements or bytes of one tensor: far above any file, far below int64 overflow
READ_LIMIT = 1 << 30        # of one system call: macOS refuses 2 GiB


class RawFile:
    """A regular file, open for reading. Raises NotFound, IOFailure, or FormatError if it is no regular file."""

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self._fd = -1
        try:
            self._fd = os.open(self.path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
            st = os.fstat(self._fd)
        except FileNotFoundError:
            raise NotFound(f"{self.path}: no such file", "file-missing") from None
        except OSError as e:
            self.close()
            raise IOFailure(f"{self.path}: cannot be opened: {e.strerror}", "io-open") from e
        if not stat.S_ISREG(st.st_mode):
            self.close()
            raise FormatError(f"{self.path}: not a regular file", "file-kind")
        self.size = st.st_size

    def read(self, offset: int, n: int) -> np.ndarray:
        """uint8 [n] from `offset`; short reads are continued. Raises IOFailure, FormatError if the file has become shorter."""
        out = np.empty(n, np.uint8)
        view, done = memoryview(out), 0
        while done < n:
            try:
                got = os.preadv(self._fd, [view[done:done + READ_LIMIT]], offset + done)
            except OSError as e:
                raise IOFailure(f"{self.path}: read of {fmt_bytes(n)} at byte {offset} failed: {e.strerror}", "io-read") from e
            if got == 0:
                raise FormatError(f"{self.path}: ends at byte {offset + done}, expected {n - done} B more; it changed while it "
                                  "was being read", "file-short", offset=offset + done)
            done += got
        return out

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self):
        self.close()


def count_elements(dims: list[int]) -> int | None:
    """Product of `dims`, or None above COUNT_LIMIT: stops early, so that a hostile list of huge numbers costs nothing."""
    if 0 in dims:
        return 0
    n = 1
    for d in dims:
        n *= d
        if n > COUNT_LIMIT:
            return None
    return n
