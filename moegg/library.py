"""The local store of models: one folder, plain files (whole or in parts), and how the name of a model becomes a path.

MOEGG_HOME, else $XDG_DATA_HOME/moegg, else ~/.local/share/moegg; in it models/USER/REPO/FILE.moegg as pulled, and whatever .moegg
files people put below models/. The tree is the only state: there is no index that could disagree. Knows names, opens no file.
"""
import os
import re
from dataclasses import dataclass
from pathlib import Path

from moegg.errors import IOFailure, NotFound, UsageError

SUFFIX, PARTIAL = ".moegg", ".moegg.partial"
_FIRST = re.compile(r"(.+)\.moegg(\.00001-of-(\d{5}))")         # of a split file: formats/split.py


@dataclass(frozen=True)
class Entry:
    """A model of the store. name: relative to models/, without suffix, '/' between its parts. partial: not yet complete."""
    name: str
    path: Path
    partial: bool = False

    @property
    def files(self) -> list[Path]:
        """All files of the model: one, or the parts that are there."""
        split = _FIRST.fullmatch(self.path.name)
        if split is None:
            return [self.path]
        parts = (self.path.with_name(f"{split[1]}{SUFFIX}.{i:05d}-of-{split[3]}") for i in range(1, int(split[3]) + 1))
        return [p for p in parts if os.path.lexists(p)]

    @property
    def nbytes(self) -> int:
        """Bytes of its files; of an incomplete one those that are there, as it has its full length from the start."""
        stats = [p.stat() for p in self.files if p.exists()]
        return sum(s.st_blocks * 512 if self.partial else s.st_size for s in stats)

    @property
    def short(self) -> str:
        return self.name.rpartition("/")[2]


def home() -> Path:
    """The folder of everything that moegg keeps for its user."""
    if own := os.environ.get("MOEGG_HOME"):
        return Path(own)
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base and Path(base).is_absolute() else Path.home() / ".local" / "share") / "moegg"


def models_folder() -> Path:
    return home() / "models"


def entries() -> list[Entry]:
    """All models of the store in order of their names, incomplete ones too. Raises IOFailure if its folder cannot be read."""
    root, out = models_folder(), []

    def refuse(e: OSError) -> None:
        if not isinstance(e, FileNotFoundError):
            raise IOFailure(f"{e.filename}: cannot be read: {e.strerror}", "io-open") from e

    for folder, _, files in os.walk(root, onerror=refuse):
        for name in files:
            path = Path(folder, name)
            if split := _FIRST.fullmatch(name):
                out.append(Entry(path.with_name(split[1]).relative_to(root).as_posix(), path))
            for suffix in (SUFFIX, PARTIAL):
                if name.endswith(suffix) and len(name) > len(suffix):
                    out.append(Entry(path.relative_to(root).as_posix().removesuffix(suffix), path, suffix == PARTIAL))
    return sorted(out, key=lambda e: (e.name, e.partial))


def matching(name: str, among: list[Entry]) -> list[Entry]:
    """The models that `name` means: its last parts (FILE, REPO/FILE, USER/REPO/FILE, with or without .moegg) in any case, or else
    all of the repository USER/REPO."""
    word = name.removesuffix(SUFFIX).lower()
    last = [e for e in among if f"/{e.name}".lower().endswith(f"/{word}")]
    exact = [e for e in last if e.name == name.removesuffix(SUFFIX)]
    return exact or last or [e for e in among if e.name.lower().rpartition("/")[0] == word]


def one(name: str, found: list[Entry]) -> Entry:
    """The only one of what was found. Raises NotFound, UsageError naming the candidates."""
    if not found:
        raise NotFound(f"{name}: no model of that name in '{models_folder()}'; 'moegg list' shows them", "model-unknown")
    if len(found) > 1:
        names = ", ".join(e.name for e in found[:5])
        raise UsageError(f"{name}: means {len(found)} models: {names}; give more of the name", "model-ambiguous")
    return found[0]


def find(name: str) -> Path | None:
    """The complete model that a MODEL argument means, or None. What looks like a path, absolute or from '.', is none."""
    if name.startswith(("/", ".", "~")) or not name:
        return None
    found = matching(name, [e for e in entries() if not e.partial])
    return one(name, found).path if found else None


def remove(entry: Entry) -> None:
    """Deletes a model of the store and the folders that it leaves empty. Raises IOFailure."""
    for path in entry.files:
        try:
            path.unlink(missing_ok=True)
        except OSError as e:
            raise IOFailure(f"{path}: cannot be removed: {e.strerror}", "io-write") from e
    for folder in entry.path.parents:
        if folder == models_folder():
            break
        try:
            folder.rmdir()
        except OSError:
            break       # holds other files
