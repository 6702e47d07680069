"""Reads that go wrong on purpose: the store's hook (csrc/diskfile.h, mg_read_hook) as a Python object."""
import ctypes
import errno
import os
import threading

_HOOK = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


class Faults:
    """broken: every read of more than two pages fails with `error` (rows of a looked-up table are smaller). plan: what happens to the next reads: an
    errno, ('short', n), or None for a good one. stall: reads wait while it is cleared (`waiting` of them). calls: (bytes, offset) of every read; a
    page cache fill counts as one."""

    def __init__(self):
        self.broken, self.error, self.plan, self.calls = False, errno.EIO, [], []
        self.stall = threading.Event()
        self.stall.set()
        self.waiting = 0
        self._lock = threading.Lock()
        self._keep = _HOOK(self._read)
        self.address = ctypes.cast(self._keep, ctypes.c_void_p).value

    def _read(self, ctx, fd, buf, nbytes, offset):
        self.waiting += 1
        self.stall.wait()
        self.waiting -= 1
        with self._lock:
            self.calls.append((nbytes, offset))
            step = self.plan.pop(0) if self.plan else None
        if self.broken and nbytes > 8192:
            return -self.error
        if isinstance(step, int):
            return -step
        if not buf:
            return 0
        view = (ctypes.c_char * nbytes).from_address(buf)
        try:
            n = os.preadv(fd, [view], offset)
        except OSError as e:
            return -e.errno
        return min(n, step[1]) if step else n
