"""Brings a container from a hub to this disk. Every tensor, record and section is compared with its checksum as it arrives.

What is already there is never fetched again: a download that was cut off goes on, a damaged file has only its bad parts replaced, a
new version of a model takes over what did not change. All three are one thing: fetch each part whose bytes are not those that the
index of the hub's file names. Work goes on in FILE.partial; its header is written last, then it gets its name.
"""
import errno
import fcntl
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from blake3 import blake3

from moegg.errors import FormatError, IOFailure, MoeggError, NoRoom, NotFound, UsageError
from moegg.formats import layout as L
from moegg.formats.container import Container
from moegg.formats.edit import edit_tail
from moegg.formats.reader import FileReader
from moegg.formats.writer import check_room, sync_folder, write_all
from moegg.hub.address import Address
from moegg.hub.remote import RemoteFile
from moegg.units import fmt_bytes

SPAN_BYTES, GAP_BYTES = 16 << 20, 64 << 10      # of one request; between parts that one request brings
PIECE_BYTES = 4 << 20
THREADS, TRIES = 4, 3
CLOSING_S = 2.0                                 # in all, for threads whose work an error made useless
Unit = tuple[str, int, int, bytes]              # label, offset, bytes, checksum
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Pulled:
    """What pull() did. fetched: bytes that came over the network, of file_bytes."""
    path: Path
    file_bytes: int
    fetched: int
    repaired: tuple[str, ...] = ()              # what was damaged in a file that was there already


def open_remote(address: Address) -> tuple[Container, RemoteFile]:
    """A container on a hub, by ranged reads of header, index and tail. Raises NotFound, IOFailure, FormatError, UsageError."""
    remote = RemoteFile(address)
    try:
        return Container(lambda: remote), remote
    except FormatError as e:
        if e.slug == "format-magic" and not str(address.file).endswith(".moegg"):
            hint = f"; convert it: moegg convert {address}" if str(address.file).endswith((".gguf", ".safetensors")) else ""
            raise FormatError(f"{address}: no .moegg file{hint}", e.slug) from None
        raise


def pull(address: Address, target: Path, progress: Progress | None = None) -> Pulled:
    """Makes `target` the file at `address`, which names a file. progress(done, total) counts bytes of the file.

    Raises NotFound, IOFailure, NoRoom, UsageError, FormatError; what was fetched by then is kept for the next call.
    """
    c, remote = open_remote(address)
    partial = target.with_name(f"{target.name}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise IOFailure(f"{target.parent}: cannot be made: {e.strerror}", "io-write") from e
    show = progress or (lambda done, total: None)
    damaged: list[str] = []
    old = _opened(target)
    _spare(target)
    if old is not None and old.root == c.root:
        with FileReader(target) as f:
            damaged = [u[0] for u in _missing(c, f.fd, show)]
        if not damaged:
            _take_tail(target, old, c)
            return Pulled(target, c.file_bytes, remote.fetched)
    if os.path.lexists(target) and not partial.exists() and (old is None or damaged):
        try:
            os.replace(target, partial)         # damaged: whatever is sound in it stays
        except OSError as e:
            raise IOFailure(f"{target}: is damaged ({damaged[0] if damaged else 'does not open'}) and cannot be written: {e.strerror}",
                            "io-write") from e
    with _Assembly(c, remote, partial, show) as assembly:
        assembly.complete(old if old is not None and old.root != c.root else None)
        assembly.promote(target)
    return Pulled(target, c.file_bytes, remote.fetched, tuple(damaged))


def _opened(path: Path) -> Container | None:
    try:
        c = Container.open(path)
    except (FormatError, NotFound):
        return None
    return None if c.parts else c               # parts of this name stay beside it


def _spare(target: Path) -> None:
    """Raises UsageError for what is no container, not even a damaged one: it is not for us to replace."""
    if not os.path.lexists(target):
        return
    head = b""
    if target.is_file():
        with open(target, "rb") as f:
            head = f.read(len(L.MAGIC))
    if b"moegg" not in head:
        raise UsageError(f"{target}: exists and is no .moegg file, so it is not replaced; choose another name", "target-exists")


def _take_tail(target: Path, old: Container, new: Container) -> None:
    """Template, card and defaults of the hub's file, if they differ."""
    def texts(c: Container) -> dict[str, bytes]:
        return {s.name: s.checksum for s in c.sections.values() if s.mutable}
    if texts(old) != texts(new):
        edit_tail(target, dict.fromkeys(texts(old)) | {name: new.read_section(name) for name in texts(new)})


def _missing(c: Container, fd: int, progress: Progress) -> list[Unit]:
    """What of the container is not in the file, by its checksums."""
    out, total, done = [], c.file_bytes, 0
    for unit in c.units():
        _, offset, nbytes, want = unit
        done += nbytes
        end = offset + nbytes
        if want and _digest(os.pread(fd, min(PIECE_BYTES, end - at), at) for at in range(offset, end, PIECE_BYTES)) != want:
            done -= nbytes
            out.append(unit)
        progress(min(done, total), total)
    return out


def _digest(pieces: Iterable[bytes]) -> bytes:
    h = blake3()
    for piece in pieces:
        h.update(piece)
    return h.digest(L.CHECKSUM_BYTES)


class _Assembly:
    """FILE.partial on its way to be the container; held alone while it is open."""

    def __init__(self, c: Container, remote: RemoteFile, path: Path, progress: Progress):
        self.c, self.remote, self.path, self._progress = c, remote, path, progress
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._done = 0

    def __enter__(self) -> "_Assembly":
        with self._disk():
            there = self.path.stat().st_blocks * 512 if self.path.exists() else 0
            self.fresh = there == 0
            check_room(self.path, max(0, self.c.file_bytes - there))
            self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as e:
                os.close(self.fd)
                raise UsageError(f"{self.path}: another moegg process fetches it; wait for it or stop it", "target-busy") from e
            except OSError:
                pass                            # a file system without locks
            os.ftruncate(self.fd, self.c.file_bytes)
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:                        # no thread that is left may write to what has this number next
            self._stop.set()
            os.close(self.fd)

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except MoeggError:
            raise
        except OSError as e:
            if e.errno in (errno.ENOSPC, errno.EDQUOT):
                raise NoRoom(f"{self.path}: not enough disk space; free some and pull again, what is here is kept", "disk-full") from e
            raise IOFailure(f"{self.path}: cannot be written: {e.strerror}", "io-write") from e

    # --- the parts --------------------------------------------------------------------------------------------------------------

    def complete(self, donor: Container | None) -> None:
        """Fetches what is not there. donor: an older version of the model, from which equal parts are copied."""
        missing = list(self.c.units()) if self.fresh else _missing(self.c, self.fd, self._progress)
        missing = [u for u in missing if u[3]]
        if donor is not None:
            missing = self._copied(donor, missing)
        self._done = self.c.file_bytes - sum(u[2] for u in missing)
        jobs, todo, done = list(_jobs(missing)), SimpleQueue(), SimpleQueue()
        for job in jobs:
            todo.put(job)
        threads = [threading.Thread(target=self._work, args=(todo, done), daemon=True) for _ in range(min(THREADS, len(jobs)))]
        for t in threads:
            t.start()
        for _ in jobs:
            if (error := done.get()) is not None:
                self._stop.set()
                for t in threads:
                    t.join(CLOSING_S / THREADS)
                raise error

    def _work(self, todo: SimpleQueue, done: SimpleQueue) -> None:
        """One of several threads. After an error they have CLOSING_S to close their connections, after Ctrl-C nothing: a silent server
        would hold them for minutes."""
        while not self._stop.is_set():
            try:
                self._fetch(todo.get_nowait())
                done.put(None)
            except Empty:
                return
            except BaseException as e:          # raised again by complete()
                done.put(e)

    def _copied(self, donor: Container, missing: list[Unit]) -> list[Unit]:
        have = {(u[2], u[3]): u[1] for u in donor.units()}
        left = []
        with FileReader(donor.path) as f:
            for unit in missing:
                at = have.get(unit[2:])
                data = f.read(at, unit[2]) if at is not None and unit[2] <= SPAN_BYTES else b""
                if data and _digest([data]) == unit[3]:
                    self._write(data, unit[1])
                else:
                    left.append(unit)
        return left

    def _fetch(self, job: list[Unit]) -> None:
        """Units that lie close together, by one request. Each is written as soon as it is here; one that is wrong is asked for again alone."""
        if len(job) == 1:
            return self._fetch_alone(job[0])
        start, end = job[0][1], job[-1][1] + job[-1][2]
        data, wrong, todo = bytearray(), [], deque(job)
        with closing(self.remote.pieces(start, end - start)) as pieces:
            for piece in pieces:
                self._go_on()
                data += piece
                while todo and todo[0][1] + todo[0][2] <= start + len(data):
                    unit = todo.popleft()
                    part = bytes(data[unit[1] - start:unit[1] - start + unit[2]])
                    if _digest([part]) == unit[3]:
                        self._write(part, unit[1])
                        self._count(unit[2])
                    else:
                        wrong.append(unit)
        for unit in wrong:
            self._fetch_alone(unit)

    def _fetch_alone(self, unit: Unit) -> None:
        """One unit, span by span. Of one larger than a span, those stay that an interrupted pull has written, if the whole is right then."""
        label, offset, nbytes, want = unit
        kept = not self.fresh and nbytes > SPAN_BYTES
        for _ in range(TRIES + kept):
            h = blake3()
            for at in range(offset, offset + nbytes, SPAN_BYTES):
                n = min(SPAN_BYTES, offset + nbytes - at)
                data = self._there(at, n) if kept else b""
                if data == bytes(len(data)):                # nothing was written here
                    data = self._received(at, n)
                    self._write(data, at)
                h.update(data)
                self._count(n)
            if h.digest(L.CHECKSUM_BYTES) == want:
                return
            self._count(-nbytes)
            kept = False
        raise FormatError(f"{self.remote.path}: {label}: checksum differs, {TRIES} times; the hub's file is damaged, tell its "
                          "owners", "format-checksum", "R28", offset)

    def _received(self, offset: int, n: int) -> bytes:
        with closing(self.remote.pieces(offset, n)) as pieces:      # its connection too, now and not when an error is forgotten
            data = bytearray()
            for piece in pieces:
                self._go_on()
                data += piece
            return bytes(data)

    def _there(self, offset: int, n: int) -> bytes:
        with self._disk(), self._lock:
            self._go_on()
            return os.pread(self.fd, n, offset)

    def _write(self, data: bytes, offset: int) -> None:
        with self._disk(), self._lock:
            self._go_on()
            write_all(self.fd, data, offset)

    def _go_on(self) -> None:
        if self._stop.is_set():
            raise IOFailure(f"{self.remote.path}: stopped", "hub-network")

    def _count(self, n: int) -> None:
        with self._lock:
            self._go_on()
            self._done += n
            self._progress(self._done, self.c.file_bytes)

    # --- the end ----------------------------------------------------------------------------------------------------------------

    def promote(self, target: Path) -> None:
        """Padding, table of the tail, index, and last the header; then the name. Raises IOFailure if another process interferes."""
        c, end = self.c, 0
        head = self.remote.read(0, c.index.offset + c.index.nbytes)
        for _, offset, nbytes, want in [("head", 0, len(head), b"head"), *c.units()]:
            self._zero(end, offset)
            if not want:
                self._write(self.remote.read(offset, nbytes), offset)
            end = offset + nbytes
        self._write(head[L.HEADER_BYTES:], L.HEADER_BYTES)
        with self._disk():
            os.fsync(self.fd)
            write_all(self.fd, head[:L.HEADER_BYTES], 0)
            os.fsync(self.fd)
            if os.fstat(self.fd).st_ino != os.stat(self.path).st_ino:
                raise IOFailure(f"{self.path}: was replaced while it was written", "file-changed")
            os.replace(self.path, target)
            sync_folder(target.parent)
        if Container.open(target).root != c.root:
            raise IOFailure(f"{target}: was replaced while it was written", "file-changed")

    def _zero(self, start: int, stop: int) -> None:
        """Padding; it is shorter than an alignment."""
        with self._disk():
            if any(os.pread(self.fd, stop - start, start)):
                write_all(self.fd, bytes(stop - start), start)


def _jobs(units: list[Unit]) -> Iterator[list[Unit]]:
    """Neighbours that one request brings."""
    job: list[Unit] = []
    for unit in units:
        if job and (unit[1] + unit[2] - job[0][1] > SPAN_BYTES or unit[1] - job[-1][1] - job[-1][2] > GAP_BYTES):
            yield job
            job = []
        job.append(unit)
    if job:
        yield job


def describe(done: Pulled) -> str:
    """One line for people."""
    text = f"{done.path}: {fmt_bytes(done.file_bytes)}, every checksum right"
    if done.repaired:
        parts = ", ".join(done.repaired[:3])
        return f"{text}; {len(done.repaired)} damaged parts fetched again ({fmt_bytes(done.fetched)}): {parts}"
    return f"{text}, {fmt_bytes(done.fetched)} fetched"
