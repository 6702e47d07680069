"""KL divergence of q4@1 to f32 for every tiny checkpoint with experts, on its oracle prompts: no family may stand out.

    python bench/kld_families.py [TYPE ...] [--into bench/kld_families.md]

Weights are random, so networks differ in how far any small change carries. Each is therefore also measured against itself: the same
weights in f32 plus Gaussian noise, in every matrix of the size of that matrix's rounding. A recipe that treats some role of a family
badly, or a kernel that loses more than the quants do, has a KL divergence far above the noise's; `ratio` says how far.
"""
import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
from moegg import kernels, registry  # noqa: E402
from moegg.arch import ConfigReader  # noqa: E402
from tests import oracle, tiny  # noqa: E402
from tests.loading import convert_to, open_engine  # noqa: E402
from tests.reference.weights import load_hf  # noqa: E402

MARK = "<!-- below: bench/kld_families.py --into -->\n"
HEAD = "| type | q4 rows | logit std | KL of q4@1 | KL of noise | ratio | same first choice | same experts |\n|---|---|---|---|---|---|---|---|"


def log_softmax(x):
    x = x.astype(np.float64) - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def noisy(source, container, folder, seed):
    """The checkpoint `source` in f32 with noise: of the rms of w - quantised w for each matrix w, as `container` quantises it."""
    config = json.loads((source / "config.json").read_text())
    config.pop("quantization_config", None)
    model = registry.find(hf=config["architectures"][0]).describe(ConfigReader(config))
    weights, rng = load_hf(source, model), np.random.default_rng(seed)
    quants = {t.name: t.quant for t in container.tensors.values() if len(t.shape) == 2}
    quants |= {f"layers.{x.layer}.experts.{e}.{p.name}": p.quant for x in container.layers for e in range(x.n) for p in x.parts
               if len(p.shape) == 2}
    for name, quant in quants.items():
        w = np.ascontiguousarray(weights[name], np.float32)
        off = kernels.dequantize(quant, kernels.quantize(quant, w, search=True), w.shape[1]) - w
        weights[name] = (w + rng.standard_normal(w.shape) * np.sqrt((off * off).mean())).astype(np.float32)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_bytes((source / "generation_config.json").read_bytes())
    oracle.copy_tokenizer(folder)
    oracle.write_shards(folder, tiny.to_source(model, weights, "hf"), "F32")
    return folder


def outputs(engine, name):
    """Per prompt (log-probabilities [S, V], experts [M, S, K])."""
    found = (engine.forward(p.ids.tolist()) for p in oracle.load(name)[0])
    return [(log_softmax(logits), idx) for logits, idx, _, _ in found]


def distance(exact, other):
    """(mean KL divergence in nats, agreement of the first choice, share of the chosen experts that are the same)."""
    kl = np.concatenate([(np.exp(p) * (p - q)).sum(-1) for (p, _), (q, _) in zip(exact, other, strict=True)])
    first = np.concatenate([p.argmax(-1) == q.argmax(-1) for (p, _), (q, _) in zip(exact, other, strict=True)])
    same = np.concatenate([(a[..., None] == b[..., None, :]).any(-1).ravel() for (_, a), (_, b) in zip(exact, other, strict=True)])
    return kl.mean(), first.mean(), same.mean()


def measure(name):
    """A row of the table, as numbers; the noise is the mean of three draws."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        source = oracle.rebuild(name, folder / name)
        exact = outputs(open_engine(convert_to(source, folder, "f32"), ctx=256), name)
        small = open_engine(convert_to(source, folder, "q4@1"), ctx=256)
        parts = [(p.quant, p.shape[0] * p.shape[-1]) for layer in small.container.layers for p in layer.parts if len(p.shape) == 2]
        kl, first, same = distance(exact, outputs(small, name))
        drawn = [noisy(source, small.container, folder / f"noise{seed}", seed) for seed in range(3)]
        noise = np.mean([distance(exact, outputs(open_engine(convert_to(x, folder, "f32"), ctx=256), name))[0] for x in drawn])
    share = sum(n for quant, n in parts if quant == "q4_0") / sum(n for _, n in parts)
    return share, np.concatenate([p.ravel() for p, _ in exact]).std(), kl, noise, kl / noise, first, same


def main():
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("types", nargs="*", metavar="TYPE", help="default: all PLAIN layouts with experts")
    ask.add_argument("--into", type=Path, help="replace the table in this file")
    args = ask.parse_args()
    lines, ratios = [HEAD], []
    print(HEAD, flush=True)
    for name in args.types or [n for n in oracle.PLAIN if oracle.load(n)[1]]:
        share, std, kl, noise, ratio, first, same = measure(name)
        ratios.append(ratio)
        lines.append(f"| {name} | {share:.0%} | {std:.1f} | {kl:.4f} | {noise:.4f} | {ratio:.2f} | {first:.0%} | {same:.1%} |")
        print(lines[-1], flush=True)
    lines.append(f"\n{len(ratios)} types: ratios from {min(ratios):.2f} to {max(ratios):.2f}, median {np.median(ratios):.2f}.")
    print(lines[-1])
    if args.into:
        args.into.write_text(args.into.read_text().partition(MARK)[0] + MARK + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
