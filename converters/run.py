"""convert(): streams a source through a plan into a container. Memory is a few row blocks and a few expert records.

Order of work: target check, plan, disk check, tensors in execution order, expert records layer by layer (row blocks and records are
made by several threads; records are written by them too). Every value is checked: NaN and infinity in a source are errors that name
the element, as is a value that the wanted quant cannot hold; rows too small for it, which become zero, are told of. No file that the
source consists of is replaced.
"""
import os
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from moegg import __version__, kernels
from moegg.converters.gguf import GGUFSource
from moegg.converters.hf import HFSource, dump
from moegg.converters.plan import ConvertPlan, PlannedExperts, PlannedTensor, make_plan, some
from moegg.converters.policy import find_recipe, part_name
from moegg.converters.source import Source, View
from moegg.errors import FormatError, MoeggError, NotFound, UsageError
from moegg.formats.importance import Importance
from moegg.formats.layout import MAGIC
from moegg.formats.rawfile import RawFile
from moegg.formats.writer import ContainerWriter, ExpertSpec, PartSpec, TensorSpec, check_room, check_target, planned_bytes
from moegg.hub.address import is_address, likely, parse_address
from moegg.quants import GROUP_ROWS, INTERLEAVED, QUANTS
from moegg.units import fmt_count

SMALL = 2.0 ** -12               # rows below may become zero: the smallest f16 scale, 2**-24, times the steps of a k-quant
BLOCK_BYTES = 4 << 20           # of f32 rows that a thread works on at once
KEPT_BYTES = 24 << 20           # glibc keeps blocks up to the largest that was ever freed, instead of faulting each in anew
MAX_THREADS, AHEAD_BYTES = 8, 1 << 30           # threads that make records, as long as their records take no more than this
F16_MAX, BF16_MAX = 65519.0, 3.3961775e38       # what rounds to a finite value; block quants scale by f16
LARGEST = {"f32": np.inf, "bf16": BF16_MAX, "q8_0": 127 * F16_MAX, "q4_0": 7 * F16_MAX}      # others: F16_MAX


@dataclass(frozen=True)
class ConvertResult:
    """What convert() did, or with dry_run would do. file_bytes: size of the container."""
    path: Path
    file_bytes: int
    plan: ConvertPlan


def open_source(path: str | os.PathLike, folder: Path = Path()) -> Source:
    """A Hugging Face folder, a GGUF file or an address on a hub as a Source; of the last, files are worked on in `folder`.

    Raises NotFound, FormatError, UnsupportedModel, IOFailure.
    """
    path = Path(path)
    if is_address(str(path)):
        from moegg.converters.hub import hub_source  # here: huggingface_hub takes 0.2 s to import
        return hub_source(parse_address(str(path)), folder)
    if path.is_dir():
        return HFSource(path)
    if not path.exists():
        address = None if path.parent.exists() else likely(str(path))
        hint = f"; if it is a repository on a hub: moegg convert {address}" if address else ""
        raise NotFound(f"{path}: no such file or folder{hint}", "file-missing")
    if path.suffix == ".safetensors":
        raise UsageError(f"{path}: is one file of a model; expected the folder that holds it, with config.json", "usage")
    raw = RawFile(path)
    magic = raw.read(0, min(4, raw.size)).tobytes()
    raw.close()
    if magic == MAGIC[:4]:
        raise FormatError(f"{path}: is a .moegg file already; run it: moegg run {path}", "source-kind")
    if not magic:
        raise FormatError(f"{path}: is empty, expected a GGUF file or a Hugging Face folder", "source-kind")
    if magic != b"GGUF":
        raise FormatError(f"{path}: got a file that starts with {magic!r}, expected a GGUF file or a Hugging Face folder",
                          "source-kind")
    return GGUFSource(path)


def convert(source_path: str | os.PathLike, out_path: str | os.PathLike | None = None, quant: str | None = None, *,
            overrides: Sequence[str] = (), imatrix: str | os.PathLike | None = None, force: bool = False, dry_run: bool = False,
            on_plan: Callable[[ConvertPlan, int], None] | None = None, progress: Callable[[int, int], None] | None = None,
            warn: Callable[[str], None] | None = None) -> ConvertResult:
    """Converts a Hugging Face folder or a GGUF file to one .moegg file; with `dry_run` reads no weights and writes nothing.

    quant: a recipe's name, by default q4 for safetensors, keep for GGUF and for safetensors that are quantised; overrides: 'GLOB=QUANT',
    the last that matches wins; imatrix: file of `moegg calibrate` by which errors are weighed. out_path: by default NAME-RECIPE.moegg (keep:
    NAME.moegg) in the current folder. on_plan(plan, file_bytes) is called before any weight is read, warn(line) then and at the
    end; progress(done, total) counts weight bytes.
    Raises UsageError, NotFound, FormatError, UnsupportedModel, NoRoom, IOFailure; then nothing is left behind.
    """
    if out_path is not None:
        _check_target(Path(out_path), Path(source_path), force, dry_run, warn)
    recipe = find_recipe(quant or "keep", overrides)             # a slip is told before anything is opened
    source = open_source(source_path, Path(out_path).parent if out_path is not None else Path())
    importance = None
    try:
        recipe = recipe if quant else find_recipe(source.default_quant, overrides)
        importance = Importance(imatrix) if imatrix is not None else None
        out = Path(out_path) if out_path is not None else Path(_default_name(source, recipe.name))
        if out_path is None:
            _check_target(out, Path(source_path), force, dry_run, warn)
        _spare_source(out, source)
        plan = make_plan(source, recipe)
        spec = _writer_arguments(plan, importance)
        total = planned_bytes(**spec)
        if on_plan:
            on_plan(plan, total)
        for line in [*plan.warnings, *_unknown(plan, importance), *_again(plan)] if warn else ():
            warn(line)
        if dry_run:
            _tell(check_room, out, total + source.scratch, warn=warn)
        else:
            check_room(out, total + source.scratch)
            with ContainerWriter(out, force=force, **spec) as writer:
                lost = _fill(writer, plan, importance, progress or (lambda done, total: None))
                writer.finish()
            if lost and warn:
                warn(f"{source.name}: {sum(lost.values())} rows are too small for their quant and were written as zeros, in "
                     f"{some([repr(name) for name in lost])}; --quant bf16 keeps them")
        return ConvertResult(out, total, plan)
    finally:
        source.close()
        if importance is not None:
            importance.close()


def _default_name(source: Source, recipe: str) -> str:
    return f"{source.stem}.moegg" if recipe == "keep" else f"{source.stem}-{recipe}.moegg"


def _check_target(out: Path, source: Path, force: bool, dry_run: bool, warn: Callable[[str], None] | None) -> None:
    """Before any work; a dry run only tells what a conversion would refuse."""
    if out.exists() and source.exists() and out.samefile(source):
        raise UsageError(f"{out}: is the source itself; choose another name with -o", "convert-self")
    if dry_run:
        _tell(check_target, out, force, warn=warn)
    else:
        check_target(out, force)


def _spare_source(out: Path, source: Source) -> None:
    """Raises UsageError if `out`, or the name it has until it is complete, is a file that the source consists of."""
    for name in (out, out.with_name(f"{out.name}.partial")):
        if name.exists() and any(p.exists() and name.samefile(p) for p in source.paths):
            raise UsageError(f"{name}: is a file of the source; choose another name with -o", "convert-self")


def _tell(check: Callable[..., None], *args: object, warn: Callable[[str], None] | None) -> None:
    try:
        check(*args)
    except MoeggError as e:
        if warn:
            warn(e.message)
    except OSError:
        return          # the folder is missing, which the check of the target has told


def _writer_arguments(plan: ConvertPlan, importance: Importance | None) -> dict:
    source, recipe = plan.source, plan.recipe.record()
    if importance is not None:
        recipe["imatrix"] = importance.about
    creator = f"moegg {__version__}"
    provenance = {"creator": creator, "recipe": recipe, "source": {
        "kind": source.kind, "files": [{"name": n, "bytes": b} for n, b in sorted(source.files.items())],
        **{k: v for k, v in source.provenance.items() if v is not None}}}
    return {
        "arch": plan.model.arch, "name": source.name, "config": plan.config,
        "meta": {"creator": creator, "quant": recipe, "source": source.kind, "parameters": plan.model.parameter_count(),
                 "active_parameters": plan.model.active_count()},
        "tensors": [TensorSpec(t.tensor.name, t.tensor.shape, t.quant, t.layout, t.tensor.role, t.tensor.layer, t.tensor.gather)
                    for t in plan.tensors],
        "experts": [ExpertSpec(e.layer, e.n, e.top_k, tuple(PartSpec(p.part.name, p.part.shape, p.quant, p.layout)
                                                            for p in e.parts)) for e in plan.experts],
        "sections": {**source.sections, "provenance": ("application/json", dump(provenance))},
    }


def _unknown(plan: ConvertPlan, importance: Importance | None) -> list[str]:
    """A warning if the importance of some matrices is not known. Raises FormatError where it is of other shapes."""
    if importance is None:
        return []
    asked = [(t.tensor.name, 1, t.tensor.shape[1]) for t in plan.tensors
             if not (QUANTS[t.quant].is_float or t.tensor.gather)]
    asked += [(part_name(e.layer, p.part.name), e.n, p.part.shape[1]) for e in plan.experts for p in e.parts if not QUANTS[p.quant].is_float]
    missing = [repr(name) for name, n, cols in asked if not importance.has(name, n, cols)]
    return [f"{importance.path}: knows nothing of {some(missing)}; their columns count the same"] if missing else []


def _again(plan: ConvertPlan) -> list[str]:
    """A warning if weights that were rounded to a quant before are rounded to another one."""
    def loses(source: str, quant: str) -> bool:
        return source in QUANTS and not (QUANTS[source].is_float or QUANTS[quant].is_float) and quant not in (source, "q8_0")
    rows = [r for r in plan.rows() if loses(r["source"].lower(), r["quant"])]
    pairs = dict.fromkeys(f"{r['source'].lower()} to {r['quant']}" for r in rows)
    return [f"{plan.source.name}: {fmt_count(sum(r['parameters'] for r in rows))} weights are quantised already and are rounded once more "
            f"({', '.join(pairs)}); --quant keep loses nothing, a source of 16 bits less"] if rows else []


def _fill(writer: ContainerWriter, plan: ConvertPlan, importance: Importance | None, progress: Callable[[int, int], None]) -> Counter[str]:
    """Writes all weights. Returns source tensor -> how many of its rows became zero without being so."""
    done, total = 0, plan.weight_bytes
    lost: list[tuple[str, int]] = []

    @lru_cache(maxsize=8)               # the parts of the records at work
    def worth(name: str, n: int, cols: int) -> np.ndarray | None:
        return importance.columns(name, n, cols) if importance is not None else None

    def block(t: PlannedTensor, start: int, stop: int) -> np.ndarray:
        known = None if QUANTS[t.quant].is_float else worth(t.tensor.name, 1, t.tensor.shape[1])
        return _encoded(t.view, t.quant, t.layout, start, stop, None if known is None else known[0], lost)

    def record(layer: PlannedExperts, e: int) -> int:
        parts = []
        for p in layer.parts:
            known = None if QUANTS[p.quant].is_float else worth(part_name(layer.layer, p.part.name), layer.n, p.part.shape[1])
            view, columns = p.views[e], None if known is None else known[e]
            parts.append([_encoded(view, p.quant, p.layout, start, stop, columns, lost)
                          for start, stop in _row_blocks(view.n_rows, view.shape[-1], view.whole)])
        writer.put_record(layer.layer, e, parts)
        return sum(p.nbytes for p in layer.parts)

    def count(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        progress(done, total)

    def counted(data: np.ndarray) -> np.ndarray:
        count(data.nbytes)
        return data

    progress(done, total)
    np.empty(KEPT_BYTES, np.uint8)
    for t in plan.tensors:
        rows = _row_blocks(t.view.n_rows, t.view.shape[-1], t.view.whole)
        with closing(_in_order((partial(block, t, start, stop) for start, stop in rows), t.nbytes)) as blocks:
            writer.put_tensor(t.tensor.name, map(counted, blocks))
    largest = max((sum(p.nbytes for p in layer.parts) for layer in plan.experts), default=1)
    jobs = (partial(record, layer, e) for layer in plan.experts for e in range(layer.n))
    with closing(_in_order(jobs, largest)) as records:
        for nbytes in records:
            count(nbytes)
    vanished: Counter[str] = Counter()
    for name, n in sorted(lost):        # in an order that threads do not change
        vanished[name] += n
    return vanished


def _in_order(jobs: Iterable[Callable[[], Any]], nbytes: int) -> Generator[Any, None, None]:
    """Results of jobs of at most `nbytes` each, in order, made by threads that are a few ahead.

    Close it: on an error no thread may read on from a closed source.
    """
    workers = max(1, min(MAX_THREADS, 2 * _cores(), AHEAD_BYTES // max(1, nbytes)))      # twice: half of them wait for the disk
    with ThreadPoolExecutor(workers) as pool:
        ahead: deque[Future] = deque()
        try:
            for job in jobs:
                ahead.append(pool.submit(job))
                if len(ahead) > workers:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _encoded(view: View, quant: str, layout: str, start: int, stop: int, worth: np.ndarray | None,
             lost: list[tuple[str, int]]) -> np.ndarray:
    """Rows [start:stop], whole row groups, as they lie in the file, uint8 [n]. worth: of the columns. Adds to `lost`."""
    cols = view.shape[-1]
    if view.exact and view.tensor.quant == quant:
        rows = view.blocks(start, stop)
        if not _sound(quant, rows):
            _check(view, start, rows.view("<f4") if quant == "f32" else kernels.dequantize(quant, rows, cols))
    else:
        x = view.floats(start, stop)
        _check(view, start, x, quant)
        rows = x.view(np.uint8) if quant == "f32" else kernels.quantize(quant, x, search=True, worth=worth)
        if n := _vanished(x, rows, quant):
            lost.append((view.tensor.name, n))
    return kernels.interleave(quant, rows, cols) if layout == INTERLEAVED else rows.reshape(-1)


def _row_blocks(rows: int, cols: int, whole: bool) -> Iterator[tuple[int, int]]:
    step = rows if whole else max(1, BLOCK_BYTES // (4 * cols * GROUP_ROWS)) * GROUP_ROWS
    for start in range(0, rows, step):
        yield start, min(start + step, rows)


def _vanished(x: np.ndarray, rows: np.ndarray, quant: str) -> int:
    """How many rows of x [n, cols] hold a value that is not zero, but nothing but zeros as `rows` of `quant`."""
    peak = np.maximum(x.max(axis=1), -x.min(axis=1))
    small = np.flatnonzero((peak > 0) & (peak < SMALL))
    if not len(small):
        return 0
    return int((kernels.dequantize(quant, rows[small], x.shape[1]) == 0).all(axis=1).sum())


def _sound(quant: str, rows: np.ndarray) -> bool:
    """True if the scales alone show that all values are finite, which costs a tenth of looking at the values."""
    q = QUANTS[quant]
    if not q.scales:
        return False
    blocks = rows.reshape(-1, q.block_bytes)
    return all((blocks[:, at + 1] & 0x7c != 0x7c).all() for at in q.scales)


def _check(view: View, first: int, x: np.ndarray, quant: str = "f32") -> None:
    """Raises FormatError for NaN, infinity and values beyond what `quant` holds; x [n, cols] are rows from `first` on."""
    low, high = x.min(), x.max()                # NaN passes through both
    limit = LARGEST.get(quant, F16_MAX)
    if np.isfinite(low) and np.isfinite(high) and max(-low, high) <= limit:
        return
    broken = ~np.isfinite(x)
    row, col = np.argwhere(broken if broken.any() else np.abs(x) > limit)[0]
    where = f"{view.source.name}: element {view.element(first + int(row), int(col))} is {x[row, col]}"
    if broken.any():
        raise FormatError(f"{where}, expected a finite number; the source is damaged", "convert-nan")
    raise FormatError(f"{where}, too large for {quant}; use --quant bf16 or f32", "convert-overflow")
