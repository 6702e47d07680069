"""Exact reads from a container, wherever its bytes are: what container.py needs of a file, and files on a local disk.

A container on this disk may lie under the journal of an edit that was cut off (edit.py): then its tail is read from there. Or it
lies there in parts, NAME.00001-of-00003 and so on (split.py), which are opened by the name of any part, or by NAME. Other places
(moegg/hub: a file on a hub) bring their own Reader. Refuses anything but regular files. Offsets and sizes in bytes.
"""
import os
import re
import stat
from pathlib import Path
from typing import Protocol, Self

from blake3 import blake3

from moegg.errors import IOFailure, MoeggError, NotFound
from moegg.formats import layout as L
from moegg.formats.validate import Check

PART, SPLIT_ALIGN = re.compile(r"(.+)\.(\d{5})-of-(\d{5})"), 2 << 20
JOURNAL, JOURNAL_MAGIC, JOURNAL_HEAD = ".tail", b"moegg edit 1\r\n\x1a\n", 80


class Reader(Protocol):
    """path: as messages show it. size: of the file. identity: (device, inode, size, mtime in ns), or what else tells that it is
    still the same file. edited: the tail comes from the journal of an edit. parts: (path, identity) of each, if the file lies
    there in several. A context manager, which closes it."""
    path: Path
    size: int
    identity: tuple
    edited: bool
    parts: tuple[tuple[Path, tuple], ...]

    def read(self, offset: int, n: int) -> bytes:
        """Exactly n bytes. Raises IOFailure, FormatError if the file has become shorter."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


class FileReader:
    """A regular file; short reads are continued. Raises NotFound, IOFailure, FormatError."""
    edited = False
    parts = ()

    def __init__(self, path: Path):
        self.path = path
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)       # a FIFO must not hang
        except FileNotFoundError as e:
            raise NotFound(f"{path}: no such file", "file-missing") from e
        except OSError as e:
            raise IOFailure(f"{path}: cannot be opened: {e.strerror}", "io-open") from e
        st = os.fstat(self.fd)
        if not stat.S_ISREG(st.st_mode):
            os.close(self.fd)
            what = "a folder; convert it first with 'moegg convert'" if stat.S_ISDIR(st.st_mode) else "a device, pipe or socket"
            Check(str(path)).fail("R1", f"not a moegg file: got {what}")
        self.size = st.st_size
        self.identity = (st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns)

    def read(self, offset: int, n: int) -> bytes:
        parts = []
        while n:
            try:
                part = os.pread(self.fd, n, offset)
            except OSError as e:
                raise IOFailure(f"{self.path}: read of {n} B at byte {offset} failed: {e.strerror}", "io-read") from e
            if not part:
                Check(str(self.path)).fail("R5", f"file ends here, expected {n} B more; it was cut while it was read", offset)
            parts.append(part)
            offset, n = offset + len(part), n - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


class _Edited(FileReader):
    """A file whose tail lies in a journal: an edit was decided, but not finished."""
    edited = True

    def __init__(self, path: Path, at: int, tail: bytes):
        super().__init__(path)
        self._at, self._tail, self.size = at, tail, at + len(tail)

    def read(self, offset: int, n: int) -> bytes:
        head = super().read(offset, max(0, min(n, self._at - offset)))
        rest = n - len(head)
        at = max(offset, self._at) - self._at
        return head + self._tail[at:at + rest] if rest else head


def open_file(path: Path) -> Reader:
    """The Reader of a local file. Raises NotFound, IOFailure, FormatError."""
    if PART.fullmatch(path.name) or not os.path.lexists(path):
        if paths := part_paths(path):
            return _Parts(paths)
    found = read_journal(Path(os.path.realpath(path)))
    return FileReader(path) if found is None else _Edited(path, *found)


# --- parts -------------------------------------------------------------------------------------------------------------------

def part_name(path: Path, i: int, n: int) -> Path:
    """Part i of n, from 1."""
    return path.with_name(f"{path.name}.{i:05d}-of-{n:05d}")


def part_paths(path: Path) -> list[Path]:
    """All parts of the split file that `path`, a part or the name without its number, means; none if there is no such file."""
    name = PART.fullmatch(path.name)
    if name is None:
        found = sorted(p for p in path.parent.glob("*.00001-of-?????") if PART.fullmatch(p.name) and p.name[:-15] == path.name)
        if not found:
            return []
        path, name = found[0], PART.fullmatch(found[0].name)
    stem, n = path.with_name(name[1]), int(name[3])
    return [part_name(stem, i + 1, n) for i in range(n)] if 2 <= n and 1 <= int(name[2]) <= n else []


class _Parts:
    """The parts of a split file as one. Raises NotFound for a missing part, FormatError for one that is too short or too long."""
    edited = False

    def __init__(self, paths: list[Path]):
        self.path, self._files = paths[0], []
        try:
            for path in paths:
                try:
                    self._files.append(FileReader(path))
                except NotFound:
                    raise NotFound(f"{path}: no such file: this part of {len(paths)} is missing", "file-missing") from None
            self._step = self._files[0].size
            for i, f in enumerate(self._files, 1):
                last = i == len(self._files)
                if not 1 <= f.size <= self._step or (not last and (f.size != self._step or f.size % SPLIT_ALIGN)):
                    want = f"at most {self._step} B" if last else f"{self._step} B, as the first, and a multiple of 2 MiB"
                    Check(str(f.path)).fail("R5", f"part {i} of {len(paths)} is {f.size} B, expected {want}; copy it again, or "
                                                  "join the parts with cat")
        except BaseException:
            self.__exit__()
            raise
        self.size = sum(f.size for f in self._files)
        self.parts = tuple((f.path, f.identity) for f in self._files)
        self.identity = self._files[0].identity

    def read(self, offset: int, n: int) -> bytes:
        out = []
        while n:
            i = min(offset // self._step, len(self._files) - 1)
            at = offset - i * self._step
            piece = self._files[i].read(at, min(n, self._step - at) if i + 1 < len(self._files) else n)
            out.append(piece)
            offset, n = offset + len(piece), n - len(piece)
        return out[0] if len(out) == 1 else b"".join(out)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for f in self._files:
            f.__exit__()


# --- the journal of an edit -------------------------------------------------------------------------------------------------

def journal_path(path: Path) -> Path:
    return path.with_name(path.name + JOURNAL)


def encode_journal(root: bytes, at: int, tail: bytes) -> bytes:
    """magic 16, root 32, tail_offset u64, 8 bytes zero, checksum16 of the tail; then the tail."""
    return JOURNAL_MAGIC + root + at.to_bytes(8, "little") + bytes(8) + blake3(tail).digest(16) + tail


def read_journal(path: Path) -> tuple[int, bytes] | None:
    """(tail_offset, tail) of an edit of `path` that was decided but not finished. None if there is none, or if it belongs to
    another file, which has taken this one's name."""
    try:
        with FileReader(journal_path(path)) as f:
            if not JOURNAL_HEAD <= f.size <= JOURNAL_HEAD + L.MAX_TAIL_BYTES:
                return None
            data = f.read(0, f.size)
        with FileReader(path) as f:
            root = f.read(0, min(L.ROOT_SPAN.stop, f.size))[L.ROOT_SPAN]
    except MoeggError:
        return None
    at, tail = int.from_bytes(data[48:56], "little"), data[JOURNAL_HEAD:]
    if data[:16] != JOURNAL_MAGIC or data[16:48] != root or data[64:JOURNAL_HEAD] != blake3(tail).digest(16):
        return None
    return at, tail
