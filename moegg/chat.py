"""Chat messages to a prompt: what a message may look like, and ids in which users cannot forge turns.

Owns: which variant of a template is used, what it is given, and the rule that special tokens come from the template alone,
whatever special-looking text the messages and tools hold.
Refuses: running templates itself (moegg/sandbox.py). What templates expect of messages (reasoning's aliases): transformers 5,
utils/chat_template_utils.py.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from moegg import sandbox
from moegg.arch import ConfigReader
from moegg.errors import BadRequest
from moegg.tokenizer import Finder, Tokenizer

_REASONING = ("reasoning_content", "thinking", "reasoning")     # one thing under the names that clients give it


# --- what callers use ---------------------------------------------------------------------------------------------------

def choose_template(templates: Mapping[str, str] | str | None, tools: Sequence[Any] | None = None) -> str | None:
    """The template for this request: the variant 'tool_use' if tools are given and there is one, else 'default'.

    None means that the model has no template: continue the raw text. Raises FormatError for a variant that is no text.
    """
    if isinstance(templates, str) or not templates:
        return templates or None
    reader = ConfigReader(templates, where="chat_template")
    variants = {name: reader.str(name, default=None) for name in ("tool_use", "default")}
    return (variants["tool_use"] if tools else None) or variants["default"] or None


def render(template: str, messages: Sequence[Mapping[str, Any]], *, bos: str | None = None, eos: str | None = None,
           tools: Sequence[Any] | None = None, add_generation_prompt: bool = True,
           variables: Mapping[str, Any] | None = None) -> str:
    """The prompt that `template` makes of `messages` ({'role', 'content', ...}); it sees `variables`, JSON values, as they are.

    Raises BadRequest for a message no template can take, what the template itself refuses, its errors, and exceeded limits.
    """
    named = {key: text for key, text in (("bos_token", bos), ("eos_token", eos)) if text is not None}
    return _rendered(template, _given(messages, tools), add_generation_prompt, {**(variables or {}), **named})


def encode_chat(tokenizer: Tokenizer, template: str, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Any] | None = None,
                add_generation_prompt: bool = True, variables: Mapping[str, Any] | None = None, ctx: int | None = None) -> list[int]:
    """Ids of the rendered prompt. Special tokens come from the template only; in messages and tools they are mere text.

    BOS is there exactly if the template writes it. Raises as render and Tokenizer.encode do, and ContextFull for what is longer
    than `ctx` tokens can be, before it is tokenised.
    """
    given = _given(messages, tools)
    marker = _unused_character(template, given)
    marked = {name: _marked(value, tokenizer.specials, marker, template) for name, value in given.items()}
    prompt = _rendered(template, marked, add_generation_prompt, {**tokenizer.named, **(variables or {})})
    if ctx is not None:
        tokenizer.check_length(len(prompt) - prompt.count(marker), ctx)
    return tokenizer.encode_marked(prompt, marker) if marker in prompt else tokenizer.encode(prompt, special=True)


def _given(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None) -> dict[str, Any]:
    """What comes from outside: messages in their canonical form, and tools."""
    return {"messages": _messages(messages), "tools": list(tools) if tools else None}


def _rendered(template: str, given: Mapping[str, Any], add_generation_prompt: bool, variables: Mapping[str, Any]) -> str:
    return sandbox.run(template, {**given, "documents": None, "add_generation_prompt": add_generation_prompt, **variables})


# --- messages -----------------------------------------------------------------------------------------------------------

def _messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Copies in which content is always text, and keys with null values are gone: templates would print them as 'None'."""
    return [_message(n, message) for n, message in enumerate(messages)]


def _message(n: int, message: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise BadRequest(f"messages[{n}]: got {message!r:.60}, expected an object with a 'role'", "message")
    kept = {key: value for key, value in message.items() if value is not None}
    reasoning = next((kept[key] for key in _REASONING if key in kept), None)
    if reasoning is not None:
        kept = {"thinking": reasoning, **kept, "reasoning_content": reasoning}
    return {**kept, "content": _content(n, message.get("content"))}


def _content(n: int, content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)):
        raise BadRequest(f"messages[{n}]: content: got {type(content).__name__}, expected text or a list of parts", "message")
    return "\n".join(_part(n, part) for part in content)


def _part(n: int, part: Any) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if kind in ("text", "input_text", "output_text") and isinstance(part.get("text"), str):
        return part["text"]
    raise BadRequest(f"messages[{n}]: content part: got {kind!r}, expected 'text'; this model reads text only", "content-part")


# --- special-looking text -----------------------------------------------------------------------------------------------

def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from (*_texts(key), *_texts(item))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)


def _unused_character(template: str, given: Any) -> str:
    """A private-use character that occurs nowhere in the input."""
    used = set(template).union(*_texts(given))
    return next(ch for ch in map(chr, range(0xE000, 0x110000)) if ch not in used)


def _marked(value: Any, specials: Finder, marker: str, template: str) -> Any:
    """A copy of `value` in which markers break up every special token's text, and what could become one at a seam.

    A key that the template may ask for by its name ('role', 'parameters') stays, even if a special token is in it.
    """
    if isinstance(value, str):
        return _mark(value, specials, marker)
    if isinstance(value, Mapping):
        return {key if _is_name(key, template) else _marked(key, specials, marker, template):
                _marked(item, specials, marker, template) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_marked(item, specials, marker, template) for item in value]
    return value


def _is_name(key: Any, template: str) -> bool:
    return isinstance(key, str) and key.isidentifier() and key in template


def _mark(text: str, specials: Finder, marker: str) -> str:
    cuts = {n for start, stop in specials.spans(text) for n in range(start + 1, stop + 1)} | set(specials.seams(text))
    if not cuts:
        return text
    edges = [0, *sorted(cuts), len(text)]
    return marker.join(text[a:b] for a, b in zip(edges, edges[1:], strict=False))
