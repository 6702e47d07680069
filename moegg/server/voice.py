"""From ids to events: whole characters, reasoning apart, stop strings never shown, tool calls taken out.

The order: decoder, reasoning, tags around the answer, stop strings (in the answer, not in the reasoning), tool calls. Every stage may hold text back;
what comes out does not depend on how the text was cut. Runs in the engine thread, because a stop string ends the answer.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from moegg.server import tools
from moegg.server.ask import Event, Text, TokenLog
from moegg.stream import ReasoningSplitter, StopMatcher, Unwrapper
from moegg.tokenizer import Tokenizer


class Voice:
    """One answer. `ended` is None, 'stop' or 'tool_calls'; `stop` the stop string that was met; `calls` their number."""

    def __init__(self, tokenizer: Tokenizer, *, tags: tuple[str, str] | None = None, answer: tuple[str, str] | None = None,
                 thinking: bool = False, inline: bool = False, stops: Iterable[str] = (), calls: tools.ToolStream | None = None,
                 parallel_calls: bool = True, continues: bool = False):
        """tags: of reasoning. answer: tags around the answer. thinking: the prompt opened it. inline: leave it in the text.
        calls: the parser, None for plain text."""
        self._decoder = tokenizer.stream(continues=continues, keep=_shown(tokenizer, (*(tags or ()), *(answer or ())), calls is not None))
        self._splitter = ReasoningSplitter(*tags, started=thinking) if tags and not inline else None
        self._closing = StopMatcher(tags[1:]) if tags and thinking else None
        self._unwrapper = Unwrapper(*answer) if answer and not inline else None
        self._stops = StopMatcher(stops)
        self._calls, self._parallel = calls, parallel_calls
        self._logs: list[TokenLog] = []
        self._count = 0
        self.ended: str | None = None
        self.calls = 0
        self.reasoning_tokens = 0

    @property
    def stop(self) -> str | None:
        return self._stops.matched

    @property
    def in_reasoning(self) -> bool:
        """Whether the reasoning that the prompt opened is still open."""
        return self._closing is not None and self._closing.matched is None

    def push(self, token: int, log: TokenLog | None = None) -> list[Event]:
        """The events that this token completes."""
        self._count += 1
        if log is not None:
            self._logs.append(log)
        return self._text(self._decoder.push(token))

    def finish(self) -> list[Event]:
        """Everything that was held back; call it once, however the answer ended."""
        out: list[Event] = []
        if self.ended is None:
            out += self._text(self._decoder.flush())
            if self._splitter:
                out += self._split(*self._splitter.flush())
            if self._unwrapper and self.ended is None:
                out += self._stopped(self._unwrapper.flush())
            if self.ended is None:
                out += self._answer(self._stops.flush())
        if self._calls is not None and self.ended != "tool_calls":
            out += self._take(self._calls.finish())
        return out

    def _text(self, text: str) -> list[Event]:
        if self._closing is not None:
            self._closing.push(text)
        return self._split(*(self._splitter.push(text) if self._splitter else ("", text)))

    def _split(self, reasoning: str, content: str) -> list[Event]:
        out: list[Event] = []
        if reasoning:
            out.append(self._reason(reasoning))
        if content:
            out += self._stopped(self._unwrapper.push(content) if self._unwrapper else content)
        return out

    def _stopped(self, content: str) -> list[Event]:
        shown, met = self._stops.push(content)
        out = self._answer(shown)
        if met:
            self.ended = self.ended or "stop"
        return out

    def _reason(self, text: str) -> Text:
        self.reasoning_tokens = self._count
        return Text("reasoning", text, self._drain())

    def _answer(self, text: str) -> list[Event]:
        if not text or self.ended == "tool_calls":
            return []
        return [Text("content", text, self._drain())] if self._calls is None else self._take(self._calls.push(text))

    def _take(self, events: Iterable[Any]) -> list[Event]:
        """The parser's events as ours; behind the first call nothing more, if one is all that is wanted."""
        out: list[Event] = []
        for event in events:
            if isinstance(event, tools.Content):
                out.append(Text("content", event.text, self._drain()))
            elif isinstance(event, tools.Reasoning):
                out.append(self._reason(event.text))
            else:
                out.append(event)
                self.calls += isinstance(event, tools.CallStart)
                if isinstance(event, tools.CallEnd) and not self._parallel:
                    self.ended = "tool_calls"
                    break
        return out

    def _drain(self) -> list[TokenLog]:
        logs, self._logs = self._logs, []
        return logs


def _shown(tokenizer: Tokenizer, tags: Sequence[str], all_of_them: bool) -> list[int]:
    """Special ids whose text the stages need: all for calls, which most models mark with special tokens; else those in tags."""
    return [i for i in tokenizer.special_ids if all_of_them or tags
            and any(text in tag for text in [tokenizer.token_bytes(i).decode("utf-8", "replace")] for tag in tags if text)]


def token_log(tokenizer: Tokenizer, token: int, result: Any) -> TokenLog:
    """sampler.TokenLogprobs with the tokens' bytes."""
    return TokenLog(tokenizer.token_bytes(token), result.logprob, [(tokenizer.token_bytes(i), p) for i, p in result.top])
