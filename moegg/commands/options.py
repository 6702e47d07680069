"""Command lines: one docopt text per command, one table of conversions, errors that name option, value and accepted form.

docopt decides which arguments belong together. Before it, `parse` checks the options against the same text, because docopt's own
messages show its inner objects, and because it would accept abbreviations, which would then be promises.
"""
import difflib
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from docopt import DocoptExit, docopt

from moegg.errors import UsageError
from moegg.io.residency import CHOICES
from moegg.units import parse_size

# Options that several commands have: the same spelling, the same words. tests/test_cli.py holds every docstring against these lines.
SHARED = {
    "--ctx": "  --ctx=N                  tokens the context holds (default: the trained length, at most 8192)",
    "--ram": "  --ram=SIZE               memory for everything, such as 8G (default: auto, what is available)",
    "--io": "  --io=MODE                how what streams is read: auto, page-cache or direct (default: auto)",
    "--pin": "  --pin=N                  most used experts per layer that never leave memory (default: 0)",
    "--lookahead": "  --lookahead=N            experts per layer that are guessed and read ahead (default: if it pays)",
    "--no-usage": "  --no-usage               neither read nor write the history of used experts",
    "--trace": "  --trace=FILE             record which experts were used (.npz or .jsonl)",
    "--threads": "  --threads=N              compute threads (default: the cores it may use)",
    "--json": "  --json                   print one JSON object",
    "--force": "  --force                  replace an existing file",
    "--yes": "  -y, --yes                do not ask",
    "--verbose": "  --verbose                say more on stderr",
    "--debug": "  --debug                  show a traceback when something fails",
    "--help": "  -h, --help               show this text",
}

DASHES = "put '--' before text that begins with '-', and options before the '--'"


def _bad(option: str, got: str, expected: str) -> UsageError:
    return UsageError(f"{option}: bad value: got {got!r:.80}, expected {expected}", "usage")


def whole(low: int, high: int) -> Callable[[str, str], int]:
    """A converter for decimal whole numbers from low to high."""
    def convert(text: str, option: str) -> int:
        if not re.fullmatch(r"[0-9]{1,20}", text) or not low <= int(text) <= high:
            raise _bad(option, text, f"a whole number from {low} to {high}")
        return int(text)
    return convert


def number(low: float, high: float) -> Callable[[str, str], float]:
    """A converter for finite numbers from low to high."""
    def convert(text: str, option: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:        # false for nan
            raise _bad(option, text, f"a number from {low:g} to {high:g}")
        return value
    return convert


def choice(*names: str) -> Callable[[str, str], str]:
    """A converter that accepts exactly these words."""
    def convert(text: str, option: str) -> str:
        if text not in names:
            raise _bad(option, text, f"one of {', '.join(names)}")
        return text
    return convert


def sizes(text: str, option: str) -> tuple[int | None, ...]:
    """'8G' or '4G,8G,auto' as bytes; None for auto."""
    return tuple(None if part.strip() == "auto" else parse_size(part, option) for part in text.split(","))


def token_ids(text: str, option: str) -> list[int]:
    """'1,2,3' as ids; whether they are in the vocabulary is the engine's to say."""
    if not re.fullmatch(r"\s*[0-9]{1,9}\s*(,\s*[0-9]{1,9}\s*)*", text):
        raise _bad(option, text, "token ids such as 1,2,3")
    return [int(t) for t in text.split(",")]


def path(text: str, option: str) -> Path:
    """A file name; empty ones and NUL bytes are refused here, the rest by the operating system."""
    if not text or "\0" in text:
        raise _bad(option, text, "a file name")
    return Path(text)


def trace(text: str, option: str) -> Path:
    """The name of a recorded routing, which says in which form it is written."""
    if not text.endswith((".npz", ".jsonl")):
        raise _bad(option, text, "a file name that ends in .npz or .jsonl")
    return path(text, option)


def recipe(text: str, option: str) -> str:
    """The name of a recipe that moegg.converters.policy knows."""
    from moegg.converters.policy import find_recipe  # here: it brings numpy, which most commands need later or not at all
    find_recipe(text)
    return text


def text(value: str, option: str) -> str:
    """Any Unicode text. The shell's bytes arrive as lone surrogates where they are not valid UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError as e:
        raise UsageError(f"{option}: not UTF-8 text: got an invalid byte at character {e.start}, expected UTF-8", "usage") from None
    return value


OPTIONS: dict[str, Callable[[str, str], Any]] = {
    "MODEL": path, "SOURCE": path, "PROMPT": text, "TEXT": text, "FILE": path, "NAME": text, "ADDRESS": text,
    "--out": path, "--file": path, "--chat-template": path, "--reference": path, "--card": path, "--generation-config": path,
    "--quality": path, "--profile": path, "--size": parse_size,
    "--override": text, "--imatrix": path,
    "--quant": recipe,
    "--tokens": token_ids, "--prompt": whole(0, 1 << 24), "--warm": whole(0, 1 << 24), "--gen": whole(0, 1 << 24),
    "--ctx-depth": whole(0, 1 << 24), "--runs": whole(1, 10_000),
    "--ram": sizes, "--io": choice(*CHOICES), "--pin": whole(0, 1 << 16), "--lookahead": whole(0, 1 << 10), "--trace": trace,
    "--threads": whole(1, 1024), "--ctx": whole(1, 1 << 24), "--max-tokens": whole(1, 1 << 24), "--seed": whole(0, 2**64 - 1),
    "--host": text, "--port": whole(0, 65535), "--allow-host": text, "--cors-origin": text, "--api-key": text, "--api-key-file": path,
    "--cache-dir": path, "--cache-size": parse_size,
    "--alias": text, "--parallel": whole(1, 64), "--queue": whole(0, 4096), "--idle-release": number(0.01, 100_000),
    "--ping": number(0.1, 3600), "--system": text, "--stop": text, "--logprobs": whole(0, 20),
    "--temp": number(0, 100), "--top-k": whole(0, 1 << 24), "--top-p": number(0, 1), "--min-p": number(0, 1),
    "--repeat-penalty": number(0.01, 100), "--presence-penalty": number(-100, 100), "--frequency-penalty": number(-100, 100),
}


def declared(doc: str) -> dict[str, tuple[str, bool]]:
    """Every spelling in the option lines of a docopt text -> (long name, takes a value)."""
    table = {}
    for m in re.finditer(r"^  (?:(-\w), )?(--[\w-]+)(=\w+)?", doc, re.M):
        table.update({name: (m[2], bool(m[3])) for name in (m[1], m[2]) if name})
    return table


def parse(doc: str, argv: list[str], command: str = "", options_first: bool = False) -> dict[str, Any]:
    """The values of a command line, converted by OPTIONS; absent options are None, flags False, repeatable options lists.

    '--help' wins over everything else and is returned alone. Raises UsageError.
    """
    where = f"{command}: " if command else ""
    hint = f" (moegg {command} --help)" if command else " (moegg --help)"
    try:
        options, words = _split(argv, declared(doc), options_first)
        if "--help" in options:
            return {"--help": True}
        for name in {n for n in options if options.count(n) > 1 and f"[{n}" not in doc}:
            raise UsageError(f"option '{name}' is given twice; give it once", "usage")
        return _convert(_match(doc, command, options, words, options_first))
    except UsageError as e:
        raise UsageError(where + e.message + hint, e.slug) from e.__cause__


class _Options(list[str]):
    """Long names in order of appearance; `tokens` is the same as '--name=value' strings."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens: list[str] = []

    def add(self, name: str, value: str | None) -> None:
        self.append(name)
        self.tokens.append(name if value is None else f"{name}={value}")


def _split(argv: list[str], known: dict[str, tuple[str, bool]], options_first: bool) -> tuple[_Options, list[str]]:
    options, words, rest = _Options(), [], list(argv)
    while rest:
        token = rest.pop(0)
        if token == "--":
            return options, words + rest
        if token == "-" or not token.startswith("-") or re.fullmatch(r"-[0-9.]+", token):
            words.append(token)
            if options_first:
                return options, words + rest
            continue
        name, eq, value = token.partition("=") if token.startswith("--") else (token[:2], token[2:3] and "=", token[2:])
        if name not in known:
            raise UsageError(_unknown(token, name, known, options_first), "usage")
        long, takes_value = known[name]
        if not takes_value and eq:
            text = "" if token.startswith("--") else f"; {DASHES}"
            raise UsageError(f"option '{name}' takes no value: got {token!r:.80}, expected '{name}'{text}", "usage")
        if takes_value and not eq:
            if not rest:
                raise UsageError(f"option '{name}' needs a value: got nothing after it", "usage")
            value = rest.pop(0)
        options.add(long, value if takes_value else None)
    return options, words


def _unknown(token: str, name: str, known: dict[str, tuple[str, bool]], options_first: bool) -> str:
    if options_first and not token.startswith("--"):        # no text stands before the command
        long = [repr(k) for k in known if k.startswith(f"-{name}")]
        return f"unknown option {token!r:.40}" + (f"; did you mean {' or '.join(long)}?" if long else "")
    if any(c.isspace() for c in name) or not token.startswith("--"):
        return f"unknown option {token!r:.40}; {DASHES}"
    return f"unknown option {name!r:.40}{did_you_mean(name, [k for k in known if k.startswith('--')])}"


def nearest(word: str, names: list[str]) -> str | None:
    """The name that `word` begins or nearly is; the dashes that all options begin with are no likeness."""
    if len(word) > 3 and (longer := [n for n in names if n.startswith(word)]):
        return longer[0]
    bare = {n.lstrip("-/"): n for n in names}
    near = difflib.get_close_matches(word.lstrip("-/"), bare, n=1, cutoff=0.6)
    return bare[near[0]] if near else None


def did_you_mean(word: str, names: list[str]) -> str:
    """'; did you mean ...' for the nearest name, or nothing."""
    near = nearest(word, names)
    return f"; did you mean '{near}'?" if near else ""


def _match(doc: str, command: str, options: _Options, words: list[str], options_first: bool) -> dict[str, Any]:
    # '--' before the words, so that docopt takes every word for a word; the help text need not show it.
    argv = [*([command] if command else []), *options.tokens, "--", *words]
    try:
        return dict(docopt(doc.replace("[options]", "[options] [--]"), argv, default_help=False, options_first=options_first))
    except DocoptExit:
        usage = re.search(r"^Usage: moegg (.*)", doc, re.M)[1]
        wanted = re.sub(r"\[?--[\w-]+(=\w+)?(\]\.\.\.)?", lambda m: "" if m[2] else m[0], usage).replace("[options]", "").split()
        got = " ".join(repr(w)[:40] for w in words) or "nothing"
        wanted = [w for w in wanted if w != command]
        hint = "; put text of several words in quotes" if len(words) > len(wanted) and wanted[-1].strip("[]") in ("PROMPT", "TEXT") else ""
        if hint and any(w.partition("=")[0] in declared(doc) for w in words):
            hint = "; options stand before the '--'"
        raise UsageError(f"wrong arguments: got {got}, expected {' '.join(wanted)}{hint}", "usage") from None


def _convert(values: dict[str, Any]) -> dict[str, Any]:
    out = {}
    for name, value in values.items():
        convert = OPTIONS.get(name)
        if convert and isinstance(value, list):
            value = [convert(v, name) for v in value]
        elif convert and isinstance(value, str):
            value = convert(value, name)
        out[name] = value
    return out
