"""moegg - runs Mixture-of-Experts language models from one file

Usage: moegg [options] [COMMAND] [ARGUMENTS...]

Run a model:
  run          answer a prompt, or chat on the terminal
  server       serve a model to other programs over HTTP
Fetch and keep models:
  pull         fetch a model from a hub into the local store
  list         show the models of the local store
  rm           delete models of the local store
  push         put a model into a repository of a hub
Make and change files:
  convert      make a .moegg file from a Hugging Face folder or a GGUF file
  export       write a file as a GGUF
  edit         replace chat template, model card or default sampling of a file
  split        cut a file into parts that are opened in place
  repack       copy a file with its experts in the order of recorded routing
Look into files:
  inspect      show what a file holds
  verify       check every checksum of a file
  archs        list the architectures that moegg runs
  tokenize     show the tokens of a text
Measure:
  bench        measure the speed of a model on this machine
  doctor       measure this machine and check that results are right on it
  perplexity   measure how well a model predicts a text, and how far it is from a reference
  calibrate    measure on a text which weights matter most, for better quantisation
  forward      write the logits and router choices of given tokens

Options:
  --version                show the version, the file format and the CPU level
  --verbose                say more on stderr
  --debug                  show a traceback when something fails
  -h, --help               show this text

Quick start:
  moegg run demo "Once upon a time"
  moegg convert path/to/Qwen3-30B-A3B          makes Qwen3-30B-A3B-q4.moegg
  moegg run Qwen3-30B-A3B-q4.moegg             chats

'moegg COMMAND --help' explains a command. Exit codes are listed in README.md.
"""
import importlib
import io
import os
import sys
import traceback

from moegg import __version__, log
from moegg.commands.options import did_you_mean, parse
from moegg.errors import ExitStatus, InternalError, IOFailure, MoeggError, UsageError

COMMANDS = ("run", "server", "pull", "list", "rm", "push", "convert", "export", "edit", "split", "repack", "inspect", "verify", "archs",
            "tokenize", "bench", "doctor", "perplexity", "calibrate", "forward")
# moegg has its own thread pool; a second one inside numpy's BLAS would fight it for the cores. BLAS reads these when numpy is
# imported, so commands, which import numpy, are imported after they are set.
BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "OMP_NUM_THREADS")


def main(argv: list[str] | None = None) -> int:
    """Runs one command line and returns the exit code; every error becomes one line on stderr."""
    argv = sys.argv[1:] if argv is None else list(argv)
    debug = "--debug" in (argv[:argv.index("--")] if "--" in argv else argv)
    _prepare_streams()
    os.environ.update({name: "1" for name in BLAS_THREADS}, TOKENIZERS_PARALLELISM="false")
    try:
        status = _dispatch(argv)
        sys.stdout.flush()
        return int(status)
    except BrokenPipeError:         # the reader of our output has seen enough: | head
        _drop_stdout()
        return int(ExitStatus.OK)
    except (Exception, KeyboardInterrupt) as e:
        if debug:
            traceback.print_exc()
        line, status = explain(e)
        print(f"moegg: {log.readable(line)}" if line else "", file=sys.stderr)
        if isinstance(e, OSError):
            _drop_stdout()
        return int(status)


def explain(e: BaseException) -> tuple[str, ExitStatus]:
    """The one line and the exit code for an exception that reached the top."""
    if isinstance(e, MoeggError):
        return " ".join(str(e).splitlines()), e.exit_status
    if isinstance(e, KeyboardInterrupt):
        return "", ExitStatus.INTERRUPTED
    if isinstance(e, MemoryError) or isinstance(e, RuntimeError) and "can't start new thread" in str(e):
        return "out of memory or threads: close other programs, or use a smaller --ctx or a smaller file [no-memory]", ExitStatus.NO_ROOM
    if isinstance(e, OSError):
        return f"{e.filename or 'output'}: {e.strerror or e} [io]", ExitStatus.IO
    bug = InternalError(f"{type(e).__name__}: {' '.join(str(e).splitlines())}")
    return str(bug), bug.exit_status


def _dispatch(argv: list[str]) -> ExitStatus:
    args = parse(__doc__, argv, options_first=True)
    if args["--help"]:
        print(__doc__.rstrip())
    elif args["--version"]:
        print(_version(args["--verbose"]))
    elif args["COMMAND"] is None:
        _, usage, *_, start, _ = __doc__.split("\n\n")
        print(f"{usage}\n\n{start}\n\n'moegg --help' lists all commands.")
    elif args["COMMAND"] == "help":
        return _dispatch([*args["ARGUMENTS"][:1], "--help"])
    elif args["COMMAND"] not in COMMANDS:
        raise UsageError(f"unknown command {args['COMMAND']!r:.40}{did_you_mean(args['COMMAND'], list(COMMANDS))} (moegg --help)", "usage")
    else:
        return _run(args["COMMAND"], args["ARGUMENTS"], args["--verbose"])
    return ExitStatus.OK


def _run(command: str, argv: list[str], verbose: bool) -> ExitStatus:
    module = importlib.import_module(f"moegg.commands.{command}")       # after the environment is set, and only what is needed
    args = parse(module.__doc__, argv, command)
    if args["--help"]:
        print(module.__doc__.rstrip())
        return ExitStatus.OK
    log.configure(verbose or args["--verbose"])
    return module.main(args)


def _version(verbose: bool) -> str:
    kernels = importlib.import_module("moegg.kernels")
    layout = importlib.import_module("moegg.formats.layout")
    text = f"moegg {__version__}, format {layout.WRITE_VERSION}, CPU level {kernels.level()}"
    if verbose:
        text += "".join(f"\n{key}: {value}" for key, value in kernels.info().items())
    return text


def _prepare_streams() -> None:
    """UTF-8 whatever the locale says. A closed stderr swallows what it is told, a closed stdout is an error once it is used."""
    for name, errors in (("stdout", "surrogateescape"), ("stderr", "backslashreplace")):
        stream = getattr(sys, name)
        if stream is None:
            null = open(os.devnull, "w", encoding="utf-8")          # holds the number, which the next open file would get
            setattr(sys, name, null if name == "stderr" else _ClosedStdout(null))
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors=errors)


class _ClosedStdout(io.TextIOBase):
    """Stands where there is no standard output: whatever is written there would be lost."""

    def __init__(self, held: io.TextIOBase):
        self._held = held

    def write(self, text: str) -> int:
        raise IOFailure("standard output: is closed, expected somewhere to write the result to", "io-write")


def _drop_stdout() -> None:
    """Points stdout at nothing, so that the interpreter's last flush cannot fail again."""
    try:
        sys.stdout.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
