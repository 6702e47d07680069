"""Real shapes, no weights: a conversion of a flagship is planned from its config and tensor headers alone, in a sparse file."""
import json
import math

import pytest

from moegg import registry
from moegg.arch import ConfigReader
from moegg.converters import convert
from tests.test_models import RELEASED

FLAGSHIPS = {  # name: (active parameters without the embedding, records, bytes of one at q4@1, bytes of the file at it)
    "Qwen3-30B-A3B": (3.04e9, 48 * 128, 3 * 768 * 2048 * 18 // 32, 17.6e9),
    "Mixtral-8x7B-v0.1": (12.9e9, 32 * 8, 3 * 14336 * 4096 * 18 // 32, 27e9),
    "DeepSeek-V3": (37.5e9, 58 * 256, 3 * 2048 * 7168 * 18 // 32, 390e9),
    "DeepSeek-V2-Lite": (2.45e9, 26 * 64, 3 * 1408 * 2048 * 18 // 32, 9.4e9),
}


def source_shapes(model):
    """{name in a Hugging Face source: shape}: the inverse of the description's first Src of everything."""
    shapes = {}

    def put(node, e=None):
        src = node.hf[0]
        name, shape = src.name.replace("{e}", str(e)), list(node.shape)
        if src.turn:
            shape = [src.groups * shape[1], shape[0] // src.groups]
        if src.rows and name in shapes:
            shape[0] += shapes[name][0]
        shapes[name] = shape
    for t in model.tensors():
        put(t)
    for x in model.experts():
        for e in range(x.n):
            for p in x.parts:
                put(p, e)
    return shapes


def write_headers(folder, config, model):
    """config.json, and one safetensors file of bf16 that is all hole behind its header."""
    head, at = {}, 0
    for name, shape in source_shapes(model).items():
        size = 2 * math.prod(shape)
        head[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    (folder / "config.json").write_text(json.dumps(config))
    with open(folder / "model.safetensors", "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        f.truncate(8 + len(text) + at)


@pytest.mark.parametrize("name", FLAGSHIPS)
def test_a_flagship_is_planned_from_headers_alone(name, tmp_path):
    active, records, record_bytes, file_bytes = FLAGSHIPS[name]
    arch, config, parameters = RELEASED[name]
    model = registry.find(arch=arch).describe(ConfigReader(config))
    write_headers(tmp_path, config, model)
    result = convert(tmp_path, tmp_path / "out.moegg", "q4@1", dry_run=True)
    plan = result.plan
    assert plan.model.parameter_count() == parameters and plan.model.active_count() == pytest.approx(active, rel=0.03)
    assert sum(e.n for e in plan.experts) == records
    assert {sum(p.nbytes for p in e.parts) for e in plan.experts} == {record_bytes}
    assert result.file_bytes == pytest.approx(file_bytes, rel=0.05) and plan.ignored == {}
    assert not (tmp_path / "out.moegg").exists()
