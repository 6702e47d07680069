"""GGUF metadata for a file that was not made from a GGUF: keys and ropes from its description, the tokenizer from its tokenizer.json.

Only what can be proved is exported: the metadata is read back as a conversion would read it, and has to describe the same model
and the same tokenizer; numbers may differ by the rounding to f32. Where GGUF wants another order of rows (pairs that rope turns,
value heads in tiles), reading back shows it. Refuses all that GGUF says otherwise.
"""
import math
from dataclasses import dataclass, field, fields, is_dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np

from moegg import registry
from moegg.arch import ConfigReader, DeltaNet, Gqa, Mla, Model, Part, Rope, Src, Tensor
from moegg.converters.export_keys import model_keys
from moegg.converters.export_tokenizer import Entry, other, tokenizer_entries
from moegg.converters.source import SourceTensor
from moegg.errors import FormatError, MoeggError
from moegg.formats.container import Container

CLOSE = 1e-6                    # of numbers that a GGUF rounds to f32


@dataclass(frozen=True)
class Order:
    """Where things go in a GGUF. rows[i]: the place of row (or element) i. heads: (key heads, value heads of each, columns of one) whose
    columns, grouped by key head, become tiled."""
    rows: np.ndarray | None = None
    heads: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Made:
    """tensors of the GGUF; values of those that are no weights; metadata; orders of the container's tensors, where not as they are."""
    tensors: dict[str, SourceTensor]
    values: dict[str, list[float]]
    metadata: list[Entry]
    orders: dict[str, Order] = field(default_factory=dict)


def make_metadata(container: Container) -> Made:
    """Raises UnsupportedModel where GGUF would say something else."""
    module, model = registry.find(arch=container.arch), registry.describe(container.arch, container.config, container.path)
    names = registry.spelled(module, "gguf")
    if not names or not hasattr(module, "gguf_config"):
        raise other(container, f"architecture {container.arch!r} has no GGUF names")
    made = next(filter(None, (_model(container, module, model, n) for n in names)), None)
    if made is None:
        raise other(container, f"the metadata of a GGUF would describe another model than this {model.arch}")
    try:
        return replace(made, metadata=made.metadata + tokenizer_entries(container, model.vocab, module.NAMES.get("gguf_tokenizer")))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as e:
        if isinstance(e, MoeggError):
            raise
        raise FormatError(f"{container.path}: section 'tokenizer': not a tokenizer: {type(e).__name__} {str(e):.60}",
                          "tokenizer-json") from None


# --- model --------------------------------------------------------------------------------------------------------------

def _model(container: Container, module: ModuleType, model: Model, arch: str) -> Made | None:
    """What a GGUF of that general.architecture holds, read back; None if that is another model."""
    if not any(isinstance(x.attn, (Gqa, Mla)) for x in model.layers):
        return None
    keys, ropes = model_keys(model)
    keys |= module.gguf_keys(model) if hasattr(module, "gguf_keys") else {}
    entries = [("general.architecture", "str", arch), ("general.type", "str", "model"), ("general.name", "str", container.name),
               ("general.quantization_version", "u32", 2), *(_entry(f"{arch}.{key}", value) for key, value in keys.items() if value is not None)]
    ropes = {name: [float(np.float32(v)) for v in values] for name, values in ropes.items()}
    tensors = _tensors(container, model) | {n: SourceTensor(n, (len(v),), "f32", "f32") for n, v in ropes.items()}
    entries += [(key, "[f32]", _numbers(container, model, tensors.pop(key))) for key in module.NAMES.get("gguf_weight_keys", ())]
    given = {k: v for k, _, v in entries} | {f"tensor:{n}": v for n, v in ropes.items()} | {"tensor_names": frozenset(tensors)}
    try:
        if registry.find_gguf(arch, given) is not module:
            return None
        back = module.describe(ConfigReader(module.gguf_config(given)))
    except (MoeggError, KeyError):
        return None
    orders, back = _orders(model, back)
    return Made(tensors, ropes, entries, orders) if _same(model, back) else None


def _entry(key: str, value: Any) -> Entry:
    if isinstance(value, list):
        return key, {bool: "[bool]", float: "[f32]"}.get(type(value[0]), "[u32]"), value
    if isinstance(value, float):
        return key, "f32", float(np.float32(value))
    return key, "str" if isinstance(value, str) else "bool" if isinstance(value, bool) else "u32", value


def _numbers(container: Container, model: Model, whole: SourceTensor) -> list[float]:
    """The weights of all layers that a GGUF keeps under one key, in the places that their sources name."""
    out = np.zeros(whole.shape, np.float32)
    with container.opened() as raw:
        for t in model.tensors():
            if t.gguf and t.gguf[0].name == whole.name:
                info = container.tensors[t.name]
                if info.quant != "f32":
                    raise other(container, f"tensor {t.name!r} is stored as {info.quant}")
                out[slice(*t.gguf[0].rows)] = np.frombuffer(raw.read(info.offset, 4 * t.shape[0]), "<f4")
    return out.tolist()


def _tensors(container: Container, model: Model) -> dict[str, SourceTensor]:
    """Every tensor by the first of its sources; rows of one tensor are counted together."""
    parts = {layer.layer: {p.name: p for p in layer.parts} for layer in container.layers}
    items = [(t, t.shape, container.tensors.get(t.name)) for t in model.tensors()]
    items += [(p, (e.n, *p.shape), parts.get(e.layer, {}).get(p.name)) for e in model.experts() for p in e.parts]
    out: dict[str, SourceTensor] = {}
    for item, shape, info in items:
        src = item.gguf[0] if item.gguf else Src("")
        fused = src.rows is not None and not src.stacked
        known = src.name and info is not None and src.stacked == (len(shape) > len(item.shape)) and not (src.name in out and not fused)
        if not known or src.transpose or src.turn or src.add:
            raise other(container, f"{container.arch!r} keeps {src.name or item.name!r} in another form than GGUF")
        if fused:
            before = out[src.name].shape[0] if src.name in out else 0
            shape = max(before, src.rows[1] * (src.groups or 1)), *shape[1:]
        elif src.flat:
            shape = src.flat, shape[0] // src.flat, *shape[1:]
        for axis in src.ones:
            shape = *shape[:axis], 1, *shape[axis:]
        out[src.name] = SourceTensor(src.name, shape, info.quant, info.quant)
    return out


def _orders(ours: Model, back: Model) -> tuple[dict[str, Order], Model]:
    """Orders of the tensors whose rows a GGUF has otherwise, and what was read back, as if it had them as we do."""
    orders, layers, turned = {}, [], False
    for a, b in zip((x.attn for x in ours.layers), back.layers, strict=False):
        ropes = (a.rope, b.attn.rope) if isinstance(a, Gqa) and isinstance(b.attn, Gqa) else (None, None)
        if all(ropes) and ropes[1].interleaved and not ropes[0].interleaved:
            turned = a.rope.dim == a.head_dim
            b = replace(b, attn=replace(b.attn, rope=replace(b.attn.rope, interleaved=not turned)))
        if turned and isinstance(a, Gqa):       # layers without rope as well: there one order is as good as another
            orders |= {t.name: Order(_pairs(t.shape[0], a.head_dim)) for t in (a.q, a.k, a.q_bias, a.k_bias) if t}
        if isinstance(a, DeltaNet) and isinstance(b.attn, DeltaNet) and b.attn.tiled and not a.tiled:
            b = replace(b, attn=replace(b.attn, tiled=False))
            heads = a.n_key_head, a.n_head // a.n_key_head
            orders |= {t.name: Order(_tiled(*heads, t.shape[0] // a.n_head))
                       for t in (a.v, a.v_conv.weight, a.gate, a.decay, a.beta, a.a_log, a.decay_bias)}
            orders[a.o.name] = Order(heads=(*heads, a.value_dim))
        layers.append(b)
    return orders, replace(back, layers=tuple(layers))


def _pairs(rows: int, dim: int) -> np.ndarray:
    """Rows i and i + dim / 2 of a head become neighbours."""
    i = np.arange(rows)
    within = i % dim
    return i - within + np.where(within < dim // 2, 2 * within, 2 * within - dim + 1)


def _tiled(keys: int, per: int, width: int) -> np.ndarray:
    """Rows of value head k * per + r become those of r * keys + k."""
    head, within = divmod(np.arange(keys * per * width), width)
    return (head % per * keys + head // per) * width + within


def _same(a: Any, b: Any) -> bool:
    """Equal but for the rounding of numbers, and for where other sources keep the tensors."""
    if isinstance(a, Rope) and isinstance(b, Rope):
        return a.dim == b.dim and a.interleaved == b.interleaved and _same(a.regimes(), b.regimes())
    if is_dataclass(a):
        names = [f.name for f in fields(a) if not (isinstance(a, (Tensor, Part)) and f.name == "hf")]
        return type(a) is type(b) and all(_same(getattr(a, n), getattr(b, n)) for n in names)
    if isinstance(a, (tuple, list)):
        return isinstance(b, (tuple, list)) and len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, float) and isinstance(b, (int, float)):
        return math.isclose(a, b, rel_tol=CLOSE, abs_tol=1e-29)
    return a == b
