"""From the MODEL argument (a path, 'demo', a name of the local store, an address on a hub) to an open container, its description
and its tokenizer; text files that a user names.

Opens no weights.
"""
import os
import select
import stat
import sys
from importlib.resources import files
from pathlib import Path

from moegg import library, log, registry
from moegg.arch import Model
from moegg.commands.options import nearest
from moegg.commands.progress import bar
from moegg.errors import BadRequest, FormatError, IOFailure, NotFound
from moegg.formats.container import Container
from moegg.formats.sections import section_json
from moegg.hub.address import Address, is_address, likely, parse_address
from moegg.io.memory import give_back
from moegg.server.talk import Talk
from moegg.tokenizer import Tokenizer, eos_ids_of
from moegg.units import fmt_bytes

MAX_TEXT_BYTES = 4 << 20        # about a million tokens: more than any context, less than what would hurt before tokenising
PIPE_WAIT_S = 5.0


def find_model(model: Path) -> Path:
    """The file that MODEL means: 'demo' is the one inside the package, ./demo a file of that name; a path that exists goes before
    a name of the local store. What is on a hub is fetched. Raises UsageError for a name that several models have."""
    if str(model) == "demo":
        return Path(str(files("moegg") / "data" / "demo.moegg"))
    if is_address(str(model)):
        address = parse_address(str(model))
        return stored(address) or fetch(address)
    return model if os.path.lexists(model) else library.find(str(model)) or model


def stored(address: Address) -> Path | None:
    """The file of the local store that an address means, if it has been pulled."""
    if address.file:
        path = address.local(library.models_folder())
        return path if path.exists() else None
    folder = address.local(library.models_folder())
    found = [e for e in library.entries() if folder in e.path.parents and not e.partial]
    return library.one(str(address), found).path if found else None


def fetch(address: Address, out: Path | None = None) -> Path:
    """Pulls a model into the local store, or to `out`. Raises NotFound, IOFailure, NoRoom, UsageError, FormatError."""
    from moegg.hub import pull, remote  # here: huggingface_hub takes 0.2 s to import
    address = remote.choose_file(address)
    target = out or address.local(library.models_folder())
    with bar("pull") as progress:
        done = pull.pull(address, target, progress)
    log.info(pull.describe(done))
    return target


def open_container(model: Path, here: bool = True) -> Container:
    """The container of a MODEL argument. here False: one on a hub is only looked at, by ranged reads of header and index.

    Raises NotFound with the nearest name, UsageError, FormatError, IOFailure, NoRoom.
    """
    if not here and is_address(str(model)):
        address = parse_address(str(model))
        if (found := stored(address)) is not None:
            return Container.open(found)
        from moegg.hub import pull, remote  # here: huggingface_hub takes 0.2 s to import
        return pull.open_remote(remote.choose_file(address))[0]
    path = find_model(model)
    try:
        return Container.open(path)
    except NotFound as e:
        raise NotFound(e.message + _meant(model), e.slug) from None
    except FormatError as e:
        if path.is_dir() or _starts_with(path, b"GGUF"):
            kind = "folder" if path.is_dir() else "GGUF file"
            raise FormatError(f"{path}: is a {kind}; convert it: moegg convert {path}", e.slug) from None
        raise


def _meant(model: Path) -> str:
    """What to do about a model that does not exist: the name of the demo, one of the store, a .moegg file beside it, or a repository."""
    beside = {p.stem: p.name for p in sorted(model.parent.glob("*.moegg"))}
    known = ["demo", *(e.short for e in library.entries() if not e.partial)]
    names = list(beside) + (known if model == Path(model.name) else [])
    word = nearest(model.name.removesuffix(".moegg"), names)
    if word is None and (address := likely(str(model))) is not None:
        return f"; a repository on a hub is written {address}"
    if word is None:
        return "; 'moegg list' shows the names of what is here" if str(model) == model.stem else ""
    return f"; did you mean '{model.with_name(beside[word]) if word in beside else word}'?"


def _starts_with(path: Path, magic: bytes) -> bool:
    try:
        with open(path, "rb") as f:
            return f.read(len(magic)) == magic
    except OSError:
        return False


def describe(container: Container) -> Model:
    """The architecture's description of the stored config. Raises UnsupportedModel, FormatError."""
    return registry.describe(container.arch, container.config, container.path)


def warn_beyond_training(model: Model, tokens: int, what: str) -> None:
    """Warns if `what` reaches further than the model was trained for."""
    if tokens > model.ctx_train:
        log.warn(f"{what}: the model was trained for {model.ctx_train} tokens; what lies beyond may be nonsense")


def open_tokenizer(container: Container, vocab: int) -> Tokenizer:
    """The tokenizer of the file. Raises NotFound if the source had none."""
    if "tokenizer" not in container.sections:
        raise NotFound(f"{container.path}: no tokenizer: the source of this file had none; convert again from a source with "
                       "tokenizer.json or tokenizer.model, or use 'moegg forward' with token ids", "tokenizer-missing")
    eos = eos_ids_of(section_json(container, "source_config"), section_json(container, "generation_config"))
    tokenizer = Tokenizer.from_sections(container.read_section("tokenizer"), container.sections["tokenizer"].media,
                                        section_json(container, "tokenizer_config"), vocab, eos,
                                        [end for chat in registry.chats(container.arch) for end in chat.ends])
    give_back()         # parsing took several times what the tokenizer keeps: of Gemma 3's 290 MiB it gives back 190
    return tokenizer


def open_talk(container: Container, tokenizer: Tokenizer, template: Path | None = None) -> Talk:
    """How the file's model talks, with another template if the user named one."""
    own = {"default": read_text(template)} if template else section_json(container, "chat_template")
    talk = Talk.of(tokenizer, own, registry.chats(container.arch))
    if talk.borrowed:
        log.info(f"the file has no chat template; that of its family ({container.arch}) is used, as its turns end with {talk.chat.ends[0]}")
    return talk


def read_text(path: Path) -> str:
    """A UTF-8 file that the user named (a byte order mark is dropped)."""
    try:
        with open(path, "rb") as f:
            data = f.read(MAX_TEXT_BYTES + 1)
    except FileNotFoundError:
        raise NotFound(f"{path}: no such file", "file-missing") from None
    except OSError as e:
        raise IOFailure(f"{path}: cannot be opened: {e.strerror}", "io-open") from e
    return _decode(data, str(path))


def read_file_or_stdin(path: Path) -> str:
    """A file that the user named, or standard input for '-'."""
    return read_stdin() if path == Path("-") else read_text(path)


def read_stdin() -> str:
    if sys.stdin is None:
        raise IOFailure("standard input: is closed, expected text to read from it", "io-read")
    stream = getattr(sys.stdin, "buffer", None)
    try:
        return _decode(stream.read(MAX_TEXT_BYTES + 1) if stream else sys.stdin.read().encode(), "standard input")
    except OSError as e:
        raise IOFailure(f"standard input: cannot be read: {e.strerror}", "io-read") from e


def read_piped(wait_s: float = PIPE_WAIT_S) -> str:
    """What is piped or redirected into a command that has a prompt already; nothing from terminals and devices.

    A pipe that stays open and silent is given up after `wait_s` seconds, with a warning: programs inherit such pipes unawares.
    """
    try:
        fd = sys.stdin.fileno()
        mode = os.fstat(fd).st_mode
    except (AttributeError, OSError, ValueError):       # closed, or no file at all
        return ""
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return ""
    if not stat.S_ISREG(mode) and not select.select([fd], [], [], wait_s)[0]:
        log.warn(f"standard input: an open pipe, but nothing came within {wait_s:g} s, so it is not read; '< /dev/null' saves the wait")
        return ""
    return read_stdin()


def _decode(data: bytes, where: str) -> str:
    if len(data) > MAX_TEXT_BYTES:
        raise BadRequest(f"{where}: too long: got more than {fmt_bytes(MAX_TEXT_BYTES)}, expected text that fits a context", "text-long")
    if (at := data.find(b"\0")) >= 0:
        raise BadRequest(f"{where}: not text: got a NUL byte at offset {at}, expected UTF-8", "text-binary")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise BadRequest(f"{where}: not text: got byte 0x{data[e.start]:02x} at offset {e.start}, expected UTF-8", "text-binary") from None
