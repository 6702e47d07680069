"""How an answer looks: streamed text, the JSON object, the table of log-probabilities, the line of statistics."""
import json
import sys
from typing import Any

from moegg.commands.generate import Answer
from moegg.errors import printable
from moegg.io.store import describe
from moegg.tokenizer import Tokenizer
from moegg.units import fmt_bytes

ENDED_SILENT = "(the model ended without an answer)"
DIM, PLAIN = "\033[2m", "\033[0m"


class Output:
    """Where an answer goes while it grows: text to stdout, reasoning to stderr, dim on a terminal. quiet: nowhere."""

    def __init__(self, quiet: bool = False):
        self.quiet = quiet
        self._last = ""         # the kind shown last
        self._open = False      # stdout's last character is no line break

    def show(self, kind: str, text: str) -> None:
        if self.quiet:
            return
        if kind == "text":
            self._leave_reasoning()
            sys.stdout.write(text)
            sys.stdout.flush()
            self._open = not text.endswith("\n")
        else:
            dim = sys.stderr.isatty() and self._last != "reasoning"
            sys.stderr.write((DIM if dim else "") + text)
            sys.stderr.flush()
        self._last = kind

    def end(self) -> None:
        """Ends the line, whatever it is on."""
        self._leave_reasoning()
        if self._open:
            sys.stdout.write("\n")
            sys.stdout.flush()
        self._last, self._open = "", False

    def _leave_reasoning(self) -> None:
        if self._last == "reasoning":
            sys.stderr.write((PLAIN if sys.stderr.isatty() else "") + "\n")
            sys.stderr.flush()


def silent(answer: Answer) -> bool:
    """The model ended its answer with nothing to read in it."""
    return answer.finish_reason == "stop" and not answer.text.strip()


def stats_line(answer: Answer) -> str:
    """--stats for people."""
    s = answer.stats
    if not s:
        return "no token was generated"
    decode = f"{s['decode_tok_per_s']:.1f} tok/s" if s["decode_tok_per_s"] else "one token"
    reused = f" and {s['prompt_reused']} reused" if s["prompt_reused"] else ""
    peak = f"; peak memory {fmt_bytes(s['peak_memory_bytes'])}" if s["peak_memory_bytes"] else ""
    return (f"prompt {s['prompt_tokens'] - s['prompt_reused']} tokens{reused}, {s['prompt_tok_per_s']:.1f} tok/s; answer "
            f"{s['completion_tokens']} tokens, {decode}; first token after {s['first_token_s']:.2f} s{peak}; seed {answer.seed}"
            + "".join(f"; {describe(s[f'{noun}s'], noun)}" for noun in ("expert", "layer") if f"{noun}s" in s))


def piece(data: bytes) -> dict[str, str]:
    """The bytes of a token for JSON: as text, where escapes stand for torn characters, and exactly, in hexadecimal digits."""
    return {"piece": data.decode("utf-8", "backslashreplace"), "bytes": data.hex()}


def quoted(data: bytes) -> str:
    """The bytes of a token for people: quoted text, or b'...' if they are not whole characters."""
    try:
        return printable(json.dumps(data.decode(), ensure_ascii=False))
    except UnicodeDecodeError:
        return repr(data)


def as_json(answer: Answer, tokenizer: Tokenizer) -> dict[str, Any]:
    """--json, one answer."""
    out = {"text": answer.text, "reasoning": answer.reasoning, "finish_reason": answer.finish_reason, "seed": answer.seed,
           "tokens": answer.tokens, "stats": answer.stats}
    if answer.logprobs:
        out["logprobs"] = [{"token": t, **piece(tokenizer.token_bytes(t)), "logprob": p.logprob,
                            "top": [{"token": i, **piece(tokenizer.token_bytes(i)), "logprob": x} for i, x in p.top]}
                           for t, p in zip(answer.tokens, answer.logprobs, strict=True)]
    return out


def logprob_lines(answer: Answer, tokenizer: Tokenizer) -> list[str]:
    """--logprobs: a line per token: its log-probability, the token, the alternatives."""
    def name(token: int) -> str:
        return quoted(tokenizer.token_bytes(token))
    return [f"{p.logprob:9.4f}  {name(t)}" + "".join(f"\t{name(i)} {x:.4f}" for i, x in p.top) + "\n"
            for t, p in zip(answer.tokens, answer.logprobs, strict=True)]
