"""The messages of Solar Open: thoughts, answers and calls, each a message of its own.

A message is [<|begin|>assistant] and <|think|> text, <|content|> text, or <|tool_calls|> and calls, each <|tool_call:begin|>ID
<|tool_call:name|>NAME<|tool_call:args|>{...}<|tool_call:end|>; it ends with <|end|>, <|flush|> or <|calls|>, where the next begins, or with
the output. Text before any marker is content. A header that the end of the output cuts is dropped.
Source: upstage/Solar-Open-100B's chat template; what models do besides: llama.cpp #18511.
"""
from __future__ import annotations

from moegg.server.tools_calls import Draft
from moegg.server.tools_events import Clerk
from moegg.server.tools_families import SOLAR_CALLS, solar
from moegg.server.tools_text import Malformed, Steps, Text, released
from moegg.server.tools_types import Signatures

BEGIN, ANSWERER, THINK, CONTENT = "<|begin|>", "assistant", "<|think|>", "<|content|>"
MAX_FAILURES = 16       # at the end of the output; behind so many, a call's marker is text, or reading on would take quadratic time
ENDS = ("<|end|>", "<|flush|>", "<|calls|>")


def channels(t: Text, clerk: Clerk, signatures: Signatures, calling: bool) -> Steps[None]:
    """Reads the whole output. Without tools (`calling` false) a call is mere text."""
    show, failures, plain = clerk.say, 0, (BEGIN, THINK, CONTENT, *ENDS)
    words = (*plain, *SOLAR_CALLS[:2]) if calling else plain
    while word := (yield from released(t, show, words)):
        t.at += len(word)
        if word == BEGIN:
            yield from _header(t)
            clerk.paragraph()
        elif word in SOLAR_CALLS[:2] and not (yield from _called(t, word, clerk, signatures)):
            clerk.say(word)
            failures += t.ended
            words = words if failures < MAX_FAILURES else plain
        show = clerk.reason if word == THINK else clerk.say


def _header(t: Text) -> Steps[None]:
    """Moves behind the role, also behind what of it is there when the output ends."""
    yield from t.accept(ANSWERER)
    if t.ended and ANSWERER.startswith(t.buffer[t.at:]):
        t.at = len(t.buffer)


def _called(t: Text, opener: str, clerk: Clerk, signatures: Signatures) -> Steps[bool]:
    """Reads the calls behind `opener`; no move, and false, if there is no whole one."""
    start, draft = t.at, Draft(t, signatures)
    try:
        yield from solar(t, opener, draft)
    except Malformed:
        t.at = draft.end if draft.calls else start
    if draft.calls:
        clerk.call(draft.calls)
    return bool(draft.calls)
