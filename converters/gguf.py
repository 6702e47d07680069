"""GGUFSource: a GGUF model, in one file or in parts; blocks pass through unchanged under `keep`, or are decoded to floats.

What a GGUF says with tensors instead of keys (an own output matrix, rope factors) is handed to the architecture module beside
the metadata; weights that it keeps as keys (NAMES["gguf_weight_keys"]) are tensors [layers] here. All metadata is kept, with its types,
so that an export can be exact.
"""
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from moegg import registry
from moegg.converters.gguf_tokenizer import generation_config_from_gguf, tokenizer_from_gguf
from moegg.converters.hf import dump, inline_templates
from moegg.converters.source import SourceTensor, clean_name, source_quant
from moegg.errors import FormatError, UnsupportedModel
from moegg.formats.gguf_split import GGUFSet
from moegg.formats.rawfile import RawFile

VECTOR_LIMIT = 4096                 # elements of a tensor that a config may be made of: rope factors have head_dim / 2
DECAYS = ".ssm_a"                   # -exp(A_log): the file holds its logarithm, from which not every value comes back


class GGUFSource:
    """A GGUF file; `opened` makes the reader of a part. Raises NotFound, FormatError, UnsupportedModel, IOFailure; see source.Source for
    the attributes."""
    kind, default_quant = "gguf", "keep"
    scratch = 0

    def __init__(self, path: Path, opened: Callable[[Path], RawFile] = RawFile):
        self.path, self.warnings = path, []
        self._file = GGUFSet.open(path, opened)
        self.paths, self.files = self._file.paths, self._file.files
        meta = self._file.metadata
        if meta.get("general.type", "model") != "model":
            raise UnsupportedModel(f"{path}: holds a {meta['general.type']!r:.40}, expected a model", "gguf-kind")
        arch = self._text("general.architecture")
        self.module = registry.find_gguf(arch, {**meta, "tensor_names": frozenset(self._file.tensors)})
        self.stem = self._file.stem
        self.name = clean_name(str(meta.get("general.name") or self.stem))
        self.tensors = {n: SourceTensor(n, t.shape, t.quant, source_quant(t.quant)) for n, t in self._file.tensors.items()}
        self.config = self._config(meta)
        self._held = {key: self._numbers(key) for key in self.module.NAMES.get("gguf_weight_keys", ())}
        self.tensors |= {key: SourceTensor(key, x.shape, "f32", "f32") for key, x in self._held.items()}
        licence = meta.get("general.license")
        self.provenance: dict[str, Any] = {"license": licence[:200] if isinstance(licence, str) else None}
        self.sections = {"source_config": ("application/json", dump(self.config)),
                         "gguf_metadata": ("application/json", self._metadata_json())}
        self._texts(meta)

    def _texts(self, meta: dict[str, Any]) -> None:
        made = tokenizer_from_gguf(meta)
        if made is None:
            self.warnings.append(f"{self.path}: has no tokenizer; the file will take token ids only, not text")
        else:
            tokenizer, config = made
            if templates := inline_templates(config.pop("chat_template", None), str(self.path)):
                self.sections["chat_template"] = ("application/json", dump(templates))
            self.sections["tokenizer"] = ("application/json", tokenizer)
            self.sections["tokenizer_config"] = ("application/json", dump(config))
        if generation := generation_config_from_gguf(meta):
            self.sections["generation_config"] = ("application/json", dump(generation))

    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        if name in self._held:
            return self._held[name].view(np.uint8).reshape(1, -1)
        return self._file.read(name, start, stop)

    def close(self) -> None:
        self._file.close()

    def _text(self, key: str) -> str:
        value = self._file.metadata.get(key)
        if not isinstance(value, str):
            raise FormatError(f"{self.path}: key {key!r}: got {value!r:.60}, expected a string", "gguf-key")
        return value

    def _numbers(self, key: str) -> np.ndarray:
        """The weights that a key holds, one for each layer [layers]; as llama.cpp reads them, a number alone is every layer's."""
        value, layers = self._file.metadata.get(key), self.config["num_hidden_layers"]
        values = value if isinstance(value, list) else [value] * layers
        if len(values) != layers or not all(isinstance(x, float) and math.isfinite(x) for x in values):
            raise FormatError(f"{self.path}: key {key!r}: got {value!r:.60}, expected a finite number, or one for each of {layers} layers",
                              "gguf-key")
        return np.array(values, "<f4")

    def _config(self, meta: dict[str, Any]) -> dict[str, Any]:
        """config.json's keys, by the architecture module; it also sees the tensors' names and the small ones it asks for."""
        if not hasattr(self.module, "gguf_config"):
            raise UnsupportedModel(f"{self.path}: architecture {self.module.NAMES['arch']!r} is read from safetensors only",
                                   "arch-unsupported")
        embed = self.tensors.get("token_embd.weight")
        given = ({f"{meta['general.architecture']}.vocab_size": embed.shape[0]} if embed else {}) | meta
        given["tensor_names"] = frozenset(self.tensors)
        for name in self.module.NAMES.get("gguf_config_tensors", ()):
            if name in self.tensors:
                given[f"tensor:{name}"] = self._vector(self.tensors[name])
        try:
            return self.module.gguf_config(given)
        except KeyError as e:
            raise FormatError(f"{self.path}: missing key {e.args[0]!r}", "gguf-key") from None

    def _metadata_json(self) -> bytes:
        """What an export needs: {"version", "alignment", "kv": [[key, type, value], ...], "tensors": [[name, type, shape], ...],
        "values": {name: floats} of tensors that went into the config and of decays}, in file order; floats that JSON lacks as strings."""
        def value(v: Any) -> Any:
            if isinstance(v, list):
                return [value(x) for x in v] if v and isinstance(v[0], float) else v
            return str(v) if isinstance(v, float) and not math.isfinite(v) else v

        f, small = self._file, list(self.module.NAMES.get("gguf_config_tensors", ()))
        small += [n for n, t in self.tensors.items() if n.endswith(DECAYS) and t.dtype == "f32" and math.prod(t.shape) <= VECTOR_LIMIT]
        kept = {"version": f.version, "alignment": f.alignment, "kv": [[k, f.kinds[k], value(v)] for k, v in f.metadata.items()],
                "tensors": [[n, t.quant, list(t.shape)] for n, t in f.tensors.items()],
                "values": {n: value(self._vector(self.tensors[n])) for n in small if n in self.tensors}}
        return json.dumps(kept, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()

    def _vector(self, t: SourceTensor) -> list[float]:
        if t.dtype != "f32" or (len(t.shape) != 1 and not t.name.endswith(DECAYS)) or math.prod(t.shape) > VECTOR_LIMIT:
            raise FormatError(f"{self.path}: tensor {t.name!r}: {t.dtype} {list(t.shape)}, expected a short f32 vector",
                              "arch-shape")
        return self._file.read(t.name).view("<f4").reshape(-1).tolist()
