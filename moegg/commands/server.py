"""moegg server - serves a model to other programs over HTTP

Usage: moegg server [options] [--allow-host=NAME]... [--cors-origin=URL]... [--api-key=KEY]... MODEL

MODEL is a .moegg file, or 'demo'. Speaks the APIs of OpenAI (chat completions, completions,
responses), Anthropic (messages), Ollama and llama.cpp. Ctrl-C, SIGTERM or POST /v1/shutdown end it.

Network:
  --host=ADDRESS           where to listen (default: 127.0.0.1, this machine only)
  --port=N                 port, 0 for any free one (default: 8484)
  --allow-host=NAME        another host name of this server; '*' allows any; may be repeated
  --cors-origin=URL        web pages that may use it, such as http://localhost:3000; may be repeated
  --api-key=KEY            a key that requests must hold; may be repeated
  --api-key-file=FILE      keys from a file, one a line
Answers:
  --alias=NAME             the model's name for clients (default: the file's name)
  --parallel=N             answers written at once (default: 4, or what fits into half the memory)
  --queue=N                answers that may wait; more are refused with 429 (default: 32)
  --idle-release=MINUTES   give the conversations' memory back when nobody asked for so long
  --ping=SECONDS           a sign of life in streams that are silent for so long (default: 5)
  --chat-template=FILE     a Jinja template instead of the one in the file
  --log-prompts            write every request to stderr
Resources:
  --ctx=N                  tokens the context holds (default: the trained length, at most 8192)
  --threads=N              compute threads (default: the cores it may use)
  --verbose                say more on stderr
  --debug                  show a traceback when something fails
  -h, --help               show this text
"""
import signal
import threading
from typing import Any

from moegg import log
from moegg.commands.opening import describe, open_container, open_tokenizer, read_text, section_json
from moegg.engine import Engine
from moegg.engine.cpus import available_memory
from moegg.errors import BudgetTooSmall, ExitStatus, UsageError
from moegg.formats.container import Container
from moegg.server.app import MAX_BODY, Service, build
from moegg.server.grammar import Grammars
from moegg.server.guard import Policy
from moegg.server.metrics import Metrics
from moegg.server.prompts import Prompter
from moegg.server.serve import Server
from moegg.server.worker import Worker
from moegg.units import fmt_bytes, fmt_count

DEFAULT_PARALLEL = 4
DEFAULTS = {"--host": "127.0.0.1", "--port": 8484, "--queue": 32, "--ping": 5.0}


def main(args: dict[str, Any]) -> ExitStatus:
    args = args | {name: value for name, value in DEFAULTS.items() if args[name] is None}
    keys = _keys(args)
    policy = Policy(args["--host"], frozenset(h.lower() for h in args["--allow-host"]),
                    frozenset(o.lower().rstrip("/") for o in args["--cors-origin"]), keys)
    container = open_container(args["MODEL"])
    model = describe(container)
    tokenizer = open_tokenizer(container, model.vocab)
    templates = {"default": read_text(args["--chat-template"])} if args["--chat-template"] else section_json(container,
                                                                                                             "chat_template")
    engine = Engine(container, model, ctx=args["--ctx"], n_threads=args["--threads"])
    parallel = fitting(engine.plan, args["--parallel"], available_memory())
    log.detail("\n  ".join(["memory, for one conversation", *engine.plan.lines()]))
    if not policy.loopback and not keys:
        log.warn(f"--host {args['--host']}: anybody in that network may use this server; --api-key makes it ask for a key")
    metrics = Metrics()
    idle = args["--idle-release"]
    worker = Worker(engine, tokenizer, parallel=parallel, waiting=args["--queue"], metrics=metrics, idle_s=None
                    if idle is None else idle * 60)
    prompter = Prompter(tokenizer, templates, section_json(container, "generation_config"), container.arch, model.vocab,
                        engine.ctx,
                        Grammars(tokenizer, model.vocab))
    service = Service(worker, prompter, metrics, args["--alias"] or container.path.stem, _info(container, engine), args["--ping"],
                      args["--log-prompts"])
    server = Server(build(service, policy), args["--host"], args["--port"], answers=parallel + args["--queue"], max_body=MAX_BODY,
                    on_stop=worker.close)
    service.shutdown = lambda: threading.Thread(target=server.stop, name="moegg-stop").start()
    before = {s: signal.signal(s, lambda *_: _again(service.shutdown)) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        log.info(f"{service.alias} is ready at {server.url} ({parallel} at once, context {engine.ctx})")
        server.run()
    finally:
        worker.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    log.info("stopped")
    return ExitStatus.OK


def _again(stop: Any) -> None:
    """The first signal stops gently; the next one is the system's own."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    stop()


def _keys(args: dict[str, Any]) -> tuple[str, ...]:
    keys = [*args["--api-key"]]
    if args["--api-key-file"] is not None:
        lines = [line.strip() for line in read_text(args["--api-key-file"]).splitlines()]
        keys += [line for line in lines if line and not line.startswith("#")]
        if not keys:
            raise UsageError(f"--api-key-file {args['--api-key-file']}: got no key, expected one a line", "usage")
    if any(not k or not k.isascii() or not k.isprintable() for k in keys):
        raise UsageError("--api-key: expected printable ASCII", "usage")
    return tuple(keys)


def fitting(plan: Any, wanted: int | None, available: int | None) -> int:
    """How many conversations to hold: what was asked for, or up to four in half of the memory. Raises BudgetTooSmall."""
    once = plan.anonymous - plan.kv_state

    def most(limit: int) -> int:
        return max(1, (limit - once) // max(1, plan.kv_state))
    if wanted is None:
        return DEFAULT_PARALLEL if available is None else min(DEFAULT_PARALLEL, most(available // 2))
    if available is not None and once + wanted * plan.kv_state > available:
        raise BudgetTooSmall(f"--parallel {wanted}: {wanted} conversations of {plan.ctx} tokens need "
                             f"{fmt_bytes(once + wanted * plan.kv_state)}, available are {fmt_bytes(available)}; the most that fits "
                             f"is --parallel {most(available)}, or use a smaller --ctx", "budget-small")
    return wanted


def _info(container: Container, engine: Engine) -> dict[str, Any]:
    """What clients may know of the file."""
    params = container.meta.get("parameters")
    recipe = container.meta.get("quant")
    return {"arch": container.arch, "size": container.file_bytes, "digest": container.root.hex(),
            "n_ctx_train": engine.model.ctx_train,
            "n_vocab": engine.vocab, "quant": recipe.get("name", "") if isinstance(recipe, dict) else str(recipe or ""),
            "parameters": fmt_count(params["total"]) if isinstance(params, dict) and "total" in params else ""}
