"""Rewrites the tail of a container in place: chat template, model card, generation defaults. No other byte is touched.

A tail of another length cannot be replaced by one system call, so the edit is decided by a rename: the new tail is written to
FILE.tail (reader.py has its form), synced, and from then on every reader takes the tail from there. Then it is copied into the
file, the file gets its new length, and FILE.tail is removed. Killed before the rename, the file is the old one; killed after it,
the new one, and the next edit finishes the copy. An edit that the disk refuses is taken back. Two edits at once are refused.
"""
import errno
import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from moegg.errors import FormatError, IOFailure, MoeggError, NoRoom, UsageError
from moegg.formats import layout as L
from moegg.formats.container import Container
from moegg.formats.plan import encode_tail
from moegg.formats.reader import FileReader, encode_journal, journal_path, read_journal
from moegg.formats.validate import read_tail
from moegg.formats.writer import check_room, sync_folder, write_all

MEDIA = {"chat_template": "application/json", "generation_config": "application/json", "model_card": "text/markdown",
         "quality": "application/json"}


def edit_tail(path: str | os.PathLike, changes: Mapping[str, bytes | None]) -> Container:
    """Replaces sections of the tail by their names, None: removes them; without changes it only finishes an edit that was cut off.

    Raises UsageError if another edit runs, FormatError for a damaged file or a tail that is too large, NoRoom, IOFailure.
    """
    if wrong := sorted(changes.keys() - MEDIA.keys()):
        raise UsageError(f"{path}: section '{wrong[0]}': cannot be edited, expected one of {', '.join(sorted(MEDIA))}",
                         "edit-section")
    if Container.open(path).parts:
        raise UsageError(f"{path}: lies here in parts; join them with cat, edit the whole, and split it again", "edit-parts")
    real = Path(os.path.realpath(path))
    with _locked(real) as fd:
        if (found := read_journal(real)) is not None:
            _finish(real, fd, *found)
        c = Container.open(real)
        tail = _new_tail(c, changes)
        if changes:
            _decide(real, encode_journal(c.root, c.tail_offset, tail))
            _finish(real, fd, c.tail_offset, tail)
    return Container.open(path)


def _new_tail(c: Container, changes: Mapping[str, bytes | None]) -> bytes:
    """The bytes of the tail after the changes. Raises FormatError."""
    sections: dict[str, tuple[str, bytes]] = {}
    for s in c.sections.values():
        if s.mutable and s.kind != "opaque":
            raise FormatError(f"{c.path}: tail section '{s.name}' is of kind {s.kind}, which this version cannot rewrite; upgrade "
                              "moegg", "edit-unknown")
        if s.mutable and s.name not in changes:
            sections[s.name] = s.media, c.read_section(s.name)
    sections |= {name: (MEDIA[name], data) for name, data in changes.items() if data is not None}
    tail = encode_tail({name: sections[name] for name in sorted(sections)}, c.tail_offset)
    read_tail(tail, c.tail_offset, c.tail_offset + len(tail), {s.name: s for s in c.sections.values() if not s.mutable}, str(c.path))
    return tail


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """A descriptor to write with, held alone."""
    with FileReader(path):                      # its errors are those of every reader
        pass
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as e:
        raise IOFailure(f"{path}: cannot be written: {e.strerror}", "io-write") from e
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield fd
    except BlockingIOError as e:
        raise UsageError(f"{path}: another moegg process is editing it; wait for it or stop it", "target-busy") from e
    finally:
        os.close(fd)


def _decide(path: Path, journal: bytes) -> None:
    """Writes the journal and gives it its name: from here on the edit has happened."""
    final = journal_path(path)
    draft = final.with_name(f"{final.name}.partial")
    try:
        check_room(path, len(journal))
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            write_all(fd, journal, 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(draft, final)
        sync_folder(path.parent)
    except MoeggError:
        raise
    except OSError as e:
        draft.unlink(missing_ok=True)
        raise _refused(path, e) from e


def _finish(path: Path, fd: int, at: int, tail: bytes) -> None:
    """Copies the tail into the file and removes the journal; if the disk refuses, puts the old tail back."""
    size = os.fstat(fd).st_size
    old = os.pread(fd, min(max(0, size - at), L.MAX_TAIL_BYTES), at)
    try:
        write_all(fd, tail, at)
        os.ftruncate(fd, at + len(tail))
        os.fsync(fd)
    except OSError as e:
        write_all(fd, old, at)
        os.ftruncate(fd, size)
        os.fsync(fd)
        journal_path(path).unlink()
        raise _refused(path, e) from e
    try:
        journal_path(path).unlink()
        sync_folder(path.parent)
    except OSError as e:
        raise _refused(path, e) from e


def _refused(path: Path, e: OSError) -> MoeggError:
    if e.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoRoom(f"{path}: not enough disk space for the new tail", "disk-full")
    return IOFailure(f"{path}: cannot be written: {e.strerror}", "io-write")
