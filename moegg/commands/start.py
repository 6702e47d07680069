"""Starts the engine of a command: the options that say how much memory it may take and how experts are read, in one place.

`bring` fetches nothing that would not fit; `started` measures the disk once if experts will not fit, shows progress, and keeps the usage
history and the routing trace.
"""
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from moegg import log
from moegg.arch import Model
from moegg.commands.opening import open_container
from moegg.commands.progress import bar
from moegg.engine import Engine
from moegg.engine.cpus import default_threads
from moegg.engine.engine import plan_for
from moegg.errors import UsageError
from moegg.formats.container import Container
from moegg.formats.writer import check_target
from moegg.hub.address import is_address
from moegg.io import profile as profiles
from moegg.io.profile import Profile
from moegg.io.residency import AUTO
from moegg.io.trace import Recorder
from moegg.io.usage import UsageFile

TOKENIZER_SHARE = 10            # memory of a tokenizer by its bytes in the file: 7 (Gemma 3) to 9 (SmolLM2) were measured


def budget(args: dict[str, Any]) -> int | None:
    """--ram as bytes, None for auto. Raises UsageError for a list of sizes."""
    sizes = args.get("--ram") or (None,)
    if len(sizes) > 1:
        raise UsageError("--ram: got several sizes, expected one", "usage")
    return sizes[0]


def bring(args: dict[str, Any], container: Container, model: Model, **more: Any) -> Container:
    """The container, on this disk. One that is only on a hub is fetched if what `started` makes of args and `more` fits.

    Raises BudgetTooSmall, and what open_container raises.
    """
    if not is_address(str(container.path)):
        return container
    plan_for(container, model, **{"ctx": args.get("--ctx"), "n_threads": args["--threads"] or default_threads(), "ram": budget(args)} | more)
    return open_container(container.path)


def to_come(container: Container) -> int:
    """About what the tokenizer of a file will take that is not read yet, from its size in the file."""
    return TOKENIZER_SHARE * container.sections["tokenizer"].nbytes if "tokenizer" in container.sections else 0


@contextmanager
def started(args: dict[str, Any], container: Container, model: Model, **more: Any) -> Iterator[Engine]:
    """An engine made from --ctx, --threads, --ram, --io, --pin, --lookahead, --no-usage and --trace (those the command has), and
    `more` arguments of Engine. At the end the usage history and the trace are written. Raises what Engine raises.
    """
    records = sum(x.n for x in container.layers)
    usage = UsageFile(container.content_id, records) if records and not args.get("--no-usage", True) else None
    trace = args.get("--trace")
    if trace:
        check_target(trace, force=True)
        if trace.exists() and trace.samefile(container.path):
            raise UsageError(f"--trace {trace}: is the model itself, expected another name", "target-exists")
    recorder = Recorder([x.layer for x in container.layers], [x.n for x in container.layers],
                        [x.record_bytes for x in container.layers]) if trace and records else None
    if trace and not records:
        log.warn(f"--trace {trace}: {container.path} has no experts, so there is nothing to record")
    with bar("weights", delay=1.0) as progress:
        engine = Engine(container, model, **{"ctx": args.get("--ctx"), "n_threads": args.get("--threads"), "ram": budget(args),
                                             "io": args.get("--io") or AUTO, "profile": partial(disk_profile, container), "usage": usage,
                                             "keep": args.get("--pin") or 0, "lookahead": args.get("--lookahead"),
                                             "trace": recorder and recorder.add, "progress": progress} | more)
    log.detail("\n  ".join(["memory", *engine.plan.lines()]))
    if engine.plan.experts:
        log.detail(f"{engine.store.noun}s: {engine.residency.mode}: {engine.residency.why}")
    try:
        yield engine
    finally:
        engine.store.save_usage()
        if recorder:
            recorder.save(trace)


def disk_profile(container: Container) -> Profile:
    """The stored profile of the disk that holds the file; measured now, some seconds, if there is none."""
    found = profiles.load(container.path)
    if found is None:
        with bar("measuring the disk, once", unit="readings") as progress:
            found = profiles.measure(container.path, container.identity, cores=default_threads(), progress=progress)
        if found.readings:
            profiles.save(found)
    return found
