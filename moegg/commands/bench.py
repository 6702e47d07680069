"""moegg bench - measures the speed of a model on this machine

Usage: moegg bench [options] MODEL

MODEL is a .moegg file, a name of the local store, hf:USER/REPO[/FILE], or 'demo'. Evaluates random
tokens: some that fill the context, a prompt, a few to warm up, then others one by one, as if they
were an answer. Prompt and answer are timed. The same seed gives the same tokens. Waits until what
fits is in memory, repeats everything, shows medians with the least and the most, and what the
machine could do at best. Several sizes (such as 3G,4G,8G after --ram) are measured each by a
process of its own.

Options:
  --prompt=N               tokens of the prompt (default: 512)
  --warm=N                 tokens between prompt and answer (default: 16)
  --gen=N                  tokens of the answer (default: 64)
  --ctx-depth=N            tokens that are in the context before the prompt (default: 0)
  --seed=N                 which random tokens (default: 7)
  --runs=N                 repetitions, after a shorter one that does not count (default: 5)
  --ram=SIZE               memory for everything, such as 8G (default: auto, what is available)
  --io=MODE                how what streams is read: auto, page-cache or direct (default: auto)
  --pin=N                  most used experts per layer that never leave memory (default: 0)
  --lookahead=N            experts per layer that are guessed and read ahead (default: if it pays)
  --no-usage               neither read nor write the history of used experts
  --trace=FILE             record which experts were used (.npz or .jsonl)
  --cold                   measure from the start: no untimed repetition, no wait for warm experts
  --threads=N              compute threads (default: the cores it may use)
  --report                 print Markdown for an issue: machine, versions, figures, command
  --json                   print one JSON object
  --verbose                say more on stderr
  --debug                  show a traceback when something fails
  -h, --help               show this text
"""
import json
import platform
import shlex
import subprocess
import sys
import time
from typing import Any

from moegg import __version__, kernels, log
from moegg.commands.measure import Others, Work, int8_rate, limits, read_rate, repeat, report, touch
from moegg.commands.opening import describe, open_container, warn_beyond_training
from moegg.commands.progress import bar
from moegg.commands.start import bring, started
from moegg.errors import ExitStatus, UsageError, printable
from moegg.units import fmt_bytes, fmt_rate

DEFAULTS = {"--prompt": 512, "--warm": 16, "--gen": 64, "--ctx-depth": 0, "--seed": 7, "--runs": 5}
NOISE = 0.1                     # a spread, or cores that others keep busy, from which on a warning is due


def main(args: dict[str, Any]) -> ExitStatus:
    prompt, warm, gen, depth, seed, runs = (default if args[o] is None else args[o] for o, default in DEFAULTS.items())
    work = Work(depth, prompt, warm, gen, seed)
    if not prompt and not gen:
        raise UsageError("bench: --prompt and --gen: got 0 for both, expected something to measure", "usage")
    if len(args["--ram"] or ()) > 1:
        return sweep(args)
    r = _measured(args, work, runs)
    r |= limits(r, read_rate(r["threads"]), int8_rate(r["threads"]))    # once the engine is gone: its budget has no room for their buffers
    if args["--json"]:
        print(json.dumps({k: _short(v) for k, v in r.items()}, ensure_ascii=False))
    else:
        print("\n".join(markdown([r], args) if args["--report"] else map(printable, table(r))))
    sys.stdout.flush()
    _warn(r)                    # below the result, where they are read
    return ExitStatus.OK


def _measured(args: dict[str, Any], work: Work, runs: int) -> dict[str, Any]:
    """What `report` says of this model here."""
    container = open_container(args["MODEL"], here=False)
    model = describe(container)
    warn_beyond_training(model, work.total, f"{work.total} tokens")
    container = bring(args, container, model, ctx=work.total)
    start = time.perf_counter()
    with started(args, container, model, ctx=work.total) as engine:
        open_s = time.perf_counter() - start
        if args["--ram"] is None and not engine.plan.all_fits:
            log.warn(f"{container.path}: {fmt_bytes(container.file_bytes)} of weights do not fit into memory, so reading them is measured too")
        with bar("experts", unit="records", delay=1.0) as progress:
            resident_s = None if args["--cold"] else touch(engine, progress)
        others = Others()
        with bar("runs", unit="runs", delay=1.0) as progress:
            done = repeat(engine, work.draw(model.vocab), runs, progress, warm_up=not args["--cold"])
        return {"engine": "moegg", "version": __version__, "level": kernels.level(), **report(engine, work, done, others),
                "open_s": open_s, "resident_s": resident_s}


def sweep(args: dict[str, Any]) -> ExitStatus:
    """Measures each budget of --ram in a process of its own, so that none inherits the memory of another."""
    results = []
    for size in args["--ram"]:
        own = args | {"--ram": (size,), "--json": True, "--report": False}
        command = [sys.executable, "-m", "moegg", "bench", *_argv(own)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode not in (ExitStatus.OK, ExitStatus.NO_ROOM):
            return ExitStatus(done.returncode)
        results.append(json.loads(done.stdout) if done.returncode == ExitStatus.OK else {"ram": size, "fits": False})
    print(json.dumps({"sweep": results}) if args["--json"] else "\n".join(markdown(results, args) if args["--report"] else budgets(results)))
    return ExitStatus.OK


def _argv(args: dict[str, Any]) -> list[str]:
    """The command line that `args` came from."""
    out = []
    for name, value in args.items():
        if not name.startswith("--") or name == "--" or value in (None, False):
            continue
        value = ",".join("auto" if x is None else str(x) for x in value) if name == "--ram" else value
        out.append(name if value is True else f"{name}={value}")
    return [*out, "--", str(args["MODEL"])]


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
    if "hit_rate" in (x := r["experts"]) and r["cache_bytes"] < r["experts_bytes"]:
        prompt = f"; {fmt_bytes(x['prompt_read_bytes'])} for the prompt" if "prompt_read_bytes" in x else ""
        out += [f"{r['records']:<22}{100 * x['hit_rate']:>9.1f} % hits  {fmt_bytes(x['read_bytes_per_token'])} read per token in "
                f"{x['reads_per_token']:.0f} reads, {1000 * x['wait_s_per_token']:.1f} ms of it waited for{prompt}",
                f"{r['records'] + ' in memory':<22}{fmt_bytes(r['cache_bytes']):>9} of {fmt_bytes(r['experts_bytes'])}, {r['io']} with "
                f"{r['io_threads']} threads"]
    if r["pages"] and r["cache_bytes"] >= r["experts_bytes"]:
        p = r["pages"]
        huge = p["AnonHugePages"] + p["FilePmdMapped"] + p["ShmemPmdMapped"]
        waited = "" if r["resident_s"] is None else f" after {r['resident_s']:.1f} s"
        out.append(
            f"{'weights':<22}{100 * p['Rss'] / max(p['Size'], 1):.0f} % resident{waited}, {100 * huge / max(p['Size'], 1):.0f} % in huge pages")
    return out


def budgets(results: list[dict[str, Any]]) -> list[str]:
    """A sweep for people: one line per budget."""
    out = [f"{'budget':>10}{'prompt tok/s':>14}{'answer tok/s':>14}{'hits':>8}{'read/token':>12}{'wait/token':>12}{'peak':>11}  reads"]
    for r in results:
        size = "auto" if r["ram"] is None else fmt_bytes(r["ram"])
        if not r.get("fits", True):
            out.append(f"{size:>10}  does not fit")
            continue
        x = r["experts"]
        cells = (f"{100 * x['hit_rate']:>7.1f}%{fmt_bytes(x['read_bytes_per_token']):>12}{1000 * x['wait_s_per_token']:>9.1f} ms"
                 if "hit_rate" in x else f"{'-':>8}{'-':>12}{'-':>12}")
        rates = "".join(f"{'-' if r[k] is None else f'{r[k]:.2f}':>14}" for k in ("prefill_tps", "decode_tps"))
        out.append(f"{size:>10}{rates}{cells}{fmt_bytes(r['peak_memory_bytes'] or 0):>11}  {r['io']}")
    return out


def markdown(results: list[dict[str, Any]], args: dict[str, Any]) -> list[str]:
    """--report: what a reader of an issue needs to know and to repeat it."""
    r = next((r for r in results if r.get("fits", True)), None)
    if r is None:
        return ["moegg bench: no budget fits", *(f"- {fmt_bytes(r['ram'])}" for r in results)]
    command = shlex.join(["moegg", "bench", *_argv(args | {"MODEL": args["MODEL"].name, "--report": False})])
    return [f"**moegg {r['version']}**, {r['level']}, {r['threads']} threads, Python {platform.python_version()}",
            f"- machine: {r['cpu']}, {r['cores']} cores, {fmt_bytes(r['ram_bytes'] or 0)} RAM, {r['system']}",
            f"- model: {printable(r['name'])}, {r['arch']}, recipe {r['recipe']}, {fmt_bytes(r['file_bytes'])}, root `{r['root'][:16]}`",
            f"- read bandwidth {fmt_rate(r['read_gbps'] * 1e9)}, int8 {r['int8_gops']:.0f} GOP/s, "
            f"other programs kept {r['others_load'] or 0:.1f} cores busy",
            f"- `{command}`", "", "```", *budgets(results), "```"]
