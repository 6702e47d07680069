"""Constrained output: JSON objects, JSON schemas and forced calls, by token masks from llguidance (pip install 'moegg[grammar]').

Owns what may come next: from the answer's first token, or from the end of the reasoning that the prompt opened. Refuses (501)
without the package and for forms of calls it cannot force, and (400) schemas that llguidance does not understand.
"""
from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from moegg.server.ask import Ask
from moegg.server.problem import Problem, bad
from moegg.server.tools import TAGS, ToolFormat
from moegg.tokenizer import Tokenizer

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class Grammars:
    """Makes constraints for one tokenizer; the slow part is done once, when the first one is asked for."""

    def __init__(self, tokenizer: Tokenizer, vocab: int):
        self._tokenizer, self._vocab = tokenizer, vocab
        self._lock = threading.Lock()
        self._library: Any = None

    def start(self, ask: Ask, form: ToolFormat) -> Constraint | None:
        """The constraint of one answer, or None. form: how this model writes calls. Raises Problem 501 or 400."""
        if ask.constraint is None and ask.tool_choice == "auto":
            return None
        if form.reasons:
            raise Problem(501, "the form of an answer cannot be forced for this model, which marks every part of its output",
                          param="response_format", code="unsupported")
        if ask.constraint is not None:
            kind, value = ask.constraint
            return self._make("json", {"type": "object"} if kind == "json" else value, "response_format")
        if form is not TAGS:
            raise Problem(501, f"tool_choice: calls in this model's form ({form.name}) cannot be forced; use 'auto'",
                          param="tool_choice", code="unsupported")
        return self._make("lark", self._calls(ask), "tool_choice")

    def _calls(self, ask: Ask) -> str:
        """A Lark grammar of one or more calls, of any tool or of the one that was named."""
        named = ask.tool_choice[1] if isinstance(ask.tool_choice, tuple) else None
        schemas = [_call_schema(t["function"]) for t in ask.tools if named in (None, t["function"]["name"])]
        opening, closing = self._mark(OPEN), self._mark(CLOSE)
        many = "+" if ask.parallel_calls and named is None else ""
        rules = "\n".join(f"c{n}: %json {json.dumps(schema)}" for n, schema in enumerate(schemas))
        either = " | ".join(f"c{n}" for n in range(len(schemas)))
        return f'start: call{many}\ncall: {opening} "\\n" any "\\n" {closing}\nany: {either}\n{rules}\n'

    def _mark(self, tag: str) -> str:
        """The tag as a token where the vocabulary has it as a special one, else as text."""
        special = {self._tokenizer.token_bytes(i).decode("utf-8", "replace") for i in self._tokenizer.special_ids}
        return tag if tag in special else json.dumps(tag)

    def _make(self, kind: str, value: Any, param: str) -> Constraint:
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
        try:
            grammar = make.grammar_from_json_schema(value) if kind == "json" else make.grammar_from_lark(value)
        except ValueError as e:
            raise bad(f"{param}: {str(e)[:300]}", param, "invalid_schema") from None
        matcher = make(self._library, grammar, log_level=0)
        if matcher.is_error():
            raise bad(f"{param}: {' '.join(matcher.get_error().split())[:300]}", param, "invalid_schema")
        return Constraint(matcher, llguidance.numpy, self._tokenizer.eos_ids, self._vocab)


def _call_schema(function: Mapping[str, Any]) -> dict[str, Any]:
    properties = {"name": {"const": function["name"]}, "arguments": function.get("parameters") or {"type": "object"}}
    return {"type": "object", "properties": properties, "required": ["name", "arguments"], "additionalProperties": False}


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

    def __init__(self, matcher: Any, masks: Any, ends: frozenset[int], vocab: int):
        self._matcher, self._masks, self._ends = matcher, masks, [i for i in ends if i < vocab]
        self._bits = masks.allocate_token_bitmask(1, vocab)
        self.finished = False

    def mask(self, logits: np.ndarray) -> np.ndarray:
        """A copy of logits [V] with -inf for all tokens that may not come next; ends are allowed where the text is whole."""
        self._masks.fill_next_token_bitmask(self._matcher, self._bits)
        allowed = np.unpackbits(self._bits.view(np.uint8), bitorder="little")[:len(logits)].astype(bool)
        allowed[self._ends] = self._matcher.is_accepting()
        return np.where(allowed, logits, np.float32(-np.inf))

    def accept(self, token: int) -> None:
        """Moves on by a token that was allowed."""
        self._matcher.consume_token(token)
        self.finished = self._matcher.is_stopped()
