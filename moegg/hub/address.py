"""Names of models on a hub: hf:USER/REPO[@REVISION][/FILE], and USER/REPO[@REVISION][:FILE] where nothing else can be meant.

Owns what may be in such a name. An address comes from people and from listings of strangers; its parts become names of folders.
"""
import re
from dataclasses import dataclass
from pathlib import Path

from moegg.errors import UsageError

SCHEME = "hf:"
_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}"


@dataclass(frozen=True)
class Address:
    """A repository, or a file of it. revision None: the newest."""
    repo: str
    file: str | None = None
    revision: str | None = None

    def __str__(self) -> str:
        at = f"@{self.revision}" if self.revision else ""
        return f"{SCHEME}{self.repo}{at}" + (f"/{self.file}" if self.file else "")

    def of(self, file: str) -> "Address":
        """The address of a file of the same repository. Raises UsageError for a name that could leave its folder."""
        return Address(self.repo, _file(file, str(self)), self.revision)

    def local(self, folder: Path) -> Path:
        """Where the file, or without one the repository, lies below `folder`; a revision that was asked for has its own place."""
        return folder / f"{self.repo}{f'@{self.revision}' if self.revision else ''}" / (self.file or "")


def is_address(text: str) -> bool:
    return text.startswith(SCHEME)


def likely(text: str) -> Address | None:
    """The repository that people mean who write what is no address: USER/REPO, or the web page of one."""
    site, path = re.fullmatch(r"((?:https?:/+)?(?:www\.)?(?:huggingface\.co|hf\.co)/+)?(.*)", text, re.S).groups()
    found = re.match(rf"({_PART}/{_PART})(?:[/:?#]|$)" if site else rf"({_PART}/{_PART})$", path)
    return Address(found[1]) if found else None


def parse_address(text: str) -> Address:
    """Raises UsageError."""
    rest = text.removeprefix(SCHEME)
    repo, _, file = rest.partition(":")
    parts = repo.split("/", 2)
    if not file and len(parts) == 3:
        file = parts.pop()
    name, at, revision = "/".join(parts).partition("@")
    if text.endswith((":", "/")) or not re.fullmatch(rf"{_PART}/{_PART}", name) or (at and not re.fullmatch(_PART, revision)):
        hint = f"; did you mean {found}?" if (found := likely(text.removeprefix(SCHEME))) else ""
        raise UsageError(f"{text}: not the name of a model on a hub: expected {SCHEME}USER/REPO or {SCHEME}USER/REPO/FILE{hint}",
                         "hub-address")
    return Address(name, _file(file, text) if file else None, revision or None)


def _file(name: str, where: str) -> str:
    if len(name) > 500 or not name.isprintable() or "\\" in name or any(p in ("", ".", "..") for p in name.split("/")):
        raise UsageError(f"{where}: file {name!r:.80}: expected a plain name in the repository", "hub-address")
    return name
