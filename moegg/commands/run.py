"""moegg run - answers a prompt, or chats on the terminal

Usage: moegg run [options] [--stop=TEXT]... MODEL [PROMPT]

MODEL is a .moegg file, a name of the local store, hf:USER/REPO[/FILE], or 'demo'. Without PROMPT,
or with '-', the prompt is --file or standard input; if that is a terminal, a chat begins, where
/help lists the commands. Text piped in beside PROMPT or --file follows it after an empty line. A
model without a chat template continues the text. Reasoning goes to stderr.

Prompt:
  --system=TEXT            instructions that stand before the conversation
  --file=FILE              read the prompt from a file, '-' is standard input
  --raw                    no chat template; special tokens written in the prompt count as such
  --nothink                ask the model not to reason, and show no reasoning
  --chat-template=FILE     a Jinja template instead of the one in the file
Sampling (defaults: what the model's makers recommend, else 0.8, 40, 0.95, 0.05 for the first four):
  --temp=T                 temperature; 0 always takes the likeliest token
  --top-k=N                only the N likeliest tokens; 0 is off
  --top-p=P                only the likeliest tokens that together reach P; 1 is off
  --min-p=P                only tokens at least P times as likely as the likeliest; 0 is off
  --repeat-penalty=X       divide the score of tokens already seen; 1 is off
  --presence-penalty=X     subtract from the score of tokens already answered
  --frequency-penalty=X    subtract from it for each use
  --seed=N                 repeat an answer; the seed in use is in --stats and --json
Output:
  --max-tokens=N           end after N tokens (default: the model's end; without a template 200)
  --stop=TEXT              end before TEXT; may be repeated
  --logprobs=N             print each token's log-probability and N alternatives instead of the text
  --stats                  print speed and memory on stderr at the end
  --json                   print one JSON object
Memory:
  --ram=SIZE               memory for everything, such as 8G (default: auto, what is available)
  --io=MODE                how what streams is read: auto, page-cache or direct (default: auto)
  --pin=N                  most used experts per layer that never leave memory (default: 0)
  --no-usage               neither read nor write the history of used experts
  --trace=FILE             record which experts were used (.npz or .jsonl)
  --ctx=N                  tokens the context holds (default: the trained length, at most 8192)
  --threads=N              compute threads (default: the cores it may use)
  --verbose                say more on stderr
  --debug                  show a traceback when something fails
  -h, --help               show this text
"""
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from moegg import log
from moegg.commands.chat_repl import Chat
from moegg.commands.generate import Settings, Speaker
from moegg.commands.opening import (
    describe,
    open_container,
    open_talk,
    open_tokenizer,
    read_piped,
    read_stdin,
    read_text,
    warn_beyond_training,
)
from moegg.commands.output import ENDED_SILENT, Output, as_json, logprob_lines, silent, stats_line
from moegg.commands.start import bring, started, to_come
from moegg.engine import Engine
from moegg.errors import ExitStatus, UsageError
from moegg.formats.sections import section_json
from moegg.sampler import SamplingParams
from moegg.server.talk import Talk

CONTINUATION_TOKENS = 200       # of an answer without a chat template: base models seldom end by themselves


def main(args: dict[str, Any]) -> ExitStatus:
    _check(args)
    container = open_container(args["MODEL"], here=False)
    model = describe(container)
    container = bring(args, container, model, beside=to_come(container))
    tokenizer = open_tokenizer(container, model.vocab)
    talk = Talk(tokenizer, {}) if args["--raw"] else open_talk(container, tokenizer, args["--chat-template"])
    template = talk.template()
    if args["--system"] is not None and template is None:
        raise UsageError("run: --system: the file has no chat template, so instructions have no place; put them into the prompt", "usage")
    text = _prompt_text(args)
    if text is not None and not (text.strip() if template else text):
        raise UsageError("run: the prompt is empty; give text, or start without it on a terminal for a chat", "usage")
    settings = Settings(
        SamplingParams.from_generation_config(
            section_json(container, "generation_config"), temperature=args["--temp"], top_k=args["--top-k"], top_p=args["--top-p"],
            min_p=args["--min-p"], repeat_penalty=args["--repeat-penalty"], presence_penalty=args["--presence-penalty"],
            frequency_penalty=args["--frequency-penalty"], seed=args["--seed"]),
        args["--raw"], not args["--nothink"], args["--max-tokens"] or (None if template else CONTINUATION_TOKENS),
        tuple(args["--stop"]), args["--logprobs"])
    warn_beyond_training(model, args["--ctx"] or 0, f"--ctx {args['--ctx']}")
    with started(args, container, model) as engine:
        return _with(engine, args, talk, settings, text, container.name)


def _with(engine: Engine, args: dict[str, Any], talk: Talk, settings: Settings, text: str | None, name: str) -> ExitStatus:
    log.detail(f"{engine.n_threads} threads, "
               f"{', '.join(f'{name} {value}' for name, value in asdict(settings.sampling).items() if value not in ({}, None))}")
    output = Output(quiet=args["--json"] or args["--logprobs"] is not None)
    speaker = Speaker(engine, talk, settings, output.show)
    if text is None:
        return Chat(speaker, output, args["--system"], args["--stats"]).loop(name)
    return _answer(args, speaker, output, text)


def _check(args: dict[str, Any]) -> None:
    for a, b in (("PROMPT", "--file"), ("--raw", "--chat-template"), ("--raw", "--system")):
        if args[a] not in (None, False) and args[b] is not None:
            raise UsageError(f"run: {a} and {b} exclude each other; give one of them", "usage")
    if "" in args["--stop"]:
        raise UsageError("run: --stop: got an empty text, expected at least one character", "usage")


def _prompt_text(args: dict[str, Any]) -> str | None:
    """The prompt, or None for a chat. Of a file or standard input the last line break is no part of the prompt."""
    if args["--file"] == Path("-"):
        return read_stdin().removesuffix("\n")
    given = args["PROMPT"] if args["--file"] is None else read_text(args["--file"]).removesuffix("\n")
    if given not in (None, "-") or args["--file"] is not None:
        piped = read_piped().removesuffix("\n")
        return f"{given}\n\n{piped}" if given and piped.strip() else given or piped
    if args["PROMPT"] == "-" or sys.stdin is None or not sys.stdin.isatty():
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
    if silent(answer):
        log.info(ENDED_SILENT)
    elif answer.full:
        log.info(f"the context of {speaker.engine.ctx} tokens is full, so the answer stops here (--ctx)")
    elif answer.finish_reason == "length" and args["--max-tokens"] is None:
        log.info(f"the answer stops after {CONTINUATION_TOKENS} tokens, as the file has no chat template in use (--max-tokens)")
    if args["--stats"]:
        log.info(stats_line(answer))
    return ExitStatus.INTERRUPTED if answer.finish_reason == "cancelled" else ExitStatus.OK
