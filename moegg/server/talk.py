"""How the model of one file talks: its template and reasoning tags, its notation of calls, the ids that end its answers.

Owns the order in which this is known: what the file's template writes, then what the architecture's module declares (`CHAT`), then what
holds for most models. The terminal and the server both ask here. A file of a chat model without a template gets its family's; any other
file without one has none, and text is continued. Runs in request threads; holds nothing that changes.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from moegg.arch import Chat, choose_chat
from moegg.chat import choose_template, encode_chat, render
from moegg.errors import BadRequest
from moegg.server import tools
from moegg.server.voice import Voice
from moegg.stream import reasoning_started, reasoning_tags
from moegg.tokenizer import Tokenizer

REASONING_SWITCHES = ("enable_thinking", "thinking")        # the names under which templates ask whether to reason
_PROBE = "moegg_probe"
_PROBE_TOOL = {"type": "function", "function": {"name": _PROBE, "description": "", "parameters": {"type": "object", "properties": {}}}}


@dataclass(frozen=True)
class Talk:
    """own: the file's templates, {'default': jinja, ...}. chat: what the family declares."""
    tokenizer: Tokenizer
    own: Mapping[str, str]
    chat: Chat = Chat()

    @classmethod
    def of(cls, tokenizer: Tokenizer, own: Mapping[str, str], chats: Iterable[Chat]) -> Talk:
        """Chooses among the families of a module by the tokenizer's special tokens."""
        return cls(tokenizer, own, choose_chat(chats, tokenizer.specials.words))

    # --- templates ----------------------------------------------------------------------------------------------------------

    @cached_property
    def borrowed(self) -> bool:
        """Whether the family's template stands in for the file's: it has none, and declares that its turns end as the family's do."""
        chat = self.chat
        return bool(not choose_template(self.own) and chat.template and chat.ends and self.tokenizer.id_of(chat.ends[0]) in self.tokenizer.declared)

    @property
    def source(self) -> str:
        """Where the template is from: 'file', 'family' or 'none'."""
        return "family" if self.borrowed else "file" if choose_template(self.own) else "none"

    def template(self, given: Sequence[Any] = ()) -> str | None:
        """The template for a request with the tools `given`; None if text is all there is."""
        return self.chat.template if self.borrowed else choose_template(self.own, given)

    def prompt(self, template: str, messages: Sequence[Mapping[str, Any]], given: Sequence[Any] | None = None,
               variables: Mapping[str, Any] | None = None, ctx: int | None = None) -> tuple[list[int], bool]:
        """(ids, whether they end inside an open reasoning block). Raises as encode_chat does."""
        ids = encode_chat(self.tokenizer, template, messages, tools=given, variables=variables, ctx=ctx)
        tags = self.tags(template)
        return ids, bool(tags) and reasoning_started(self.tokenizer.decode(ids[-16:]), tags[0])

    # --- answers ------------------------------------------------------------------------------------------------------------

    def tags(self, template: str | None) -> tuple[str, str] | None:
        """Tags around reasoning; None without a template, and where the notation of calls marks it itself."""
        if template is None or self.form(template).reasons:
            return None
        return reasoning_tags(template) or self.chat.reasoning

    def reasons(self, template: str | None) -> bool:
        """Whether the template itself knows of reasoning; those of models that never reason do not."""
        return reasoning_tags(template) is not None or self.form(template).reasons

    def form(self, template: str | None) -> tools.ToolFormat:
        """How this model writes calls; one whose template shows no tools is told of them as text, and how to call them."""
        if template is None:
            return tools.NONE
        form = tools.parser_for(template)
        return form if form is not tools.NONE else tools.named(self.chat.calls) if takes_tools(template) else tools.TAGS

    def ends(self, template: str | None) -> frozenset[int]:
        """Ids that end an answer; through a template also those that begin another turn."""
        return self.tokenizer.eos_ids | (self.tokenizer.turn_ids if template is not None else frozenset())

    def voice(self, template: str | None, *, thinking: bool = False, given: Sequence[Any] = (), inline: bool = False,
              stops: Iterable[str] = (), parallel_calls: bool = True, continues: bool = False) -> Voice:
        """One answer on its way out. thinking: as `prompt` said. given: the request's tools. inline: reasoning stays in the text."""
        form = self.form(template)
        return Voice(self.tokenizer, tags=self.tags(template), answer=self.chat.answer if template is not None else None, thinking=thinking,
                     inline=inline, stops=stops, calls=form.stream(given) if given or form.reasons else None,
                     parallel_calls=parallel_calls, continues=continues or template is None)


@lru_cache(maxsize=16)
def takes_tools(template: str) -> bool:
    """Whether a template shows the tools of a request, found out by giving it one: some only mention them."""
    if "tools" not in template:
        return False
    try:
        return _PROBE in render(template, [{"role": "user", "content": "x"}], tools=[_PROBE_TOOL])
    except BadRequest:      # it wants other messages than this
        return True
