"""One file of a hub as a Reader: ranged reads of exactly what is asked for, cut connections taken up where they broke.

Names, tokens and errors are huggingface_hub's; requests go to a fixed commit, so that a file cannot change while it is read.
Never fetches a whole file because a server ignores ranges. Refuses to connect in offline mode. Importing it costs 0.2 s, so nothing
does before it is needed.
"""
import os
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from huggingface_hub import HfApi, ModelInfo, constants, errors, get_hf_file_metadata, get_token, hf_hub_url
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

from moegg import __version__, log
from moegg.errors import FormatError, IOFailure, MoeggError, NotFound, UsageError
from moegg.hub.address import Address

HEAD_BYTES = 1 << 20            # the first read brings preamble, index and small sections of most models
TRIES, PAUSE_S = 5, 1.0         # of a read that makes no progress; the pause doubles
TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
TIMEOUT_S = 30.0
MOST_NAMES = 40                 # of files in an error; repositories of quants have up to 30


def endpoint() -> str:
    """Where the hub is. Raises IOFailure in offline mode."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE") or constants.HF_HUB_OFFLINE:
        raise IOFailure("hub: offline mode is on (HF_HUB_OFFLINE), expected a model that is here: 'moegg list' shows them",
                        "hub-offline")
    return (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")


def require_token(what: object) -> None:
    """Raises IOFailure where there is no token to write with."""
    endpoint()
    if get_token() is None:
        raise IOFailure(f"{what}: got no token, expected one that may write; set HF_TOKEN or run 'hf auth login'", "hub-token")


def headers() -> dict[str, str]:
    """Of every request: the token, if there is one, and who asks."""
    return build_hf_headers(library_name="moegg", library_version=__version__)


@contextmanager
def named_errors(what: object) -> Iterator[None]:
    """Turns errors of the hub and the network into those of moegg, one line each."""
    try:
        yield
    except MoeggError:
        raise
    except errors.GatedRepoError:
        raise NotFound(f"{what}: its owners ask you to accept their terms: do that on its page, then set HF_TOKEN or run "
                       "'hf auth login'", "hub-gated") from None
    except errors.RepositoryNotFoundError:
        raise NotFound(f"{what}: no such repository, or a private one that needs a token (HF_TOKEN, or 'hf auth login')",
                       "hub-missing") from None
    except errors.RevisionNotFoundError:
        raise NotFound(f"{what}: no such revision of the repository", "hub-missing") from None
    except errors.EntryNotFoundError:
        raise NotFound(f"{what}: no such file in the repository", "hub-missing") from None
    except errors.HFValidationError as e:
        raise UsageError(f"{what}: {' '.join(str(e).split()):.200}", "hub-address") from None
    except errors.OfflineModeIsEnabled:
        raise IOFailure(f"{what}: offline mode is on (HF_HUB_OFFLINE)", "hub-offline") from None
    except errors.HfHubHTTPError as e:
        status = getattr(e.response, "status_code", None)
        said = f": {e.server_message:.200}" if getattr(e, "server_message", None) else ""
        if status in (401, 403):
            raise IOFailure(f"{what}: the hub refused with status {status}{said}; check the token (HF_TOKEN, or 'hf auth login')",
                            "hub-token") from None
        raise IOFailure(f"{what}: the hub answered with status {status}{said}", "hub-refused") from e
    except UnicodeEncodeError:                          # of a header; addresses are quoted
        raise IOFailure(f"{what}: the token holds a character that no token has; check HF_TOKEN, or run 'hf auth login'", "hub-token") from None
    except (errors.HTTPError, OSError, ValueError, RuntimeError) as e:      # httpx' errors, sockets, answers that are not JSON
        raise IOFailure(f"{what}: the hub cannot be reached or understood: {_text(e):.200}", "hub-network") from e


def _text(e: BaseException) -> str:
    text = " ".join(str(e).split()) or type(e).__name__
    return f"{text} ({_text(e.__cause__)})" if isinstance(e, RuntimeError) and e.__cause__ else text


def list_files(address: Address) -> list[str]:
    """The files of a repository. Raises NotFound, IOFailure."""
    return sorted(entry.rfilename for entry in _info(address).siblings or ())


def commit_of(address: Address) -> str | None:
    """The commit that the revision of a repository is now. Raises NotFound, IOFailure."""
    return _info(address).sha


def _info(address: Address) -> ModelInfo:
    """By one request, which fails at once where there is no network: listing a tree is tried anew for half a minute."""
    with named_errors(address):
        return HfApi(endpoint=endpoint(), library_name="moegg").model_info(address.repo, revision=address.revision, timeout=TIMEOUT_S)


def choose_file(address: Address, suffix: str = ".moegg") -> Address:
    """The address with a file: its own, or the only one with this suffix. Raises NotFound, UsageError naming the files."""
    if address.file:
        return address
    files = list_files(address)
    if found := [f for f in files if f.endswith(suffix)]:
        return only_one(address, found)
    weights = any(f.endswith((".safetensors", ".gguf")) for f in files)
    hint = f"; convert it: moegg convert {address}" if weights else ""
    raise NotFound(f"{address}: holds no {suffix} file{hint}", "hub-missing")


def only_one(address: Address, found: list[str]) -> Address:
    """The address of the only file of `found`. Raises UsageError that names them all."""
    if len(found) > 1:
        raise UsageError(f"{address}: holds {len(found)} models, give one, such as {address.of(found[0])}: {_names(found)}", "hub-several")
    return address.of(found[0])


def missing_file(address: Address, files: list[str]) -> NotFound:
    """The error of a file that is not among those of its repository; names the models that are."""
    models = [f for f in files if f.endswith((".moegg", ".gguf"))]
    return NotFound(f"{address}: no such file in the repository{f'; it holds {_names(models)}' if models else ''}", "hub-missing")


def _names(files: list[str]) -> str:
    return ", ".join(files[:MOST_NAMES]) + (f" and {len(files) - MOST_NAMES} more" if len(files) > MOST_NAMES else "")


class RemoteFile:
    """A file on a hub; a Reader that stays usable after its block. commit, etag: what was found; size in bytes.

    Raises NotFound, IOFailure, UsageError, here and while reading. Several threads may read.
    """
    edited, parts = False, ()

    def __init__(self, address: Address):
        self.address, self.path = address, Path(str(address))
        base = endpoint()
        with named_errors(address):
            url = hf_hub_url(address.repo, address.file, revision=address.revision, endpoint=base)
            try:
                meta = get_hf_file_metadata(url, timeout=TIMEOUT_S, endpoint=base, library_name="moegg", library_version=__version__)
            except errors.EntryNotFoundError:
                raise missing_file(address, list_files(address)) from None
            self._url = hf_hub_url(address.repo, address.file, revision=meta.commit_hash or address.revision, endpoint=base)
        if meta.size is None:
            raise IOFailure(f"{address}: the hub does not say how large the file is", "hub-refused")
        self.size, self.commit, self.etag = meta.size, meta.commit_hash, meta.etag
        self.identity = (self.etag, self.commit, self.size)
        self.fetched = 0                                # bytes that came over the network
        self._lock, self._head = threading.RLock(), b""

    def read(self, offset: int, n: int) -> bytes:
        """Exactly n bytes from `offset`."""
        if offset < 0 or n < 0 or offset + n > self.size:
            raise FormatError(f"{self.path}: file is {self.size} B, expected at least {offset + n} B", "format-truncated", "R5",
                              offset)
        if offset + n <= HEAD_BYTES:
            with self._lock:
                if not self._head:
                    self._head = b"".join(self.pieces(0, min(HEAD_BYTES, self.size)))
            return self._head[offset:offset + n]
        return b"".join(self.pieces(offset, n))

    def pieces(self, offset: int, n: int) -> Generator[bytes, None, None]:
        """The same bytes as they come. Close it: it holds a connection."""
        done = tries = 0
        while done < n:
            try:
                wanted = {"Accept-Encoding": "identity", "Range": f"bytes={offset + done}-{offset + n - 1}"}
                with get_session().stream("GET", self._url, timeout=TIMEOUT_S, headers=headers() | wanted) as answer:
                    if answer.status_code in TRANSIENT:
                        raise ConnectionError(f"status {answer.status_code}")
                    self._check(answer, offset + done, n - done)
                    for piece in answer.iter_bytes():
                        piece = piece[:n - done]
                        done, tries = done + len(piece), 0
                        with self._lock:
                            self.fetched += len(piece)
                        yield piece
                if done < n:
                    raise ConnectionError("the answer ended early")
            except (errors.HTTPError, ConnectionError, TimeoutError) as e:
                if isinstance(e, errors.HfHubHTTPError):
                    with named_errors(self.path):
                        raise
                tries += 1
                if tries >= TRIES:
                    what = f"{tries} attempts at byte {offset + done} failed: {_text(e)}"
                    raise IOFailure(f"{self.path}: {what}", "hub-network") from e
                log.detail(f"{self.path}: byte {offset + done}: {e}; trying again")
                time.sleep(PAUSE_S * 2 ** (tries - 1))

    def _check(self, answer, offset: int, n: int) -> None:
        """Raises unless the answer is the range that was asked for."""
        if answer.status_code >= 400:
            answer.read()                               # the message
            with named_errors(self.path):
                hf_raise_for_status(answer)
        if answer.status_code == 200 and (offset, n) == (0, self.size):
            return
        if answer.status_code != 206:
            raise IOFailure(f"{self.path}: the server ignores ranges: got status {answer.status_code}, expected 206", "hub-range")
        got, want = answer.headers.get("Content-Range", ""), f"bytes {offset}-{offset + n - 1}/{self.size}"
        if got != want:
            raise IOFailure(f"{self.path}: the server sent another range: got {got!r:.60}, expected {want!r}", "hub-range")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass
