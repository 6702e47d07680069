"""How far presets of `moegg convert` and of llama.cpp are from the model they were made of, at which size, on the same text.

    python bench/quant_report.py --peer PEER/bin/python --source SOURCE --gguf MODEL.gguf --calibration a.txt --text b.txt --work DIR
                                 [--presets q4,q3,q2] [--types Q4_K_M,Q3_K_M,Q2_K] [--windows N] [--threads N] [--title T] [--out FILE.json]
    python bench/quant_report.py --table FILE.json... --into quants.md [--svg quants.svg]

SOURCE is what `moegg convert` takes; MODEL.gguf the same model for llama.cpp (quantised ones are widened to f32 first). The reference
of both sides is moegg's f32 file of SOURCE. Importance is measured once, by `moegg calibrate` on --calibration with that file, and
handed to both quantisers. --text is cut into windows of 512 tokens (or what the model was trained for), whose second halves count; at
most --windows of them. Both sides read the same token ids; llama.cpp runs its own files in its own kernels.
"""
import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from common import header, parser
from plot import svg

from moegg.commands.opening import describe, open_container
from moegg.commands.perplexity import windows_of
from moegg.converters import convert
from moegg.engine import Engine
from moegg.engine.evaluate import evaluate
from moegg.formats.gguf import GGUFFile
from moegg.formats.importance import Importance

PEER = Path(__file__).with_name("peer_quants.py")


class Peer:
    """llama.cpp as what evaluate() wants of an engine."""

    def __init__(self, python: str, gguf: Path, windows: Sequence[Sequence[int]], vocab: int, threads: int):
        self.vocab = vocab
        self.run = subprocess.Popen([python, PEER, "logits", gguf, str(len(windows[0]) // 2), str(threads)], stdin=subprocess.PIPE,
                                    stdout=subprocess.PIPE)
        self.run.stdin.write(json.dumps(windows).encode() + b"\n")
        self.run.stdin.flush()

    def positions(self, window: Sequence[int], first: int) -> Iterator[tuple[int, np.ndarray, None]]:
        for i in range(first, len(window)):
            data = self.run.stdout.read(4 * self.vocab)
            if len(data) < 4 * self.vocab:
                sys.exit("llama.cpp ended too early")
            yield i, np.frombuffer(data, "<f4")[None], None

    def close(self) -> None:
        self.run.stdin.close()
        self.run.wait()


def importance_for_peer(model, file: Path, out: Path) -> None:
    """The same importance under GGUF's names, as llama.cpp's imatrix holds it: means of squares."""
    importance, arrays = Importance(file), {}
    for name, gguf, n, cols in [(t.name, t.gguf[0].name, 1, t.shape[1]) for t in model.tensors() if len(t.shape) == 2 and t.gguf] + [
            (f"layers.{e.layer}.experts.{p.name}", p.gguf[0].name, e.n, p.shape[1]) for e in model.experts() for p in e.parts]:
        if (columns := importance.columns(name, n, cols)) is not None:
            arrays[gguf] = columns
    np.savez(out, **arrays)


def measure(a: argparse.Namespace) -> dict:
    work = Path(a.work)
    work.mkdir(parents=True, exist_ok=True)
    ref, imatrix, npz = work / "f32.moegg", work / "imatrix", work / "imatrix.npz"
    convert(a.source, ref, "f32", force=True)
    calibrate = [sys.executable, "-m", "moegg", "calibrate", ref, a.calibration, "-o", imatrix, "--force", "--threads", str(a.threads)]
    subprocess.run(calibrate, check=True)
    container = open_container(ref)
    model = describe(container)
    windows = windows_of(container, model, Path(a.text).read_text(encoding="utf-8"), None)[:a.windows]
    importance_for_peer(model, imatrix, npz)
    reference = Engine(container, model, ctx=len(windows[0]), n_threads=a.threads)
    rows = []

    def row(engine: str, name: str, bpw: float, under_test) -> None:
        q = evaluate(under_test, windows, reference)
        rows.append({"engine": engine, "preset": name, "bpw": bpw, **q.to_dict()})
        print(f"{engine} {name}: {bpw:.3f} bits, KL {q.reference.kl_mean:.6f}", file=sys.stderr, flush=True)

    for name in a.presets.split(","):
        out = work / "preset.moegg"
        done = convert(a.source, out, name, imatrix=imatrix, force=True)
        row("moegg", f"{name}@{done.plan.recipe.version}", done.plan.bpw,
            Engine(open_container(out), model, ctx=len(windows[0]), n_threads=a.threads))
    subprocess.run([a.peer, PEER, "quantize", a.gguf, work / "f32.gguf", "ALL_F32"], check=True)
    for name in a.types.split(","):
        out = work / "type.gguf"
        subprocess.run([a.peer, PEER, "quantize", work / "f32.gguf", out, f"MOSTLY_{name}", npz], check=True)
        tensors = GGUFFile.open(out).tensors.values()
        peer = Peer(a.peer, out, windows, model.vocab, a.threads)
        row("llama.cpp", name, 8 * sum(t.nbytes for t in tensors) / model.parameter_count(), peer)
        peer.close()
    return header() | {"title": a.title or Path(a.source).name, "rows": rows}


def table(report: dict) -> list[str]:
    """A Markdown table, larger files first."""
    out = [f"### {report['title']}", "", "| file | bits per weight | KL mean | median | 99 % | same first | perplexity (f32: "
           f"{report['rows'][0]['reference']['perplexity']:.3f}) |", "|---|---|---|---|---|---|---|"]
    for r in sorted(report["rows"], key=lambda r: -r["bpw"]):
        d = r["reference"]
        out.append(f"| {r['engine']} {r['preset']} | {r['bpw']:.3f} | {d['kl_mean']:.5f} ± {d['kl_error']:.5f} | {d['kl_median']:.5f} | "
                   f"{d['kl_p99']:.4f} | {100 * d['top1']:.2f} % | {r['perplexity']:.3f} |")
    r = report["rows"][0]
    return [*out, "", f"{r['tokens']} tokens in {r['windows']} windows of {r['ctx']}; commit {str(report['commit'])[:10]}.", ""]


def main() -> None:
    p = parser(__doc__)
    for name in ("peer", "source", "gguf", "calibration", "text", "work", "title", "out", "into", "svg"):
        p.add_argument(f"--{name}")
    p.add_argument("--presets", default="q8,q6,q5,q4,q3,q2")
    p.add_argument("--types", default="Q8_0,Q6_K,Q5_K_M,Q4_K_M,Q3_K_M,Q2_K")
    p.add_argument("--windows", type=int, default=1000)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--table", nargs="+")
    a = p.parse_args()
    if not a.table:
        text = json.dumps(measure(a))
        print(text)
        if a.out:
            Path(a.out).write_text(text + "\n")
        return
    reports = [json.loads(Path(f).read_text()) for f in a.table]
    text = "\n".join(line for r in reports for line in table(r))
    mark = "<!-- below: bench/quant_report.py --table -->\n"
    if a.into:
        page = Path(a.into)
        page.write_text(page.read_text(encoding="utf-8").split(mark)[0] + mark + "\n" + text, encoding="utf-8")
    if a.svg:
        series = {e: sorted((r["bpw"], r["reference"]["kl_mean"]) for r in reports[0]["rows"] if r["engine"] == e) for e in ("moegg", "llama.cpp")}
        Path(a.svg).write_text(svg(f"{reports[0]['title']}: distance from f32", "bits per weight", "mean KL divergence, nats", series, fit=False))


if __name__ == "__main__":
    main()
