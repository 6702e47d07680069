"""moegg run - answers a prompt, or chats on the terminal

Usage: moegg run [options] [--stop=TEXT]... MODEL [PROMPT]

MODEL is a .moegg file, or 'demo'. Without PROMPT the prompt comes from --file or standard input; if
that is a terminal, a chat begins. A model without a chat template continues the text. Reasoning
goes to stderr.

Prompt:
  --system=TEXT            instructions that stand before the conversation
  --file=FILE              read the prompt from a file
  --raw                    no chat template; special tokens written in the prompt count as such
  --nothink                ask the model not to reason, and show no reasoning
  --chat-template=FILE     a Jinja template instead of the one in the file
Sampling (defaults: what the model's makers recommend):
  --temp=T                 temperature; 0 always takes the likeliest token
  --top-k=N                only the N likeliest tokens; 0 is off
  --top-p=P                only the likeliest tokens that together reach P; 1 is off
  --min-p=P                only tokens at least P times as likely as the likeliest; 0 is off
  --repeat-penalty=X       divide the score of tokens already seen; 1 is off
  --presence-penalty=X     subtract from the score of tokens already answered
  --frequency-penalty=X    subtract from it for each use
  --seed=N                 repeat an answer; the seed in use is in --stats and --json
Output:
  --max-tokens=N           end after N tokens (default: when the model ends, or the context is full)
  --stop=TEXT              end before TEXT; may be repeated
  --logprobs=N             print each token's log-probability and N alternatives instead of the text
  --stats                  print speed and memory on stderr at the end
  --json                   print one JSON object
  --ctx=N                  positions of the context (default: the trained length, at most 8192)
  --threads=N              compute threads (default: the cores it may use)
  --verbose                say more on stderr
  --debug                  show a traceback when something fails
  -h, --help               show this text
"""
import json
import sys
from typing import Any

from moegg import log
from moegg.chat import choose_template
from moegg.commands.chat_repl import Chat
from moegg.commands.generate import Settings, Speaker
from moegg.commands.opening import describe, open_container, open_tokenizer, read_stdin, read_text, section_json
from moegg.commands.output import Output, as_json, logprob_lines, stats_line
from moegg.engine import Engine
from moegg.errors import ExitStatus, UsageError
from moegg.sampler import SamplingParams


def main(args: dict[str, Any]) -> ExitStatus:
    _check(args)
    container = open_container(args["MODEL"])
    model = describe(container)
    tokenizer = open_tokenizer(container, model.vocab)
    template = None if args["--raw"] else (read_text(args["--chat-template"]) if args["--chat-template"] else
                                           choose_template(section_json(container, "chat_template")))
    if args["--system"] is not None and template is None:
        raise UsageError("run: --system: the file has no chat template, so instructions have no place; put them into the prompt", "usage")
    text = _prompt_text(args)
    settings = Settings(
        SamplingParams.from_generation_config(
            section_json(container, "generation_config"), temperature=args["--temp"], top_k=args["--top-k"], top_p=args["--top-p"],
            min_p=args["--min-p"], repeat_penalty=args["--repeat-penalty"], presence_penalty=args["--presence-penalty"],
            frequency_penalty=args["--frequency-penalty"], seed=args["--seed"]),
        template, args["--raw"], not args["--nothink"], args["--max-tokens"], tuple(args["--stop"]), args["--logprobs"])
    if (args["--ctx"] or 0) > model.ctx_train:
        log.warn(f"--ctx {args['--ctx']}: the model was trained for {model.ctx_train} tokens; what lies beyond may be nonsense")
    engine = Engine(container, model, ctx=args["--ctx"], n_threads=args["--threads"])
    log.detail("\n  ".join(["memory", *engine.plan.lines()]))
    log.detail(f"{engine.n_threads} threads, {settings.sampling}")
    output = Output(quiet=args["--json"] or args["--logprobs"] is not None)
    speaker = Speaker(engine, tokenizer, settings, output.show)
    if text is None:
        return Chat(speaker, output, args["--system"], args["--stats"]).loop(container.name)
    return _answer(args, speaker, output, text)


def _check(args: dict[str, Any]) -> None:
    for a, b in (("PROMPT", "--file"), ("--raw", "--chat-template"), ("--raw", "--system")):
        if args[a] not in (None, False) and args[b] is not None:
            raise UsageError(f"run: {a} and {b} exclude each other; give one of them", "usage")
    if "" in args["--stop"]:
        raise UsageError("run: --stop: got an empty text, expected at least one character", "usage")


def _prompt_text(args: dict[str, Any]) -> str | None:
    """The prompt, or None for a chat. Of a file or standard input the last line break is no part of the prompt."""
    if args["--file"] is not None:
        return read_text(args["--file"]).removesuffix("\n")
    if args["PROMPT"] not in (None, "-"):
        return args["PROMPT"]
    if args["PROMPT"] == "-" or not sys.stdin.isatty():
        return read_stdin().removesuffix("\n")
    if args["--json"] or args["--logprobs"] is not None:
        raise UsageError("run: --json and --logprobs: got no prompt, expected PROMPT, --file or standard input", "usage")
    return None


def _answer(args: dict[str, Any], speaker: Speaker, output: Output, text: str) -> ExitStatus:
    if speaker.has_template:
        system = [] if args["--system"] is None else [{"role": "system", "content": args["--system"]}]
        prompt = speaker.chat_prompt([*system, {"role": "user", "content": text}])
    else:
        prompt = speaker.raw_prompt(text)
        if args["PROMPT"] and sys.stdout.isatty() and sys.stderr.isatty() and not output.quiet:
            sys.stderr.write(text)              # on a terminal a continuation reads better after its beginning
            sys.stderr.flush()
    answer = speaker.speak(prompt)
    if args["--json"]:
        print(json.dumps(as_json(answer, speaker.tokenizer), ensure_ascii=False))
    elif args["--logprobs"] is not None:
        print("".join(logprob_lines(answer, speaker.tokenizer)), end="")
    output.end()
    if answer.full:
        log.info(f"the context of {speaker.engine.ctx} tokens is full, so the answer stops here (--ctx)")
    if args["--stats"]:
        log.info(stats_line(answer))
    return ExitStatus.INTERRUPTED if answer.finish_reason == "cancelled" else ExitStatus.OK
