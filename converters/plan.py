"""ConvertPlan: every tensor and expert part that will be written, where it comes from, its quant, layout and bytes.

Built from the architecture's description, the source's headers and a recipe; reads no weights. All that can be wrong with a
source is found here: types moegg has no row for, missing tensors, tensors nobody asks for, wrong shapes.
"""
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from moegg.arch import ConfigReader, Experts, Model, Moe, Part, Tensor
from moegg.converters.policy import Recipe, Weight, adjustable, part_name, weights_of
from moegg.converters.source import Source, View, find_view, source_name
from moegg.errors import FormatError, InternalError, UnsupportedModel, UsageError
from moegg.formats.layout import data_bytes
from moegg.quants import QUANTS, layout_of
from moegg.sampler import SamplingParams
from moegg.tokenizer import Tokenizer, eos_ids_of
from moegg.units import fmt_bytes, fmt_count

MISSING_LIMIT = 10_000      # where the search stops: a hostile config may ask for 2**28 tensors


@dataclass(frozen=True)
class PlannedTensor:
    """One resident or row-gather weight. wanted: the recipe's quant, where the row did not fit it."""
    tensor: Tensor
    view: View
    quant: str
    wanted: str
    layout: str
    nbytes: int


@dataclass(frozen=True)
class PlannedPart:
    """One matrix of the n expert records of a layer; views[e] is expert e's."""
    part: Part
    views: tuple[View, ...]
    quant: str
    wanted: str
    layout: str
    nbytes: int


@dataclass(frozen=True)
class PlannedExperts:
    """The expert records of one layer."""
    layer: int
    n: int
    top_k: int
    parts: tuple[PlannedPart, ...]


@dataclass(frozen=True)
class ConvertPlan:
    """What a conversion will do. config: the canonical config; ignored: pattern -> number of source tensors."""
    source: Source
    model: Model
    recipe: Recipe
    config: dict[str, Any]
    tensors: tuple[PlannedTensor, ...]
    experts: tuple[PlannedExperts, ...]
    ignored: dict[str, int]
    warnings: tuple[str, ...]

    @property
    def weight_bytes(self) -> int:
        return sum(t.nbytes for t in self.tensors) + sum(e.n * p.nbytes for e in self.experts for p in e.parts)

    @property
    def bpw(self) -> float:
        """Bits per weight of the whole model, scales, f32 vectors and padding included."""
        return 8 * self.weight_bytes / self.model.parameter_count()

    def rows(self) -> list[dict[str, Any]]:
        """One entry per (role, quant, source type), in file order: count of matrices, parameters, bytes."""
        table: dict[tuple, dict[str, Any]] = {}
        for role, count, shape, quant, wanted, dtype, nbytes in self._lines():
            row = table.setdefault((role, quant, dtype), {"role": role, "quant": quant, "source": dtype, "tensors": 0,
                                                          "parameters": 0, "bytes": 0, "fallback_from": None})
            n = 1
            for d in shape:
                n *= d
            row["tensors"] += count
            row["parameters"] += count * n
            row["bytes"] += count * nbytes
            if wanted != quant:
                row["fallback_from"] = wanted
        return list(table.values())

    def _lines(self) -> Iterator[tuple]:
        for t in self.tensors:
            yield t.tensor.role, 1, t.tensor.shape, t.quant, t.wanted, t.view.tensor.dtype, t.nbytes
        for e in self.experts:
            for p in e.parts:
                yield f"expert {p.part.name}", e.n, p.part.shape, p.quant, p.wanted, p.views[0].tensor.dtype, p.nbytes

    def lines(self) -> list[str]:
        """The plan as text, for people."""
        active = self.model.active_count()
        out = [f"{self.source.name}: {self.model.arch}, {fmt_count(self.model.parameter_count())} parameters, "
               f"{fmt_count(active)} active per token",
               f"recipe {self.recipe.name} v{self.recipe.version}, {self.bpw:.2f} bits per weight, from {self.source.kind} "
               f"({fmt_bytes(sum(self.source.files.values()))} in {_files(len(self.source.files))})",
               f"  {'role':<12} {'tensors':>7}  {'source':<8} {'quant':<6} {'parameters':>10} {'bytes':>11}"]
        for r in self.rows():
            note = f"  rows do not fit {r['fallback_from']}" if r["fallback_from"] else ""
            out.append(f"  {r['role']:<12} {r['tensors']:>7}  {r['source'].lower():<8} {r['quant']:<6} "
                       f"{fmt_count(r['parameters']):>10} {fmt_bytes(r['bytes']):>11}{note}")
        if self.experts:
            records, sizes = sum(e.n for e in self.experts), {sum(p.nbytes for p in e.parts) for e in self.experts}
            out.append(f"  {records} expert records of {' or '.join(fmt_bytes(s) for s in sorted(sizes))}")
        out += [f"  left out: {_tensors(n)} named {pattern}" for pattern, n in self.ignored.items()]
        return out

    def to_dict(self) -> dict[str, Any]:
        """The plan for programs (`--json`)."""
        return {"name": self.source.name, "arch": self.model.arch,
                "source": {"kind": self.source.kind, "files": self.source.files},
                "recipe": self.recipe.record(), "bits_per_weight": self.bpw,
                "parameters": self.model.parameter_count(), "active_parameters": self.model.active_count(),
                "weight_bytes": self.weight_bytes, "rows": self.rows(), "ignored": self.ignored, "warnings": list(self.warnings),
                "experts": [{"layer": e.layer, "n": e.n, "top_k": e.top_k, "record_bytes": sum(p.nbytes for p in e.parts)}
                            for e in self.experts]}


def make_plan(source: Source, recipe: Recipe) -> ConvertPlan:
    """Describes the model, finds every tensor's source and chooses every quant. Reads no weights.

    Raises UnsupportedModel (a key or a type), FormatError (missing, unknown or misshapen tensors; a broken config).
    """
    where = "config.json" if source.kind == "safetensors" else f"{source.name} (GGUF metadata)"
    reader = ConfigReader(source.config, where=where)
    model = source.module.describe(reader)
    config = reader.used()
    if source.module.describe(ConfigReader(config)) != model:
        raise InternalError(f"{model.arch}: the canonical config describes another model than the source's config")
    found = _Finder(source, model)
    tensors = [(t, found.view(t)) for t in model.tensors()]
    experts = [(e, [(p, [found.view(p, i, e.n) for i in range(e.n)]) for p in e.parts])
               for e in model.experts()]
    found.check()
    warnings = source.warnings + _compare_vocabularies(source, model.vocab)
    _load_texts(source, model.vocab)
    if unused := reader.unused():
        warnings.append(f"{where}: keys that {model.arch} does not read: {', '.join(map(_plain, unused))}")
    top_k = {layer.ffn.experts.layer: layer.ffn.top_k for layer in model.layers if isinstance(layer.ffn, Moe)}
    weights = weights_of(model)
    _check_overrides(recipe, list(weights.values()))
    return ConvertPlan(source, model, recipe, config, tuple(_plan_tensor(t, v, recipe, weights[t.name]) for t, v in tensors),
                       tuple(_plan_experts(e, parts, top_k[e.layer], recipe, weights) for e, parts in experts),
                       found.ignored(), tuple(warnings))


def _compare_vocabularies(source: Source, vocab: int) -> list[str]:
    """Warnings about ids of a tokenizer.json that the model does not have; an error if they are more than added tokens.

    Released Gemma 3 text models share a tokenizer that has one added token (for images) too many.
    """
    media, data = source.sections.get("tokenizer", ("", b""))
    if media != "application/json":
        return []
    try:
        tokenizer = json.loads(data)
        table, added = tokenizer["model"]["vocab"], {int(t["id"]): t["content"] for t in tokenizer.get("added_tokens") or ()}
        ids = set(table.values()) if isinstance(table, dict) else set(range(len(table)))
        beyond = sorted(i for i in ids | added.keys() if i >= vocab)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise FormatError(f"{source.name}: tokenizer.json: not a tokenizer: {type(e).__name__} {str(e):.100}",
                          "tokenizer-json") from None
    if not beyond:
        return []
    if not added.keys() >= set(beyond):
        raise FormatError(f"{source.name}: tokenizer has {len(beyond)} ids beyond the model's vocabulary: got ids up to "
                          f"{beyond[-1]}, expected less than {vocab}; tokenizer and weights are of different models",
                          "tokenizer-vocab")
    return [f"{source.name}: added tokens beyond the model's vocabulary of {vocab}, which text must not hold: "
            f"{some([repr(added[i]) for i in beyond])}"]


def _load_texts(source: Source, vocab: int) -> None:
    """Loads tokenizer and sampling defaults as `moegg run` will: what cannot run is not converted. Raises as their classes do."""
    def section(name: str) -> dict[str, Any]:
        return json.loads(source.sections[name][1]) if name in source.sections else {}
    generation = section("generation_config")
    SamplingParams.from_generation_config(generation)
    if "tokenizer" in source.sections:
        media, data = source.sections["tokenizer"]
        Tokenizer.from_sections(data, media, section("tokenizer_config"), vocab, eos_ids_of(source.config, generation))


def _plain(key: str) -> str:
    """A key as it is, or quoted with escapes if it would not print in one line."""
    return key if key.isprintable() else repr(key)


def _files(n: int) -> str:
    return f"{n} file{'s' if n != 1 else ''}"


def _check_overrides(recipe: Recipe, weights: list[Weight]) -> None:
    """Raises UsageError for an override that changes nothing: it is a slip."""
    for o in recipe.overrides:
        if not any(o.matches(w) and adjustable(w) for w in weights):
            names = list(dict.fromkeys(re.sub(r"\.[0-9]+\.", ".*.", w.name) for w in weights if adjustable(w)))
            raise UsageError(f"--override: {o.pattern!r:.80} matches no weight whose quant can be chosen; these are {some(names, 20)}", "usage")


def _plan_tensor(t: Tensor, view: View, recipe: Recipe, weight: Weight) -> PlannedTensor:
    quant, wanted = recipe.choose(weight, view.kept)
    layout = layout_of(t.shape, t.gather)
    return PlannedTensor(t, view, quant, wanted, layout, data_bytes(t.shape, quant, layout))


def _plan_experts(e: Experts, parts: list[tuple[Part, list[View]]], top_k: int, recipe: Recipe,
                  weights: dict[str, Weight]) -> PlannedExperts:
    planned = []
    for p, views in parts:
        # One part has one quant in all records of a layer; experts stored in several types are widened.
        types = {v.kept for v in views}
        quant, wanted = recipe.choose(weights[part_name(e.layer, p.name)], types.pop() if len(types) == 1 else "f32")
        layout = layout_of(p.shape)
        planned.append(PlannedPart(p, tuple(views), quant, wanted, layout, data_bytes(p.shape, quant, layout)))
    return PlannedExperts(e.layer, e.n, top_k, tuple(planned))


class _Finder:
    """Looks views up and collects what is wrong, so that one line can name all of a kind."""

    def __init__(self, source: Source, model: Model):
        self.source, self.arch = source, model.arch
        self.patterns = [p.replace("{n}", str(len(model.layers))) for p in source.module.NAMES.get("ignore", ())]
        self.used: set[str] = set()
        self.missing: list[str] = []
        self.misshapen: list[tuple[View, tuple[int, ...]]] = []
        self.foreign: list[View] = []
        self.taken: Counter[tuple[str, int | None, int]] = Counter()     # rows that slices have taken of a fused matrix

    def view(self, item: Tensor | Part, expert: int | None = None, n_experts: int = 0) -> View | None:
        srcs = item.gguf if self.source.kind == "gguf" else item.hf
        view = find_view(self.source, srcs, expert, n_experts)
        if view is None:
            self.missing.append(" or ".join(repr(source_name(s, expert)) for s in srcs) or repr(item.name))
            if len(self.missing) == MISSING_LIMIT:
                self._refuse_missing()
            return None
        self.used.add(view.tensor.name)
        if view.tensor.quant is None:
            self.foreign.append(view)
        elif view.shape != item.shape:
            self.misshapen.append((view, item.shape))
        elif view.src.rows:
            self.taken[view.tensor.name, expert, view.unsliced] += view.taken
        return view

    def check(self) -> None:
        name = self.source.name
        if self.foreign:
            types = ", ".join(f"{t.lower()} ({_tensors(n)})" for t, n in Counter(v.tensor.dtype for v in self.foreign).items())
            raise UnsupportedModel(f"{name}: tensor {self.foreign[0].tensor.name!r} has an unsupported type: got {types}, "
                                   f"expected {', '.join(QUANTS)}", "quant-unsupported")
        if self.missing:
            self._refuse_missing()
        if self.misshapen:
            view, shape = self.misshapen[0]
            raise FormatError(f"{name}: tensor {view.tensor.name!r}: shape is {list(view.shape)}{_steps(view)}, expected "
                              f"{list(shape)} from the config", "arch-shape")
        for (tensor, _, there), taken in self.taken.items():
            if taken != there:
                shape = list(self.source.tensors[tensor].shape)
                raise FormatError(f"{name}: tensor {tensor!r}: shape is {shape}, expected {taken} where it has {there}, from the "
                                  "config", "arch-shape")
        if unknown := [n for n in self.source.tensors if n not in self.used and not self._ignorable(n)]:
            names = some([repr(n) for n in unknown])
            raise FormatError(f"{name}: {_tensors(len(unknown))} with no place in {self.arch}: {names}; the config does not "
                              "match the weights, or the model has parts that moegg does not run", "convert-unknown")

    def _refuse_missing(self) -> None:
        missing = list(dict.fromkeys(self.missing))
        raise FormatError(f"{self.source.name}: {_tensors(len(missing))} of {self.arch} missing: {some(missing)}; the source is "
                          "incomplete or of another architecture", "convert-missing")

    def ignored(self) -> dict[str, int]:
        return dict(Counter(self._ignorable(n) for n in self.source.tensors if n not in self.used))

    def _ignorable(self, name: str) -> str | None:
        """The pattern by which the architecture module lets an unused tensor be left out, or None."""
        return next((p for p in self.patterns if fnmatchcase(name, p)), None)


def _tensors(n: int) -> str:
    return f"{n} tensor{'s' if n != 1 else ''}"


def some(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _steps(view: View) -> str:
    return f" (taken from {list(view.tensor.shape)})" if view.shape != view.tensor.shape else ""
