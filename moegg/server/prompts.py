"""From an Ask to jobs for the engine: chat templates, fill-in-the-middle, tool instructions, sampling defaults of the model.

Owns every decision that needs the model's texts: which template variant, what reasoning looks like, which ids end an answer.
Everything that can be refused is refused here, before a response has begun. Runs in request threads; holds nothing that changes.
"""
from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from moegg.chat import render
from moegg.sampler import Sampler, SamplingParams
from moegg.server.ask import Ask
from moegg.server.grammar import Grammars
from moegg.server.problem import bad
from moegg.server.talk import REASONING_SWITCHES, Talk, takes_tools
from moegg.server.voice import Voice
from moegg.server.worker import Job
from moegg.tokenizer import Tokenizer

# Fill-in-the-middle tokens (prefix, suffix, middle) and whether the suffix comes first. Sources: the tokenizers of Qwen2.5-Coder,
# StarCoder2 and Granite, DeepSeek-Coder, CodeGemma, Codestral.
FIM = ((("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"), False),
       (("<fim_prefix>", "<fim_suffix>", "<fim_middle>"), False),
       (("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"), False),
       (("[PREFIX]", "[SUFFIX]", ""), True))
# What models write where a hole is filled, besides their usual ends.
FIM_ENDS = ("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<file_sep>", "<fim_pad>", "<|cursor|>")
# Variables that would let a client write special tokens, or that this module sets itself.
RESERVED = frozenset(("messages", "tools", "documents", "add_generation_prompt"))
# Coding agents put a line first that holds a checksum of the request: every prompt would be new from its first line on.
VOLATILE = ("x-anthropic-billing-header:",)
# how models are asked for calls whose template says nothing about tools
TOOL_INTRO = ("You may call the functions below. To call one, write a line with <tool_call>, then one JSON object "
              '{"name": <function name>, "arguments": <object>}, then </tool_call>. The functions, as JSON:\n')


@dataclass(frozen=True)
class Prompt:
    """ids; thinking: they end inside an open reasoning block; raw: text that the answer continues; ends: more ids that end it."""
    ids: tuple[int, ...]
    thinking: bool = False
    raw: bool = False
    ends: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Prompter:
    """The model's side of a request. talk: how the model talks; generation: its sampling defaults; ctx: tokens."""
    talk: Talk
    generation: Mapping[str, Any]
    vocab: int
    ctx: int
    grammars: Grammars

    @property
    def tokenizer(self) -> Tokenizer:
        return self.talk.tokenizer

    # --- prompts ------------------------------------------------------------------------------------------------------------

    def prompts(self, ask: Ask) -> list[Prompt]:
        """The prompts of a request. Raises Problem and BadRequest for what the model or its template cannot take."""
        self._check_length(ask)
        if ask.messages is not None and not (ask.prompts and self.talk.template() is None):
            return [self._chat(ask)]
        if ask.suffix is not None:
            return [self._infill(text, ask.suffix) for text in ask.prompts]
        return [Prompt(self._checked(p) if isinstance(p, tuple) else tuple(self.tokenizer.encode(p, add_bos=True)), raw=True)
                for p in ask.prompts]

    def _check_length(self, ask: Ask) -> None:
        """Refuses what cannot fit before anybody reads it."""
        texts = [_text_of(m) for m in ask.messages or ()] + [p for p in ask.prompts if isinstance(p, str)] + [ask.suffix or ""]
        self.tokenizer.check_length(sum(map(len, texts)) if ask.messages else max(map(len, texts)), self.ctx)

    def template(self, ask: Ask) -> str:
        template = self.talk.template(ask.tools)
        if template is None:
            raise bad("the file has no chat template, and nothing in it says that its model answers in turns, so it seems to be a base model: "
                      "use /v1/completions, or start the server with --chat-template", "messages", "no_chat_template")
        return template

    def rendered(self, ask: Ask) -> str:
        """The prompt as text, for people who look."""
        template = self.template(ask)
        messages, given = self._parts(ask, template)
        return render(template, messages, tools=given, variables={**self.tokenizer.named, **self._variables(ask)})

    def _chat(self, ask: Ask) -> Prompt:
        template = self.template(ask)
        messages, given = self._parts(ask, template)
        variables, begun = self._variables(ask), ""
        if ask.continues:
            begun, messages = _text_of(messages[-1]), messages[:-1]
            variables = dict.fromkeys(REASONING_SWITCHES, False) | variables
        ids, thinking = self.talk.prompt(template, messages, given, variables, self.ctx)
        return Prompt(tuple(ids + (self.tokenizer.encode(begun) if begun else [])), thinking and not begun)

    def _parts(self, ask: Ask, template: str) -> tuple[list[Mapping[str, Any]], Sequence[Any] | None]:
        """Messages and tools for the template; as text in the messages if it shows no tools."""
        messages = list(stable(ask.messages))
        used = ask.tools or any(m.get("tool_calls") or m["role"] == "tool" for m in messages)
        if not used or takes_tools(template) and "tool_calls" in template:
            return messages, ask.tools or None
        if takes_tools(template):       # it shows tools, but not what was called before
            return plain_tools(messages, ()), ask.tools or None
        return plain_tools(messages, ask.tools), None

    def _variables(self, ask: Ask) -> dict[str, Any]:
        for name, value in ask.variables.items():
            if name in RESERVED or name in self.tokenizer.named:
                raise bad(f"chat_template_kwargs: {name!r:.40} cannot be set", "chat_template_kwargs")
            if not (value is None or isinstance(value, (bool, int, float, str))):
                raise bad(f"chat_template_kwargs: {name!r:.40}: expected text, a number or a boolean", "chat_template_kwargs")
            if isinstance(value, str) and next(self.tokenizer.specials.spans(value), None) is not None:
                raise bad(f"chat_template_kwargs: {name!r:.40}: holds a special token", "chat_template_kwargs")
        return dict(ask.variables)

    @cached_property
    def _holes(self) -> tuple[list[list[int]], bool] | None:
        """The ids of the model's fill-in-the-middle marks, and whether the suffix stands first; None if it has none."""
        for names, suffix_first in FIM:
            marks = [self._special(name) for name in names]
            if None not in marks:
                return marks, suffix_first
        return None

    @property
    def fills(self) -> bool:
        """Whether the model fills in the middle."""
        return self._holes is not None

    def _infill(self, prefix: str | tuple[int, ...], suffix: str) -> Prompt:
        before = list(prefix) if isinstance(prefix, tuple) else self.tokenizer.encode(prefix)
        after = self.tokenizer.encode(suffix)
        if self._holes is None:
            raise bad("suffix: this model has no fill-in-the-middle tokens", "suffix", "unsupported")
        marks, suffix_first = self._holes
        a, b, c = marks
        ids = [*b, *after, *a, *before] if suffix_first else [*a, *before, *b, *after, *c]
        ends = frozenset(i for mark in (*marks, *map(self._special, FIM_ENDS)) for i in mark or ())
        return Prompt(self._checked(tuple(self.tokenizer.prefix_ids + ids)), raw=True, ends=ends)

    def _special(self, name: str) -> list[int] | None:
        ids = self.tokenizer.encode(name, special=True) if name else []
        return ids if len(ids) == (1 if name else 0) else None

    def _checked(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        worst = next((i for i in ids if not 0 <= i < self.vocab), None)
        if worst is not None:
            raise bad(f"prompt: token id {worst} is outside the vocabulary of {self.vocab} tokens", "prompt", "token_range")
        return ids

    # --- jobs ---------------------------------------------------------------------------------------------------------------

    def jobs(self, ask: Ask, prompts: Sequence[Prompt]) -> list[Job]:
        """n jobs per prompt, in order. With a seed, answer k of a prompt has seed + k."""
        params = self.sampling(ask)
        template = self.talk.template(ask.tools) if ask.messages is not None else None
        constraint = self.grammars.start(ask, self.talk.form(template), template)
        out = []
        for prompt in prompts:
            if not prompt.ids:
                raise bad("prompt: got no tokens, expected some text", "prompt")
            for k in range(ask.n):
                seed = None if params.seed is None else params.seed + k
                out.append(Job(list(prompt.ids), Sampler(params, seed), self._voice(ask, prompt, template),
                               self._ends(ask, prompt),
                               ask.max_tokens, ask.logprobs, constraint and constraint.copy()))
        return out

    def _ends(self, ask: Ask, prompt: Prompt) -> frozenset[int]:
        if ask.ignore_eos:
            return frozenset()
        return self.talk.ends(None if prompt.raw else self.talk.template(ask.tools)) | prompt.ends

    def sampling(self, ask: Ask) -> SamplingParams:
        for token in ask.sampling.get("logit_bias") or ():
            if not 0 <= token < self.vocab:
                raise bad(f"logit_bias: token id {token} is outside the vocabulary of {self.vocab} tokens", "logit_bias",
                          "token_range")
        params = SamplingParams.from_generation_config(self.generation, **ask.sampling)
        if not ask.ignore_eos:
            return params
        ban = dict.fromkeys(self.tokenizer.eos_ids | self.tokenizer.turn_ids, float("-inf"))
        return SamplingParams(**{**vars(params), "logit_bias": {**params.logit_bias,
                                                                **{i: b for i, b in ban.items() if i < self.vocab}}})

    def _voice(self, ask: Ask, prompt: Prompt, template: str | None) -> Voice:
        return self.talk.voice(template, thinking=prompt.thinking, given=ask.tools, inline=not ask.split_reasoning, stops=ask.stop,
                               parallel_calls=ask.parallel_calls, continues=prompt.raw or ask.continues)


def stable(messages: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Messages without what changes with every request and tells the model nothing: lines at the start of system messages."""
    for m in messages:
        text = _text_of(m) if m["role"] == "system" else ""
        if not text.startswith(VOLATILE):
            yield m
            continue
        while text.startswith(VOLATILE):
            text = text.partition("\n")[2].lstrip("\n")
        if text:
            yield {**m, "content": text}


def _text_of(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else "".join(p.get("text", "") for p in content or ())


def plain_tools(messages: Sequence[Mapping[str, Any]], given: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages in which tools, calls and results are text, in the form that Hermes models use and many others have seen."""
    out: list[dict[str, Any]] = []
    for m in messages:
        if m["role"] == "tool":
            text = f"<tool_response>\n{_text_of(m)}\n</tool_response>"
            if out and out[-1]["role"] == "user" and out[-1].get("results"):
                out[-1]["content"] += "\n" + text
            else:
                out.append({"role": "user", "content": text, "results": True})
        elif m.get("tool_calls"):
            calls = [f"<tool_call>\n{json.dumps(c['function'], ensure_ascii=False)}\n</tool_call>" for c in m["tool_calls"]]
            out.append({"role": m["role"], "content": "\n".join([*filter(None, [_text_of(m)]), *calls])})
        else:
            out.append(dict(m))
    if given:
        intro = TOOL_INTRO + "\n".join(json.dumps(t["function"], ensure_ascii=False) for t in given)
        if out and out[0]["role"] == "system":
            out[0] = {**out[0], "content": f"{_text_of(out[0])}\n\n{intro}"}
        else:
            out.insert(0, {"role": "system", "content": intro})
    return [{k: v for k, v in m.items() if k != "results"} for m in out]
