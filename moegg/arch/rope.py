"""Rotary embeddings: the frequencies of every scaling, and reading them from either spelling of a config.

Refuses rope types it does not know and values that give no positive, finite frequency in f32.
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from moegg.arch.config import F32_MAX, F32_MIN, I32_MAX, ConfigReader, fits_f32
from moegg.errors import UnsupportedModel

ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "factors", "proportional")


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
            case "proportional":        # pairs of the whole head, of which the first ones turn
                return [(no_limit, [f / s["factor"] if i < s["turning"] else 0.0 for i, f in enumerate(inv)], 1.0)]
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


def read_rope(cfg: ConfigReader, dim: int, ctx_train: int, theta_default: float = 10000.0, interleaved: bool = False,
              partial: float | None = None) -> Rope:
    """The Rope of a config in either spelling: rope_theta + rope_scaling (releases) or rope_parameters (transformers 5).

    partial: the class's default of partial_rotary_factor, the share of a head's `dim` that turns; None: it knows no such key.
    """
    params = cfg.child("rope_scaling" if cfg.dict("rope_scaling", default=None) else "rope_parameters")
    theta = params.float("rope_theta", default=None) or cfg.float("rope_theta", default=theta_default)
    if partial is None:
        cfg.expect("partial_rotary_factor", 1.0)     # these classes would rotate the whole head and fail on the shapes
        params.expect("partial_rotary_factor", 1.0)
    else:
        own = cfg.float("partial_rotary_factor", default=partial, low=0)
        share = params.float("partial_rotary_factor", default=own, low=0)
        dim = int(dim * share) if share <= 1 else 0
        if dim < 2 or dim % 2:
            raise cfg.wrong("partial_rotary_factor", f"rope needs an even number of dimensions to turn, got {dim}")
    return rope_of(params, dim, theta, ctx_train, interleaved, cfg.int("original_max_position_embeddings", low=1, default=None))


def read_layer_ropes(cfg: ConfigReader, dim: int, ctx_train: int, theta: float, local_theta: float) -> tuple[Rope, Rope]:
    """(rope of full layers, rope of sliding layers), from rope_parameters per layer type or from flat keys, whose scaling is that of full
    layers. theta, local_theta: where no object says otherwise."""
    params = cfg.child("rope_parameters")
    full, local = params.child("full_attention"), params.child("sliding_attention")
    theta = full.float("rope_theta", default=None) or cfg.float("rope_theta", default=theta)
    local_theta = local.float("rope_theta", default=None) or local_theta
    if cfg.has("rope_scaling"):
        full = cfg.child("rope_scaling")
    elif params.has("rope_type"):
        raise cfg.refuse("rope_parameters", "supported: one object each for full_attention and sliding_attention")
    for keys in (cfg, full, local):
        keys.expect("partial_rotary_factor", 1.0)
    return rope_of(full, dim, theta, ctx_train), rope_of(local, dim, local_theta, ctx_train)


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
    s: dict[str, Any] = {"rope_type": kind}
    if kind == "proportional":
        s["factor"] = params.float("factor", default=1.0, low=F32_MIN)
        s["turning"] = int(params.float("partial_rotary_factor", default=1.0, low=0) * dim // 2)
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
        sound = all((f > 0 or kind == "proportional" and f == 0) and fits_f32(f) and f * I32_MAX <= F32_MAX
                    for _, inv, attention in rope.regimes() for f in (*inv, attention))
    except (ValueError, TypeError, ArithmeticError) as e:
        raise params.wrong("rope_type", f"its values do not give {dim // 2} frequencies: {e}") from e
    if not sound:
        raise params.wrong("rope_type", "its values give a frequency that is not positive and finite in f32")
    return rope
