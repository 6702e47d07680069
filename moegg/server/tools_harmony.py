"""The harmony format of gpt-oss: messages with a channel, and calls as messages to a recipient.

A message is [<|start|>role] [to=RECIPIENT] <|channel|>NAME [to=RECIPIENT] [<|constrain|>json] <|message|> text, and ends with
<|end|>, <|call|> or <|return|>, where the next begins, or with the output. Channel 'analysis' is reasoning, every other is
content. A recipient makes it a call, in whatever channel (models put calls into 'analysis' too), if its text is a JSON object.
A header that the end of the output cuts is dropped: a model stopped there has not said anything.
Source: OpenAI's harmony guide (cookbook.openai.com); deviations that models show: llama.cpp #15158, #15181.
"""
from __future__ import annotations

import re

from moegg.server.tools_calls import Draft
from moegg.server.tools_events import Clerk
from moegg.server.tools_text import MAX_NAME, NAME, Malformed, Steps, Text, members, released
from moegg.server.tools_types import Signatures

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
MAX_HEADER = 512        # characters
_HEADER = re.compile(r"(?:<\|(?:start|channel|constrain)\|>|[^<\n])*+")
_BEGUN = re.compile(_HEADER.pattern + r"(?:<[a-z|]*)?")
_MARK = re.compile(r"<\|?(?:[a-z]+(?:\|>?)?)?")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_KNOWN = ("assistant", "analysis", "commentary", "final", "json", "code")      # words of headers


def channels(t: Text, clerk: Clerk, signatures: Signatures, calling: bool) -> Steps[None]:
    """Reads the whole output. Without tools (`calling` false) a message to a recipient is mere text of its channel."""
    if (yield from t.ahead(0, "to=")) and (header := (yield from _header(t))):      # of the message that the prompt opened
        yield from _message(t, header, clerk, signatures, calling)
    while True:
        word = yield from released(t, clerk.say, (START, CHANNEL, *ENDS))
        if not word:
            return
        header = "" if word in ENDS else (yield from _header(t))
        if header:
            yield from _message(t, header, clerk, signatures, calling)
        elif t.ended and _cut(t.buffer[t.at:]):
            return
        else:
            if word not in ENDS:        # else the end of a message that never began
                clerk.say(word)
            t.at += len(word)


def _message(t: Text, header: str, clerk: Clerk, signatures: Signatures, calling: bool) -> Steps[None]:
    name = _name(header, signatures) if calling else ""
    if name and (yield from _called(t, name, clerk, signatures)):
        return
    clerk.paragraph()
    if name:
        clerk.say(header)
    channel = _CHANNEL.search(header)
    reasons = not name and channel and channel[1] == "analysis"
    yield from released(t, clerk.reason if reasons else clerk.say, (START, CHANNEL, *ENDS))
    yield from t.accept(*ENDS)


def _header(t: Text) -> Steps[str]:
    """Moves behind a header and returns it; empty, and no move, if this is none or the output ends inside."""
    while True:
        end = t.buffer.find(MESSAGE, t.at)
        head = t.buffer[t.at:end if end >= 0 else None]
        if end >= 0 and len(head) <= MAX_HEADER and _HEADER.fullmatch(head):
            t.at = end + len(MESSAGE)
            return head + MESSAGE
        if t.ended or end >= 0 or len(head) > MAX_HEADER + len(MESSAGE) or not _BEGUN.fullmatch(head):
            return ""
        yield


def _cut(text: str) -> bool:
    """Whether all of `text` is the beginning of a header: structure, and nothing a reader would miss."""
    words = _MARK.sub(" ", text).split()
    return all(word.startswith("to=") or any(known.startswith(word) for known in _KNOWN) for word in words)


def _name(header: str, signatures: Signatures) -> str:
    """The function a header calls; empty if none. 'json' glued to a name is taken off if that gives a known one."""
    recipient = _RECIPIENT.search(header)
    name = recipient[1].removeprefix("functions.") if recipient else ""
    if name not in signatures and name.removesuffix("json") in signatures:
        name = name.removesuffix("json")
    return name if len(name) <= MAX_NAME and NAME.fullmatch(name) else ""


def _called(t: Text, name: str, clerk: Clerk, signatures: Signatures) -> Steps[bool]:
    """Reads a call's text and its end; no move if it is not a JSON object alone."""
    start, draft = t.at, Draft(t, signatures)
    try:
        yield from t.space()
        if (yield from t.accept("{")):
            draft.add(name, (yield from members(t)))
            yield from t.space()
        elif signatures.complete(name, ()):
            draft.add(name, ())
        else:       # cut in front of its arguments
            raise Malformed
        if not (yield from t.accept(*ENDS)) and (yield from t.ahead(t.at, START, CHANNEL)) is None:
            raise Malformed
    except Malformed:
        t.at = start
        return False
    clerk.call(draft.calls)
    return True
