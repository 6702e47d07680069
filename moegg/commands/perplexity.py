"""moegg perplexity - measures how well a model predicts a text, alone or beside a reference

Usage: moegg perplexity [options] MODEL FILE

MODEL is a .moegg file, a name of the local store, hf:USER/REPO[/FILE], or 'demo'. FILE is UTF-8
text, '-' standard input. The text is cut into windows of tokens, each read by itself; what is
predicted in the second half of each counts, as in llama.cpp's llama-perplexity. Lower is better;
numbers compare if text, tokenizer and windows are the same. With a reference, the same model at
more bits, it also prints the KL divergence from that (nats per token) and how often both prefer the
same token.

Options:
  --reference=MODEL        compare with this .moegg file of the same vocabulary
  --ctx=N                  tokens per window (default: the trained length, at most 512)
  --ram=SIZE               memory for everything, such as 8G (default: auto, what is available)
  --io=MODE                how what streams is read: auto, page-cache or direct (default: auto)
  --threads=N              compute threads (default: the cores it may use)
  --json                   print one JSON object
  --verbose                say more on stderr
  --debug                  show a traceback when something fails
  -h, --help               show this text
"""
import json
from contextlib import ExitStack
from typing import Any

from moegg.arch import Model
from moegg.commands.opening import describe, open_container, open_tokenizer, read_file_or_stdin, warn_beyond_training
from moegg.commands.progress import bar
from moegg.commands.start import bring, budget, started
from moegg.engine.evaluate import Quality, cut, evaluate
from moegg.errors import BadRequest, ExitStatus
from moegg.formats.container import Container
from moegg.io.memory import auto_budget, own_bytes, read_memory

DEFAULT_WINDOW = 512


def main(args: dict[str, Any]) -> ExitStatus:
    text = read_file_or_stdin(args["FILE"])
    container = open_container(args["MODEL"], here=False)
    model = describe(container)
    windows = windows_of(container, model, text, args["--ctx"])
    how, other = {"ctx": len(windows[0])}, None
    if args["--reference"]:
        other = open_container(args["--reference"], here=False)
        other_model = describe(other)
        _same_tokens(container, model, other, other_model, text)
        how |= _share(args, container, other)
        other = bring(args, other, other_model, **how)          # first: it has more bits, so it is what may not fit
    container = bring(args, container, model, **how)
    with ExitStack() as stack:
        reference = stack.enter_context(started(args, other, other_model, **how)) if other else None
        engine = stack.enter_context(started(args, container, model, **how))
        quality = evaluate(engine, windows, reference, stack.enter_context(bar("perplexity", unit="windows")))
    if args["--json"]:
        print(json.dumps({"model": str(container.path), "reference": other and str(other.path)} | {"quality": quality.to_dict()}))
    else:
        print("\n".join(lines(quality)))
    return ExitStatus.OK


def windows_of(container: Container, model: Model, text: str, ctx: int | None) -> list[list[int]]:
    """The token windows of a text. Raises BadRequest, NotFound (no tokenizer)."""
    tokenizer = open_tokenizer(container, model.vocab)
    warn_beyond_training(model, ctx or 0, f"--ctx {ctx}")
    return cut(tokenizer.encode(text), ctx or min(model.ctx_train, DEFAULT_WINDOW), tokenizer.prefix_ids)


def _same_tokens(container: Container, model: Model, other: Container, other_model: Model, text: str) -> None:
    """Raises BadRequest if the two models would read the text as different tokens."""
    if model.vocab == other_model.vocab and ("tokenizer" not in other.sections or open_tokenizer(container, model.vocab).encode(text)
                                             == open_tokenizer(other, other_model.vocab).encode(text)):
        return
    raise BadRequest(f"{other.path}: has other tokens than {container.path}, expected a reference with the same tokenizer and "
                     f"vocabulary ({other_model.vocab} and {model.vocab} tokens)", "reference-vocab")


def _share(args: dict[str, Any], container: Container, other: Container) -> dict[str, int]:
    """What each of two engines may have: half of --ram, or of what is free unless both fit whole."""
    if (ram := budget(args)) is not None:
        return {"ram": ram // 2}
    free = auto_budget(read_memory())
    if free is None or container.file_bytes + other.file_bytes < free // 2:
        return {}
    return {"ram": own_bytes() + free // 2}


def lines(q: Quality) -> list[str]:
    """The result for people."""
    out = [f"perplexity      {q.perplexity:.4f} +- {q.perplexity_error:.4f}   ({q.tokens} tokens in {q.windows} windows of {q.ctx})"]
    if (r := q.reference) is not None:
        out += [f"reference       {r.perplexity:.4f}", f"ratio           {q.perplexity / r.perplexity:.5f}",
                f"KL divergence   mean {r.kl_mean:.6f} +- {r.kl_error:.6f}, median {r.kl_median:.6f}, 99 % {r.kl_p99:.6f}, "
                f"most {r.kl_max:.6f}",
                f"same first      {100 * r.top1:.2f} %"]
    return out
