"""Tool calls in a model's text: the format a model uses, and its output as events, whole or streamed.

Owns the table of formats and the loop around them. The rules:
- A call is handed out when it is whole, never half, as CallStart, Arguments, CallEnd; so a stop in the middle runs nothing.
- What begins like a call and is none is content, to the letter. Nothing raises, nothing is lost.
- Content waits only while its end may be the beginning of an opener, or is blank.
- However the text is cut, the events add up to the same; a whole output is parsed by the same stream.
- Names the request does not know are calls all the same: the client decides. Without tools everything is content.
Refuses: wire formats, and deciding whether a model may be given tools.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from moegg.server import tools_families as families
from moegg.server import tools_harmony as harmony
from moegg.server import tools_solar as solar
from moegg.server import tools_tags as tags
from moegg.server.tools_calls import Draft
from moegg.server.tools_events import (
    Arguments,
    Call,
    CallEnd,
    CallStart,
    Clerk,
    Content,
    Event,
    Message,
    Reasoning,
    collect,
)
from moegg.server.tools_text import BLANK, NAME, Malformed, Steps, Text, released
from moegg.server.tools_types import Signatures

__all__ = ["FORMATS", "NONE", "Arguments", "Call", "CallEnd", "CallStart", "Content", "Event", "Message", "Reasoning",
           "ToolFormat", "ToolStream", "collect", "named", "parser_for"]

MAX_FAILURES = 16       # calls that the end of the output left unfinished; behind so many, openers are content


class ToolFormat(NamedTuple):
    """How a family of models writes calls. Outputs must be decoded with special tokens shown: most markers are such."""
    name: str
    openers: tuple[str, ...] = ()       # texts that begin a call
    read: Callable[[Text, str, Draft], Steps[None]] | None = None
    bare: bool = False                  # a call may also begin the output, or follow a call, with '{' or '['
    line: bool = False                  # the output may begin with the name of a tool, alone in its line, and '{' in the next
    id_prefix: str = "call_"
    id_chars: int = 24
    reasons: bool = False               # the format marks reasoning itself: no ReasoningSplitter in front of it

    def stream(self, tools: Sequence[Any] | None) -> ToolStream:
        """A parser for one output; `tools` as the request has them."""
        return ToolStream(self, tools)

    def parse(self, text: str, tools: Sequence[Any] | None) -> tuple[str, list[Call]]:
        """(content, calls) of a whole output."""
        message = self.message(text, tools)
        return message.content, message.calls

    def message(self, text: str, tools: Sequence[Any] | None) -> Message:
        """Content, reasoning and calls of a whole output; equal to what the stream adds up to."""
        stream = self.stream(tools)
        return collect([*stream.push(text), *stream.finish()])


class ToolStream:
    """One output on its way out."""

    def __init__(self, form: ToolFormat, tools: Sequence[Any] | None):
        self._form = form
        self._text = Text()
        self._clerk = Clerk(form.id_prefix, form.id_chars)
        self._signatures = Signatures(tools)
        channels = {HARMONY.name: harmony.channels, SOLAR.name: solar.channels}.get(form.name)
        self._steps = (channels(self._text, self._clerk, self._signatures, bool(tools)) if channels
                       else self._run(form.openers if tools else (), (form.bare or form.line) and bool(tools)))

    def push(self, text: str) -> list[Event]:
        """What `text` makes certain."""
        self._text.buffer += text
        return self._go()

    def finish(self) -> list[Event]:
        """The rest: no more text comes."""
        self._text.ended = True
        events = self._go()
        self._clerk.close()
        return events + self._clerk.take()

    def _go(self) -> list[Event]:
        next(self._steps, None)
        return self._clerk.take()

    def _run(self, openers: tuple[str, ...], bare: bool) -> Steps[None]:
        t, failures, fresh = self._text, 0, bare
        while True:
            opener = (yield from self._line() if self._form.line else self._bare()) if fresh else ""
            opener = opener or (yield from released(t, self._clerk.say, openers))
            if not opener:
                return
            t.at += len(opener)
            behind, draft = t.at, Draft(t, self._signatures)
            try:
                yield from self._form.read(t, opener.lstrip(BLANK + ";"), draft)
            except Malformed as e:
                failures += e.at_end
                if opener[-1] in "{[" and not e.at_end:     # nothing but its form said that it was a call
                    draft.calls, draft.end = [], behind
                t.at = draft.end
            if draft.calls:
                self._clerk.call(draft.calls)
                self._clerk.say(draft.left.strip(BLANK))
            else:
                self._clerk.say(opener)
                t.at = behind
            fresh = self._form.bare and bare and bool(draft.calls)
            if failures > MAX_FAILURES:
                openers, bare = (), False

    def _bare(self) -> Steps[str]:
        """What comes next up to '{' or '[' if that is blank, with a ';' as Llama puts between calls; does not move."""
        t = self._text
        start = t.at
        yield from t.space()
        if self._clerk.called and (yield from t.accept(";")):
            yield from t.space()
        opener = t.buffer[start:t.at + 1] if (yield from t.peek()) in ("{", "[") else ""
        t.at = start
        return opener


    def _line(self) -> Steps[str]:
        """What comes first up to '{', if it is a tool's name, a line break and blank space; does not move."""
        t = self._text
        yield from t.space()
        try:
            ends = (yield from t.run(NAME)) in self._signatures and (yield from t.accept("\r\n", "\n"))
        except Malformed:       # too long for a name
            ends = ""
        if ends:
            yield from t.space()
        opener = t.buffer[:t.at + 1] if ends and (yield from t.peek()) == "{" else ""
        t.at = 0
        return opener


# --- the formats --------------------------------------------------------------------------------------------------------

def _between(t: Text, opener: str, draft: Draft) -> Steps[None]:
    """What models write that were told of <tool_call>, or that slip into the markers they were trained on."""
    yield from (families.marked if opener in families.MARKED else tags.tool_call)(t, opener, draft)


NONE = ToolFormat("none")
TAGS = ToolFormat("tags", (tags.CALL, *families.MARKED), _between)
FUNCTION = ToolFormat("function", (tags.CALL, tags.SEED, tags.FUNCTION), tags.tool_call)
MARKED = ToolFormat("marked", (*families.MARKED, tags.CALL), TAGS.read)
MINIMAX = ToolFormat("minimax", (tags.MINIMAX, tags.CALL), tags.tool_call)
MISTRAL = ToolFormat("mistral", (families.MISTRAL,), families.mistral, id_prefix="", id_chars=9)     # its templates insist
DEEPSEEK = ToolFormat("deepseek", families.DEEPSEEK[:2], families.deepseek)
KIMI = ToolFormat("kimi", families.KIMI[:2], families.kimi)
LFM = ToolFormat("lfm", (families.LFM,), families.lfm)
GEMMA = ToolFormat("gemma", tuple(families.GEMMA_ENDS), families.gemma)
GEMMA3 = ToolFormat("gemma3", (families.FENCE_CODE, families.FENCE_JSON), families.prompted, bare=True)
GLM4 = ToolFormat("glm4", (), families.line, line=True)
APERTUS = ToolFormat("apertus", (families.APERTUS,), families.apertus)
PYTHON = ToolFormat("python", (families.PYTHON_CALLS,), families.python)
LLAMA = ToolFormat("llama", (families.PYTHON_TAG, families.PYTHON_START), families.prompted, bare=True)
HARMONY = ToolFormat("harmony", (harmony.START, harmony.CHANNEL, harmony.MESSAGE, *harmony.ENDS), reasons=True)
SOLAR = ToolFormat("solar", (solar.BEGIN, solar.THINK, solar.CONTENT, *families.SOLAR_CALLS[:2], *solar.ENDS), reasons=True)
FORMATS = (NONE, TAGS, FUNCTION, MARKED, MINIMAX, MISTRAL, DEEPSEEK, KIMI, LFM, GEMMA, GEMMA3, GLM4, APERTUS, PYTHON, LLAMA, HARMONY, SOLAR)

# what a template writes; the first row that occurs decides
_WRITTEN = (
    (harmony.CHANNEL, HARMONY), (tags.FUNCTION, FUNCTION), (tags.MINIMAX, MINIMAX), ("<|tool_call>", GEMMA), ("<start_function_call>", GEMMA),
    (families.LFM, LFM), ("<|tool_list_start|>", LFM), (families.MISTRAL, MISTRAL), (families.DEEPSEEK[1], DEEPSEEK),
    (families.KIMI[1], KIMI), (families.SOLAR_CALLS[1], SOLAR), (families.APERTUS, APERTUS),
    (families.PYTHON_CALLS, PYTHON), *((mark, MARKED) for mark in families.MARKED), (tags.CALL, TAGS), (families.PYTHON_TAG, LLAMA),
    (families.PYTHON_START, LLAMA), ('"parameters": dictionary', LLAMA),
)


def parser_for(template: str | None) -> ToolFormat:
    """The format a model writes calls in, by what its chat template writes; NONE if that does not tell."""
    return next((form for mark, form in _WRITTEN if mark in (template or "")), NONE)


def named(name: str) -> ToolFormat:
    """The format of that name, as architectures declare it; TAGS, which most models know, for a name that is none."""
    return next((form for form in FORMATS if form.name == name), TAGS)
