"""Runs chat templates: the program of the child process that moegg/sandbox.py starts.

Owns: the Jinja environment, which is that of transformers 5 (utils/chat_template_utils.py: names, filters, `{% generation %}`),
and the limits that a process sets on itself.
Refuses: includes and imports (there is no loader), files, the network; Python's internals, by jinja2's sandbox; text without end.
"""
from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from moegg.sandbox import MAX_MEMORY, MAX_TEXT
from moegg.units import fmt_bytes

try:
    import resource
except ImportError:         # Windows
    resource = None


def serve() -> None:
    """Says that it is ready with an empty line, then answers requests until its input ends."""
    if resource is not None:
        _limit(resource.RLIMIT_AS, MAX_MEMORY)
        _limit(resource.RLIMIT_CORE, 0)
    with open(0, "rb") as requests, open(1, "wb") as replies:
        replies.write(b"\n")
        replies.flush()
        for line in requests:
            template, values, seconds = json.loads(line)
            if resource is not None:        # should the parent be gone, nobody else watches the clock
                _limit(resource.RLIMIT_CPU, math.ceil(time.process_time() + seconds) + 1)
            replies.write(json.dumps(answer(template, values)).encode() + b"\n")
            replies.flush()


def _limit(which: int, value: int) -> None:
    hard = resource.getrlimit(which)[1]
    with suppress(ValueError, OSError):     # macOS takes no limit on memory
        resource.setrlimit(which, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


class _Refused(TemplateError):
    """The template called raise_exception."""


class _TooLong(Exception):
    """The text has more characters than a prompt may have."""


def answer(template: str, values: Mapping[str, Any]) -> dict[str, str]:
    """{"text"}, or {"error", "slug"}."""
    try:
        return {"text": _render(template, values)}
    except _Refused as e:
        return _error(e.message, "template-refused")
    except _TooLong:
        return _error(f"makes too much text: expected at most {fmt_bytes(MAX_TEXT)}", "template-limit")
    except MemoryError:
        return _error(f"takes too much memory: expected at most {fmt_bytes(MAX_MEMORY)}", "template-limit")
    except RecursionError:
        return _error("nested too deeply", "template-limit")
    except OverflowError as e:
        return _error(str(e), "template-limit")
    except SecurityError as e:
        return _error(f"tried something unsafe: {e}", "template-unsafe")
    except TemplateSyntaxError as e:
        return _error(f"line {e.lineno}: {e.message}", "template-syntax")
    except Exception as e:      # whatever an expression in a template can raise
        return _error(f"{type(e).__name__}: {e}", "template-failed")


def _error(message: str, slug: str) -> dict[str, str]:
    return {"error": message[:1000], "slug": slug}


def _render(template: str, values: Mapping[str, Any]) -> str:
    parts: list[str] = []
    size = 0
    for part in _compile(template).generate(values):
        size += len(part)
        if size > MAX_TEXT:
            raise _TooLong
        parts.append(part)
    return "".join(parts)


@lru_cache(maxsize=8)
def _compile(template: str) -> Template:
    return _Environment().from_string(template)


class _Environment(ImmutableSandboxedEnvironment):
    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
        self.filters["tojson"] = _tojson
        del self.globals["lipsum"]
        self.globals |= {"raise_exception": _refuse, "strftime_now": _strftime_now, "dict": _Dict(), "namespace": _Namespace}


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


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: tuple[str, str] | None = None,
            sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> NoReturn:
    raise _Refused(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
