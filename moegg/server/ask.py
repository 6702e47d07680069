"""What a client asks for and what it gets, in the engine's terms: one request type and one stream of events for all dialects.

Dialect modules turn JSON into an Ask and events into JSON; prompts.py turns an Ask into ids; worker.py turns ids into events.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from moegg.server.problem import Problem
from moegg.server.tools import Arguments, Call, CallEnd, CallStart


@dataclass(frozen=True)
class Ask:
    """messages: a chat, as chat templates take it. prompts: texts or ids to continue, each answered n times, if there are no
    messages or the model has no template.

    sampling: what the client chose, by SamplingParams' names. max_tokens None: until the model ends or the context is full.
    tools: OpenAI function objects. tool_choice: 'auto', 'required', or ('function', name). variables: for the template.
    continues: the last message is the beginning of the answer. constraint: ('json', None) or ('schema', dict).
    logprobs: alternatives per token, None for no log-probabilities at all.
    """
    messages: tuple[Mapping[str, Any], ...] | None = None
    prompts: tuple[str | tuple[int, ...], ...] = ()
    suffix: str | None = None
    echo: bool = False
    continues: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: str | tuple[str, str] = "auto"
    parallel_calls: bool = True
    sampling: Mapping[str, Any] = field(default_factory=dict)
    ignore_eos: bool = False
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    n: int = 1
    logprobs: int | None = None
    constraint: tuple[str, Any] | None = None
    split_reasoning: bool = True
    stream: bool = False
    include_usage: bool = False
    timings: bool = False
    progress: bool = False


@dataclass(frozen=True)
class TokenLog:
    """A token's bytes and ln p, with its alternatives [(bytes, ln p)], best first."""
    data: bytes
    logprob: float
    top: Sequence[tuple[bytes, float]] = ()


@dataclass(frozen=True)
class Usage:
    """Tokens. cached: of the prompt, those that an earlier request had left evaluated."""
    prompt: int
    cached: int = 0
    completion: int = 0
    reasoning: int = 0


@dataclass(frozen=True)
class Timings:
    """Seconds: waiting in the queue, evaluating the prompt, answering."""
    queue: float = 0.0
    prompt: float = 0.0
    answer: float = 0.0


# --- events; besides these, the calls of server/tools.py ----------------------------------------------------------------------

@dataclass(frozen=True)
class Progress:
    """Prompt tokens that are evaluated (the cached ones included), of how many."""
    done: int
    total: int
    cached: int


@dataclass(frozen=True)
class Text:
    """New text of kind 'content' or 'reasoning', and the logs of the tokens it came from."""
    kind: str
    text: str
    logs: Sequence[TokenLog] = ()


@dataclass(frozen=True)
class Done:
    """finish: stop, length, tool_calls or cancelled. stop: the stop string that was met."""
    finish: str
    usage: Usage
    timings: Timings = Timings()
    stop: str | None = None


@dataclass(frozen=True)
class Failed:
    problem: Problem


@dataclass(frozen=True)
class Ping:
    """Nothing has happened for a while; index is without meaning."""


Event = Progress | Text | CallStart | Arguments | CallEnd | Done | Failed | Ping


@dataclass
class Answer:
    """The events of one answer, added up. Raises Problem for Failed."""
    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    logs: list[TokenLog] = field(default_factory=list)
    done: Done | None = None

    def add(self, event: Event) -> None:
        if isinstance(event, Text):
            if event.kind == "content":
                self.content += event.text
                self.logs += event.logs
            else:
                self.reasoning += event.text
        elif isinstance(event, CallStart):
            self.calls.append(Call(event.id, event.name, ""))
        elif isinstance(event, Arguments):
            call = self.calls[event.index]
            self.calls[event.index] = call._replace(arguments=call.arguments + event.delta)
        elif isinstance(event, Done):
            self.done = event
        elif isinstance(event, Failed):
            raise event.problem


@dataclass(frozen=True)
class Meta:
    """What every response says of itself. id: without the dialect's prefix. prompt_tokens: of all prompts."""
    id: str
    created: int
    model: str
    prompt_tokens: int = 0
    build: str = ""
    ctx: int = 0


def total(dones: Sequence[Done | None]) -> Usage:
    """The usage of a whole response: answers of the same prompt are each counted with it once."""
    usages = [d.usage for d in dones if d is not None]
    if not usages:
        return Usage(0)
    return Usage(usages[0].prompt, usages[0].cached, sum(u.completion for u in usages), sum(u.reasoning for u in usages))
