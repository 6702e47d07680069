"""States of conversations that no timeline holds: in memory up to a budget, and in an archive's files if there is one.

Filled when a timeline is overwritten, at points that a state cannot go back to later, and, for the archive, when there is time.
What is least recently used goes first. Files are written one at a time by a thread of their own, when nobody asks for answers or half
of the budget is used, so that a slow disk delays no answer; what must go before its turn has come is not saved. Used by the engine
thread only.
"""
from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from moegg import log
from moegg.engine import Session
from moegg.engine.state import Snapshot
from moegg.errors import BadRequest
from moegg.server.archive import Archive, pack

LEAST_TOKENS = 64           # less is read again sooner than it is kept


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix of two lists, or two bytes; by bisection, so that comparing runs at the speed of slices."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        mid = (low + high + 1) // 2
        low, high = (mid, high) if a[low:mid] == b[low:mid] else (low, mid - 1)
    return low


@dataclass(eq=False)
class Entry:
    """A state's tokens, packed, and where it is: in memory, in a file, or both."""
    packed: bytes
    snapshot: Snapshot | None = None
    file: Path | None = None
    tried: bool = False         # to write it

    def __len__(self) -> int:
        return len(self.packed) // 4

    def shared(self, packed: bytes) -> int:
        """How many tokens it has in common with the beginning of `packed`."""
        return common_prefix(self.packed, packed) // 4


class _Pen(threading.Thread):
    """Writes one entry. path: its file, once the thread has ended; None if that failed. unwanted: something newer has replaced it."""

    def __init__(self, archive: Archive, entry: Entry):
        super().__init__(name="moegg-archive", daemon=True)
        self.entry, self.snapshot, self.path, self.unwanted = entry, entry.snapshot, None, False
        self._archive = archive
        self.start()

    def run(self) -> None:
        self.path = self._archive.write(self.snapshot)


class Shelf:
    """budget: bytes in memory, those of the entry that is being written included."""

    def __init__(self, budget: int = 0, archive: Archive | None = None):
        self._budget, self._archive = budget, archive
        self._pen: _Pen | None = None
        files = archive.files.items() if archive else ()
        self.entries = [Entry(packed, file=path, tried=True) for path, packed in files]      # the least recently used first

    @property
    def nbytes(self) -> int:
        held = {id(s): s.nbytes for s in (*(e.snapshot for e in self.entries), self._pen and self._pen.snapshot) if s}
        return sum(held.values())

    def put(self, session: Session, spare: Entry | None = None) -> None:
        """Keeps a session's state as it is, if that is worth it and fits; whatever else must go, `spare` stays."""
        size = session.saved_bytes(len(session))
        packed = pack(session.tokens)
        held = any(e.packed.startswith(packed) if session.rewinds else e.packed == packed for e in self.entries)
        if len(session) < LEAST_TOKENS or size > self._budget or held:
            return
        self._shrink(self._budget - size, spare)
        if self.nbytes + size > self._budget:
            return
        if session.rewinds:             # from this state one can go back to those
            for entry in [e for e in self.entries if e is not spare and packed.startswith(e.packed)]:
                self._forget(entry)
        self.entries.append(Entry(packed, replace(session.snapshot(), logits=None)))
        if self.nbytes > self._budget // 2:
            self._write()

    def give(self, entry: Entry, session: Session) -> bool:
        """Makes `session` what the entry holds. False if that is gone or unfit, and then the entry too."""
        if entry.snapshot is None:
            room = self._budget - session.saved_bytes(len(entry))
            self._shrink(room)
            if self.nbytes > room:      # until what is being written has gone
                return False
        snapshot = entry.snapshot or entry.file and self._archive.read(entry.file)
        if entry in self.entries:       # else a file of those above took its place
            self.entries.remove(entry)
        if not snapshot:
            return False
        try:
            session.restore(snapshot)
        except BadRequest as e:
            log.warn(f"a kept conversation is ignored: {e}")
            if entry.file:
                self._archive.drop(entry.file)
            return False
        if session.rewinds:             # the timeline has it now
            entry.snapshot = None
        if entry.snapshot or entry.file:
            self.entries.append(entry)
        return True

    def save(self, sessions: Iterable[Session], wait_s: float = 0.0) -> bool:
        """One step towards having all entries and `sessions` in files; False if there is nothing left to do. wait_s: how long to wait
        for what is being written."""
        if self._pen and wait_s:
            self._pen.join(wait_s)
        if self._write():
            return True
        for session in sessions if self._archive else ():
            self.put(session)
            if self._write():
                return True
        return False

    def clear(self) -> None:
        """Gives the memory back."""
        self._shrink(0)

    # --- inside -----------------------------------------------------------------------------------------------------------

    def _shrink(self, limit: int, spare: Entry | None = None) -> None:
        """Takes entries out of memory, the least recently used first, until at most `limit` bytes are left."""
        self._collect()
        for entry in [e for e in self.entries if e.snapshot and e is not spare and not (self._pen and e is self._pen.entry)]:
            if self.nbytes <= limit:
                return
            entry.snapshot = None
            if not entry.file:
                self.entries.remove(entry)

    def _write(self) -> bool:
        """Begins with the entry that has waited longest, unless one is being written. Whether one is being written now."""
        self._collect()
        if self._pen is None and self._archive:
            entry = next((e for e in self.entries if e.snapshot and not e.tried), None)
            if entry:
                entry.tried = True
                self._pen = _Pen(self._archive, entry)
        return self._pen is not None

    def _collect(self) -> None:
        """If an entry has been written, it has its file now, for which others may have gone."""
        pen = self._pen
        if pen is None or pen.is_alive():
            return
        self._pen = None
        if pen.path and pen.unwanted:
            self._archive.drop(pen.path)
        elif pen.path:
            pen.entry.file = pen.path
            if pen.entry not in self.entries:       # a timeline has gone on from it meanwhile
                self.entries.append(pen.entry)
        for e in self.entries:
            if e.file not in self._archive.files:
                e.file = None
        self.entries = [e for e in self.entries if e.file or e.snapshot]

    def _forget(self, entry: Entry) -> None:
        self.entries.remove(entry)
        if self._pen and self._pen.entry is entry:
            self._pen.unwanted = True
        if entry.file:
            self._archive.drop(entry.file)
