"""moegg doctor - looks at this machine: processor, memory, disk, and whether results are right

Usage: moegg doctor [options] [MODEL]

Runs the demo model at every CPU level that this processor has and compares tokens and logits with
the known ones. Measures how fast memory and, given a MODEL, the disk that holds it is read, and
stores that for 'run', 'bench' and 'server'. Takes up to half a minute.

Options:
  --threads=N              compute threads (default: the cores it may use)
  --json                   print one JSON object
  --verbose                say more on stderr
  --debug                  show a traceback when something fails
  -h, --help               show this text
"""
import hashlib
import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from moegg import kernels
from moegg.commands.measure import int8_rate, machine, read_rate
from moegg.commands.opening import describe, open_container
from moegg.commands.progress import bar
from moegg.engine import Engine
from moegg.engine.cpus import default_threads
from moegg.errors import ExitStatus, printable
from moegg.io import profile as profiles
from moegg.io.memory import auto_budget, read_memory
from moegg.io.profile import Profile
from moegg.units import fmt_bytes, fmt_rate


def main(args: dict[str, Any]) -> ExitStatus:
    n = args["--threads"] or default_threads()
    memory, tests = read_memory(), self_test()
    rate = read_rate(n)
    disk = _measure(args["MODEL"], rate) if args["MODEL"] is not None else None
    r = {"machine": machine(), "threads": n, "levels": kernels.levels(), "level": kernels.level(), "self_test": tests,
         "read_bytes_per_s": rate, "int8_ops_per_s": int8_rate(n), "available_bytes": memory.available, "limit_bytes": memory.limit,
         "limited_by": memory.limited_by, "auto_budget": auto_budget(memory), "disk": disk and disk.to_dict(),
         "advice": disk.advice() if disk else []}
    print(json.dumps(r) if args["--json"] else "\n".join(map(printable, report(r, disk))))
    return ExitStatus.OK if all(t["ok"] for t in tests) else ExitStatus.INTERNAL


def self_test() -> list[dict[str, Any]]:
    """The demo model at every CPU level: greedy tokens and the bits of the last logits, against those in the package."""
    expected = json.loads((files("moegg") / "data" / "demo_answers.json").read_text())
    container, before, out = open_container(Path("demo")), kernels.level(), []
    model = describe(container)
    try:
        for level in kernels.levels():
            kernels.select(level)
            tokens, digest = answer(Engine(container, model, ctx=256, n_threads=2), expected["prompt"], len(expected["tokens"]))
            wrong = next((i for i, (a, b) in enumerate(zip(tokens, expected["tokens"], strict=True)) if a != b), None)
            out.append({"level": level, "ok": wrong is None and digest == expected["logits_sha256"], "first_wrong_token": wrong,
                        "logits_sha256": digest})
    finally:
        kernels.select(before)
    return out


def answer(engine: Engine, prompt: list[int], n: int) -> tuple[list[int], str]:
    """n greedy tokens after `prompt`, and the SHA-256 of the logits (little-endian float32) that follow the last of them."""
    session = engine.session()
    logits, tokens = engine.step([(session, prompt)])[0], []
    for _ in range(n):
        tokens.append(int(logits.argmax()))
        session.eval(tokens[-1])
        logits = session.logits
    return tokens, hashlib.sha256(logits.astype("<f4").tobytes()).hexdigest()


def _measure(path: Path, memory_rate: float) -> Profile:
    container = open_container(path)
    with bar("disk", unit="readings") as progress:
        found = profiles.measure(container.path, container.identity, cores=default_threads(), memory_rate=memory_rate, progress=progress)
    found = replace(found, memory_rate=memory_rate)
    if found.readings:
        profiles.save(found)
    return found


def report(r: dict[str, Any], disk: Profile | None) -> list[str]:
    """For people: what there is, whether it is right, what it can do, what follows."""
    m = r["machine"]
    known = "" if r["available_bytes"] is None else f", {fmt_bytes(r['available_bytes'])} available"
    auto = "" if r["auto_budget"] is None else f"; --ram auto takes {fmt_bytes(r['auto_budget'])}"
    limit = f" (limit {fmt_bytes(r['limit_bytes'])} by {r['limited_by']})" if r["limit_bytes"] is not None else ""
    out = [f"processor   {m['cpu']}, {m['cores']} cores, level {r['level']}", f"system      {m['system']}",
           f"memory      {fmt_bytes(m['ram_bytes'] or 0)}{known}{limit}{auto}",
           f"            {fmt_rate(r['read_bytes_per_s'])} read by {r['threads']} threads; int8 {r['int8_ops_per_s'] / 1e9:.0f} GOP/s"]
    for t in r["self_test"]:
        at = "" if t["first_wrong_token"] is None else f" from token {t['first_wrong_token']} on"
        out.append(f"{'self-test' if t is r['self_test'][0] else '':<12}{t['level']:<10}{'right' if t['ok'] else 'WRONG' + at}")
    if disk is None:
        return [*out, "disk        not measured: name a model file on it"]
    return [*out, "disk", *(f"  {x}" for x in (profiles.table(disk) if disk.readings else [])), *(f"  {x}" for x in r["advice"])]
