"""Real shapes, no weights: a conversion of a flagship is planned from its config and tensor headers alone, in a sparse file."""
import math
from fnmatch import fnmatchcase

import pytest

from moegg import registry
from moegg.arch import ConfigReader
from moegg.converters import convert
from tests.flagships import CONFIGS, TENSORS, write_headers
from tests.released import RELEASED

Q4 = 18 / 32        # bytes of a q4_0 weight
SIZES = {  # name: (active parameters, records, bytes of one, bytes of the file, recipe: what is published in less than 16 bits is kept)
    "Qwen3-30B-A3B": (3.04e9, 48 * 128, 3 * 768 * 2048 * Q4, 17.98e9, "q4@1"),
    "Gemma-4-26B-A4B": (3.82e9, 30 * 128, 3345408, 15.21e9, "q4@1"),
    "LFM2.5-8B-A1B": (1.69e9, 22 * 32, 6193152, 5.08e9, "q4@1"),
    "gpt-oss-120b": (5.13e9, 36 * 128, 3 * 2880 * 2880 * 17 // 32 + 4 * 3 * 2880, 65.36e9, "keep"),
    "Qwen3.8-Flash-Next-FP8": (6.67e9, 48 * 512, 3 * 640 * 2560 * 132 // 128, 192.5e9, "keep"),
    "DeepSeek-V3": (36.63e9, 58 * 256, 3 * 2048 * 7168 * 132 // 128, 693e9, "keep"),
    "DeepSeek-V3.2": (37.48e9, 58 * 256, 3 * 2048 * 7168 * 132 // 128, 694e9, "keep"),
}
OTHERS = {  # planned from what their descriptions ask for: (active parameters, records, bytes of one at q4@1, bytes of the file at it)
    "Mixtral-8x7B-v0.1": (12.9e9, 32 * 8, 3 * 14336 * 4096 * Q4, 27e9),
    "DeepSeek-V2-Lite": (2.45e9, 26 * 64, 3 * 1408 * 2048 * Q4, 9.4e9),
}


def plan(folder, config, tensors, recipe):
    """The result of a dry run, which must leave nothing, ignore nothing but towers and MTP layers, and warn of nothing but texts."""
    write_headers(folder, config, tensors)
    seen = []
    result = convert(folder, folder / "out.moegg", recipe, dry_run=True, warn=seen.append)
    assert not (folder / "out.moegg").exists()
    assert [w for w in seen if "disk space" not in w and "tokenizer" not in w] == []
    return result


@pytest.mark.parametrize("name", CONFIGS)
def test_a_flagship_is_planned_from_the_headers_of_its_release(name, tmp_path):
    """Every weight that the release holds has its place, and no place is without one."""
    active, records, record_bytes, file_bytes, recipe = SIZES[name]
    tensors = TENSORS[name]()
    result = plan(tmp_path, CONFIGS[name], tensors, recipe)
    model, experts = result.plan.model, result.plan.experts
    published = sum(math.prod(shape) * (2 if n.endswith("_blocks") else 1) for n, (_, shape) in tensors.items()
                    if not n.endswith(("_scale_inv", "weight_scale", "_scales")) and not any(fnmatchcase(n, p) for p in result.plan.ignored))
    assert model.parameter_count() == published and model.active_count() == pytest.approx(active, rel=0.01)
    assert sum(e.n for e in experts) == records and {sum(p.nbytes for p in e.parts) for e in experts} == {record_bytes}
    assert result.file_bytes == pytest.approx(file_bytes, rel=0.005)


def described(model):
    """{name in a Hugging Face source: (dtype, shape)}: the inverse of the description's first Src of everything."""
    shapes = {}

    def put(node, e=None):
        src = node.hf[0]
        name, shape = src.name.replace("{e}", str(e)), list(node.shape)
        if src.turn:
            shape = [src.groups * shape[1], shape[0] // src.groups]
        if src.rows and name in shapes:
            shape[0] += shapes[name][1][0]
        shapes[name] = "BF16", tuple(shape)
    for t in model.tensors():
        put(t)
    for x in model.experts():
        for e in range(x.n):
            for p in x.parts:
                put(p, e)
    return shapes


@pytest.mark.parametrize("name", OTHERS)
def test_a_large_model_is_planned_from_headers_alone(name, tmp_path):
    active, records, record_bytes, file_bytes = OTHERS[name]
    arch, config, parameters = RELEASED[name]
    model = registry.find(arch=arch).describe(ConfigReader(config))
    result = plan(tmp_path, config, described(model), "q4@1")
    assert result.plan.model.parameter_count() == parameters and model.active_count() == pytest.approx(active, rel=0.03)
    assert sum(e.n for e in result.plan.experts) == records and result.plan.ignored == {}
    assert {sum(p.nbytes for p in e.parts) for e in result.plan.experts} == {record_bytes}
    assert result.file_bytes == pytest.approx(file_bytes, rel=0.05)
