"""How the chat models of a family talk: what a file's own template does not tell, or what stands in for one that is missing.

Owns the declaration that a module makes as `CHAT`. Refuses to guess: a template of a family is for chat models alone, and a file shows that
it holds one by declaring the first of `ends` as an end of text, where base models of the family declare another.
"""
from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Chat:
    """ends: tokens that end a turn, used as far as the vocabulary has them; the first is the one that chat models declare. calls: the notation of
    tool calls, a name of moegg/server/tools.py's FORMATS. reasoning: tags around reasoning, unless the notation of calls marks it. answer: tags
    around what follows it, which are not shown. template: Jinja for files of chat models without one. marks: tokens by which a vocabulary tells this
    from the module's other families.
    """
    ends: tuple[str, ...] = ()
    calls: str = "tags"
    reasoning: tuple[str, str] | None = None
    answer: tuple[str, str] | None = None
    template: str = ""
    marks: tuple[str, ...] = ()


def choose_chat(chats: Iterable[Chat], vocabulary: Container[str]) -> Chat:
    """The first of a module's families whose marks the vocabulary has; what holds for any model if there is none."""
    return next((chat for chat in chats if all(mark in vocabulary for mark in chat.marks)), Chat())
