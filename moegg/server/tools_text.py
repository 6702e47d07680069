"""Reading text that is still being generated: a cursor, and JSON-like values turned into JSON text.

Readers are generators. They yield where they need more text and go on when there is some, or when the output has ended. They
decide only what later text cannot change, so it never matters how the text was cut. Values become JSON text at once and never
Python numbers: order, digits and size stay as written.
Refuses: any model's format (tools_calls.py, tools_tags.py, tools_families.py, tools_harmony.py) and events (tools_events.py).
"""
from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator
from functools import lru_cache
from typing import NamedTuple, TypeVar

from moegg.stream import held

T = TypeVar("T")
Steps = Generator[None, None, T]

BLANK = " \t\r\n"
NAME = re.compile(r"[\w.:/@$-]*")       # of functions and parameters; anything else in a name is malformed (known_failures C4)
NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,300})(?:\.\d{1,300})?(?:[eE][+-]?\d{1,9})?", re.ASCII)
MAX_NAME, MAX_WORD, MAX_DEPTH = 128, 4096, 64       # characters, characters, nested values
_SPACE = re.compile(f"[{BLANK}]*")
_WORDS = {"true": "true", "True": "true", "false": "false", "False": "false", "null": "null", "None": "null"}
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "'": "'", "\\": "\\", "/": "/"}
_UNDECIDED = re.compile(r"[\w\s,.)]*")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Malformed(Exception):
    """The text is not the call it began as; `at_end`: because the output ended too early."""

    def __init__(self, at_end: bool = False):
        super().__init__()
        self.at_end = at_end


class Text:
    """The output so far, and how far it was read."""

    def __init__(self, buffer: str = "", ended: bool = False):
        self.buffer, self.at, self.ended = buffer, 0, ended

    def peek(self) -> Steps[str]:
        """The next character; empty at the end of the output."""
        while self.at == len(self.buffer) and not self.ended:
            yield
        return self.buffer[self.at:self.at + 1]

    def space(self) -> Steps[None]:
        """Moves behind blank space."""
        while True:
            self.at = _SPACE.match(self.buffer, self.at).end()
            if self.at < len(self.buffer) or self.ended:
                return
            yield

    def accept(self, *words: str) -> Steps[str]:
        """Moves behind the longest of `words` that comes next and returns it; empty, and no move, if none does."""
        longest = max(map(len, words))
        while True:
            have = self.buffer[self.at:self.at + longest]
            if self.ended or not any(len(word) > len(have) and word.startswith(have) for word in words):
                word = max((word for word in words if have.startswith(word)), key=len, default="")
                self.at += len(word)
                return word
            yield

    def expect(self, *words: str) -> Steps[str]:
        """accept, or Malformed."""
        word = yield from self.accept(*words)
        if not word:
            raise self.malformed()
        return word

    def run(self, pattern: re.Pattern[str], limit: int = MAX_NAME) -> Steps[str]:
        """Moves behind what `pattern` (a repeated class of characters) matches and returns it. Malformed beyond `limit`."""
        while True:
            end = pattern.match(self.buffer, self.at).end()
            if end - self.at > limit:
                raise Malformed
            if end < len(self.buffer) or self.ended:
                found, self.at = self.buffer[self.at:end], end
                return found
            yield

    def name(self) -> Steps[str]:
        """A function's or parameter's name, or Malformed."""
        name = yield from self.run(NAME)
        if not name:
            raise self.malformed()
        return name

    def find(self, start: int, *words: str) -> Steps[tuple[int, str]]:
        """(position, word) of the first of `words` from `start` on; does not move. Malformed if the output ends before."""
        pattern, longest = any_of(words), max(map(len, words))
        while not (found := pattern.search(self.buffer, start)):
            if self.ended:
                raise Malformed(at_end=True)
            start = max(start, len(self.buffer) - longest + 1)
            yield
        return found.start(), found[0]

    def ahead(self, start: int, *words: str) -> Steps[str | None]:
        """Which of `words` follows `start` and blank space: empty at the end of the output, None if none; does not move."""
        back, self.at = self.at, start
        yield from self.space()
        word = yield from self.accept(*words)
        done = self.at == len(self.buffer) and not word
        self.at = back
        return word if word or done else None

    def malformed(self) -> Malformed:
        """The error to raise where nothing fits what comes next."""
        return Malformed(at_end=self.ended and self.at == len(self.buffer))


@lru_cache(maxsize=64)
def any_of(words: tuple[str, ...]) -> re.Pattern[str]:
    """A pattern that finds the first of `words`, the longest where several begin."""
    return re.compile("|".join(map(re.escape, sorted(words, key=len, reverse=True))))


def released(t: Text, show: Callable[[str], None], words: tuple[str, ...]) -> Steps[str]:
    """Shows text up to the first of `words`, which it returns without moving behind it; empty at the end of the output."""
    while True:
        found = any_of(words).search(t.buffer, t.at) if words else None
        if found:
            show(t.buffer[t.at:found.start()])
            t.buffer, t.at = t.buffer[found.start():], 0
            return found[0]
        keep = 0 if t.ended else held(t.buffer[t.at:], words)
        show(t.buffer[t.at:len(t.buffer) - keep])
        t.buffer, t.at = t.buffer[len(t.buffer) - keep:], 0
        if t.ended:
            return ""
        yield


def at_once(read: Callable[[Text], Steps[T]], text: str) -> T:
    """What `read` makes of a text that is there as a whole. Malformed if it leaves anything but blank space."""
    whole = Text(text, ended=True)
    try:
        next(read(whole))       # never yields: nothing is missing
    except StopIteration as stop:
        if not text[whole.at:].strip(BLANK):
            return stop.value
    except Malformed:
        pass
    raise Malformed


# --- values -------------------------------------------------------------------------------------------------------------

class Style(NamedTuple):
    """How a family writes values."""
    quotes: tuple[str, ...]                             # a string ends at its own opening quote
    raw: tuple[str, ...] = ()                           # quotes between which a backslash means itself
    bare_key: re.Pattern[str] | None = None             # keys without quotes
    word: re.Pattern[str] = re.compile(r"[\w.+-]*")     # what has no quotes: numbers, true, null
    bare_word: bool = False                             # other words without quotes are strings
    behind: re.Pattern[str] | None = None               # what must follow the end of an argument that is a string


JSON = Style(('"',))
PYTHON = Style(('"""', "'''", '"', "'"))


def dump(text: str) -> str:
    """`text` as a JSON string that UTF-8 can carry."""
    if _SURROGATE.search(text):
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return json.dumps(text, ensure_ascii=False)


def value(t: Text, style: Style = JSON, depth: int = 0) -> Steps[str]:
    """The value that comes next, as JSON text."""
    yield from t.space()
    if depth > MAX_DEPTH:
        raise Malformed
    opening = yield from t.accept("{", "[", *style.quotes)
    if opening == "{":
        return join(dict((yield from members(t, style, depth))))
    if opening == "[":
        return "[" + ", ".join((yield from _items(t, style, depth))) + "]"
    if opening:
        return dump((yield from _string(t, opening, style, style.behind if depth == 0 else None)))
    word = (yield from t.run(style.word, MAX_WORD)).strip(BLANK)
    if word in _WORDS:
        return _WORDS[word]
    if NUMBER.fullmatch(word):
        return word
    if style.bare_word:
        return dump(word) if word else "null"
    raise t.malformed()


def join(pairs: dict[str, str]) -> str:
    """A JSON object of keys and JSON values."""
    return "{" + ", ".join(f"{dump(key)}: {text}" for key, text in pairs.items()) + "}"


def members(t: Text, style: Style = JSON, depth: int = 0) -> Steps[list[tuple[str, str]]]:
    """[(key, JSON value)] of an object whose '{' was read; a comma before '}' is allowed."""
    found: list[tuple[str, str]] = []
    while True:
        yield from t.space()
        if (yield from t.accept("}")):
            return found
        key = yield from _key(t, style)
        yield from t.space()
        yield from t.expect(":")
        found.append((key, (yield from value(t, style, depth + 1))))
        yield from t.space()
        if (yield from t.expect(",", "}")) == "}":
            return found


def string(t: Text, style: Style = JSON) -> Steps[str]:
    """The string that comes next, without quotes and escapes."""
    return (yield from _string(t, (yield from t.expect(*style.quotes)), style, None))


def _items(t: Text, style: Style, depth: int) -> Steps[list[str]]:
    found: list[str] = []
    while True:
        yield from t.space()
        if (yield from t.accept("]")):
            return found
        found.append((yield from value(t, style, depth + 1)))
        yield from t.space()
        if (yield from t.expect(",", "]")) == "]":
            return found


def _key(t: Text, style: Style) -> Steps[str]:
    if style.bare_key is None or (yield from t.peek()) in [quote[0] for quote in style.quotes]:
        return (yield from string(t, style))
    key = (yield from t.run(style.bare_key)).strip(BLANK)
    if not key:
        raise t.malformed()
    return key


def _string(t: Text, quote: str, style: Style, behind: re.Pattern[str] | None) -> Steps[str]:
    escaped = quote not in style.raw
    ends = (quote, "\\") if escaped else (quote,)
    start = scan = t.at
    while True:
        at, word = yield from t.find(scan, *ends)
        scan = at + len(word)
        if word == "\\":
            scan += 1
        elif behind is None or (yield from _closes(t, scan, behind)):
            t.at = scan
            return _ESCAPE.sub(_unescape, t.buffer[start:at]) if escaped else t.buffer[start:at]


def _closes(t: Text, start: int, behind: re.Pattern[str]) -> Steps[bool]:
    """Whether `behind` matches from `start` on; waits for a character that is neither word, space, comma, dot nor ')'."""
    while _UNDECIDED.match(t.buffer, start).end() == len(t.buffer) and not t.ended:
        yield
    return behind.match(t.buffer, start) is not None


def _unescape(m: re.Match[str]) -> str:
    """Of JSON and Python escapes; what is neither stays as written."""
    code = m[1] or m[2] or m[3]
    if code:
        n = int(code, 16)
        return chr(n) if n < 0x110000 else m[0]
    return _ESCAPES.get(m[4], m[0])
