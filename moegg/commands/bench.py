"""moegg bench - measures the speed of a model on this machine

Usage: moegg bench [options] MODEL

MODEL is a .moegg file, or 'demo'. Evaluates random tokens: some that fill the context, a prompt, a
few to warm up, then others one by one, as if they were an answer. Prompt and answer are timed. The
same seed gives the same tokens. Waits until the weights are in memory, repeats everything, shows
medians with the least and the most, and what the machine could do at best.

Options:
  --prompt=N               tokens of the prompt (default: 512)
  --warm=N                 tokens between prompt and answer (default: 16)
  --gen=N                  tokens of the answer (default: 64)
  --ctx-depth=N            tokens that are in the context before the prompt (default: 0)
  --seed=N                 which random tokens (default: 7)
  --runs=N                 repetitions, after a shorter one that does not count (default: 5)
  --threads=N              compute threads (default: the cores it may use)
  --json                   print one JSON object
  --verbose                say more on stderr
  --debug                  show a traceback when something fails
  -h, --help               show this text
"""
import json
import sys
import time
from typing import Any

from moegg import __version__, kernels, log
from moegg.commands.measure import Others, Work, repeat, report, touch
from moegg.commands.opening import describe, open_container, warn_beyond_training
from moegg.commands.progress import bar
from moegg.engine import Engine
from moegg.engine.cpus import available_memory
from moegg.errors import ExitStatus, UsageError, printable
from moegg.units import fmt_bytes, fmt_rate

DEFAULTS = {"--prompt": 512, "--warm": 16, "--gen": 64, "--ctx-depth": 0, "--seed": 7, "--runs": 5}
NOISE = 0.1                     # a spread, or cores that others keep busy, from which on a warning is due


def main(args: dict[str, Any]) -> ExitStatus:
    prompt, warm, gen, depth, seed, runs = (default if args[o] is None else args[o] for o, default in DEFAULTS.items())
    work = Work(depth, prompt, warm, gen, seed)
    if not prompt and not gen:
        raise UsageError("bench: --prompt and --gen: got 0 for both, expected something to measure", "usage")
    container = open_container(args["MODEL"])
    model = describe(container)
    warn_beyond_training(model, work.total, f"{work.total} tokens")
    start = time.perf_counter()
    engine = Engine(container, model, ctx=work.total, n_threads=args["--threads"])
    open_s, resident_s = time.perf_counter() - start, _make_resident(engine)
    others = Others()
    with bar("runs", unit="run", delay=1.0) as progress:
        done = repeat(engine, work.draw(model.vocab), runs, progress)
    r = {"engine": "moegg", "version": __version__, "level": kernels.level(), **report(engine, work, done, others),
         "open_s": open_s, "resident_s": resident_s}
    print(json.dumps({k: _short(v) for k, v in r.items()}, ensure_ascii=False) if args["--json"] else "\n".join(map(printable, table(r))))
    sys.stdout.flush()
    _warn(r)                    # below the result, where they are read
    return ExitStatus.OK


def _make_resident(engine: Engine) -> float | None:
    """Seconds until every page of the file was in memory; None if it does not fit."""
    size, room = engine.container.file_bytes, available_memory()
    if room is not None and size > room:
        log.warn(f"{engine.container.path}: {fmt_bytes(size)} of weights do not fit into {fmt_bytes(room)} of memory, so page faults are measured too")
        return None
    with bar("weights", delay=1.0) as progress:
        return touch(engine, progress)


def _warn(r: dict[str, Any]) -> None:
    for name, least_most in r["spread"].items():
        if least_most and least_most[1] > least_most[0] * (1 + NOISE):
            log.warn(f"{name}: runs differ by {100 * (least_most[1] / least_most[0] - 1):.0f} %: too much for a claim")
    if (r["others_load"] or 0) > NOISE:
        log.warn(f"other programs kept {r['others_load']:.1f} cores busy meanwhile: the numbers are too low for a claim")


def _short(value: Any) -> Any:
    """Numbers with six digits; more is noise."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {k: _short(v) for k, v in value.items()}
    return [_short(v) for v in value] if isinstance(value, list) else value


def table(r: dict[str, Any]) -> list[str]:
    """A measurement for people."""
    def line(label: str, name: str, fmt: str, unit: str, rest: str = "") -> list[str]:
        if r[name] is None:
            return []
        least, most = r["spread"][name]
        spread = f"({least:{fmt}} to {most:{fmt}})" if n > 1 else ""
        return [f"{label:<22}{r[name]:>9{fmt}} {unit:<6} {spread:<22}{rest}".rstrip()]

    def share(name: str) -> str:
        return f"{100 * (r[name] or 0):.0f} %"
    n, where = len(r["runs"]), f" after {r['ctx_depth']} tokens" if r["ctx_depth"] else ""
    out = [f"{r['file']}: {r['name']}, {fmt_bytes(r['file_bytes'])}; {r['threads']} threads, {r['level']}, seed {r['seed']}; "
           f"{'one run' if n == 1 else f'median of {n} runs (least to most)'}{where}"]
    out += line(f"prompt, {r['prompt']} tokens", "prefill_tps", ".1f", "tok/s",
                f"{r['prefill_gops'] or 0:.0f} GOP/s, {share('fraction_of_int8')} of the int8 rate ({r['int8_gops']:.0f} GOP/s)")
    out += line("first token after", "ttft_s", ".3f", "s")
    out += line(f"answer, {r['gen']} tokens", "decode_tps", ".1f", "tok/s",
                f"{fmt_rate((r['decode_gbps'] or 0) * 1e9)}, {share('fraction_of_read_bandwidth')} of the read bandwidth "
                f"({fmt_rate(r['read_gbps'] * 1e9)})")
    if r["peak_memory_bytes"] is not None:
        anonymous = "" if r["anonymous_bytes"] is None else f", {fmt_bytes(r['anonymous_bytes'])} of it beside the file"
        out.append(f"{'memory':<22}{fmt_bytes(r['peak_memory_bytes'])} at most{anonymous}")
    if r["pages"]:
        p = r["pages"]
        huge = p["AnonHugePages"] + p["FilePmdMapped"] + p["ShmemPmdMapped"]
        waited = "" if r["resident_s"] is None else f" after {r['resident_s']:.1f} s"
        out.append(f"{'weights':<22}{100 * p['Rss'] / max(p['Size'], 1):.0f} % resident{waited}, {100 * huge / max(p['Size'], 1):.0f} % in huge pages")
    return out
