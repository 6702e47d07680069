"""States of conversations that no timeline holds: in memory up to a budget, and in an archive's files if there is one.

Filled when a timeline is overwritten, at points that a state cannot go back to later, and, for the archive, when there is time.
What is least recently used goes first, into a file that is not yet written. Used by the engine thread only.
"""
from __future__ import annotations

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


class Shelf:
    """budget: bytes in memory."""

    def __init__(self, budget: int = 0, archive: Archive | None = None):
        self._budget, self._archive = budget, archive
        files = archive.files.items() if archive else ()
        self.entries = [Entry(packed, file=path, tried=True) for path, packed in files]      # the least recently used first

    @property
    def nbytes(self) -> int:
        return sum(e.snapshot.nbytes for e in self.entries if e.snapshot)

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

    def give(self, entry: Entry, session: Session) -> bool:
        """Makes `session` what the entry holds. False if that is gone or unfit, and then the entry too."""
        if entry.snapshot is None:
            self._shrink(self._budget - session.saved_bytes(len(entry)))
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

    def save(self, sessions: Iterable[Session]) -> bool:
        """One step towards having all entries and `sessions` in files; False if there is nothing to do."""
        if self._archive is None:
            return False
        entry = next((e for e in self.entries if e.snapshot and not e.tried), None)
        if entry is not None:
            self._write(entry)
            return True
        for session in sessions:
            self.put(session)
            if any(not e.tried for e in self.entries):
                return True
        return False

    def clear(self) -> None:
        """Gives the memory back; what can be written is."""
        self._shrink(0)

    # --- inside -----------------------------------------------------------------------------------------------------------

    def _shrink(self, limit: int, spare: Entry | None = None) -> None:
        """Takes entries out of memory, the least recently used first, until at most `limit` bytes are left."""
        for entry in [e for e in self.entries if e.snapshot and e is not spare]:
            if self.nbytes <= limit:
                return
            if not entry.tried:
                self._write(entry)
            entry.snapshot = None
            if not entry.file and entry in self.entries:
                self.entries.remove(entry)

    def _write(self, entry: Entry) -> None:
        """Into a file, if there is an archive; others may have to go for it."""
        entry.tried = True
        if self._archive is None:
            return
        entry.file = self._archive.write(entry.snapshot)
        for e in self.entries:
            if e.file not in self._archive.files:
                e.file = None
        self.entries = [e for e in self.entries if e.file or e.snapshot]

    def _forget(self, entry: Entry) -> None:
        self.entries.remove(entry)
        if entry.file:
            self._archive.drop(entry.file)
