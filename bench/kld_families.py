"""KL divergence of q4@1 to f32 for every tiny checkpoint with experts, on its oracle prompts: no family may stand out.

    python bench/kld_families.py [TYPE ...]

Random weights: figures compare families with each other, they say nothing of released models. Rows that are no multiple of 32 stay
f16 (the plan's rule), so `q4 rows` tells which share of the expert parameters is 4-bit at all.
"""
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests import oracle  # noqa: E402
from tests.loading import convert_to, open_engine  # noqa: E402


def log_softmax(x):
    x = x.astype(np.float64) - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def measure(name):
    """(share of the expert parameters at q4, mean KL divergence in nats, its 99th percentile, agreement of the first choice)."""
    with tempfile.TemporaryDirectory() as folder:
        source = oracle.rebuild(name, Path(folder) / name)
        exact, small = (open_engine(convert_to(source, folder, quant), ctx=256) for quant in ("f32", "q4@1"))
        parts = [(p.quant, p.shape[0] * p.shape[-1]) for layer in small.container.layers for p in layer.parts if len(p.shape) == 2]
        kl, same = [], []
        for prompt in oracle.load(name)[0]:
            p, q = (log_softmax(e.forward(prompt.ids.tolist())[0]) for e in (exact, small))
            kl.append((np.exp(p) * (p - q)).sum(-1))
            same.append(p.argmax(-1) == q.argmax(-1))
    kl, same = np.concatenate(kl), np.concatenate(same)
    return sum(n for quant, n in parts if quant == "q4_0") / sum(n for _, n in parts), kl.mean(), np.quantile(kl, 0.99), same.mean()


def main():
    names = sys.argv[1:] or [n for n in oracle.NAMES if oracle.load(n)[1]]
    print("| type | q4 rows | KL mean | KL 99 % | same first choice |\n|---|---|---|---|---|")
    for name in names:
        share, mean, high, same = measure(name)
        print(f"| {name} | {share:.0%} | {mean:.4f} | {high:.4f} | {same:.1%} |", flush=True)


if __name__ == "__main__":
    main()
