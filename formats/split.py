"""Byte splits: a container as parts NAME.00001-of-00003, ..., for file systems with size limits. `cat NAME.0*` is the file again.

Plain cuts, nothing is added: every part but the last has the same length, a multiple of 2 MiB, so that parts can be mapped side
by side. Which parts belong together is in their names; that they are the right ones, in R5 to R28 of the whole.
"""
import os
from collections.abc import Callable
from pathlib import Path

from moegg.errors import IOFailure, NotFound, UsageError
from moegg.formats.container import Container
from moegg.formats.reader import SPLIT_ALIGN, Reader, part_name
from moegg.formats.writer import check_room, refuse_existing, sync_folder, write_all
from moegg.units import fmt_bytes

MOST_PARTS, PIECE_BYTES = 999, 4 << 20


def split(container: Container, target: Path, part_bytes: int, *, force: bool = False,
          progress: Callable[[int, int], None] | None = None) -> list[Path]:
    """Writes the parts of `target`, each as NAME.partial until it is whole, the first one last. Returns their paths.

    If it is interrupted, no part is left. part_bytes is rounded down to a multiple of 2 MiB. Raises UsageError, FormatError, NoRoom, NotFound,
    IOFailure.
    """
    step = part_bytes // SPLIT_ALIGN * SPLIT_ALIGN
    n = -(-container.file_bytes // step) if step else 0
    if not 2 <= n <= MOST_PARTS:
        raise UsageError(f"--size {fmt_bytes(part_bytes)}: gives {n or 'no'} parts of {fmt_bytes(container.file_bytes)}, expected 2 to "
                         f"{MOST_PARTS}, of 2 MiB or more", "split-size")
    if not target.parent.is_dir():
        raise NotFound(f"{target.parent}: no such folder", "file-missing")
    paths = [part_name(target, i + 1, n) for i in range(n)]
    for path in paths:
        refuse_existing(path, force)
    check_room(target, container.file_bytes)
    with container.opened() as source:
        for i in range(n - 1, -1, -1):              # without its first part nothing opens
            try:
                _write(source, i * step, min(step, container.file_bytes - i * step), paths[i], progress or (lambda done, total: None))
            except BaseException:
                for path in paths[i + 1:]:
                    path.unlink(missing_ok=True)
                raise
    return paths


def _write(source: Reader, start: int, nbytes: int, path: Path, progress: Callable[[int, int], None]) -> None:
    partial = path.with_name(f"{path.name}.partial")
    try:
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    except OSError as e:
        raise IOFailure(f"{partial}: cannot be written: {e.strerror}", "io-write") from e
    try:
        for at in range(0, nbytes, PIECE_BYTES):
            write_all(fd, source.read(start + at, min(PIECE_BYTES, nbytes - at)), at)
            progress(source.size - start - nbytes + min(at + PIECE_BYTES, nbytes), source.size)
        os.fsync(fd)
        os.replace(partial, path)
        sync_folder(path.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
