"""ContainerWriter: takes weights in any order and leaves either a complete file or none.

Data goes to `<name>.partial`, each byte once; the header is written last, after an fsync, then the file is renamed. A crash at
any point leaves no half file that opens. Same input, same bytes: no times, no paths. Holds one record per thread. Refuses to
write over a file unless told to, over a device or a pipe ever, and to start without the disk space. All sizes in bytes.
"""
import errno
import fcntl
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, Self

import numpy as np
from blake3 import blake3

from moegg.errors import FormatError, InternalError, IOFailure, MoeggError, NoRoom, NotFound, UsageError
from moegg.formats import layout as L
from moegg.formats.plan import MUTABLE_SECTIONS, ExpertSpec, PartSpec, Plan, Sections, TensorSpec, planned_bytes
from moegg.formats.validate import RULES
from moegg.units import fmt_bytes

__all__ = ["MUTABLE_SECTIONS", "ContainerWriter", "ExpertSpec", "PartSpec", "TensorSpec", "planned_bytes"]
_PWRITE_BYTES = 1 << 30         # macOS refuses single writes of 2 GiB
Buffer = bytes | bytearray | memoryview | np.ndarray


def refuse_existing(path: Path, force: bool) -> None:
    """Raises UsageError if `path` exists, with `force` only if it is no regular file: a rename would replace devices and pipes too."""
    if path.is_dir():
        raise UsageError(f"{path}: is a folder, expected the name of a file", "target-exists")
    if path.exists() and not path.is_file():
        raise UsageError(f"{path}: is a device or a pipe, expected the name of a file", "target-exists")
    if not force and os.path.lexists(path):
        raise UsageError(f"{path}: exists already; use --force to replace it", "target-exists")


def check_target(path: Path, force: bool) -> None:
    """Raises what writing to `path` would raise for its name alone, before any work: UsageError, NotFound, IOFailure."""
    refuse_existing(path, force)
    if not path.parent.is_dir():
        raise NotFound(f"{path.parent}: no such folder", "file-missing")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise IOFailure(f"{path}: cannot be written: {os.strerror(errno.EACCES)}", "io-write")


def check_room(path: Path, nbytes: int) -> None:
    """Raises NoRoom if a file of so many bytes does not fit into the folder of `path`."""
    free = shutil.disk_usage(path.parent).free
    if free < nbytes:
        raise _no_room(path, nbytes, free)


def _no_room(path: Path, nbytes: int, free: int) -> NoRoom:
    return NoRoom(f"{path}: not enough disk space: {fmt_bytes(nbytes)} needed, {fmt_bytes(free)} free in "
                  f"'{path.parent}'; free some or choose another folder", "disk-full")


def write_all(fd: int, data: Buffer, offset: int) -> None:
    """pwrite all of it; short writes are continued. Raises OSError."""
    view = memoryview(data)
    while view:
        n = os.pwrite(fd, view[:_PWRITE_BYTES], offset)
        view, offset = view[n:], offset + n


def sync_folder(folder: Path) -> None:
    """Makes a rename last. Raises OSError, but not where the file system has no such thing, as some of networks."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as e:
        if e.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


class ContainerWriter:
    """Writes one container; a context manager. Leaving the block without finish() removes the partial file.

    Planning happens here and touches no file: raises FormatError for a plan that breaks a rule, UsageError if `path` exists and
    force is off. Entering the block raises NotFound, NoRoom, IOFailure. sections: name -> (media type, content).
    """

    def __init__(self, path: str | os.PathLike, *, arch: str, name: str, config: Mapping, meta: Mapping,
                 tensors: Iterable[TensorSpec], experts: Iterable[ExpertSpec], sections: Sections, force: bool = False):
        self.path, self.force = Path(path), force
        self.partial = self.path.with_name(self.path.name + ".partial")
        refuse_existing(self.path, force)
        self._plan = Plan(str(path), arch, name, config, meta, tensors, experts, sections)
        self.total_bytes = self._plan.total_bytes
        self._unit = {t: i for i, t in enumerate(self._plan.tensors)}
        self._layers, at = {}, len(self._unit)
        for e in self._plan.layers:
            self._layers[e.layer] = e, at
            at += e.n
        self._checksums = np.zeros((at, L.CHECKSUM_BYTES), np.uint8)
        self._written = bytearray(at)
        self._fd = -1

    def __enter__(self) -> Self:
        try:
            self._create()
            for offset, data in self._plan.blobs:
                self._write(data, offset)
        except BaseException as e:
            if self._fd < 0 and not isinstance(e, Exception):       # a signal came between the file and its number
                self._remove_stale()
            self._abort()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._abort()

    def put_tensor(self, name: str, data: Buffer | Iterable[Buffer]) -> None:
        """Write a tensor, already in file layout: a C-contiguous buffer, or pieces of it in order. Raises NoRoom, IOFailure."""
        t = self._plan.tensors.get(name)
        if t is None:
            raise InternalError(f"{self.path}: tensor '{name}' is not in the plan")
        pieces = [data] if isinstance(data, Buffer) else data
        self._put(self._unit[name], f"tensor '{name}'", t.offset, t.nbytes, pieces)

    def put_record(self, layer: int, expert: int, parts: Sequence[Buffer | Sequence[Buffer]]) -> None:
        """Write the record of one expert: its parts in file layout, in plan order, each whole or in pieces. Several threads may.
        Raises NoRoom, IOFailure."""
        e, first = self._layers.get(layer, (None, 0))
        what = f"record of layer {layer}, expert {expert}"
        if e is None or not 0 <= expert < e.n or len(parts) != len(e.parts):
            raise InternalError(f"{self.path}: {what} with {len(parts)} parts is not in the plan")
        pieces: list[Buffer] = []
        at = 0
        for p, data in zip(e.parts, parts, strict=True):
            views = [self._view(piece, what) for piece in ([data] if isinstance(data, Buffer) else data)]
            if (got := sum(v.size for v in views)) != p.nbytes:
                raise InternalError(f"{self.path}: {what}, part '{p.name}': got {got} B, expected {p.nbytes} B")
            pieces += [bytes(p.offset - at), *views]
            at = p.offset + p.nbytes
        slot = int(e.slot[expert])
        self._put(first + slot, what, e.base + slot * e.stride, e.record_bytes, [*pieces, bytes(e.record_bytes - at)])

    def _view(self, data: Buffer, what: str) -> np.ndarray:
        try:
            return np.frombuffer(data, np.uint8)
        except (ValueError, TypeError, BufferError) as e:
            raise InternalError(f"{self.path}: {what}: not a C-contiguous buffer: {e}") from e

    def _put(self, unit: int, what: str, offset: int, nbytes: int, pieces: Iterable[Buffer]) -> None:
        if self._fd < 0:
            raise InternalError(f"{self.path}: {what} was put before the writer was entered, or after it ended")
        if self._written[unit]:
            raise InternalError(f"{self.path}: {what} was put twice")
        self._written[unit] = 1
        h, done = blake3(), 0
        for piece in pieces:
            view = self._view(piece, what)
            if done + view.size > nbytes:
                raise InternalError(f"{self.path}: {what}: got more than the planned {nbytes} B")
            h.update(view)
            self._write(view, offset + done)
            done += view.size
        if done != nbytes:
            raise InternalError(f"{self.path}: {what}: got {done} B, expected {nbytes} B")
        self._checksums[unit] = np.frombuffer(h.digest(L.CHECKSUM_BYTES), np.uint8)

    def finish(self, content_id: bytes | None = None) -> None:
        """Write index, tail and, last, the header; then give the file its name. content_id: what it must be, for a model that is
        copied. Raises FormatError if it is not, NoRoom, IOFailure, UsageError if a file of that name has appeared meanwhile."""
        if self._fd < 0 or 0 in self._written:
            raise InternalError(f"{self.path}: finish with {self._written.count(0)} of {len(self._written)} tensors and records "
                                f"missing; first: {self._label(self._written.find(0))}")
        preamble, index = self._plan.encode(self._checksums)
        if content_id is not None and L.Header(*L.HEADER.unpack_from(preamble)).content_id != content_id:
            raise FormatError(f"{self.path}: the weights are not those that were to be copied; verify the file that they come from",
                              RULES["R26"], "R26")
        self._write(index, L.PREAMBLE_BYTES)
        self._write(self._plan.tail, self._plan.tail_offset)
        self._write(preamble[L.HEADER_BYTES:], L.HEADER_BYTES)
        try:
            os.fsync(self._fd)
            self._write(preamble[:L.HEADER_BYTES], 0)
            os.fsync(self._fd)
            self._promote()
        except OSError as e:
            self._fail(e)
        os.close(self._fd)
        self._fd = -1

    def _label(self, unit: int) -> str:
        if unit < len(self._unit):
            return f"tensor '{list(self._unit)[unit]}'" if unit >= 0 else "none"
        e, first = next(v for v in reversed(self._layers.values()) if v[1] <= unit)
        return f"record of layer {e.layer}, expert {int(e.slot.argsort()[unit - first])}"

    # --- the file system --------------------------------------------------------------------------------------------------------

    def _create(self) -> None:
        try:
            self._remove_stale()
            check_room(self.path, self.total_bytes)
            self._fd = os.open(self.partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            self._lock(self._fd)
            os.ftruncate(self._fd, self.total_bytes)        # padding is never written: it reads as zero
        except FileNotFoundError as e:
            raise NotFound(f"{self.path.parent}: no such folder", "file-missing") from e
        except OSError as e:
            self._fail(e)

    def _write(self, data: Buffer, offset: int) -> None:
        try:
            write_all(self._fd, data, offset)
        except OSError as e:
            self._fail(e, offset)

    def _remove_stale(self) -> None:
        """Unlink, never truncate, what a crashed run left: it may be a second name of a finished file."""
        try:
            fd = os.open(self.partial, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            self._lock(fd)
            os.unlink(self.partial)
        finally:
            os.close(fd)

    def _lock(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise UsageError(f"{self.partial}: another moegg process is writing it; wait for it or stop it", "target-busy") from e
        except OSError:
            return      # a file system without locks

    def _promote(self) -> None:
        """Rename. Without force, link first: unlike a rename it fails if the name has been taken meanwhile."""
        if os.fstat(self._fd).st_ino != os.stat(self.partial).st_ino:
            raise IOFailure(f"{self.partial}: was replaced while it was written", "file-changed")
        linked = False
        if not self.force:
            try:
                os.link(self.partial, self.path)
                linked = True
            except OSError:
                refuse_existing(self.path, self.force)      # else a file system without hard links
        if linked:
            os.unlink(self.partial)
        else:
            os.replace(self.partial, self.path)
        sync_folder(self.path.parent)

    def _fail(self, e: OSError, offset: int | None = None) -> NoReturn:
        """Raise the error of moegg that `e` is. The file stays open, as other threads may be writing it, until the block is left."""
        if isinstance(e, MoeggError):
            raise e
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            own = os.fstat(self._fd).st_blocks * 512 if self._fd >= 0 else 0         # what removing it will give back
            raise _no_room(self.path, self.total_bytes, shutil.disk_usage(self.path.parent).free + own) from e
        what = "cannot be written" if offset is None else f"write at byte {offset} failed"
        raise IOFailure(f"{self.path}: {what}: {e.strerror}", "io-write") from e

    def _abort(self) -> None:
        if self._fd < 0:
            return
        if os.path.lexists(self.partial) and os.stat(self.partial).st_ino == os.fstat(self._fd).st_ino:
            os.unlink(self.partial)
        os.close(self._fd)
        self._fd = -1
