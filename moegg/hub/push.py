"""Puts a container into a repository of a hub, with a model card. What is uploaded has been verified byte for byte before."""
import os
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi, utils

from moegg import __version__
from moegg.errors import FormatError, UsageError
from moegg.formats.container import Container
from moegg.formats.sections import section_json
from moegg.hub.address import Address
from moegg.hub.card import write_card
from moegg.hub.remote import RemoteFile, endpoint, list_files, named_errors
from moegg.units import fmt_bytes

MOST_BYTES, ADVISED_BYTES = 500 << 30, 200 << 30     # per file: the hub's limit, and what it recommends
CARD, CARD_BYTES = "README.md", 1 << 20


@dataclass(frozen=True)
class Pushed:
    """url: of the commit. card: whether the model card was written; False if the repository has one of its own."""
    url: str
    card: bool


def push(container: Container, address: Address, private: bool = False) -> Pushed:
    """Uploads to the file that `address` names, making the repository if there is none; only a public or `private` new one.

    Raises UsageError, NotFound, IOFailure. The caller verifies the container before.
    """
    if container.file_bytes > MOST_BYTES:
        raise UsageError(f"{container.path}: is {fmt_bytes(container.file_bytes)}, expected at most {fmt_bytes(MOST_BYTES)}, which "
                         "is what a hub takes per file", "hub-large")
    if container.parts:
        raise UsageError(f"{container.path}: is a part; join them with cat and push the whole", "hub-parts")
    if container.edited:
        raise UsageError(f"{container.path}: an edit was cut off and its tail is not yet in the file; finish it with 'moegg edit'",
                         "hub-edited")
    api = HfApi(endpoint=endpoint(), library_name="moegg", library_version=__version__)
    with named_errors(address):
        api.create_repo(address.repo, private=private, exist_ok=True)
    before = _card(address) if CARD in list_files(address) else None
    card = write_card(container, address.repo, address.file, _json(container, "provenance"), _json(container, "quality"), before)
    work = [CommitOperationAdd(path_in_repo=address.file, path_or_fileobj=os.path.realpath(container.path))]
    if card is not None:
        work.append(CommitOperationAdd(path_in_repo=CARD, path_or_fileobj=card.encode()))
    with named_errors(address):
        done = api.create_commit(address.repo, work, commit_message=f"Add {address.file} (moegg {__version__})",
                                 revision=address.revision)
    return Pushed(str(done.commit_url), card is not None)


def quiet() -> None:
    """No progress bars: nobody watches."""
    utils.disable_progress_bars()


def _card(address: Address) -> str:
    file = RemoteFile(address.of(CARD))
    return file.read(0, min(file.size, CARD_BYTES)).decode("utf-8", "replace")


def _json(container: Container, name: str) -> dict:
    """A JSON section that the card quotes; what is no object is quoted as nothing."""
    try:
        return section_json(container, name)
    except FormatError as e:
        if e.slug != "section-json":
            raise
        return {}


def default_file(path: Path) -> str:
    return path.name if path.suffix == ".moegg" else f"{path.name}.moegg"
