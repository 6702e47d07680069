"""The vocabulary in which an architecture is described, and ConfigReader, the only way a module reads its config.

`describe(cfg) -> Model` of moegg/models/*.py builds one frozen `Model`; converter, planner, scheduler, forward pass and tests
derive everything from it. Shapes are as stored, [out, in], row-major; letters as in CONTRIBUTING.md's glossary:
D hidden size, H/Hkv query/KV heads, Dh head dim, F width, E experts, K top-k, V vocabulary.
A new architecture of known kinds is one module; a new kind of block is a kernel, a state rule, a reference and a decision.
"""
from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from moegg.errors import FormatError, UnsupportedModel

ROLES = ("embed", "norm", "attn", "dense", "shared", "router", "head", "bias", "aux")


# --- tensors and where they come from -----------------------------------------------------------------------------------

@dataclass(frozen=True)
class Src:
    """Where one matrix lies in a source: `name` (may hold {e}), then these pure steps in this order.

    stacked: take slice e of axis 0; transpose: swap the last two axes; rows: keep rows[start:stop:step] of axis 0 of the
    matrix (fused gate_up, interleaved gate/up); add: add a constant in f32 (gemma's 1 + w norms).
    """
    name: str
    stacked: bool = False
    transpose: bool = False
    rows: tuple[int, int, int] | None = None
    add: float = 0.0


@dataclass(frozen=True)
class Tensor:
    """One resident or row-gather weight. `hf`, `gguf`: alternatives, the first that the source has is used."""
    name: str
    shape: tuple[int, ...]
    role: str
    hf: tuple[Src, ...]
    gguf: tuple[Src, ...] = ()
    layer: int = -1
    gather: bool = False        # only looked up by row (an untied embedding): row-major, not resident


@dataclass(frozen=True)
class Part:
    """One matrix of an expert record; Src names hold {e}, or are stacked over experts."""
    name: str
    shape: tuple[int, int]
    hf: tuple[Src, ...]
    gguf: tuple[Src, ...] = ()


@dataclass(frozen=True)
class Experts:
    """The n expert records of one layer; parts in record order."""
    layer: int
    n: int
    parts: tuple[Part, ...]

    def part(self, name: str) -> Part:
        return next(p for p in self.parts if p.name == name)


# --- kinds of blocks ----------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Norm:
    """y = x / sqrt(mean(x^2) + eps) * w in f32."""
    weight: Tensor
    eps: float


@dataclass(frozen=True)
class Rope:
    """Rotary embedding over the first `dim` of each head; read_rope() makes and checks one.

    scaling: sorted (key, value) pairs of a rope_scaling object with 'rope_type', its fallbacks filled in; empty: none.
    interleaved: pairs (2i, 2i+1) instead of (i, i + dim/2). ctx_train: max_position_embeddings, which `dynamic` needs.
    """
    dim: int
    theta: float
    scaling: tuple[tuple[str, Any], ...] = ()
    interleaved: bool = False
    ctx_train: int = 0

    def regimes(self) -> list[tuple[int, list[float], float]]:
        """[(longest sequence, inv_freq [dim/2], factor on cos and sin)], shortest first; the last has no limit (2**62).

        One entry, except for dynamic and longrope: there the whole sequence changes its frequencies when it outgrows the
        first entry, so that a session must be evaluated again from its start. Formulas: transformers modeling_rope_utils.
        """
        s, no_limit = dict(self.scaling), 1 << 62
        inv = self._inv_freq(self.theta)
        match s.get("rope_type", "default"):
            case "default":
                return [(no_limit, inv, 1.0)]
            case "linear":
                return [(no_limit, [f / s["factor"] for f in inv], 1.0)]
            case "factors":
                return [(no_limit, [f / e for f, e in zip(inv, s["factors"], strict=True)], 1.0)]
            case "llama3":
                return [(no_limit, _llama3(inv, s), 1.0)]
            case "yarn":
                return [(no_limit, *_yarn(inv, s, self.dim, self.theta))]
            case "dynamic":
                # transformers recomputes the base for every longer sequence; one base, that of factor x the trained length,
                # keeps prefill and decode equal (vLLM's rule; Decisions in CONTRIBUTING.md).
                base = self.theta * (s["factor"] ** 2 - s["factor"] + 1) ** (self.dim / (self.dim - 2))
                return [(self.ctx_train, inv, 1.0), (no_limit, self._inv_freq(base), 1.0)]
            case "longrope":
                orig, factor, attention = s["original_max_position_embeddings"], s["factor"], s["attention_factor"]
                if attention is None:
                    attention = math.sqrt(1 + math.log(factor) / math.log(orig)) if factor > 1 else 1.0
                return [(limit, [f / e for f, e in zip(inv, s[key], strict=True)], attention)
                        for limit, key in ((orig, "short_factor"), (no_limit, "long_factor"))]
            case kind:
                raise UnsupportedModel(f"rope: unknown 'rope_type': got {kind!r}, expected one of {', '.join(ROPE_TYPES)}",
                                       "arch-unsupported")

    def _inv_freq(self, theta: float) -> list[float]:
        return [theta ** (-2.0 * i / self.dim) for i in range(self.dim // 2)]


def _llama3(inv: list[float], s: dict[str, Any]) -> list[float]:
    factor, low, high = s["factor"], s["low_freq_factor"], s["high_freq_factor"]
    out = []
    for f in inv:
        turns = s["original_max_position_embeddings"] * f / (2 * math.pi)      # full turns within the trained length
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        out.append((1 - kept) * f / factor + kept * f)
    return out


def _yarn(inv: list[float], s: dict[str, Any], dim: int, theta: float) -> tuple[list[float], float]:
    def index(beta: float) -> float:       # where a pair turns beta times within the trained length
        return dim * math.log(s["original_max_position_embeddings"] / (beta * 2 * math.pi)) / (2 * math.log(theta))
    low, high = index(s["beta_fast"]), index(s["beta_slow"])
    if s["truncate"]:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = high - low or 0.001
    ramps = [min(max((i - low) / width, 0.0), 1.0) for i in range(len(inv))]
    attention = s["attention_factor"]
    if attention is None:
        grow, m, m_all = 0.1 * math.log(max(s["factor"], 1.0)), s["mscale"], s["mscale_all_dim"]
        attention = (grow * m + 1) / (grow * m_all + 1) if m and m_all else grow + 1
    return [f / s["factor"] * r + f * (1 - r) for f, r in zip(inv, ramps, strict=True)], attention


@dataclass(frozen=True)
class Gqa:
    """Grouped-query attention, causal; window W: query i sees keys i-W < j <= i (0 = all). Head norms before rope."""
    n_head: int
    n_kv_head: int
    head_dim: int
    scale: float
    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    rope: Rope | None
    window: int = 0
    q_bias: Tensor | None = None
    k_bias: Tensor | None = None
    v_bias: Tensor | None = None
    o_bias: Tensor | None = None
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    softcap: float = 0.0


@dataclass(frozen=True)
class Mlp:
    """down(act(gate x) * up x). act: 'silu' or 'gelu_tanh'."""
    gate: Tensor
    up: Tensor
    down: Tensor
    act: str = "silu"
    gate_bias: Tensor | None = None
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None


@dataclass(frozen=True)
class Moe:
    """Routed experts. score: 'softmax' over all experts, then the top_k largest (ties: lowest id); renormalise: their
    weights are divided by their sum; then multiplied by `scale`. Each expert is an Mlp of `experts.parts` gate, up, down.
    """
    router: Tensor
    experts: Experts
    top_k: int
    act: str = "silu"
    score: str = "softmax"
    renormalise: bool = True
    scale: float = 1.0


@dataclass(frozen=True)
class Layer:
    """x += post(attn(norm(x))); x += post(ffn(norm(x))); the post norms are optional."""
    attn_norm: Norm
    attn: Gqa
    ffn_norm: Norm
    ffn: Mlp | Moe
    attn_post_norm: Norm | None = None
    ffn_post_norm: Norm | None = None


@dataclass(frozen=True)
class Model:
    """A whole decoder. head None: tied to the embedding. logit_softcap 0: none."""
    arch: str
    d: int
    vocab: int
    ctx_train: int
    embed: Tensor
    layers: tuple[Layer, ...]
    final_norm: Norm
    head: Tensor | None = None
    embed_scale: float = 1.0
    logit_softcap: float = 0.0

    def tensors(self) -> list[Tensor]:
        """All tensors outside expert records, in execution order: embedding, layers in field order, final norm, head."""
        out: list[Tensor] = [self.embed]
        for layer in self.layers:
            out += _walk(layer)
        out += _walk(self.final_norm)
        return out + ([self.head] if self.head else [])

    def experts(self) -> list[Experts]:
        return [layer.ffn.experts for layer in self.layers if isinstance(layer.ffn, Moe)]

    def parameter_count(self) -> int:
        n = sum(math.prod(t.shape) for t in self.tensors())
        return n + sum(e.n * math.prod(p.shape) for e in self.experts() for p in e.parts)

    def active_count(self) -> int:
        """Parameters that one token touches: everything but a gathered embedding and the experts not chosen."""
        n = sum(math.prod(t.shape) for t in self.tensors() if not t.gather)
        return n + sum(layer.ffn.top_k * math.prod(p.shape) for layer in self.layers if isinstance(layer.ffn, Moe)
                       for p in layer.ffn.experts.parts)


def _walk(node: Any) -> Iterator[Tensor]:
    """Tensors below a block, in field order; expert records are not tensors."""
    if isinstance(node, Tensor):
        yield node
    elif is_dataclass(node) and not isinstance(node, (Experts, Rope)):
        for f in fields(node):
            yield from _walk(getattr(node, f.name))


# --- reading a config ---------------------------------------------------------------------------------------------------

_MISSING = object()
I32_MAX = (1 << 31) - 1
F32_MIN, F32_MAX = 2.0 ** -126, (2 - 2.0 ** -23) * 2.0 ** 127      # normal numbers: what kernels compute with


def fits_f32(x: Any) -> bool:
    """True for 0 and numbers that are finite and normal in f32. A JSON integer may be larger than any float."""
    return isinstance(x, (int, float)) and not isinstance(x, bool) and (x == 0 or F32_MIN <= abs(x) <= F32_MAX)


class ConfigReader:
    """Typed reads of a config.json-like mapping that remember which keys were read.

    Every read takes alternative key names, the first that is present counts; null counts as absent, except for given().
    Numbers are those that i32 and f32 hold, which is what kernels get.
    `used()` is the canonical config that goes into the file's first 64 KiB, values as read: it describes the same Model.
    `unused()` names the keys nobody read.
    """

    def __init__(self, data: Mapping[str, Any], path: str = "", where: str = "config.json"):
        self._data, self._path, self._where = data, path, where
        self._read: dict[str, Any] = {}
        self._children: dict[str, ConfigReader] = {}

    def _get(self, keys: tuple[str, ...], default: Any) -> tuple[str, Any]:
        found = [k for k in keys if self._data.get(k) is not None]
        for k in keys:
            if k in self._data and (not found or k == found[0]) and self._read.get(k, _MISSING) is _MISSING:
                self._read[k] = self._data[k]
        self.ignore(*found[1:])
        if found:
            return found[0], self._data[found[0]]
        if default is _MISSING:
            names = " or ".join(repr(self._path + k) for k in keys)
            raise FormatError(f"{self._where}: missing key: got none, expected {names}", "config-missing")
        return keys[0], default

    def _typed(self, keys: tuple[str, ...], default: Any, kind: str, ok, cast) -> Any:
        k, v = self._get(keys, default)
        if v is default:
            return v
        if not ok(v):
            raise FormatError(f"{self._where}: {self._path + k!r}: got {v!r:.80}, expected {kind}", "config-type")
        self._read[k] = cast(v)
        return self._read[k]

    def int(self, *keys: str, default: Any = _MISSING, low: int = 0, high: int = I32_MAX) -> int:
        def ok(v):
            return isinstance(v, (int, float)) and not isinstance(v, bool) and low <= v <= high and v == int(v)
        return self._typed(keys, default, f"a whole number from {low} to {high}", ok, int)

    def float(self, *keys: str, default: Any = _MISSING, low: float = -F32_MAX) -> float:
        kind = "a finite number" + (f" of at least {low}" if low > -F32_MAX else "") + ", within f32"
        return self._typed(keys, default, kind, lambda v: fits_f32(v) and v >= low, float)

    def floats(self, *keys: str, default: Any = _MISSING) -> list[float]:
        def ok(v):
            return isinstance(v, list) and all(map(fits_f32, v))
        return self._typed(keys, default, "a list of finite numbers, within f32", ok, lambda v: [*map(float, v)])

    def bool(self, *keys: str, default: Any = _MISSING) -> bool:
        return self._typed(keys, default, "true or false", lambda v: isinstance(v, bool), bool)

    def str(self, *keys: str, default: Any = _MISSING) -> str:
        return self._typed(keys, default, "a string", lambda v: isinstance(v, str), str)

    def list(self, *keys: str, of: tuple[type, ...] = (), default: Any = _MISSING) -> list:
        def ok(v):
            return isinstance(v, list) and all((not of or type(x) in of) and (type(x) is not int or abs(x) <= I32_MAX) for x in v)
        return self._typed(keys, default, f"a list of {' or '.join(t.__name__ for t in of) or 'values'}", ok, list)

    def dict(self, *keys: str, default: Any = _MISSING) -> dict:
        return self._typed(keys, default, "an object", lambda v: isinstance(v, Mapping), dict)

    def has(self, key: str) -> bool:
        """True if the key is present and not null; counts as read."""
        return self._get((key,), None)[1] is not None

    def given(self, key: str) -> bool:
        """True if the key is present, null included: for classes whose default differs from null. Counts as read."""
        return self.has(key) or key in self._data

    def child(self, key: str) -> ConfigReader:
        """The nested object under `key`, with its own bookkeeping; an empty one if the key is absent or null."""
        if key not in self._children:
            sub = self.dict(key, default=None)
            if sub is None:
                return ConfigReader({}, f"{self._path}{key}.", self._where)
            self._children[key] = ConfigReader(sub, f"{self._path}{key}.", self._where)
        return self._children[key]

    def path(self, key: str) -> ConfigReader:
        """The nested object under `key` (text_config), with its own bookkeeping; this reader itself if the key is absent."""
        return self.child(key) if self.has(key) else self

    def expect(self, key: str, *allowed: Any, default: Any = _MISSING) -> Any:
        """The value of `key`, which must be one of `allowed`. Raises UnsupportedModel naming the key otherwise."""
        k, v = self._get((key,), allowed[0] if default is _MISSING else default)
        if v not in allowed:
            raise UnsupportedModel(f"{self._where}: {self._path + k!r} is {v!r:.80}; supported: "
                                   f"{', '.join(repr(a) for a in allowed)}", "arch-unsupported")
        return v

    def refuse(self, key: str, why: str) -> UnsupportedModel:
        """An error to raise for a key whose value this architecture module cannot honour."""
        return UnsupportedModel(f"{self._where}: {self._path + key!r} is {self._data.get(key)!r:.80}; {why}", "arch-unsupported")

    def wrong(self, key: str, why: str) -> FormatError:
        """An error to raise for a key whose value contradicts other keys."""
        return FormatError(f"{self._where}: {self._path + key!r} is {self._data.get(key)!r:.80}; {why}", "config-value")

    def ignore(self, *keys: str) -> None:
        """Keys known to change nothing in a text forward pass (dropout, cache switches, training losses)."""
        for k in keys:
            self._read.setdefault(k, _MISSING)

    def used(self) -> dict[str, Any]:
        out = {k: v for k, v in self._read.items() if v is not _MISSING}
        out.update({k: c.used() for k, c in self._children.items()})
        return out

    def unused(self) -> list[str]:
        out = [self._path + k for k in self._data if k not in self._read and k not in self._children]
        return out + [u for c in self._children.values() for u in c.unused()]


ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "factors")


def read_rope(cfg: ConfigReader, dim: int, ctx_train: int, theta_default: float = 10000.0, interleaved: bool = False) -> Rope:
    """The Rope of a config in either spelling: rope_theta + rope_scaling (releases) or rope_parameters (transformers 5)."""
    params = cfg.child("rope_scaling" if cfg.dict("rope_scaling", default=None) else "rope_parameters")
    theta = params.float("rope_theta", default=None) or cfg.float("rope_theta", default=theta_default)
    cfg.expect("partial_rotary_factor", 1.0)     # these classes would rotate the whole head and fail on the shapes
    return rope_of(params, dim, theta, ctx_train, interleaved, cfg.int("original_max_position_embeddings", low=1, default=None))


def rope_of(params: ConfigReader, dim: int, theta: float, ctx_train: int, interleaved: bool = False,
            orig: int | None = None) -> Rope:
    """The Rope of one rope_scaling or rope_parameters object (an empty one: no scaling). orig: the config's own
    original_max_position_embeddings, which wins over the object's. Rope types as in transformers 5, with the old names
    'type' and 'su'; 'factors' are GGUF's divisors of the frequencies. Raises UnsupportedModel or FormatError.
    """
    kind = params.str("rope_type", "type", default="default")
    kind = "longrope" if kind == "su" else kind
    if kind not in ROPE_TYPES:
        raise params.refuse("rope_type" if params.has("rope_type") else "type", f"supported: {', '.join(ROPE_TYPES)}")
    params.expect("partial_rotary_factor", 1.0)
    s: dict[str, Any] = {"rope_type": kind}
    if kind in ("llama3", "yarn", "longrope"):
        own = params.int("original_max_position_embeddings", low=1, default=ctx_train)
        s["original_max_position_embeddings"] = orig or own
    if kind in ("linear", "dynamic", "llama3"):
        s["factor"] = params.float("factor")
    if kind == "llama3":
        s |= {k: params.float(k) for k in ("low_freq_factor", "high_freq_factor")}
    if kind in ("yarn", "longrope"):
        s["factor"] = params.float("factor", default=None) or ctx_train / s["original_max_position_embeddings"]
        s["attention_factor"] = params.float("attention_factor", default=None)
    if kind == "yarn":
        s |= {k: params.float(k, default=0.0) or d for k, d in (("beta_fast", 32.0), ("beta_slow", 1.0))}
        s |= {k: params.float(k, default=0.0) for k in ("mscale", "mscale_all_dim")}
        s["truncate"] = params.bool("truncate", default=True)
    for key in {"longrope": ("short_factor", "long_factor"), "factors": ("factors",)}.get(kind, ()):
        s[key] = tuple(params.floats(key))
    rope = Rope(dim, theta, tuple(sorted(s.items())) if kind != "default" else (), interleaved, ctx_train)
    try:
        # an angle, frequency times position, is an f32 too
        sound = all(f > 0 and fits_f32(f) and f * I32_MAX <= F32_MAX for _, inv, attention in rope.regimes() for f in (*inv, attention))
    except (ValueError, TypeError, ArithmeticError) as e:
        raise params.wrong("rope_type", f"its values do not give {dim // 2} frequencies: {e}") from e
    if not sound:
        raise params.wrong("rope_type", "its values give a frequency that is not positive and finite in f32")
    return rope
