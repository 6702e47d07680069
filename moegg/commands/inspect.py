"""moegg inspect - shows what a file holds, without opening its weights

Usage: moegg inspect [options] MODEL

MODEL is a .moegg file, 'demo', a name of the local store, or hf:USER/REPO[/FILE], of which only
header and index are fetched. Works for files whose architecture this version cannot run, but then
not with --ram or --ctx, which show how memory would be split.

Options:
  --ram=SIZE               memory for everything, such as 8G (default: auto, what is available)
  --ctx=N                  tokens the context holds (default: the trained length, at most 8192)
  --threads=N              compute threads (default: the cores it may use)
  --json                   print one JSON object
  --verbose                say more on stderr
  --debug                  show a traceback when something fails
  -h, --help               show this text
"""
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from moegg import library, registry
from moegg.arch import I32_MAX, Model
from moegg.commands.opening import describe, open_container, open_tokenizer, warn_beyond_training
from moegg.commands.start import budget, to_come
from moegg.engine import dense
from moegg.engine.cpus import default_threads
from moegg.engine.engine import plan_for
from moegg.errors import ExitStatus, MoeggError, printable
from moegg.formats.container import Container
from moegg.formats.sections import section_json
from moegg.hub.address import is_address
from moegg.io import profile as profiles
from moegg.planner import MemoryPlan, tokens_per_s
from moegg.server.talk import Talk
from moegg.units import fmt_bytes

RUNS_MORE = 2 << 20             # what `run` has imported and this command has not: 0.3 MiB were measured


def main(args: dict[str, Any]) -> ExitStatus:
    container = open_container(args["MODEL"], here=False)
    provenance = section_json(container, "provenance")
    asked = args["--ram"] is not None or args["--ctx"] is not None
    model = describe(container) if asked else None
    talk, chat = conversation(container)        # before the plan, which counts what the tokenizer takes
    memory = plan_for(container, model, ctx=args["--ctx"], n_threads=args["--threads"] or default_threads(), ram=budget(args),
                      beside=RUNS_MORE + (to_come(container) if talk is None else 0)) if asked else None
    if model is not None:
        warn_beyond_training(model, args["--ctx"] or 0, f"--ctx {args['--ctx']}")
    pace = speed(container, model, memory) if memory else None
    here = disk(container)
    if args["--json"]:
        print(json.dumps(container.summary() | {"chat": chat, "provenance": provenance}
                         | ({"plan": memory.to_dict(), "speed": pace} if memory else {}) | ({"disk": here} if here else {})))
        return ExitStatus.OK
    lines = report(container, provenance) + ["", "chat", *(f"  {key:<11} {value}" for key, value in chat.items())]
    if memory:
        lines += ["", "memory", *(f"  {x}" for x in memory.lines()), "", "speed", f"  {pace_text(memory, pace)}"]
    if here:
        lines += ["", "disk", f"  {fmt_bytes(here['needed'])} to fetch, {fmt_bytes(here['free'])} free in '{here['folder']}'"
                  + ("" if here["needed"] <= here["free"] else ": not enough")]
    print("\n".join(map(printable, lines)))
    return ExitStatus.OK


def conversation(c: Container) -> tuple[Talk | None, dict[str, str]]:
    """How the file's model talks, as far as that is known without reading more than header and index of a file on a hub."""
    if is_address(str(c.path)) or "tokenizer" not in c.sections:
        return None, {"template": "in the file" if "chat_template" in c.sections else "none in the file"}
    try:
        talk = Talk.of(open_tokenizer(c, I32_MAX), section_json(c, "chat_template"), registry.chats(c.arch))
        template = talk.template()
        form, tags = talk.form(template), talk.tags(template)
        whose = {"file": "the file's", "family": f"of its family, {c.arch}; the file has none", "none": "none: text is continued"}
        return talk, {"template": whose[talk.source], "calls": form.name,
                      "reasoning": " ".join(tags) if tags else "channels" if form.reasons else "none",
                      "ends": " ".join(sorted(talk.tokenizer.decode([i]) or f"id {i}" for i in talk.ends(template)))}
    except MoeggError as e:
        return None, {"template": f"cannot be used: {e}"}


def pace_text(memory: MemoryPlan, pace: dict[str, float] | None) -> str:
    """The expected speed in words: bounds by bytes alone, so no more than two digits of it mean anything."""
    if pace is None:
        return "unknown: 'moegg doctor MODEL', with any model on that disk, measures this machine"
    least, most = (f"{x:.2g}" if x < 10 else f"{float(f'{x:.2g}'):.0f}" for x in (pace["least"], pace["most"]))
    if memory.all_fits:
        return f"at most about {most} tok/s, which is how fast memory is read"
    if memory.cycle:
        return f"about {least} tok/s if reading and computing take turns, {most} if neither waits for the other"
    return f"about {least} tok/s if all experts are used alike, at most {most} if those wanted are always in memory"


def disk(c: Container) -> dict[str, Any] | None:
    """What pulling a model that is on a hub needs, and what there is; None for one that is here. Sizes in bytes."""
    if not is_address(str(c.path)):
        return None
    folder = library.models_folder()
    return {"needed": c.file_bytes, "free": shutil.disk_usage(_existing(folder)).free, "folder": str(folder)}


def speed(c: Container, model: Model, memory: MemoryPlan) -> dict[str, float] | None:
    """Tokens per second that the stored machine profile lets expect; None if it was not measured."""
    profile = profiles.load(_existing(library.models_folder()) if is_address(str(c.path)) else c.path)
    if profile is None or not profile.memory_rate or not profile.readings:
        return None
    least, most = tokens_per_s(memory, dense.sizes(c, model), profile.memory_rate, max(r.rate for r in profile.readings))
    return {"least": least, "most": most}


def _existing(path: Path) -> Path:
    """The nearest folder above that exists: it is on the disk that the path would be on."""
    return next(p for p in (path, *path.parents) if p.exists())


def report(c: Container, provenance: dict[str, Any]) -> list[str]:
    """The file as text: identity, weights by role and quant, layout, sections, provenance."""
    form, about = c.summary()["format"], c.about
    lines = [f"{c.path}: {c.name}, {c.arch}, {fmt_bytes(c.file_bytes)}",
             f"  format      version {form['write_version']}, readable by version {form['read_version']} and later",
             f"  root        {c.root.hex()}",
             f"  content id  {c.content_id.hex()}"]
    if about.size:
        lines.append(f"  parameters  {about.size}")
    lines += [f"  recipe      {about.recipe} v{about.recipe_version}, from {about.source}, by {about.creator}",
              "", f"weights       {'quant':<7} {'layout':<12} {'tensors':>8} {'bytes':>11}"]
    count, nbytes = Counter(), Counter()
    for key, n, size in [((t.role, t.quant, t.layout), 1, t.nbytes) for t in c.tensors.values()] + [
            ((f"expert {p.name}", p.quant, p.layout), e.n, e.n * p.nbytes) for e in c.layers for p in e.parts]:
        count[key] += n
        nbytes[key] += size
    lines += [f"  {k[0]:<11} {k[1]:<7} {k[2]:<12} {count[k]:>8} {fmt_bytes(nbytes[k]):>11}" for k in count]
    lines += ["", "layout"]
    lines += [f"  {name:<11} {fmt_bytes(region.nbytes):>10} at byte {region.offset}" for name, region in
              (("resident", c.resident), ("row-gather", c.gather), ("experts", c.experts)) if region.nbytes]
    kinds = Counter((e.n, e.top_k, e.record_bytes) for e in c.layers)
    lines += [f"  {n} layers of {experts} expert records of {fmt_bytes(size)}, top {top_k}" for (experts, top_k, size), n in kinds.items()]
    lines += ["", "sections"]
    lines += [f"  {s.name:<18} {fmt_bytes(s.nbytes):>10}  {s.media}" for s in c.sections.values() if s.kind == "opaque"]
    lines += ["", "provenance"] + [f"  {k}: {v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)}" for k, v in provenance.items()]
    return lines
