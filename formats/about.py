"""What a file says of itself in `meta`: recipe, sizes, origin. All of it is free text of whoever made the file, so each item
that is missing or of another type is None, and nothing here decides how weights are read.
"""
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moegg.units import fmt_count


@dataclass(frozen=True)
class About:
    """parameters, active_parameters: weights in all, and those that one token meets. recipe: name of the `--quant` preset."""
    recipe: str | None
    recipe_version: int | None
    parameters: int | None
    active_parameters: int | None
    source: str | None
    creator: str | None

    @property
    def size(self) -> str:
        """'30.5 B, 3.0 B active per token'; empty if the file does not say."""
        if self.parameters is None:
            return ""
        return fmt_count(self.parameters) + ("" if self.active_parameters is None else f", {fmt_count(self.active_parameters)} active per token")

    @classmethod
    def of(cls, meta: Mapping[str, Any]) -> "About":
        quant = meta.get("quant")
        quant = quant if isinstance(quant, dict) else {}
        return cls(_text(quant.get("name")), _count(quant.get("version")), _count(meta.get("parameters")),
                   _count(meta.get("active_parameters")), _text(meta.get("source")), _text(meta.get("creator")))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 63 else None
