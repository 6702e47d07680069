"""moegg tokenize - shows the tokens of a text

Usage: moegg tokenize [options] MODEL TEXT

MODEL is a .moegg file, or 'demo'; TEXT '-' reads standard input. Prints one token per line: its id,
a tab, its bytes as quoted text. What looks like a special token stays text, as it does in a prompt;
no token is added.

Options:
  --json                   print one JSON object
  --verbose                say more on stderr
  --debug                  show a traceback when something fails
  -h, --help               show this text
"""
import json
from typing import Any

from moegg.commands.opening import describe, open_container, open_tokenizer, read_stdin
from moegg.errors import ExitStatus


def main(args: dict[str, Any]) -> ExitStatus:
    container = open_container(args["MODEL"])
    tokenizer = open_tokenizer(container, describe(container).vocab)
    text = read_stdin() if args["TEXT"] == "-" else args["TEXT"]
    ids = tokenizer.encode(text)
    pieces = [tokenizer.token_bytes(i).decode("utf-8", "backslashreplace") for i in ids]
    if args["--json"]:
        print(json.dumps({"tokens": ids, "pieces": pieces}, ensure_ascii=False))
    else:
        print("".join(f"{i}\t{json.dumps(p, ensure_ascii=False)}\n" for i, p in zip(ids, pieces, strict=True)), end="")
    return ExitStatus.OK
