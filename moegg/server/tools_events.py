"""What a model's output turns into, and the clerk that writes it down: content, reasoning and whole calls, as events.

Blank space: content is what stands around the calls, to the letter, but blank space next to calls is shown only between text in
front of them and text behind them. Without calls, content is the output to the letter.
"""
from __future__ import annotations

import secrets
import string
from collections.abc import Iterable
from typing import NamedTuple

from moegg.server.tools_text import BLANK

_ALPHABET = string.ascii_letters + string.digits


class Content(NamedTuple):
    """Text of the answer."""
    text: str


class Reasoning(NamedTuple):
    """Text of the reasoning, from formats that mark it themselves."""
    text: str


class CallStart(NamedTuple):
    """A call begins; calls of one answer are numbered from 0."""
    index: int
    id: str
    name: str


class Arguments(NamedTuple):
    """More of a call's arguments; the deltas of one index, joined, are a JSON object."""
    index: int
    delta: str


class CallEnd(NamedTuple):
    """The call is whole."""
    index: int


Event = Content | Reasoning | CallStart | Arguments | CallEnd


class Call(NamedTuple):
    """One call of a whole answer; arguments: JSON text."""
    id: str
    name: str
    arguments: str


class Message(NamedTuple):
    """A whole answer."""
    content: str
    reasoning: str
    calls: list[Call]


class Clerk:
    """Turns text and calls into events. `id_chars`: length of the random part of ids; 24 with 'call_' in front, else bare."""

    def __init__(self, prefix: str = "call_", id_chars: int = 24):
        self._prefix, self._id_chars = prefix, id_chars
        self._events: list[Event] = []
        self._count = 0
        self._ids: set[str] = set()
        self._gap = ""              # blank space not shown yet
        self._before = ""           # what of it stood in front of the last calls
        self.called = False         # calls came, and no content since
        self._apart = False         # a new message begins
        self._said = self._reasoned = False

    def take(self) -> list[Event]:
        """The events since the last take."""
        events, self._events = self._events, []
        return events

    def say(self, text: str) -> None:
        """Content. Blank space at its end waits for what comes next."""
        text = self._gap + text
        body = text.rstrip(BLANK)
        self._gap = text[len(body):]
        if not body:
            return
        if self._apart and self._said:
            body = "\n\n" + body.lstrip(BLANK)
        elif self.called and not self._said:
            body = body.lstrip(BLANK)
        self.called, self._apart, self._said = False, False, True
        self._show(Content(body))

    def reason(self, text: str) -> None:
        """Reasoning."""
        if text:
            self._show(Reasoning("\n\n" + text if self._apart and self._reasoned else text))
            self._apart, self._reasoned = False, True

    def paragraph(self) -> None:
        """Another message begins: its text is kept apart from what was said."""
        self._apart, self._gap = True, ""

    def call(self, calls: Iterable[tuple[str, str, str]]) -> None:
        """Whole calls: (name, arguments as JSON text, the model's own id, which counts unless it is '' or taken)."""
        self._before = self._gap = self._before if self.called else self._gap
        self.called = True
        for name, arguments, own in calls:
            made = own if own not in {"", *self._ids} else self._prefix + "".join(secrets.choice(_ALPHABET) for _ in range(self._id_chars))
            self._ids.add(made)
            self._events += [CallStart(self._count, made, name), Arguments(self._count, arguments), CallEnd(self._count)]
            self._count += 1

    def close(self) -> None:
        """The output has ended."""
        if self._gap and not self.called:
            self._show(Content(self._gap))
        self._gap = ""

    def _show(self, event: Content | Reasoning) -> None:
        last = self._events[-1] if self._events else None
        if type(last) is type(event):
            self._events[-1] = type(event)(last.text + event.text)
        else:
            self._events.append(event)


def collect(events: Iterable[Event]) -> Message:
    """The whole answer that `events` add up to."""
    text: dict[type, list[str]] = {Content: [], Reasoning: []}
    calls: list[Call] = []
    for event in events:
        match event:
            case Content(piece) | Reasoning(piece):
                text[type(event)].append(piece)
            case CallStart(_, made, name):
                calls.append(Call(made, name, ""))
            case Arguments(index, delta):
                calls[index] = calls[index]._replace(arguments=calls[index].arguments + delta)
    return Message("".join(text[Content]), "".join(text[Reasoning]), calls)
