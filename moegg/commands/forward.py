"""moegg forward - writes what the model computes for given tokens, for comparisons

Usage: moegg forward [options] MODEL --tokens=IDS --out=FILE

MODEL is a .moegg file, a name of the local store, hf:USER/REPO[/FILE], or 'demo'. FILE (.npz) gets
logits [T, vocab] float32; for the M layers with experts also router_idx [M, T, K] and router_w [M,
T, K], the chosen experts and their weights, and moe_layers [M], the numbers of these layers. Keys
and values are kept in f32. An existing FILE is replaced, unless it is MODEL.

Options:
  --tokens=IDS             token ids, such as 1,2,3
  -o, --out=FILE           the file to write
  --threads=N              compute threads (default: the cores it may use)
  --verbose                say more on stderr
  --debug                  show a traceback when something fails
  -h, --help               show this text
"""
from pathlib import Path
from typing import Any

import numpy as np

from moegg import log
from moegg.commands.opening import describe, open_container, warn_beyond_training
from moegg.commands.start import bring
from moegg.engine import Engine
from moegg.errors import ExitStatus, IOFailure, UsageError
from moegg.files import whole_file
from moegg.formats.writer import check_target


def main(args: dict[str, Any]) -> ExitStatus:
    container = open_container(args["MODEL"], here=False)
    tokens, out = args["--tokens"], args["--out"]
    if out.exists() and container.path.exists() and out.samefile(container.path):
        raise UsageError(f"{out}: is the model itself; choose another name with -o", "target-exists")
    check_target(out, force=True)
    model = describe(container)
    warn_beyond_training(model, len(tokens), f"{len(tokens)} tokens")
    needs = {"ctx": len(tokens), "kv": "f32"}
    engine = Engine(bring(args, container, model, **needs), model, n_threads=args["--threads"], **needs)
    logits, router_idx, router_w, moe_layers = engine.forward(tokens)
    write_npz(out, logits=logits, router_idx=router_idx, router_w=router_w, moe_layers=np.asarray(moe_layers))
    log.detail(f"{out}: logits {list(logits.shape)}, router choices {list(np.shape(router_idx))}")
    return ExitStatus.OK


def write_npz(out: Path, **arrays: np.ndarray) -> None:
    """Arrays in one .npz under exactly this name, complete or not at all. Raises IOFailure."""
    try:
        with whole_file(out) as f:
            np.savez(f, **arrays)
    except OSError as e:
        raise IOFailure(f"{out}: cannot be written: {e.strerror}", "io-write") from e
