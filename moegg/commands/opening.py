"""From the MODEL argument to an open container, its description and its tokenizer; text files that a user names.

Opens no weights.
"""
import json
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

from moegg import registry
from moegg.arch import ConfigReader, Model
from moegg.errors import BadRequest, FormatError, IOFailure, NotFound
from moegg.formats.container import Container
from moegg.tokenizer import Tokenizer, eos_ids_of
from moegg.units import fmt_bytes

MAX_TEXT_BYTES = 4 << 20        # about a million tokens: more than any context, less than what would hurt before tokenising


def open_container(model: Path) -> Container:
    """The file that MODEL means: 'demo' is the one inside the package, ./demo a file of that name."""
    return Container.open(Path(str(files("moegg") / "data" / "demo.moegg")) if str(model) == "demo" else model)


def describe(container: Container) -> Model:
    """The architecture's description of the stored config. Raises UnsupportedModel for an unknown architecture."""
    return registry.find(arch=container.arch).describe(ConfigReader(container.config, where=f"{container.path.name}: config"))


def section_json(container: Container, name: str) -> dict[str, Any]:
    """A JSON section as a dict; empty if the file has none."""
    if name not in container.sections:
        return {}
    try:
        value = json.loads(container.read_section(name))
    except ValueError as e:
        raise FormatError(f"{container.path}: section {name!r}: not JSON: {e}", "section-json") from None
    if not isinstance(value, dict):
        raise FormatError(f"{container.path}: section {name!r}: got {type(value).__name__}, expected an object", "section-json")
    return value


def open_tokenizer(container: Container, vocab: int) -> Tokenizer:
    """The tokenizer of the file. Raises NotFound if the source had none."""
    if "tokenizer" not in container.sections:
        raise NotFound(f"{container.path}: no tokenizer: the source of this file had none; convert again from a source with "
                       "tokenizer.json or tokenizer.model, or use 'moegg forward' with token ids", "tokenizer-missing")
    eos = eos_ids_of(section_json(container, "source_config"), section_json(container, "generation_config"))
    return Tokenizer.from_sections(container.read_section("tokenizer"), container.sections["tokenizer"].media,
                                   section_json(container, "tokenizer_config"), vocab, eos)


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


def read_stdin() -> str:
    stream = getattr(sys.stdin, "buffer", None)
    return _decode(stream.read(MAX_TEXT_BYTES + 1) if stream else sys.stdin.read().encode(), "standard input")


def _decode(data: bytes, where: str) -> str:
    if len(data) > MAX_TEXT_BYTES:
        raise BadRequest(f"{where}: too long: got more than {fmt_bytes(MAX_TEXT_BYTES)}, expected text that fits a context", "text-long")
    if (at := data.find(b"\0")) >= 0:
        raise BadRequest(f"{where}: not text: got a NUL byte at offset {at}, expected UTF-8", "text-binary")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise BadRequest(f"{where}: not text: got byte 0x{data[e.start]:02x} at offset {e.start}, expected UTF-8", "text-binary") from None
