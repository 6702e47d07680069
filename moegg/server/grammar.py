"""Constrained output: JSON objects, JSON schemas and forced calls, by token masks from llguidance (pip install 'moegg[grammar]').

Owns what may come next: from the answer's first token, or from the end of the reasoning that the prompt opened. Refuses (501)
without the package, and (400) schemas that llguidance does not understand.
"""
from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np

from moegg.server.ask import Ask
from moegg.server.grammar_calls import calls, final, held
from moegg.server.problem import Problem, bad
from moegg.server.tools import ToolFormat
from moegg.tokenizer import Tokenizer


class Grammars:
    """Makes constraints for one tokenizer; the slow part is done once, when the first one is asked for."""

    def __init__(self, tokenizer: Tokenizer, vocab: int):
        self._tokenizer, self._vocab = tokenizer, vocab
        self._lock = threading.Lock()
        self._library: Any = None

    def start(self, ask: Ask, form: ToolFormat, template: str | None) -> Constraint | None:
        """The constraint of one answer, or None. form, template: how this model writes calls. Raises Problem 501 or 400."""
        if ask.constraint is not None:
            kind, value = ask.constraint
            schema = {"type": "object"} if kind == "json" else value
            grammar = final(form, schema, self._special) if form.reasons else f"start: {held(schema)}\n"
            return self._make(grammar, "response_format")
        if ask.tool_choice == "auto":
            return None
        named = ask.tool_choice[1] if isinstance(ask.tool_choice, tuple) else None
        functions = [t["function"] for t in ask.tools if named in (None, t["function"]["name"])]
        many = ask.parallel_calls and named is None
        return self._make(calls(form, template, functions, many, self._special), "tool_choice")

    def _special(self, text: str) -> list[tuple[int, int, int]]:
        """(start, stop, id) of special tokens in `text`."""
        return [(a, b, self._tokenizer.encode(text[a:b], special=True)[0]) for a, b in self._tokenizer.specials.spans(text)]

    def _make(self, grammar: str, param: str) -> Constraint:
        try:
            import llguidance  # optional, and slow to set up
            import llguidance.numpy  # optional
        except ImportError:
            raise Problem(501, f"{param}: a forced form of output needs a package on the server: pip install 'moegg[grammar]'",
                          param=param, code="unsupported") from None
        with self._lock:
            if self._library is None:
                self._library = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Vocabulary(self._tokenizer, self._vocab)))
        make = llguidance.LLMatcher
        matcher = make(self._library, make.grammar_from_lark(grammar), log_level=0)
        if matcher.is_error():
            raise bad(f"{param}: {_told(matcher.get_error())}", param, "invalid_schema")
        constraint = Constraint(matcher, llguidance.numpy, self._tokenizer.eos_ids, self._vocab, param)
        constraint.allowed()                # a schema that nothing satisfies is refused before the answer begins
        return constraint


def _told(error: str) -> str:
    """What llguidance says, without the grammar that it quotes and the insides that it shows."""
    text = re.split(r" \d+ \| | <(?:state|backtrace)>", " ".join(error.split()))[0]
    text = re.sub(r"^at \d+\(\d+\): (failed to compile JSON schema: )?", "", text)
    return "the schema is too large" if text.startswith("panic") else text[:300]


class _Vocabulary:
    """What llguidance wants to know of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer, vocab: int):
        self.eos_token_id, self.bos_token_id = min(tokenizer.eos_ids, default=0), tokenizer.bos_id
        self.tokens: Sequence[bytes] = [tokenizer.token_bytes(i) for i in range(vocab)]
        self.special_token_ids = sorted(i for i in tokenizer.special_ids if i < vocab)
        self._tokenizer = tokenizer

    def __call__(self, text: str | bytes) -> list[int]:
        return self._tokenizer.encode(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)


class Constraint:
    """One answer's state in its grammar."""

    def __init__(self, matcher: Any, masks: Any, ends: frozenset[int], vocab: int, param: str):
        self._matcher, self._masks, self._ends, self._vocab = matcher, masks, [i for i in ends if i < vocab], vocab
        self._param = param
        self._bits = masks.allocate_token_bitmask(1, vocab)
        self.finished = False

    def copy(self) -> Constraint:
        """The same state for another answer, without the work of making it."""
        twin = copy(self)
        twin._matcher, twin._bits = self._matcher.deep_copy(), self._masks.allocate_token_bitmask(1, self._vocab)
        return twin

    def allowed(self) -> np.ndarray:
        """[V] bool: the tokens that may come next; ends where the text is whole. Raises Problem 400 if there is none."""
        self._masks.fill_next_token_bitmask(self._matcher, self._bits)
        allowed = np.unpackbits(self._bits.view(np.uint8), bitorder="little")[:self._vocab].astype(bool)
        allowed[self._ends] = self._matcher.is_accepting()
        if not allowed.any():
            why = f" ({_told(self._matcher.get_error())})" if self._matcher.is_error() else ""
            raise bad(f"{self._param}: nothing satisfies the schema{why}", self._param, "invalid_schema")
        return allowed

    def mask(self, logits: np.ndarray) -> np.ndarray:
        """A copy of logits [V] with -inf for all tokens that may not come next. Raises what `allowed` raises."""
        return np.where(self.allowed(), logits, np.float32(-np.inf))

    def accept(self, token: int) -> None:
        """Moves on by a token that was allowed."""
        self._matcher.consume_token(token)
        self.finished = self._matcher.is_stopped()
