"""Quant recipes: (role, shape, source quant) -> quant. A recipe has a name and a version, both stored in the file.

Vectors, norms, biases and routers are f32 in every recipe: they are small and decide much. A row that is no whole number of
blocks falls back: from 256-element blocks to the 32-element neighbour that ggml takes, from 32 to f16.
"""
from dataclasses import dataclass

from moegg.errors import UsageError
from moegg.quants import QUANTS

ALWAYS_F32 = frozenset({"norm", "bias", "router", "aux"})
# llama-quant.cpp: tensor_type_fallback
FALLBACK = {"q2_k": "iq4_nl", "q3_k": "iq4_nl", "iq4_xs": "iq4_nl", "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0"}


@dataclass(frozen=True)
class Recipe:
    """quants: role ('expert', 'attn', 'dense', 'shared', 'embed', 'head') -> quant, '' = every other; None keeps the source's."""
    name: str
    version: int
    quants: dict[str, str] | None

    def choose(self, role: str, shape: tuple[int, ...], source: str) -> tuple[str, str]:
        """(quant, wanted): what to write, and what the recipe asked for if the row did not fit it."""
        if role in ALWAYS_F32 or len(shape) < 2:
            return "f32", "f32"
        wanted = source if self.quants is None else self.quants.get(role, self.quants[""])
        quant = wanted
        if not QUANTS[quant].fits(shape[-1]):
            quant = FALLBACK.get(quant, "f16")
        return (quant if QUANTS[quant].fits(shape[-1]) else "f16"), wanted


RECIPES = {r.name: r for r in (
    Recipe("keep", 1, None),
    Recipe("f32", 1, {"": "f32"}),
    Recipe("bf16", 1, {"": "bf16"}),
    Recipe("f16", 1, {"": "f16"}),
    Recipe("q8", 1, {"": "q8_0"}),
    # 4 bits with per-32 scales where the bytes are; 8 bits for what every token passes through.
    Recipe("q4", 1, {"": "q8_0", "expert": "q4_0", "dense": "q4_0"}),
)}


def find_recipe(name: str) -> Recipe:
    """The recipe `name`. Raises UsageError."""
    if name not in RECIPES:
        raise UsageError(f"--quant: got {name!r}, expected one of {', '.join(RECIPES)}", "usage")
    return RECIPES[name]
