"""Usage history: how often each expert of a model was used, kept between runs so that the next one starts warm.

One small file per content id under the XDG cache, never in the model file; it survives re-layout of the model, and holds counts,
not text. A run adds what it really used, once; old runs fade. The file is replaced as a whole under a lock, so that a crash or a
second process loses nothing. A file of another model, or a damaged one, is refused with a note and does no harm.

File: one JSON line {"moegg_usage": 1, "content_id", "records", "tokens"}, then float32 little-endian counts by layer and expert.
"""
import json
import math
import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from moegg import log
from moegg.files import whole_file

VERSION = 1
FADE_TOKENS = 100_000        # the history is halved when it covers more than twice as many: habits change
MAX_HEADER = 4096


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/moegg, or ~/.cache/moegg (macOS: ~/Library/Caches/moegg)."""
    base = os.environ.get("XDG_CACHE_HOME")
    if base and Path(base).is_absolute():
        return Path(base) / "moegg"
    mac = Path.home() / "Library/Caches"
    return (mac if mac.is_dir() else Path.home() / ".cache") / "moegg"


@dataclass
class Usage:
    """counts float32 [records] by layer and expert, and the tokens they come from. All zero: nothing is known."""
    counts: np.ndarray
    tokens: float = 0.0

    def seed(self, half_life: float) -> np.ndarray:
        """Scores float64 [records] for Store.seed: those of a run that has seen these habits for long, at most half as firm."""
        if self.tokens <= 0:
            return np.zeros(len(self.counts))
        steady = half_life / math.log(2) / 2                # decayed uses of an expert that every token uses, halved
        return self.counts.astype(np.float64) / self.tokens * min(steady, self.tokens)


class UsageFile:
    """The history of one model. content_id: the container's; records: expert records in it; folder None: the user's cache."""

    def __init__(self, content_id: bytes, records: int, folder: Path | None = None):
        self.content_id, self.records = content_id.hex(), records
        self.path = (folder or cache_folder()) / "usage" / f"{self.content_id}.bin"

    def load(self) -> Usage:
        """The stored history; an empty one if there is none, or if it does not belong to this model."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return self._empty()
        except OSError as e:
            log.warn(f"usage history {self.path}: cannot be read: {e.strerror}; starting without")
            return self._empty()
        try:
            return self._parse(data)
        except ValueError as e:
            log.warn(f"usage history {self.path}: {e}; starting without, the file will be replaced")
            return self._empty()

    def add(self, counts: np.ndarray, tokens: int) -> None:
        """Adds one run's own uses [records] to the file. Failing to write is a note, not an error."""
        if tokens <= 0:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(self.path.with_suffix(".lock")):
                before = self.load()
                total, n = before.counts + counts.astype(np.float32), before.tokens + tokens
                if n > 2 * FADE_TOKENS:
                    total, n = total / 2, n / 2
                self._write(Usage(total, n))
        except OSError as e:
            log.warn(f"usage history {self.path}: not saved: {e.strerror} (--no-usage does without)")

    def _empty(self) -> Usage:
        return Usage(np.zeros(self.records, np.float32))

    def _parse(self, data: bytes) -> Usage:
        head, newline, body = data.partition(b"\n")
        if not newline or len(head) > MAX_HEADER:
            raise ValueError("no usage history")
        meta = json.loads(head)
        if not isinstance(meta, dict) or meta.get("moegg_usage") != VERSION:
            raise ValueError(f"got version {meta.get('moegg_usage') if isinstance(meta, dict) else None}, expected {VERSION}")
        if meta.get("content_id") != self.content_id or meta.get("records") != self.records:
            raise ValueError("belongs to another model")
        counts = np.frombuffer(body, "<f4") if len(body) == 4 * self.records else np.zeros(0)
        tokens = meta.get("tokens")
        sound = isinstance(tokens, (int, float)) and 0 <= tokens < 1e15 and np.isfinite(counts).all() and (counts >= 0).all()
        if len(counts) != self.records or not sound:
            raise ValueError("damaged")
        return Usage(counts.astype(np.float32), float(tokens))

    def _write(self, usage: Usage) -> None:
        head = {"moegg_usage": VERSION, "content_id": self.content_id, "records": self.records, "tokens": usage.tokens}
        with whole_file(self.path, 0o600) as f:
            f.write(json.dumps(head, sort_keys=True).encode() + b"\n" + usage.counts.astype("<f4").tobytes())


@contextmanager
def _locked(path: Path):
    """Held while a file is read, changed and replaced; freed by the system if the process dies."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
    try:
        try:
            import fcntl  # not on Windows
            fcntl.flock(fd, fcntl.LOCK_EX)
        except ImportError:
            pass
        yield
    finally:
        os.close(fd)
