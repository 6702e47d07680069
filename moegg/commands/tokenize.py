"""moegg tokenize - shows the tokens of a text

Usage: moegg tokenize [options] MODEL TEXT

MODEL is a .moegg file, a name of the local store, 'demo', or hf:USER/REPO[/FILE], of which only
header, index and tokenizer are read. TEXT '-' reads standard input. Prints one token per line: its
id, a tab, its bytes as quoted text, or as b'...' if they are not whole characters. What looks like
a special token stays text, as it does in a prompt; no token is added.

Options:
  --json                   print one JSON object
  --verbose                say more on stderr
  --debug                  show a traceback when something fails
  -h, --help               show this text
"""
import json
from typing import Any

from moegg.commands.opening import describe, open_container, open_tokenizer, read_stdin
from moegg.commands.output import piece, quoted
from moegg.errors import ExitStatus


def main(args: dict[str, Any]) -> ExitStatus:
    container = open_container(args["MODEL"], here=False)
    tokenizer = open_tokenizer(container, describe(container).vocab)
    text = read_stdin() if args["TEXT"] == "-" else args["TEXT"]
    ids = tokenizer.encode(text)
    data = [tokenizer.token_bytes(i) for i in ids]
    if args["--json"]:
        pieces = [piece(d) for d in data]
        print(json.dumps({"tokens": ids, "pieces": [p["piece"] for p in pieces], "bytes": [p["bytes"] for p in pieces]}, ensure_ascii=False))
    else:
        print("".join(f"{i}\t{quoted(d)}\n" for i, d in zip(ids, data, strict=True)), end="")
    return ExitStatus.OK
