"""The model card of a repository of .moegg files, from what the files say of themselves: origin, size, recipe, measured quality.

One section per file, so that several quants share a card; sections of other files stay. A card that moegg did not write is not
replaced. Text of a file is data: it cannot open a heading, a table or HTML.
"""
import re
from typing import Any

from moegg.formats.container import Container
from moegg.units import fmt_bytes

MARK = "<!-- written by moegg push -->"


def write_card(c: Container, repo: str, file: str, provenance: dict[str, Any], quality: dict[str, Any],
               before: str | None) -> str | None:
    """The card with a section for `file`. before: the card that is there. None if that is not ours."""
    if before is not None and MARK not in before:
        return None
    source = _dict(provenance.get("source"))
    base, licence = source.get("repo"), source.get("license")
    front = ["---", "library_name: moegg", "pipeline_tag: text-generation", "tags:", "- moegg"]
    if isinstance(base, str) and re.fullmatch(r"[\w.-]+/[\w.-]+", base):
        front += [f"base_model: {base}", "base_model_relation: quantized"]
    if isinstance(licence, str) and re.fullmatch(r"[\w.+-]+", licence):
        front.append(f"license: {licence}")
    intro = [*front, "---", MARK, "", f"# {_plain(c.name)} for moegg", "",
             "Files for moegg, which runs Mixture-of-Experts models larger than memory on a CPU.", "",
             "```sh", f"moegg inspect hf:{repo}/{file} --ram 8G", f"moegg run hf:{repo}/{file}", "```", ""]
    others = [s for s in re.split(r"(?m)^(?=## )", before or "")[1:] if s.split("\n", 1)[0] != f"## {file}"]
    return "\n".join(intro) + "\n" + "".join(sorted([*others, _section(c, file, source, quality)]))


def _section(c: Container, file: str, source: dict[str, Any], quality: dict[str, Any]) -> str:
    about = c.about
    rows = [("architecture", c.arch), ("size", fmt_bytes(c.file_bytes))]
    if about.size:
        rows.append(("parameters", about.size))
    if c.layers:
        kinds = {(e.n, e.top_k, e.record_bytes): 0 for e in c.layers}
        rows.append(("experts", "; ".join(f"{n} per layer, {k} per token, {fmt_bytes(b)} each" for n, k, b in kinds)))
    rows += [("recipe", f"{about.recipe} v{about.recipe_version}"), ("made by", about.creator)]
    rows += [("source", " ".join(str(source[k]) for k in ("repo", "revision") if source.get(k)) or source.get("kind"))]
    rows += _quality(quality)
    rows += [("root", f"`{c.root.hex()}`"), ("content id", f"`{c.content_id.hex()}`")]
    table = [f"| {name} | {value if name in ('root', 'content id') else _plain(str(value))} |" for name, value in rows]
    return "\n".join([f"## {file}", "", "| | |", "|---|---|", *table, "", ""])


def _quality(q: dict[str, Any]) -> list[tuple[str, str]]:
    """Rows of what `moegg perplexity --json` measured and `moegg edit --quality` stored."""
    def number(d: dict[str, Any], key: str, form: str) -> str:
        return format(d[key], form) if isinstance(d.get(key), int | float) else "?"
    if not q:
        return []
    rows = [("perplexity", f"{number(q, 'perplexity', '.4f')} +- {number(q, 'perplexity_error', '.4f')} "
                           f"({number(q, 'tokens', 'd')} tokens)")]
    if r := _dict(q.get("divergence")):
        keys = (("mean", "kl_mean"), ("median", "kl_median"), ("99 %", "kl_p99"))
        kl = ", ".join(f"{name} {number(r, key, '.5f')}" for name, key in keys)
        rows.append(("beside its reference", f"perplexity {number(r, 'perplexity', '.4f')}; KL divergence {kl}; same first choice "
                                             f"{number(r, 'top1', '.2%')}"))
    return rows


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _plain(text: str) -> str:
    """Text as text: one line, without what Markdown or HTML would obey."""
    line = "".join(c if c.isprintable() else " " for c in text)[:300]
    return re.sub(r"([\\`*_\[\]<>|#!&])", r"\\\1", line)
