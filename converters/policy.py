"""Quant recipes: (name, role, layer, shape, source quant) -> quant. A recipe has a name and a version, both stored in the file.

A version that was released keeps its meaning: what becomes better gets the next one, and 'q4@1' asks for an older one. Vectors, norms,
biases and routers are f32 in every recipe: they are small and decide much. A row that is no whole number of blocks falls back: from
256-element blocks to the 32-element neighbour that ggml takes, from 32 to f16.
"""
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from moegg.arch import Model
from moegg.errors import UsageError
from moegg.quants import QUANTS

ALWAYS_F32 = frozenset({"norm", "bias", "router", "aux"})
# llama-quant.cpp: tensor_type_fallback
FALLBACK = {"q2_k": "iq4_nl", "q3_k": "iq4_nl", "iq4_xs": "iq4_nl", "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0"}
EDGE_SHARE = 8          # the first and the last eighth of the layers, at least one each, are the edge


@dataclass(frozen=True)
class Weight:
    """One matrix as the recipe sees it. name: in the container, experts as part_name() says; n_layers: of the model; first_moe: its first
    layer with experts, 0 if there are none."""
    name: str
    role: str
    shape: tuple[int, ...]
    layer: int = -1
    n_layers: int = 0
    first_moe: int = 0

    @property
    def leading(self) -> bool:
        """True before all layers with experts: every token passes through, and what is lost here is lost for all that follow."""
        return 0 <= self.layer < self.first_moe

    @property
    def edge(self) -> bool:
        near = max(1, self.n_layers // EDGE_SHARE)
        return self.layer >= 0 and (self.layer < near or self.layer >= self.n_layers - near)

    @property
    def uneven(self) -> bool:
        """True for rows of 256 that write a stream which is no multiple of 256 wide: gates and ups, which read it, have fallen back."""
        return self.shape[-1] % 256 == 0 and self.shape[-2] % 256 != 0


def part_name(layer: int, part: str) -> str:
    """The name of one matrix of all experts of a layer."""
    return f"layers.{layer}.experts.{part}"


def weights_of(model: Model) -> dict[str, Weight]:
    """Name -> Weight of every tensor and expert part of a model."""
    n, experts = len(model.layers), list(model.experts())
    first = min((e.layer for e in experts), default=0)
    found = [Weight(t.name, t.role, t.shape, t.layer, n, first) for t in model.tensors()]
    found += [Weight(part_name(e.layer, p.name), "expert", p.shape, e.layer, n, first) for e in experts for p in e.parts]
    return {w.name: w for w in found}


@dataclass(frozen=True)
class Override:
    """`quant` for the matrices whose name or role matches `pattern`, a glob."""
    pattern: str
    quant: str

    def matches(self, w: Weight) -> bool:
        return fnmatchcase(w.name, self.pattern) or fnmatchcase(w.role, self.pattern)


@dataclass(frozen=True)
class Recipe:
    """quants: what -> quant, None: the source's. What: a role ('expert', 'attn', 'dense', 'shared', 'embed', 'head'), a role with the
    last word of the name ('expert.down'), '' = every other; after 'leading ', 'uneven ' or 'edge ' for such matrices only, after 'short '
    for rows that do not fit what was chosen; the closest counts. overrides: the last that matches wins.
    """
    name: str
    version: int
    quants: dict[str, str] | None
    overrides: tuple[Override, ...] = ()

    def choose(self, w: Weight, source: str) -> tuple[str, str]:
        """(quant, wanted): what to write, and what the recipe asked for if the row did not fit it."""
        if not adjustable(w):
            return "f32", "f32"
        places = ["leading "] * w.leading + ["uneven "] * w.uneven + ["edge "] * w.edge + [""]
        quant = wanted = self._overridden(w) or self._find(w, places) or source
        if not QUANTS[quant].fits(w.shape[-1]):
            quant = (not self._overridden(w) and self._find(w, ["short "])) or FALLBACK.get(quant, "f16")
        return (quant if QUANTS[quant].fits(w.shape[-1]) else "f16"), wanted

    def _overridden(self, w: Weight) -> str | None:
        return next((o.quant for o in reversed(self.overrides) if o.matches(w)), None)

    def _find(self, w: Weight, prefixes: list[str]) -> str | None:
        keys = [f"{w.role}.{w.name.rsplit('.', 1)[-1]}", w.role, ""]
        return next((self.quants[k] for p in prefixes for k in (p + key for key in keys) if k in self.quants), None) if self.quants else None

    def record(self) -> dict:
        """What is stored in a file."""
        out = {"name": self.name, "version": self.version}
        return out | {"overrides": [f"{o.pattern}={o.quant}" for o in self.overrides]} if self.overrides else out


def adjustable(w: Weight) -> bool:
    """False for what is f32 in every recipe."""
    return w.role not in ALWAYS_F32 and len(w.shape) > 1


# Bytes are in the experts, so bits are saved there. What every token passes through gets more of them: on a small MoE model at 3 bits,
# attention in q6_k instead of q4_k lowered the KL divergence by more than q4_k instead of q3_k for all downs, which costs twice as much.
# The outputs of downs go straight into the residual stream; those of edge layers are protected. bench/quant_report.py measures presets.
# Where rows of 256 do not fit, gates and ups have 4.5 bits whatever was asked for: downs of 3 bits then lose more than they save, and so do
# attention and embedding in q8_0 instead of q5_1. Dense FFNs of leading layers are less than 1 % of a released model with experts.
_SHORT = {"short attn": "q5_1", "short embed": "q5_1", "short head": "q5_1"}


def _versions(name: str, *changes: dict[str, str]) -> list[Recipe]:
    """Versions 1, 2, ...: each is the one before with its changes."""
    quants: dict[str, str] = {}
    return [Recipe(name, i, quants := quants | more) for i, more in enumerate(changes, 1)]


_EVERY = (
    Recipe("keep", 1, None),
    Recipe("f32", 1, {"": "f32"}),
    Recipe("bf16", 1, {"": "bf16"}),
    Recipe("f16", 1, {"": "f16"}),
    Recipe("q8", 1, {"": "q8_0"}),
    *_versions("q6", {"": "q8_0", "expert": "q6_k", "dense": "q6_k"}, {"leading dense": "q8_0"}),
    *_versions("q5", {"": "q6_k", "expert": "q5_k", "dense": "q5_k", "edge expert.down": "q6_k", "edge dense.down": "q6_k"},
               {"leading dense": "q6_k"}),
    *_versions("q4", {"": "q8_0", "expert": "q4_0", "dense": "q4_0"},
               {"": "q6_k", "expert": "q4_k", "dense": "q4_k", "edge expert.down": "q5_k", "edge dense.down": "q5_k"},
               {"short attn": "q5_1"}, {"leading dense": "q6_k"}),
    *_versions("q3", {"": "q6_k", "expert": "q3_k", "dense": "q3_k", "edge expert.down": "q4_k", "edge dense.down": "q4_k"},
               {"uneven expert.down": "q4_k", "uneven dense.down": "q4_k", **_SHORT}, {"leading dense": "q6_k"}),
    *_versions("q2", {"": "q5_k", "embed": "q6_k", "head": "q6_k", "expert": "q2_k", "dense": "q2_k", "edge expert.down": "q3_k",
                      "edge dense.down": "q3_k"},
               {"uneven expert.down": "q3_k", "uneven dense.down": "q3_k", **_SHORT}, {"leading dense": "q5_k"}),
)
NAMES = tuple(dict.fromkeys(r.name for r in _EVERY))
RECIPES = {f"{r.name}@{r.version}": r for r in _EVERY} | {r.name: r for r in _EVERY}        # a name alone: the newest version


def find_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe `name` with overrides 'GLOB=QUANT'. Raises UsageError."""
    if name not in RECIPES:
        raise UsageError(f"--quant: bad value: got {name!r:.40}, expected one of {', '.join(NAMES)}, or an older version such as q4@1", "usage")
    return replace(RECIPES[name], overrides=tuple(map(_override, overrides)))


def _override(text: str) -> Override:
    pattern, eq, quant = text.rpartition("=")
    if not eq or not pattern or quant not in QUANTS or not QUANTS[quant].encodes:
        raise UsageError(f"--override: got {text!r:.80}, expected GLOB=QUANT such as 'layers.*.attn.*=q8_0', with a quant of "
                         f"{', '.join(q.name for q in QUANTS.values() if q.encodes)}", "usage")
    return Override(pattern, quant)
