"""What happens to generated text on its way out: ids to text, stop strings, and reasoning kept apart from the answer.

Owns four small state machines with one rule in common: whatever the chunks, the pieces joined equal what the whole text
gives. So a caller may stream or collect, and gets the same. Each does amortised O(1) work per character.
Refuses: knowing tokens' meaning (moegg/tokenizer.py), sampling (moegg/sampler.py), and every wire format.
"""
from __future__ import annotations

import codecs
from collections.abc import Callable, Container, Iterable

from moegg.errors import BadRequest

# (opening, closing) tags of reasoning text, as the templates of known models spell them
REASONING_TAGS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>"),
                  ("<|START_THINKING|>", "<|END_THINKING|>"), ("<|channel>thought", "<channel|>"), ("<|inner_prefix|>", "<|inner_suffix|>"))


class StreamDecoder:
    """Ids to text, one id at a time. A character is held back until its last byte is there.

    Bytes that can never become UTF-8 give one U+FFFD per broken sequence, and nothing that follows is lost.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], skip: Container[int] = frozenset(), strip_start: bool = False):
        """`skip`: ids that are not shown. `strip_start`: drop one space in front, which SentencePiece had put there."""
        self._token_bytes, self._skip, self._strip = token_bytes, skip, strip_start
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that `token` completes; may be empty."""
        return "" if token in self._skip else self._shown(self._utf8.decode(self._token_bytes(token)))

    def flush(self) -> str:
        """The rest: one U+FFFD if a character was left unfinished, else nothing."""
        return self._shown(self._utf8.decode(b"", final=True))

    def _shown(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text


def held(text: str, words: Iterable[str]) -> int:
    """Length of the longest end of `text` that may still grow into one of `words`."""
    best = 0
    for word in words:
        for n in range(min(len(word) - 1, len(text)), best, -1):
            if text.endswith(word[:n]):
                best = n
                break
    return best


class StopMatcher:
    """Ends text before the first stop string, wherever chunks were cut; never lets a part of one out.

    The stop that is complete first wins (if two end together, the longer): the only rule that chunking cannot change.
    """

    def __init__(self, stops: Iterable[str] = ()):
        self._stops = tuple(stops)
        if "" in self._stops:
            raise BadRequest("stop: got an empty string, expected text", "stop-empty")
        self._buffer = ""
        self.matched: str | None = None     # the stop that was met

    def push(self, text: str) -> tuple[str, bool]:
        """(text that is safe to show, whether a stop was met). After a stop everything else is swallowed."""
        if self.matched is not None:
            return "", True
        self._buffer += text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := self._buffer.find(stop)) >= 0]
        if found:
            _, at, self.matched = min(found)
            shown, self._buffer = self._buffer[:at], ""
            return shown, True
        keep = len(self._buffer) - held(self._buffer, self._stops)
        shown, self._buffer = self._buffer[:keep], self._buffer[keep:]
        return shown, False

    def flush(self) -> str:
        """What was held back, once no more text comes."""
        shown, self._buffer = self._buffer, ""
        return shown


class ReasoningSplitter:
    """Splits a model's output into (reasoning, content).

    The rule: reasoning is one block at the very beginning. It starts with `opening` (blank space before it is allowed), or
    is open already because the template wrote the tag (`started`). The first `closing` ends it, even where the model only
    quotes that tag; from then on every tag is content. Output that ends inside the block is all reasoning.
    Blank space around the tags belongs to neither side; without a block the output is content to the letter.
    """

    def __init__(self, opening: str = "<think>", closing: str = "</think>", started: bool = False):
        if not opening or not closing:
            raise BadRequest("reasoning: got an empty tag, expected text", "reasoning-tag")
        self._opening, self._closing = opening, closing
        self._step = self._reason if started else self._begin
        self._buffer = ""
        self._trim = True       # drop blank space in front of what comes next

    def push(self, text: str) -> tuple[str, str]:
        """(new reasoning text, new content text)."""
        self._buffer += text
        return self._step()

    def flush(self) -> tuple[str, str]:
        """What was held back, once no more text comes."""
        rest, self._buffer = self._buffer, ""
        if self._step == self._reason:
            return (rest.strip() if self._trim else rest.rstrip()), ""
        return "", rest

    def _begin(self) -> tuple[str, str]:
        text = self._buffer.lstrip()
        if text.startswith(self._opening):
            self._buffer, self._step = text[len(self._opening):], self._reason
            return self._reason()
        if self._opening.startswith(text):      # not decided yet
            return "", ""
        self._step, self._trim = self._content, False
        return self._content()

    def _reason(self) -> tuple[str, str]:
        if self._trim:
            self._buffer = self._buffer.lstrip()
        at = self._buffer.find(self._closing)
        if at >= 0:
            reasoning = self._buffer[:at].rstrip()
            self._buffer, self._step, self._trim = self._buffer[at + len(self._closing):], self._content, True
            return reasoning, self._content()[1]
        shown = self._buffer[:len(self._buffer) - held(self._buffer, (self._closing,))].rstrip()
        self._buffer = self._buffer[len(shown):]
        self._trim = self._trim and not shown
        return shown, ""

    def _content(self) -> tuple[str, str]:
        text, self._buffer = self._buffer, ""
        if self._trim:
            text = text.lstrip()
            self._trim = not text
        return "", text


class Unwrapper:
    """Drops the tags that some models put around the answer behind their reasoning.

    The rule: an answer that begins with `opening` (blank space aside) loses it, and `closing` where nothing but blank space follows
    up to the end, with the blank space at both. Any other answer is kept to the letter.
    """

    def __init__(self, opening: str, closing: str):
        self._opening, self._closing = opening, closing
        self._step = self._begin
        self._buffer = ""

    def push(self, text: str) -> str:
        """The text that is certain to be the answer's."""
        self._buffer += text
        return self._step()

    def flush(self) -> str:
        """What was held back, once no more text comes."""
        rest, self._buffer = self._buffer, ""
        if self._step == self._inside and rest.rstrip().endswith(self._closing):
            return rest.rstrip().removesuffix(self._closing).rstrip()
        return rest

    def _begin(self) -> str:
        text = self._buffer.lstrip()
        if text.startswith(self._opening):
            self._buffer, self._step = text[len(self._opening):], self._first
            return self._first()
        if self._opening.startswith(text):      # not decided yet
            return ""
        self._step = self._plain
        return self._plain()

    def _plain(self) -> str:
        text, self._buffer = self._buffer, ""
        return text

    def _first(self) -> str:
        self._buffer = self._buffer.lstrip()
        if not self._buffer:
            return ""
        self._step = self._inside
        return self._inside()

    def _inside(self) -> str:
        text = self._buffer
        body = text.rstrip().removesuffix(self._closing)
        if len(body) == len(text.rstrip()):
            body = text[:len(text) - held(text, (self._closing,))]
        body = body.rstrip()
        self._buffer = text[len(body):]
        return body


def split_reasoning(text: str, opening: str = "<think>", closing: str = "</think>", started: bool = False) -> tuple[str, str]:
    """(reasoning, content) of a whole output; equal to what ReasoningSplitter streams."""
    splitter = ReasoningSplitter(opening, closing, started)
    first, last = splitter.push(text), splitter.flush()
    return first[0] + last[0], first[1] + last[1]


def reasoning_tags(template: str | None) -> tuple[str, str] | None:
    """The (opening, closing) pair whose closing tag the chat template knows, or None."""
    return next((tags for tags in REASONING_TAGS if template and tags[1] in template), None)


def reasoning_started(prompt: str, opening: str = "<think>") -> bool:
    """Whether the rendered prompt ends with an open reasoning block, so that the output begins inside it."""
    return prompt.rstrip().endswith(opening)
