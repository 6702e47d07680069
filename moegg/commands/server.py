"""moegg server - serves a model to other programs over HTTP

Usage: moegg server [options] [--allow-host=NAME]... [--cors-origin=URL]... [--api-key=KEY]... MODEL

MODEL is a .moegg file, a name of the local store, hf:USER/REPO[/FILE], or 'demo'. Speaks the APIs
of OpenAI (chat completions, completions, responses), Anthropic (messages), Ollama and llama.cpp.
Ctrl-C, SIGTERM or POST /v1/shutdown end it.

Network:
  --host=ADDRESS           where to listen (default: 127.0.0.1, this machine only)
  --port=N                 port, 0 for any free one (default: 8484)
  --allow-host=NAME        another host name of this server; '*' allows any; may be repeated
  --cors-origin=URL        web pages that may use it, such as http://localhost:3000; may be repeated
  --api-key=KEY            a key that requests must hold; may be repeated
  --api-key-file=FILE      keys from a file, one a line
Answers:
  --alias=NAME             the model's name for clients (default: the file's name)
  --parallel=N             answers written at once (default: 4, fewer if memory is short)
  --queue=N                answers that may wait; more are refused with 429 (default: 32)
  --idle-release=MINUTES   give most memory back when nobody asked for so long
  --cache-dir=FOLDER       keep conversations in files there, so that none is read again
  --cache-size=SIZE        what these files may take in all (default: 10G)
  --ping=SECONDS           a sign of life in streams that are silent for so long (default: 5)
  --chat-template=FILE     a Jinja template instead of the one in the file
  --log-prompts            write every request to stderr
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
import signal
import threading
from typing import Any

from moegg import __version__, log
from moegg.commands.opening import describe, open_container, open_talk, open_tokenizer, read_text
from moegg.commands.start import bring, started, to_come
from moegg.engine import Engine
from moegg.errors import ExitStatus, UsageError
from moegg.formats.container import Container
from moegg.formats.sections import section_json
from moegg.server.app import MAX_BODY, Service, build
from moegg.server.archive import Archive
from moegg.server.grammar import Grammars
from moegg.server.guard import Policy
from moegg.server.metrics import Metrics
from moegg.server.prompts import Prompter
from moegg.server.serve import Server
from moegg.server.shelf import Shelf
from moegg.server.talk import Talk
from moegg.server.worker import Worker
from moegg.units import fmt_count

DEFAULT_PARALLEL = 4
DEFAULTS = {"--host": "127.0.0.1", "--port": 8484, "--queue": 32, "--ping": 5.0, "--cache-size": 10 << 30}
BESIDE_BYTES = 64 << 20     # the process that renders templates, and request threads


def main(args: dict[str, Any]) -> ExitStatus:
    args = args | {name: value for name, value in DEFAULTS.items() if args[name] is None}
    keys = _keys(args)
    policy = Policy(args["--host"], frozenset(h.lower() for h in args["--allow-host"]),
                    frozenset(o.lower().rstrip("/") for o in args["--cors-origin"]), keys)
    least = (args["--parallel"] or 1) + (args["--cache-dir"] is not None)
    needs = {"sessions": (least, max(least, (args["--parallel"] or DEFAULT_PARALLEL) + 1)), "beside": BESIDE_BYTES}
    container = open_container(args["MODEL"], here=False)
    model = describe(container)
    container = bring(args, container, model, **needs | {"beside": BESIDE_BYTES + to_come(container)})
    tokenizer = open_tokenizer(container, model.vocab)
    talk = open_talk(container, tokenizer, args["--chat-template"])
    with started(args, container, model, **needs) as engine:
        return _serve(args, policy, engine, talk)


def _serve(args: dict[str, Any], policy: Policy, engine: Engine, talk: Talk) -> ExitStatus:
    """Until a signal or POST /v1/shutdown. One session more than answers at once is planned where it fits, for the shelf."""
    container, plan, idle, metrics = engine.container, engine.plan, args["--idle-release"], Metrics()
    parallel = args["--parallel"] or max(1, plan.sessions - 1)
    shelf = Shelf(plan.kv_state // plan.sessions * (plan.sessions - parallel), _archive(args, engine, talk))
    if not policy.loopback and not policy.keys:
        log.warn(f"--host {args['--host']}: anybody in that network may use this server; --api-key makes it ask for a key")
    worker = Worker(engine, talk.tokenizer, parallel=parallel, waiting=args["--queue"], metrics=metrics, shelf=shelf,
                    idle_s=None if idle is None else idle * 60)
    prompter = Prompter(talk, section_json(container, "generation_config"), engine.vocab, engine.ctx, Grammars(talk.tokenizer, engine.vocab))
    service = Service(worker, prompter, metrics, args["--alias"] or container.path.stem, _info(container, engine), args["--ping"],
                      args["--log-prompts"], counters=engine.store.counters)
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


def _archive(args: dict[str, Any], engine: Engine, talk: Talk) -> Archive | None:
    """The folder of saved conversations, for this version, model, kv and template."""
    if args["--cache-dir"] is None:
        return None
    return Archive(args["--cache-dir"], [__version__, engine.container.root.hex(), engine.kv, talk.own or talk.template()], args["--cache-size"])


def _info(container: Container, engine: Engine) -> dict[str, Any]:
    """What clients may know of the file."""
    about = container.about
    return {"arch": container.arch, "size": container.file_bytes, "digest": container.root.hex(),
            "n_ctx_train": engine.model.ctx_train,
            "n_vocab": engine.vocab, "quant": about.recipe or "",
            "parameters": "" if about.parameters is None else fmt_count(about.parameters).replace(" ", "")}
