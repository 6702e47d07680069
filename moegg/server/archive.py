"""Conversations' states in files of a folder (--cache-dir), so that a server that starts again need not read them again.

A file is keyed by model, template and settings (the key, which its name begins with) and by its token ids (in its name as a hash,
and inside). It gets its name when it is whole; it is not flushed, so a power cut may damage it. What is damaged is ignored and removed
with a warning, what is another model's is left alone, and the oldest files go first once all are larger than the limit.
Layout: MAGIC, length of the header (u32), header (JSON: key, tokens, high, parts), token ids (i32), a checksum of all that, the
parts' bytes, a checksum of those. Little-endian; checksums are BLAKE3, 16 bytes. A file's user wrote the prompts in it: mode 0600.
"""
from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from blake3 import blake3

from moegg import log
from moegg.engine.state import Snapshot
from moegg.errors import IOFailure
from moegg.units import fmt_bytes

MAGIC, SUFFIX, PARTIAL = b"MOEGGST1", ".session", ".partial"
CHECKSUM = 16
MAX_HEADER, MAX_TOKENS = 1 << 20, 1 << 24
DTYPES = {"f2": np.dtype("<f2"), "f4": np.dtype("<f4"), "i4": np.dtype("<i4")}
STALE_S = 3600.0                # a partial file that old has no writer any more


def pack(tokens: Sequence[int]) -> bytes:
    """Token ids as little-endian i32: a ninth of a list's memory, and quick to compare."""
    return np.asarray(tokens, "<i4").tobytes()


class Damaged(Exception):
    """A file that is not what it should be."""


class Archive:
    """facts: everything that a state depends on besides its tokens, as JSON values. limit: bytes of all files in the folder."""

    def __init__(self, folder: Path, facts: Any, limit: int):
        """Raises IOFailure if the folder cannot be made or read."""
        self._folder, self._limit = folder, limit
        self._key = blake3(json.dumps(facts, sort_keys=True).encode()).hexdigest(CHECKSUM)
        self.files: dict[Path, bytes] = {}          # of this key, the oldest first: token ids, packed
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = sorted(folder.iterdir(), key=_age)
        except OSError as e:
            raise IOFailure(f"{folder}: cannot be used for conversations: {e.strerror}", "io-open") from e
        for path in found:
            if path.name.endswith(PARTIAL) and time.time() - _age(path) > STALE_S:
                self._remove(path)
            elif path.name.startswith(self._prefix) and path.name.endswith(SUFFIX):
                try:
                    with open(path, "rb") as f:
                        self.files[path] = self._head(f)[0]
                except (OSError, Damaged) as e:
                    self._ignore(path, e)

    @property
    def _prefix(self) -> str:
        return self._key[:16] + "-"

    def write(self, snapshot: Snapshot) -> Path | None:
        """Saves a state; None, with a warning, if that fails or it is larger than the limit."""
        tokens = pack(snapshot.tokens)
        header = json.dumps({"key": self._key, "tokens": len(snapshot.tokens), "high": snapshot.high,
                             "parts": [[p.dtype.str[1:], list(p.shape)] for p in snapshot.parts]}).encode()
        head = MAGIC + len(header).to_bytes(4, "little") + header + tokens
        path = self._folder / f"{self._prefix}{blake3(tokens).hexdigest(CHECKSUM)}{SUFFIX}"
        partial = path.with_name(f"{path.name}.{os.getpid()}{PARTIAL}")
        try:
            if not self._make_room(len(head) + sum(p.nbytes for p in snapshot.parts) + 2 * CHECKSUM, path):
                return None
            body = blake3()
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as f:
                f.write(head + blake3(head).digest(CHECKSUM))
                for part in snapshot.parts:
                    data = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
                    body.update(data)
                    f.write(data)
                f.write(body.digest(CHECKSUM))
            os.replace(partial, path)
        except OSError as e:
            log.warn(f"{path}: a conversation could not be saved: {e.strerror}")
            self._remove(partial)
            return None
        self.files.pop(path, None)
        self.files[path] = tokens
        return path

    def read(self, path: Path) -> Snapshot | None:
        """The state in a file of `files`; None, with a warning, if it cannot be used any more."""
        try:
            with open(path, "rb") as f:
                tokens, high, shapes = self._head(f)
                parts, body = [], blake3()
                for dtype, shape in shapes:
                    part = np.empty(shape, dtype)
                    data = part.reshape(-1).view(np.uint8)
                    if f.readinto(data) != part.nbytes:
                        raise Damaged("it is cut short")
                    body.update(data)
                    parts.append(part)
                if f.read(CHECKSUM + 1) != body.digest(CHECKSUM):
                    raise Damaged("its checksum does not match")
            os.utime(path)
        except (OSError, Damaged, MemoryError) as e:
            self._ignore(path, e)
            return None
        return Snapshot(tuple(np.frombuffer(tokens, "<i4").tolist()), None, high, tuple(parts))

    def drop(self, path: Path) -> None:
        """Forgets a file, which something newer has replaced."""
        self.files.pop(path, None)
        self._remove(path)

    # --- inside -----------------------------------------------------------------------------------------------------------

    def _head(self, f: BinaryIO) -> tuple[bytes, int, list[tuple[np.dtype, list[int]]]]:
        """(packed tokens, high, [(dtype, shape) of each part]); f then stands in front of the parts. Raises Damaged."""
        start = f.read(12)
        n = int.from_bytes(start[8:], "little")
        if start[:8] != MAGIC or n > MAX_HEADER:
            raise Damaged("it is no saved conversation")
        text = f.read(n)
        try:
            header = json.loads(text)
            count, high, parts = header["tokens"], header["high"], [(DTYPES[d], s) for d, s in header["parts"]]
            if header["key"] != self._key:
                raise Damaged("it belongs to another model")
            sizes = [count, high, *(x for _, shape in parts for x in shape)]
            if not all(type(x) is int and 0 <= x <= 1 << 40 for x in sizes) or count > MAX_TOKENS:
                raise Damaged("its header makes no sense")
        except (ValueError, KeyError, TypeError, RecursionError):
            raise Damaged("its header cannot be read") from None
        total = 12 + n + 4 * count + 2 * CHECKSUM + sum(d.itemsize * math.prod(s) for d, s in parts)
        if os.fstat(f.fileno()).st_size != total:
            raise Damaged("it has the wrong size")
        ids = f.read(4 * count)
        if f.read(CHECKSUM) != blake3(start + text + ids).digest(CHECKSUM):
            raise Damaged("its checksum does not match")
        return ids, high, parts

    def _all(self) -> list[tuple[float, int, Path]]:
        """(time of the last use, bytes, path) of every saved state."""
        out = []
        for path in self._folder.glob("*" + SUFFIX):
            try:
                s = path.stat()
            except OSError:                             # another server's, just removed
                continue
            out.append((s.st_mtime, s.st_size, path))
        return sorted(out)

    def _make_room(self, need: int, mine: Path) -> bool:
        """Removes the oldest files until `need` bytes more stay within the limit."""
        if need > self._limit:
            log.detail(f"a conversation of {fmt_bytes(need)} is not saved: more than --cache-size {fmt_bytes(self._limit)}")
            return False
        found = [x for x in self._all() if x[2] != mine]
        have = sum(size for _, size, _ in found)
        for _, size, path in found:
            if have + need <= self._limit:
                break
            self.drop(path)
            have -= size
        return True

    def _ignore(self, path: Path, why: Exception) -> None:
        """A file that cannot be used: removed, unless the system refused to read it."""
        reason = getattr(why, "strerror", None) or str(why) or type(why).__name__
        log.warn(f"{path}: a saved conversation is ignored: {reason}")
        self.files.pop(path, None)
        if isinstance(why, Damaged):
            self._remove(path)

    @staticmethod
    def _remove(path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as e:
            log.warn(f"{path}: cannot be removed: {e.strerror}")


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
