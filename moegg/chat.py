"""Chat messages to a prompt: the model's own Jinja template in a sandbox with limits, then ids in which users cannot forge turns.

Owns: the one place where a template is run; what a message may look like; which variant of a template is used; and the rule that
special tokens come from the template alone, whatever special-looking text the messages and tools hold.
Refuses: includes and imports (there is no loader), the network, files; more text, loops or time than the limits below. The limits
keep an honest mistake or a crude trap from eating the machine; they do not make a hostile template harmless.
What templates expect (names, filters, `{% generation %}`, reasoning's aliases): transformers 5, utils/chat_template_utils.py.
"""
from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, wraps
from typing import Any, NoReturn

from jinja2 import Template, nodes, pass_environment
from jinja2.compiler import CodeGenerator
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import make_attrgetter
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from moegg.errors import BadRequest
from moegg.tokenizer import Finder, Tokenizer
from moegg.units import fmt_bytes

MAX_TEMPLATE = 1 << 20      # characters of a template
MAX_TEXT = 16 << 20         # characters of the prompt, and of any text on the way to it
MAX_STEPS = 2_000_000       # rounds of all loops and macro calls together
MAX_SECONDS = 10.0
MAX_NUMBER = 10_000         # widths, indents and counts
MAX_BITS = 4096             # of a whole number

_REASONING = ("reasoning_content", "thinking", "reasoning")     # one thing under the names that clients give it


# --- what callers use ---------------------------------------------------------------------------------------------------

def choose_template(templates: Mapping[str, str] | str | None, tools: Sequence[Any] | None = None) -> str | None:
    """The template for this request: the variant 'tool_use' if tools are given and there is one, else 'default'.

    None means that the model has no template: continue the raw text.
    """
    if isinstance(templates, str) or not templates:
        return templates or None
    return (tools and templates.get("tool_use")) or templates.get("default")


def render(template: str, messages: Sequence[Mapping[str, Any]], *, bos: str | None = None, eos: str | None = None,
           tools: Sequence[Any] | None = None, add_generation_prompt: bool = True,
           variables: Mapping[str, Any] | None = None) -> str:
    """The prompt that `template` makes of `messages` ({'role', 'content', ...}); `variables` reach the template as they are.

    Raises BadRequest for a message no template can take, what the template itself refuses, its errors, and exceeded limits.
    """
    values = {"messages": _messages(messages), "tools": list(tools) if tools else None, "documents": None,
              "add_generation_prompt": add_generation_prompt, **(variables or {})}
    values |= {key: text for key, text in (("bos_token", bos), ("eos_token", eos)) if text is not None}
    return _run(template, values)


def encode_chat(tokenizer: Tokenizer, template: str, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Any] | None = None,
                add_generation_prompt: bool = True, variables: Mapping[str, Any] | None = None) -> list[int]:
    """Ids of the rendered prompt. Special tokens come from the template only; in messages and tools they are mere text.

    BOS is there exactly if the template writes it. Raises as render and Tokenizer.encode do.
    """
    given = {"messages": _messages(messages), "tools": list(tools) if tools else None}
    marker = _unused_character(template, given)
    marked = _marked(given, tokenizer.specials, marker)
    options = {"add_generation_prompt": add_generation_prompt, "variables": {**tokenizer.named, **(variables or {})}}
    prompt = render(template, **marked, **options)
    return tokenizer.encode_marked(prompt, marker) if marker in prompt else tokenizer.encode(prompt, special=True)


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


def _marked(value: Any, specials: Finder, marker: str) -> Any:
    """A copy of `value` in which markers break up every special token's text, and what could become one at a seam."""
    if isinstance(value, str):
        return _mark(value, specials, marker)
    if isinstance(value, Mapping):
        return {_marked(key, specials, marker): _marked(item, specials, marker) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_marked(item, specials, marker) for item in value]
    return value


def _mark(text: str, specials: Finder, marker: str) -> str:
    cuts = {n for start, stop in specials.spans(text) for n in range(start + 1, stop + 1)} | set(specials.seams(text))
    if not cuts:
        return text
    edges = [0, *sorted(cuts), len(text)]
    return marker.join(text[a:b] for a, b in zip(edges, edges[1:], strict=False))


# --- the sandbox --------------------------------------------------------------------------------------------------------

class _Limit(Exception):
    """A template wants more than it may have."""


class _Refused(TemplateError):
    """The template called raise_exception."""


@dataclass
class _Budget:
    steps: int
    deadline: float


_budget: ContextVar[_Budget] = ContextVar("budget")


def _run(template: str, values: Mapping[str, Any]) -> str:
    parts: list[str] = []
    size = 0
    token = _budget.set(_Budget(MAX_STEPS, time.monotonic() + MAX_SECONDS))
    try:
        for part in _compile(template).generate(values):
            size += len(part)
            _fits(size)
            parts.append(part)
    except _Refused as e:
        raise BadRequest(f"chat template: {e.message}", "template-refused") from None
    except (_Limit, OverflowError) as e:
        raise BadRequest(f"chat template: {e}", "template-limit") from None
    except SecurityError as e:
        raise BadRequest(f"chat template: tried something unsafe: {e}", "template-unsafe") from None
    except BadRequest:
        raise
    except Exception as e:      # whatever an expression in a template can raise
        raise BadRequest(f"chat template: {type(e).__name__}: {' '.join(str(e).split())}", "template-failed") from e
    finally:
        _budget.reset(token)
    return "".join(parts)


@lru_cache(maxsize=8)
def _compile(template: str) -> Template:
    if len(template) > MAX_TEMPLATE:
        raise BadRequest(f"chat template: too long: got {fmt_bytes(len(template))}, expected at most {fmt_bytes(MAX_TEMPLATE)}",
                         "template-limit")
    try:
        return _Environment().from_string(template)
    except TemplateSyntaxError as e:
        raise BadRequest(f"chat template: line {e.lineno}: {e.message}", "template-syntax") from None
    except RecursionError:
        raise BadRequest("chat template: nested too deeply", "template-limit") from None


def _fits(size: int) -> None:
    if size > MAX_TEXT:
        raise _Limit(f"makes too much text: got {fmt_bytes(size)}, expected at most {fmt_bytes(MAX_TEXT)}")


def _growth(name: str, text: str, args: Sequence[Any]) -> None:
    """Refuses a call of a text method or filter whose result could be out of proportion."""
    numbers = [n for n in args if isinstance(n, int)]
    words = [w for w in args if isinstance(w, str)]
    if any(n > MAX_NUMBER for n in numbers):
        raise _Limit(f"{name}: number too large: got {max(numbers)}, expected at most {MAX_NUMBER}")
    if name == "replace" and len(words) > 1:
        _fits(len(text) + text.count(words[0]) * len(words[1]))
    elif name in ("indent", "expandtabs", "wordwrap", "translate"):
        _fits((1 + text.count("\n") + text.count("\t")) * max([8, *numbers, *map(len, words)]) + len(text))
    elif name in ("format", "format_map") and re.search(r"%[^a-zA-Z%]*\*|\d{5}", text):
        raise _Limit(f"{name}: field too wide: got {text!r:.40}")


class _Generator(CodeGenerator):
    """Compiles `a ~ b` to a call that can refuse."""

    def visit_Concat(self, node: nodes.Concat, frame: Any) -> None:
        self.write("environment.joined((")
        for item in node.nodes:
            self.visit(item, frame)
            self.write(", ")
        self.write("))")


class _Environment(ImmutableSandboxedEnvironment):
    code_generator_class = _Generator
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
        for name in ("replace", "indent", "center", "format", "wordwrap", "batch", "slice"):
            self.filters[name] = _guarded(name, self.filters[name])
        self.filters |= {"join": _join, "tojson": _tojson}
        del self.globals["lipsum"]
        self.globals |= {"raise_exception": _refuse, "strftime_now": _strftime_now, "dict": _Dict(), "namespace": _Namespace}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for node in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
            step = nodes.ExprStmt(nodes.Call(nodes.EnvironmentAttribute("step"), [], [], None, None))
            node.body.insert(0, step.set_lineno(node.lineno).set_environment(self))
        return tree

    @staticmethod
    def step() -> None:
        """Runs at the start of each round of a loop, and of each macro."""
        budget = _budget.get()
        budget.steps -= 1
        if budget.steps < 0:
            raise _Limit(f"loops too long: expected at most {MAX_STEPS} rounds in all")
        if time.monotonic() > budget.deadline:
            raise _Limit(f"takes too long: expected at most {MAX_SECONDS:g} s")

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """Joins the output of macros, blocks and {% set %} bodies; jinja2 looks it up by this name."""
        parts = list(parts)
        _fits(sum(map(len, parts)))
        return "".join(parts)

    def joined(self, values: Iterable[Any]) -> str:
        return self.concat(map(str, values))

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        text = getattr(getattr(function, "__wrapped__", function), "__self__", None)     # the sandbox wraps str.format
        if isinstance(text, str):
            if function.__name__ == "join" and args:
                return _join(self, args[0], text)
            _growth(function.__name__, text, [*args, *kwargs.values()])
        return super().call(context, function, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        sized = [v for v in (left, right) if isinstance(v, (str, list, tuple))]
        if operator == "+" and len(sized) == 2:
            _fits(len(left) + len(right))
        elif operator == "*" and len(sized) == 1:
            _fits(len(sized[0]) * (right if sized[0] is left else left))
        elif operator == "%" and isinstance(left, str):
            _growth("format", left, right if isinstance(right, tuple) else [right])
        elif isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            if bits > MAX_BITS:
                raise _Limit(f"{operator}: number too large: expected at most {MAX_BITS} bits")
        return super().call_binop(context, operator, left, right)


class _GenerationTag(Extension):
    """{% generation %}...{% endgeneration %} marks what trainers learn from; a prompt gets its body, in a scope of its own."""
    tags = {"generation"}

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class _Dict:
    """`dict` in templates: builds dictionaries without handing out the class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return dict(*args, **kwargs)


class _Namespace(Namespace):
    """`namespace` in templates, without names that could reach into Python."""

    def __init__(*args: Any, **kwargs: Any) -> None:        # self is in args, so that namespace(self=...) works
        own, given = args[0], dict(*args[1:], **kwargs)
        for name in given:
            _public(name)
        Namespace.__init__(own, given)

    def __setitem__(self, name: str, value: Any) -> None:
        _public(name)
        super().__setitem__(name, value)


def _public(name: str) -> None:
    if name.startswith("_"):
        raise SecurityError(f"namespace: a name must not begin with '_': got {name!r}")


def _guarded(name: str, function: Any) -> Any:
    skip = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        _growth(name, args[skip] if isinstance(args[skip], str) else "", [*args[skip + 1:], *kwargs.values()])
        return function(*args, **kwargs)
    return checked


@pass_environment
def _join(environment: Any, value: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
    parts = [str(v) for v in (value if attribute is None else map(make_attrgetter(environment, attribute), value))]
    _fits(sum(map(len, parts)) + len(parts) * len(d))
    return d.join(parts)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: tuple[str, str] | None = None,
            sort_keys: bool = False) -> str:
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    parts, size = [], 0
    for part in encoder.iterencode(value):
        size += len(part)
        _fits(size)
        parts.append(part)
    return "".join(parts)


def _refuse(message: str) -> NoReturn:
    raise _Refused(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
