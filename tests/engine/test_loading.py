"""A file whose checksums hold but whose tables say something else than its config is refused, never read as if they agreed."""
import dataclasses

import numpy as np
import pytest

from moegg import registry
from moegg.arch import ConfigReader
from moegg.commands.opening import describe
from moegg.engine import Engine
from moegg.errors import FormatError
from moegg.formats.container import Container
from moegg.formats.writer import ContainerWriter, ExpertSpec, PartSpec, TensorSpec
from moegg.quants import INTERLEAVED, QUANTS, ROW_MAJOR
from tests import tiny

ARCH = "qwen3-moe"


def write(path, *, config=lambda c: c, tensor=lambda t: t, layer=lambda e: e, drop=0):
    """A zero-weight file of the tiny model, with its tables changed on the way."""
    reader = ConfigReader(tiny.config(ARCH))
    model = registry.find(arch=ARCH).describe(reader)
    tensors = [TensorSpec(t.name, t.shape, "f32", ROW_MAJOR if len(t.shape) == 1 or t.gather else INTERLEAVED, t.role, t.layer, t.gather)
               for t in model.tensors()]
    tensors = [tensor(t) for t in tensors][:len(tensors) - drop]
    experts = [layer(ExpertSpec(e.layer, e.n, m.top_k, tuple(PartSpec(p.name, p.shape, "f32", INTERLEAVED) for p in e.parts)))
               for m, e in ((x.ffn, x.ffn.experts) for x in model.layers if hasattr(x.ffn, "experts"))]
    with ContainerWriter(path, arch=ARCH, name="t", config=config(reader.used()), meta={}, tensors=tensors,
                         experts=experts, sections={}) as w:
        for t in tensors:
            rows, cols = (1, t.shape[0]) if len(t.shape) == 1 else t.shape
            w.put_tensor(t.name, np.zeros(QUANTS[t.quant].matrix_bytes(rows, cols, t.layout), np.uint8))
        for e in experts:
            for i in range(e.n):
                w.put_record(e.layer, i, [np.zeros(QUANTS[p.quant].matrix_bytes(*p.shape, p.layout), np.uint8) for p in e.parts])
        w.finish()
    return Container.open(path)


def run(container):
    Engine(container, describe(container), ctx=64)


def parts_as(layout):
    return lambda e: dataclasses.replace(e, parts=tuple(dataclasses.replace(p, layout=layout) for p in e.parts))


def test_the_unchanged_file_runs(tmp_path):
    run(write(tmp_path / "m.moegg"))


@pytest.mark.parametrize("change", [
    {"layer": parts_as(ROW_MAJOR)},
    {"layer": lambda e: dataclasses.replace(e, top_k=e.top_k - 1)},
    {"layer": lambda e: dataclasses.replace(e, parts=e.parts[::-1])},
    {"tensor": lambda t: dataclasses.replace(t, layout=ROW_MAJOR) if t.name.endswith("attn.q") else t},
    {"tensor": lambda t: dataclasses.replace(t, gather=False) if t.name == "embed" else t},
    {"tensor": lambda t: dataclasses.replace(t, gather=False, layout=INTERLEAVED) if t.name == "embed" else t},
    {"tensor": lambda t: dataclasses.replace(t, quant="f16") if t.name == "final_norm" else t},
    {"tensor": lambda t: dataclasses.replace(t, name="layers.0.attn.sinks") if t.name.endswith("0.attn.q_norm") else t},
    {"drop": 1},
    {"config": lambda c: {**c, "num_hidden_layers": c["num_hidden_layers"] - 1}},
    {"config": lambda c: {**c, "attn_sinks": True}},
], ids=lambda c: "-".join(c))
def test_tables_that_contradict_the_config_are_refused(tmp_path, change):
    """Each of these once was an out-of-bounds read or plausible wrong logits."""
    with pytest.raises(FormatError):
        run(write(tmp_path / "m.moegg", **change))


def test_a_config_of_thousands_of_layers_is_refused_in_one_short_line(tmp_path):
    """It listed them all."""
    with pytest.raises(FormatError, match="layers with experts, which differ at layer") as e:
        run(write(tmp_path / "m.moegg", config=lambda c: {**c, "num_hidden_layers": 1000}))
    assert len(str(e.value)) < 300 + len(str(tmp_path))
