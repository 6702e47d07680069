"""A .moegg file of a released shape at full size with random weights, for measurements without a download.

    python bench/synthetic.py SHAPE -o FILE [--quant q4] [--layers N] [--seed 0]

SHAPE is a name of tests/flagships.py or a config.json. Blocks are those that the encoder makes of normal values, drawn from a pool per
quant and scale, so every record differs and 15 GB take about a minute and 200 MB of memory. Streams stay token-specific: embeddings
have size 1, every block adds about OUT of that. Routers have rows of log-normal size: with random tokens some experts are used far more
than others, as in trained models. How well the next layer's experts can be guessed follows from OUT and is no fact about any model.
"""
import json
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
from common import parser  # noqa: E402

from moegg import __version__, kernels, registry  # noqa: E402
from moegg.arch import ConfigReader, Model, Moe, Part, Tensor  # noqa: E402
from moegg.converters.policy import Recipe, find_recipe, part_name, weights_of  # noqa: E402
from moegg.formats.writer import ContainerWriter, ExpertSpec, PartSpec, TensorSpec  # noqa: E402
from moegg.quants import GROUP_ROWS, INTERLEAVED, QUANTS, layout_of  # noqa: E402
from tests.flagships import CONFIGS  # noqa: E402

POOL = 1024             # pieces of 16 rows by one block, per quant and scale
PIECE_BYTES = 32 << 20  # of a large tensor, made at once
OUT = 0.1               # size of what a block adds to the residual stream
ROUTER_STD, ROUTER_SPREAD = 1.36, 0.95      # logits; sigma of the logarithm of an expert's row (synthetic Qwen3-30B: its hit curve)


class Weights:
    """Random content for tensors and expert parts, in file layout. Owns the generator; the same seed gives the same file."""

    def __init__(self, model: Model, seed: int):
        self.model, self.rng = model, np.random.default_rng(seed)
        self.pool = lru_cache(maxsize=64)(self._pool)
        moe = [layer.ffn for layer in model.layers if isinstance(layer.ffn, Moe)]
        self.values = {m.router_norm.weight.name: 1 / m.router_scale for m in moe if m.router_norm}      # of norms; others are 1
        if model.head is None:
            self.values[model.final_norm.weight.name] = model.embed_scale * model.d ** -0.5       # logits of size 1

    def _pool(self, quant: str, std: float, layout: str) -> np.ndarray:
        """uint8 [pieces, bytes]: 16 rows of one block (of a pair, for floats) interleaved, or one block as it is."""
        n = max(QUANTS[quant].block_elems, 2)
        rows = kernels.quantize(quant, self.rng.standard_normal((POOL * GROUP_ROWS, n), np.float32) * np.float32(std))
        return kernels.interleave(quant, rows, n).reshape(POOL, -1) if layout == INTERLEAVED else rows.reshape(POOL * GROUP_ROWS, -1)

    def matrix(self, shape: tuple[int, int], quant: str, layout: str, std: float) -> Iterator[np.ndarray]:
        """Pieces of a matrix [rows, cols]."""
        pool = self.pool(quant, std, layout)
        rows = -(-shape[0] // GROUP_ROWS) if layout == INTERLEAVED else shape[0]
        wide = shape[1] // max(QUANTS[quant].block_elems, 2)
        step = max(1, PIECE_BYTES // (wide * pool.shape[1]))
        for start in range(0, rows, step):
            yield pool[self.rng.integers(len(pool), size=wide * min(step, rows - start))].reshape(-1)

    def tensor(self, t: Tensor, spec: TensorSpec) -> Iterator[np.ndarray]:
        if spec.quant == "f32":
            yield self._floats(t)
            return
        if t.role == "embed":
            std = 1 / self.model.embed_scale
        else:
            std = t.shape[1] ** -0.5 * (OUT if t.name.rsplit(".", 1)[-1] in ("o", "down") else 1)
        yield from self.matrix(t.shape, spec.quant, spec.layout, std)

    def part(self, spec: PartSpec) -> np.ndarray:
        if len(spec.shape) == 1:
            return np.zeros(spec.nbytes, np.uint8)
        std = spec.shape[1] ** -0.5 * (OUT if spec.name == "down" else 1)
        return np.concatenate(list(self.matrix(spec.shape, spec.quant, spec.layout, std)))

    def _floats(self, t: Tensor) -> np.ndarray:
        """Routers, convolutions, norms, scales and biases."""
        if t.role == "router":
            size = np.exp(ROUTER_SPREAD * self.rng.standard_normal((t.shape[0], 1), np.float32))
            x = self.rng.standard_normal(t.shape, np.float32) * size * np.float32(ROUTER_STD * t.shape[1] ** -0.5)
        elif len(t.shape) > 1:
            x = self.rng.standard_normal(t.shape, np.float32) * np.float32(t.shape[1] ** -0.5)
        else:
            post = t.name.endswith(("attn_post_norm", "ffn_post_norm"))
            value = self.values.get(t.name, 0.0 if t.role == "bias" else OUT if post else 1.0)
            x = np.full(t.shape, value, np.float32)
        return kernels.interleave("f32", x.view(np.uint8), t.shape[1]).reshape(-1) if len(t.shape) > 1 else x.view(np.uint8)


def specs(model: Model, recipe: Recipe) -> tuple[list[TensorSpec], list[ExpertSpec]]:
    weights = weights_of(model)
    tensors = [TensorSpec(t.name, t.shape, recipe.choose(weights[t.name], "f32")[0], layout_of(t.shape, t.gather), t.role, t.layer, t.gather)
               for t in model.tensors()]

    def part(layer: int, p: Part) -> PartSpec:
        return PartSpec(p.name, p.shape, recipe.choose(weights[part_name(layer, p.name)], "f32")[0], layout_of(p.shape))
    experts = [ExpertSpec(f.experts.layer, f.experts.n, f.top_k, tuple(part(f.experts.layer, p) for p in f.experts.parts))
               for f in (layer.ffn for layer in model.layers) if isinstance(f, Moe)]
    return tensors, experts


def write(config: dict, out: Path, quant: str, name: str, seed: int) -> int:
    """Writes the file; returns its size."""
    architectures = config.get("architectures") or [None]
    reader = ConfigReader(config)
    model = registry.find(hf=architectures[0], model_type=config.get("model_type")).describe(reader)
    recipe, weights = find_recipe(quant), Weights(model, seed)
    tensors, experts = specs(model, recipe)
    meta = {"creator": f"moegg {__version__}", "quant": recipe.record(), "source": "synthetic", "parameters": model.parameter_count(),
            "active_parameters": model.active_count()}
    with ContainerWriter(out, arch=model.arch, name=name, config=reader.used(), meta=meta, tensors=tensors, experts=experts,
                         sections={}) as writer:
        for t, spec in zip(model.tensors(), tensors, strict=True):
            writer.put_tensor(t.name, weights.tensor(t, spec))
        for e in experts:
            for i in range(e.n):
                writer.put_record(e.layer, i, [weights.part(p) for p in e.parts])
            print(f"layer {e.layer}: {e.n} records of {sum(p.nbytes for p in e.parts)} B", file=sys.stderr)
        writer.finish()
    return writer.total_bytes


def cut(config: dict, n: int) -> dict:
    """The config with its first n layers."""
    if "text_config" in config:
        return config | {"text_config": cut(config["text_config"], n)}
    types = {"layer_types": config["layer_types"][:n]} if "layer_types" in config else {}
    return config | {"num_hidden_layers": n} | types


def main() -> None:
    p = parser(__doc__)
    p.add_argument("shape", metavar="SHAPE", help=f"{', '.join(CONFIGS)}, or a config.json")
    p.add_argument("-o", "--out", type=Path, required=True)
    p.add_argument("--quant", default="q4", help="a recipe of moegg convert")
    p.add_argument("--layers", type=int, help="the first N layers only")
    p.add_argument("--seed", type=int, default=0)
    a = p.parse_args()
    config = CONFIGS[a.shape] if a.shape in CONFIGS else json.loads(Path(a.shape).read_text())
    size = write(cut(config, a.layers) if a.layers else config, a.out, a.quant, f"synthetic {Path(a.shape).stem}", a.seed)
    print(f"{a.out}: {size} B")


if __name__ == "__main__":
    main()
