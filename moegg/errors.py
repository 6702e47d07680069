"""Every error a user can meet: the exception tree, exit codes and the message grammar.

Grammar: `<object>: <what is wrong>: got <x>, expected <y>[; <what to do>] [slug]`: one line, lower case, no trailing
period, names quoted, numbers with units. Slugs are permanent. Each class also is the builtin that a Python caller expects.
"""
import re
from enum import IntEnum

# what a terminal obeys, breaks lines at, or lets turn the direction of the text around
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


MOST = 2000             # characters of a message: lists from files have no end


def printable(text: str) -> str:
    r"""`text` with control characters as '\x1b', '\n', '\u202e': for what a file or a template says and people get to see."""
    return _CONTROLS.sub(lambda m: m[0].encode("unicode_escape").decode(), text)


class ExitStatus(IntEnum):
    """Process exit codes; documented in README.md."""
    OK = 0
    FAILURE = 1
    USAGE = 2
    BAD_FILE = 3
    UNSUPPORTED = 4
    NO_ROOM = 5
    IO = 6
    INTERNAL = 70
    INTERRUPTED = 130


class MoeggError(Exception):
    """Base of all errors that are shown to a user as one line, free of control characters. `slug` is permanent and greppable."""
    exit_status = ExitStatus.FAILURE

    def __init__(self, message: str, slug: str):
        message = printable(" ".join(message.splitlines()))
        if len(message) > MOST:
            message = f"{message[:MOST - 400]} ... {message[-400:]}"
        super().__init__(f"{message} [{slug}]")
        self.message, self.slug = message, slug


class UsageError(MoeggError, ValueError):
    """The command line, or an option's value, is wrong."""
    exit_status = ExitStatus.USAGE


class FormatError(MoeggError, ValueError):
    """A file breaks a rule of its format. For containers `rule` is the number in formats/FORMAT.md, `offset` the byte."""
    exit_status = ExitStatus.BAD_FILE

    def __init__(self, message: str, slug: str, rule: str = "", offset: int | None = None):
        super().__init__(message, slug)
        self.rule, self.offset = rule, offset


class NotFound(MoeggError, FileNotFoundError):
    """A named file, model or tensor does not exist."""
    exit_status = ExitStatus.BAD_FILE

    def __init__(self, message: str, slug: str):  # FileNotFoundError's own __init__ would swallow the text
        MoeggError.__init__(self, message, slug)

    __str__ = Exception.__str__


class UnsupportedModel(MoeggError, NotImplementedError):
    """The model is sound, but moegg does not run this kind; the message names the key."""
    exit_status = ExitStatus.UNSUPPORTED


class BudgetTooSmall(MoeggError, MemoryError):
    """The plan does not fit; the message names the smallest workable value."""
    exit_status = ExitStatus.NO_ROOM


class NoRoom(MoeggError, OSError):
    """Not enough disk for what is about to be written."""
    exit_status = ExitStatus.NO_ROOM

    __str__ = Exception.__str__


class IOFailure(MoeggError, OSError):
    """The operating system refused a read or a write; the message carries path, offset and errno text."""
    exit_status = ExitStatus.IO

    __str__ = Exception.__str__


class BadRequest(MoeggError, ValueError):
    """A value handed to the engine, tokenizer or sampler is out of range."""
    exit_status = ExitStatus.USAGE


class ContextFull(MoeggError, ValueError):
    """More tokens than the session's context holds."""
    exit_status = ExitStatus.FAILURE


class Cancelled(MoeggError):
    """Work was stopped on request, between two steps; the session stays usable."""
    exit_status = ExitStatus.INTERRUPTED


class InternalError(MoeggError, RuntimeError):
    """moegg contradicts itself."""
    exit_status = ExitStatus.INTERNAL

    def __init__(self, message: str, slug: str = "internal"):
        super().__init__(f"{message}; this is a bug in moegg, please report it with --debug output", slug)
