"""Sources on a hub: a repository of safetensors, of which one shard at a time lies on this disk, and a GGUF, which does so whole
once its header has been planned with.

Small files and headers are fetched first, into a working folder beside the output; of each shard a sparse file stands there that
holds its header alone. Weights are read by ranges until an eighth of a shard has been asked for; then the shard is fetched whole,
compared with the hub's SHA-256, and the one before is dropped. So the tensors outside of experts, which a conversion writes first,
do not bring every shard twice. The folder is removed at the end, and by the next conversion after a crash.
"""
import fcntl
import hashlib
import os
import re
import shutil
import threading
from contextlib import closing
from pathlib import Path

import numpy as np

from moegg import log
from moegg.converters.gguf import GGUFSource
from moegg.converters.hf import JSON_LIMIT, HFSource
from moegg.errors import FormatError, IOFailure, MoeggError, NotFound, UsageError
from moegg.formats.rawfile import RawFile
from moegg.formats.safetensors import HEADER_LIMIT, INDEX
from moegg.formats.writer import check_room, write_all
from moegg.hub.address import Address
from moegg.hub.remote import RemoteFile, commit_of, list_files, missing_file, only_one
from moegg.units import fmt_bytes

SMALL = re.compile(r"[^/]+\.(json|jinja)|tokenizer\.model|README\.md|(licen[sc]e|notice|copying)[^/]*"
                   r"|additional_chat_templates/[^/]+\.jinja", re.I)
PART, MOST_PARTS = re.compile(r"-\d{5}-of-(\d{5})\.gguf$"), 999
BESIDE = ("mmproj", "imatrix")    # GGUF files that are no models: encoders of images, measurements
FETCH_SHARE, TRIES = 8, 2        # a shard is fetched whole when 1/8 of it has been read by ranges; again if it is damaged


def hub_source(address: Address, folder: Path) -> "HubSource | HubGGUF":
    """The source at `address`: a repository of safetensors, or a GGUF file of it. Works in `folder`, which must exist.

    Raises NotFound, FormatError, UnsupportedModel, UsageError, NoRoom, IOFailure.
    """
    files = list_files(address)
    if address.file is None and not ("config.json" in files and any("/" not in f and f.endswith(".safetensors") for f in files)):
        address = _only_gguf(address, files)
    if address.file is None:
        return HubSource(address, files, folder)
    if address.file not in files:
        raise missing_file(address, files)
    if not address.file.endswith(".gguf"):
        hint = f"; it is a .moegg file already: moegg pull {address}" if address.file.endswith(".moegg") else ""
        raise FormatError(f"{address}: got one file, expected a repository or a GGUF file{hint}", "source-kind")
    split = PART.search(address.file)
    names = [address.file.replace(split[0], _part(address.file, i + 1)) for i in range(int(split[1]))] if split else [address.file]
    return HubGGUF(address, names[:MOST_PARTS], folder)


def _only_gguf(address: Address, files: list[str]) -> Address:
    """The address of the one GGUF model of a repository, or as it was. Raises UsageError naming them, FormatError for .moegg files."""
    ggufs = [f for f in files if f.endswith(".gguf") and not f.rpartition("/")[2].startswith(BESIDE)]
    if models := [f for f in ggufs if PART.search(f) is None or f.endswith(_part(f, 1))]:
        return only_one(address, models)
    if any(f.endswith(".moegg") for f in files) and not any(f.endswith(".safetensors") for f in files):
        raise FormatError(f"{address}: holds .moegg files already, expected safetensors or GGUF; fetch one: moegg pull {address}", "source-kind")
    return address


def _part(file: str, i: int) -> str:
    """The end of the name of part i of a split GGUF."""
    return PART.sub(rf"-{i:05d}-of-\1.gguf", PART.search(file)[0])


class _Work:
    """The working folder, held alone; `snapshot` is named as a hub cache names it, which tells the source repository and revision.

    Raises UsageError if another conversion holds it, NotFound, IOFailure.
    """

    def __init__(self, address: Address, folder: Path):
        self.commit = commit_of(address)
        self.root = folder / f".{address.repo.replace('/', '--')}.convert.partial"
        try:
            self.root.mkdir(exist_ok=True)
            self._fd = os.open(self.root, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise NotFound(f"{folder}: no such folder", "file-missing") from None
        except OSError as e:
            raise IOFailure(f"{self.root}: cannot be made: {e.strerror}", "io-write") from e
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise UsageError(f"{self.root}: another moegg process converts {address}; wait for it or stop it", "target-busy") from None
        except OSError:
            pass                                                # a file system without locks
        for left in self.root.iterdir():                        # by a crash
            shutil.rmtree(left, ignore_errors=True)
        self.snapshot = self.root / f"models--{address.repo.replace('/', '--')}" / "snapshots" / (self.commit or "main")
        self.snapshot.mkdir(parents=True)
        self.at = Address(address.repo, None, self.commit or address.revision)

    def remove(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        os.close(self._fd)


class HubSource(HFSource):
    """A repository. scratch: bytes of disk that reading it takes, the largest shard."""

    def __init__(self, address: Address, files: list[str], folder: Path):
        self._work = _Work(address, folder)
        try:
            shards = self._small_files(files)
            super().__init__(self._work.snapshot)
            self._stream({name: shard for name, shard in shards.items() if name in self.files})
        except BaseException as e:
            self._work.remove()
            if isinstance(e, FormatError | NotFound):
                raise type(e)(e.message.replace(str(self._work.snapshot), str(address)), e.slug) from None
            raise
        self.warnings[:] = [w.replace(str(self._work.snapshot), str(address)) for w in self.warnings]
        self.scratch = max(self.files.values())

    def _small_files(self, files: list[str]) -> dict[str, RemoteFile]:
        """Fetches what is no weights, and stands sparse files with headers in for the shards."""
        at, shards = self._work.at, {}
        for name in files:
            path = self._work.snapshot / at.of(name).file
            if SMALL.fullmatch(name):
                path.parent.mkdir(exist_ok=True)
                remote = RemoteFile(at.of(name))
                with open(path, "wb") as f:
                    f.truncate(remote.size)                     # one above the limit stays empty: HFSource refuses it by its size
                    if remote.size <= JSON_LIMIT:
                        f.write(remote.read(0, remote.size))
            elif "/" not in name and name.endswith(".safetensors"):
                shards[name] = path
            elif "/" not in name and name.endswith((".bin", ".gguf")):
                path.touch()                                    # for HFSource's errors, which name them
        index = self._work.snapshot / INDEX
        listed = re.findall(r'"([^"/]+\.safetensors)"', index.read_text("utf-8", "replace")) if index.exists() else shards
        return {name: _stand_in(RemoteFile(at.of(name)), path) for name, path in shards.items() if name in set(listed)}

    def _stream(self, shards: dict[str, RemoteFile]) -> None:
        window = _Window()
        for name, remote in shards.items():
            old = self._set.replace_file(name, lambda path, remote=remote: _Shard(path, remote, window))
            old.close()

    def close(self) -> None:
        super().close()
        self._work.remove()


class HubGGUF(GGUFSource):
    """A GGUF of a repository: the headers of its parts by ranges, and all of it when the first weight is asked for.

    So a plan costs megabytes, and what does not run is refused before it is fetched. scratch: bytes of all parts.
    """

    def __init__(self, address: Address, names: list[str], folder: Path):
        self._work, self._lock = _Work(address, folder), threading.Lock()
        self._parts: list[_Part] = []
        try:
            remotes = {self._work.snapshot / Path(name).name: RemoteFile(self._work.at.of(name)) for name in names}
            for path, remote in remotes.items():
                with open(path, "wb") as f:
                    f.truncate(remote.size)
            super().__init__(next(iter(remotes)), lambda path: self._opened(path, remotes[path]))
        except BaseException as e:
            self._work.remove()
            if isinstance(e, MoeggError) and not isinstance(e, OSError):
                raise type(e)(e.message.replace(str(self._work.snapshot), str(address)), e.slug) from None
            raise
        self.provenance |= {"repo": address.repo, "revision": self._work.commit}
        self.scratch = sum(self.files.values())

    def _opened(self, path: Path, remote: RemoteFile) -> "_Part":
        self._parts.append(_Part(path, remote))
        return self._parts[-1]

    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        with self._lock:
            for part in self._parts:
                part.fetch()
        return super().rows(name, start, stop)

    def close(self) -> None:
        super().close()
        self._work.remove()


class _Part(RawFile):
    """A file of which ranges are read until it is fetched."""

    def __init__(self, path: Path, remote: RemoteFile):
        super().__init__(path)
        self._remote, self._here = remote, False

    def read(self, offset: int, n: int) -> np.ndarray:
        return super().read(offset, n) if self._here else np.frombuffer(self._remote.read(offset, n), np.uint8)

    def fetch(self) -> None:
        """Raises NoRoom, IOFailure, FormatError."""
        if not self._here:
            _fetch(self._remote, self.path)
            self._here = True


# --- shards -----------------------------------------------------------------------------------------------------------------

def _stand_in(remote: RemoteFile, path: Path) -> RemoteFile:
    """A sparse file of the shard's size that holds its header; what is no safetensors file stays empty and is refused by that."""
    head = remote.read(0, min(8, remote.size))
    n = min(8 + int.from_bytes(head, "little"), 8 + HEADER_LIMIT, remote.size)
    with open(path, "wb") as f:
        f.truncate(remote.size)
        f.write(remote.read(0, n))
    return remote


class _Window:
    """Which shard is on the disk; held while one is read or exchanged."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.shard: _Shard | None = None


class _Shard(RawFile):
    """A shard of which only the header is here, until much of it is wanted."""

    def __init__(self, path: Path, remote: RemoteFile, window: _Window):
        super().__init__(path)
        self._remote, self._window, self._asked = remote, window, 0
        self._head = 8 + int.from_bytes(super().read(0, 8), "little")

    def read(self, offset: int, n: int) -> np.ndarray:
        if offset + n <= self._head:
            return super().read(offset, n)
        with self._window.lock:
            if self._window.shard is not self:
                self._asked += n
                if self._asked * FETCH_SHARE >= self.size:
                    self._enter()
            if self._window.shard is self:
                return super().read(offset, n)
        return np.frombuffer(b"".join(self._remote.pieces(offset, n)), np.uint8)

    def _enter(self) -> None:
        """Drops the shard that is here and fetches this one. Raises NoRoom, IOFailure, FormatError."""
        before, self._window.shard = self._window.shard, None
        if before is not None:
            before.leave()
        _fetch(self._remote, self.path)
        self._window.shard, self._asked = self, 0

    def leave(self) -> None:
        """Gives the disk back; the header stays."""
        os.truncate(self.path, self._head)
        os.truncate(self.path, self.size)


def _fetch(remote: RemoteFile, path: Path) -> None:
    """The whole file, compared with its SHA-256 where the hub says it. Raises NoRoom, IOFailure, FormatError."""
    check_room(path, remote.size)
    log.info(f"{remote.path}: fetching {fmt_bytes(remote.size)}")
    for _ in range(TRIES):
        h, at = hashlib.sha256(), 0
        with open(path, "r+b", buffering=0) as f, closing(remote.pieces(0, remote.size)) as pieces:
            for piece in pieces:
                h.update(piece)
                write_all(f.fileno(), piece, at)
                at += len(piece)
        if h.hexdigest() == remote.etag or not re.fullmatch(r"[0-9a-f]{64}", remote.etag or ""):
            return
    raise FormatError(f"{remote.path}: arrived damaged {TRIES} times: got SHA-256 {h.hexdigest()}, expected {remote.etag}",
                      "hub-checksum")
