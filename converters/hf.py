"""HFSource: a folder as Hugging Face publishes it: config.json, safetensors (sharded or not), tokenizer, templates, texts.

Reads only plain files directly in the folder (and additional_chat_templates/), each below a limit. Texts, which are packed as
they are, may be symlinks to files of the folder and of hub caches only, or a README.md could carry any file of this machine away;
weights may be links to anywhere. A link to nothing, as cut off downloads leave, is never taken for an absent file.
Weights that are quantised in more than one tensor per matrix: packed.py, which refuses the kinds it does not know.
"""
import json
import os
import re
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from moegg import registry
from moegg.converters.packed import find_packed, settings
from moegg.converters.source import SourceTensor, clean_name, source_quant
from moegg.errors import FormatError, NotFound, UnsupportedModel
from moegg.formats.rawfile import RawFile
from moegg.formats.safetensors import INDEX, SafetensorsSet
from moegg.units import fmt_bytes

TEXT_LIMIT = 1 << 20                # licence, model card, one template
JSON_LIMIT = 256 << 20              # tokenizer.json of the largest vocabularies is about 35 MB
TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "additional_special_tokens")


class HFSource:
    """A local folder. Raises NotFound, FormatError, UnsupportedModel, IOFailure; see source.Source for the attributes."""
    kind = "safetensors"
    scratch = 0

    def __init__(self, folder: Path):
        self.path, self.warnings, self.paths = folder, [], []
        text = self._bytes("config.json", JSON_LIMIT)
        if text is None:
            raise NotFound(f"{folder}: no config.json; expected a Hugging Face model folder or a GGUF file{_ggufs(folder)}", "source-config")
        self.config = _object(text, folder / "config.json")
        settings(self.config, str(folder))
        self.module = _find_module(self.config, folder)
        self.stem, revision = _identity(folder)
        self.name = clean_name(self.stem)
        self._set = _open_weights(folder)
        self.files = self._set.files
        self.paths += [folder / INDEX, *(folder / name for name in self.files)]
        self.tensors = {n: SourceTensor(n, t.shape, t.dtype, source_quant(t.dtype)) for n, t in self._set.tensors.items()}
        self._unpack(str(folder))
        if self._set.unlisted:
            names = ", ".join(map(repr, self._set.unlisted[:5]))
            self.warnings.append(f"{folder}: {len(self._set.unlisted)} tensors that the index omits are left out: {names}")
        card = self._bytes("README.md", TEXT_LIMIT, skip=True)
        self.provenance: dict[str, Any] = {**revision, "license": _card_license(card)}
        self.sections = {"source_config": ("application/json", _without_local_path(self.config, text))}
        self._tokenizer()
        self._generation()
        if card:
            self.sections["model_card"] = ("text/markdown", card)
        if licence := self._licence():
            self.sections["license"] = ("text/plain", licence)

    def _unpack(self, where: str) -> None:
        """Matrices kept as several tensors take their place; tells of those that no quant holds."""
        self._packed = {p.name: p for p in find_packed(self._set.tensors, self.config, where)}
        for p in self._packed.values():
            for part in p.parts:
                self.tensors.pop(part, None)
        for p in self._packed.values():
            self.tensors[p.name] = SourceTensor(p.name, p.shape, p.kind, p.quant)
        decoded = Counter(p.kind for p in self._packed.values() if p.quant == "f32")
        self.warnings += [f"{where}: {n} {kind} matri{'ces are' if n > 1 else 'x is'} of a kind or width that no quant holds; decoded "
                          "to f32, which keep leaves and other recipes round anew" for kind, n in sorted(decoded.items())]
        self.default_quant = "keep" if len(self._packed) > decoded.total() else "q4"

    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        if name in self._packed:
            return self._packed[name].rows(self._set.read, start, stop)
        x = self._set.read(name, start, stop)
        return x.reshape(stop - start, -1).view(np.uint8)

    def close(self) -> None:
        self._set.close()

    def _bytes(self, name: str, limit: int, skip: bool = False) -> bytes | None:
        """A small file of the folder, or None if there is none. Above the limit, or a link to nothing or to a file that is not
        the model's: an error, or with `skip` a warning and None.
        """
        path = self.path / name
        if not os.path.lexists(path):
            return None
        self.paths.append(path)
        what = _bad_link(path, self.path)
        if not what:
            raw = RawFile(path)
            try:
                if raw.size <= limit:
                    return raw.read(0, raw.size).tobytes()
            finally:
                raw.close()
            what = f"{path}: file is {fmt_bytes(raw.size)}, expected at most {fmt_bytes(limit)}"
        if not skip:
            raise FormatError(what, "source-file")
        self.warnings.append(f"{what}; left out")
        return None

    def _json(self, name: str) -> dict[str, Any]:
        data = self._bytes(name, JSON_LIMIT)
        return {} if data is None else _object(data, self.path / name)

    def _tokenizer(self) -> None:
        config = self._json("tokenizer_config.json")
        for key, token in self._json("special_tokens_map.json").items():
            if key in TOKENS and config.get(key) is None:
                config[key] = token
        if templates := self._templates(config.pop("chat_template", None)):
            self.sections["chat_template"] = ("application/json", dump(templates))
        if (data := self._bytes("tokenizer.json", JSON_LIMIT)) is not None:
            self.sections["tokenizer"] = ("application/json", data)
        elif (data := self._bytes("tokenizer.model", JSON_LIMIT)) is not None:
            self.sections["tokenizer"] = ("application/x-sentencepiece", data)
        else:
            self.warnings.append(f"{self.path}: no tokenizer.json or tokenizer.model; the file will take token ids, not text")
            return
        self.sections["tokenizer_config"] = ("application/json", dump(config))

    def _templates(self, inline: Any) -> dict[str, str]:
        """{"default": template, variant: template}: files before tokenizer_config.json, as transformers reads them."""
        out = inline_templates(inline, f"{self.path / 'tokenizer_config.json'}")
        out |= inline_templates(self._json("chat_template.json").get("chat_template"), f"{self.path / 'chat_template.json'}")
        names = {"default": "chat_template.jinja"}
        more = self.path / "additional_chat_templates"
        if os.path.lexists(more):
            if what := _bad_link(more, self.path):
                raise FormatError(what, "source-file")
            names |= {p.stem: f"{more.name}/{p.name}" for p in sorted(more.glob("*.jinja"))}
        for variant, name in names.items():
            if (data := self._bytes(name, TEXT_LIMIT)) is not None:
                out[variant] = _text(data, self.path / name)
        return out

    def _generation(self) -> None:
        if config := self._json("generation_config.json"):
            self.sections["generation_config"] = ("application/json", dump(config))

    def _licence(self) -> bytes:
        names = sorted(p.name for p in self.path.iterdir() if not p.is_dir())
        texts = [(n, self._bytes(n, TEXT_LIMIT, skip=True)) for n in names if re.match(r"licen[sc]e|notice|copying", n, re.I)]
        texts = [(n, t) for n, t in texts if t]
        return texts[0][1] if len(texts) == 1 else b"".join(f"== {n} ==\n".encode() + t.rstrip() + b"\n\n" for n, t in texts)


def _bad_link(path: Path, folder: Path) -> str | None:
    """What is wrong with a symlink of the folder: it leads to nothing, or out of the folder and not into a hub cache's blobs."""
    target = Path(os.path.realpath(path))
    if not target.exists():
        return f"{path}: is a link to '{target}', which does not exist; fetch the model again, the download was cut off"
    blobs = target.parent
    if target.is_relative_to(os.path.realpath(folder)) or (blobs.name == "blobs" and blobs.parent.name.startswith("models--")):
        return None
    return f"{path}: is a link to '{target}', expected a file of this folder or of a hub cache; copy it if it is to be packed"


def inline_templates(value: Any, where: str) -> dict[str, str]:
    """A key chat_template, a string, null or [{"name", "template"}], as {"default": template, variant: template}."""
    named = [{"name": "default", "template": value}] if isinstance(value, str) else [] if value is None else value
    if not isinstance(named, list) or not all(isinstance(t, dict) and isinstance(t.get("name"), str)
                                              and isinstance(t.get("template"), str) for t in named):
        raise FormatError(f"{where}: 'chat_template': got {value!r:.60}, expected a string, or objects of name and template",
                          "source-file")
    return {t["name"]: t["template"] for t in named}


def dump(value: Any) -> bytes:
    """Canonical JSON: sorted keys, no spaces, UTF-8; a lone surrogate as its escape."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def _object(data: bytes, path: Path) -> dict[str, Any]:
    # Published configs hold Infinity and now and then a duplicate key; what Python reads is what their authors meant.
    try:
        value = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as e:
        raise FormatError(f"{path}: not valid JSON: {str(e):.200}", "source-file") from None
    if not isinstance(value, dict):
        raise FormatError(f"{path}: got {type(value).__name__}, expected a JSON object", "source-file")
    return value


def _text(data: bytes, path: Path) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise FormatError(f"{path}: not valid UTF-8: {e.reason}", "source-file") from None


def _find_module(config: dict[str, Any], folder: Path) -> ModuleType:
    names = config.get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str):
        return registry.find(hf=names[0])
    if isinstance(config.get("model_type"), str):
        return registry.find(model_type=config["model_type"])
    raise FormatError(f"{folder / 'config.json'}: missing key: got neither 'architectures' nor 'model_type'", "config-missing")


def _open_weights(folder: Path) -> SafetensorsSet:
    try:
        return SafetensorsSet.open(folder)
    except NotFound as e:
        if e.slug == "st-missing" and any(folder.glob("*.bin")):
            raise UnsupportedModel(f"{folder}: weights are in pickle files (*.bin), which are never loaded; expected "
                                   "*.safetensors", "source-pickle") from None
        raise NotFound(e.message + _ggufs(folder), e.slug) from None


def _ggufs(folder: Path) -> str:
    found = sorted(p.name for p in folder.glob("*.gguf"))
    return f"; it holds GGUF files, convert one of them: {', '.join(found[:30])}" if found else ""


def _identity(folder: Path) -> tuple[str, dict[str, str]]:
    """(name, provenance): of models--ORG--NAME/snapshots/REVISION in a hub cache, else the folder's own name."""
    full = folder.absolute()
    full = full.resolve() if full.name in ("", "..") else full
    if full.parent.name == "snapshots" and full.parent.parent.name.startswith("models--"):
        repo = full.parent.parent.name.removeprefix("models--").split("--")
        return repo[-1], {"repo": "/".join(repo), "revision": full.name}
    return full.name or "model", {}


def _card_license(card: bytes | None) -> str | None:
    """The `license:` line of a model card's front matter."""
    m = re.match(rb"---\r?\n(.*?)\r?\n---", card or b"", re.S)
    m = m and re.search(rb"^license: *['\"]?([\w.+-]+)", m[1], re.M)
    return m[1].decode() if m else None


def _without_local_path(config: dict[str, Any], text: bytes) -> bytes:
    """config.json as it is, unless it tells where on its author's disk the model was."""
    if "_name_or_path" not in config:
        return text
    return dump({k: v for k, v in config.items() if k != "_name_or_path"})
