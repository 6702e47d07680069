"""moegg edit - replaces chat template, model card or generation defaults of a file

Usage: moegg edit [options] MODEL

Rewrites the tail of the file in place, a few kilobytes; weights, root and content id stay as they
are. An empty FILE removes what it would replace. If it is interrupted at any moment, even by a
power cut, the model is either the old or the new one, and the next edit cleans up.

Options:
  --chat-template=FILE     a Jinja template, for conversations
  --card=FILE              a model card, Markdown
  --generation-config=FILE
                           default sampling: a JSON object as in generation_config.json
  --quality=FILE           what 'moegg perplexity --json' measured, for the model card
  --verbose                say more on stderr
  --debug                  show a traceback when something fails
  -h, --help               show this text
"""
import json
from pathlib import Path
from typing import Any

from moegg import chat, log
from moegg.commands.opening import find_model, open_container, read_text
from moegg.errors import BadRequest, ExitStatus, FormatError, UsageError
from moegg.formats.edit import edit_tail
from moegg.formats.sections import json_object, section_json
from moegg.sampler import SamplingParams
from moegg.units import fmt_bytes

SECTIONS = {"--chat-template": "chat_template", "--card": "model_card", "--generation-config": "generation_config",
            "--quality": "quality"}


def main(args: dict[str, Any]) -> ExitStatus:
    if str(args["MODEL"]) == "demo":
        raise UsageError(f"demo: belongs to moegg, expected a file of yours; copy it first: cp {find_model(args['MODEL'])} my.moegg", "usage")
    container = open_container(args["MODEL"])
    changes: dict[str, bytes | None] = {}
    if (file := args["--chat-template"]) is not None:
        templates = section_json(container, "chat_template")
        templates.pop("default", None)
        if text := read_text(file):
            _check_template(text, file)
            templates["default"] = text
        changes["chat_template"] = _canonical(templates) if templates else None
    if (file := args["--card"]) is not None:
        changes["model_card"] = read_text(file).encode() or None
    if (file := args["--generation-config"]) is not None:
        changes["generation_config"] = _canonical(_generation(text, file)) if (text := read_text(file)) else None
    if (file := args["--quality"]) is not None:
        changes["quality"] = _canonical(_quality(json_object(text, str(file)), file)) if (text := read_text(file)) else None
    if not changes and not container.edited:
        raise UsageError(f"nothing to do: got no option, expected one of {', '.join(SECTIONS)}", "usage")
    done = edit_tail(find_model(args["MODEL"]), changes)
    names = ", ".join(f"{name} {'removed' if data is None else fmt_bytes(len(data))}" for name, data in changes.items())
    print(f"{done.path}: {names or 'the edit that was cut off is finished'}")
    return ExitStatus.OK


def _canonical(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def _check_template(text: str, file: Path) -> None:
    """A template that cannot be compiled is refused; one that does not like a plain question may still be right."""
    try:
        chat.render(text, [{"role": "user", "content": "Hello"}])
    except BadRequest as e:
        if e.slug == "template-syntax":
            raise BadRequest(f"{file}: {e.message}", e.slug) from None
        log.warn(f"{file}: a single question gives: {e.message}")


def _generation(text: str, file: Path) -> dict[str, Any]:
    value = json_object(text, str(file))
    SamplingParams.from_generation_config(value)
    return value


def _quality(value: dict[str, Any], file: Path) -> dict[str, Any]:
    """The measured numbers, flat, with the distance from the reference as 'divergence'; no paths."""
    q = value.get("quality")
    if not isinstance(q, dict) or not isinstance(q.get("perplexity"), int | float):
        raise FormatError(f"{file}: got no measured quality, expected the output of 'moegg perplexity --json'", "section-json")
    found = {k: v for k, v in q.items() if isinstance(v, int | float)}
    reference = q.get("reference")
    if isinstance(reference, dict):
        found["divergence"] = {k: v for k, v in reference.items() if isinstance(v, int | float)}
    return found
