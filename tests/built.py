"""A running engine for any description, without an architecture module: random weights written straight into a container."""
import numpy as np

from moegg import kernels
from moegg.engine import Engine
from moegg.formats.container import Container
from moegg.formats.writer import ContainerWriter, ExpertSpec, PartSpec, TensorSpec
from moegg.quants import INTERLEAVED, QUANTS, ROW_MAJOR
from tests import tiny


def write(path, model, quant="f32", weights=None):
    """The container of `model` at f32, or `quant` where rows fit; returns the weights that tests/reference takes."""
    weights = tiny.weights(model) if weights is None else weights

    def form(shape, gather=False):
        vector = len(shape) == 1
        return "f32" if vector or not QUANTS[quant].fits(shape[-1]) else quant, ROW_MAJOR if vector or gather else INTERLEAVED

    def encode(x, q, layout):
        rows = kernels.quantize(q, np.atleast_2d(x)) if q != "f32" else np.ascontiguousarray(np.atleast_2d(x), np.float32).view(np.uint8)
        return kernels.interleave(q, rows, x.shape[-1]) if layout == INTERLEAVED else rows.reshape(-1)
    tensors = [TensorSpec(t.name, t.shape, *form(t.shape, t.gather), t.role, t.layer, t.gather) for t in model.tensors()]
    blocks = [x.ffn for x in model.layers if hasattr(x.ffn, "experts")]
    experts = [ExpertSpec(m.experts.layer, m.experts.n, m.top_k, tuple(PartSpec(p.name, p.shape, *form(p.shape)) for p in m.experts.parts))
               for m in blocks]
    with ContainerWriter(path, arch=model.arch, name="built", config={}, meta={}, tensors=tensors, experts=experts, sections={}) as w:
        for t in tensors:
            w.put_tensor(t.name, encode(weights[t.name], t.quant, t.layout))
        for e in experts:
            for i in range(e.n):
                w.put_record(e.layer, i, [encode(weights[f"layers.{e.layer}.experts.{i}.{p.name}"], p.quant, p.layout) for p in e.parts])
        w.finish()
    return weights


def open_built(path, model, **options):
    return Engine(Container.open(path), model, **options)
