"""moegg.converters.export: GGUF -> moegg -> GGUF is the same tensor data and metadata, for every type that both have."""
import dataclasses
import json

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter

from moegg import kernels
from moegg.commands.opening import open_tokenizer
from moegg.converters.export import export
from moegg.converters.run import convert
from moegg.errors import FormatError, UnsupportedModel, UsageError
from moegg.formats.container import Container
from moegg.quants import QUANTS
from tests import oracle
from tests.kernels.blocks import random_blocks

SHARED = [q.name for q in QUANTS.values() if q.id < 64]
WIDE = {"hidden_size": 256, "moe_intermediate_size": 256, "num_attention_heads": 4, "head_dim": 64}


def tensors(path):
    return {t.name: (t.tensor_type.name, t.shape.tolist(), t.data.tobytes()) for t in GGUFReader(path).tensors}


def fields(path):
    return {k: (list(map(int, v.types)), v.contents()) for k, v in GGUFReader(path).fields.items() if not k.startswith("GGUF.")}


def same(a, b):
    """Equal tensors in the same order, equal metadata."""
    ours, theirs = tensors(a), tensors(b)
    assert list(ours) == list(theirs)
    for name in theirs:
        assert ours[name] == theirs[name], name
    np.testing.assert_equal(fields(a), fields(b))
    assert list(fields(a)) == list(fields(b))


@pytest.fixture
def make(make_gguf, moe, tmp_path):
    """make(quant) -> a GGUF whose matrices are random blocks of `quant`."""
    def make(quant, **more):
        config = moe | WIDE
        rng = np.random.default_rng(0)

        def blocks(out):
            for name, x in list(out.items()):
                if x.ndim > 1 and "gate_inp" not in name:
                    del out[name]
                    data = random_blocks(quant, int(np.prod(x.shape[:-1])), x.shape[-1], rng)
                    data = data.reshape(*x.shape[:-1], -1)
                    if quant in ("f32", "f16"):
                        data = data.view({"f32": "<f4", "f16": "<f2"}[quant])
                    raw[name] = data, GGMLQuantizationType[quant.upper()]
        raw: dict = {}
        return make_gguf(config, "F32", edit=blocks, tensors=raw, **more)
    return make


@pytest.mark.parametrize("quant", SHARED)
def test_every_shared_type_comes_back_bit_by_bit(make, quant, tmp_path):
    path = make(quant, more={"general.name": "Tiny ü", "x.array": [0.5, float("nan"), float("-inf")], "x.names": ["a", "b\n"],
                             "x.yes": True, "x.big": 2**32 - 1})
    result = convert(path, tmp_path / "m.moegg")
    done = []
    out = export(Container.open(result.path), tmp_path / "back.gguf", progress=lambda *a: done.append(a))
    same(out.path, path)
    assert out.file_bytes == out.path.stat().st_size and done[-1][0] <= done[-1][1]
    assert {t for t in result.plan.rows()[0]["quant"].split()} and quant in out.types


def test_widened_norms_get_their_type_back_and_parts_become_one_file(make_gguf, dense, tmp_path):
    """Norms in f16, rope factors in a tensor that only the config needs, and a split source."""
    def halve(out):
        for name in [n for n in out if n.endswith("_norm.weight")]:
            halves[name] = out.pop(name).astype("<f2"), GGMLQuantizationType.F16
        halves["rope_freqs.weight"] = np.linspace(1, 8, 8, dtype="f4"), GGMLQuantizationType.F32
    halves: dict = {}
    path = make_gguf(dense, "Q8_0", edit=halve, tensors=halves)
    reader = GGUFReader(path)
    for i in range(2):
        w = GGUFWriter(tmp_path / f"s-0000{i + 1}-of-00002.gguf", "llama")
        for key, field in reader.fields.items() if i == 0 else ():
            if not key.startswith("GGUF.") and key != "general.architecture":
                w.add_key_value(key, field.contents(), field.types[0])
        w.add_uint16("split.no", i)
        w.add_uint16("split.count", 2)
        for t in reader.tensors[i::2]:
            w.add_tensor(t.name, t.data, raw_dtype=t.tensor_type)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()
    result = convert(tmp_path / "s-00002-of-00002.gguf", tmp_path / "m.moegg")
    assert result.plan.source.stem == "s" and len(result.plan.source.files) == 2
    out = export(Container.open(result.path), tmp_path / "back.gguf")
    assert {n: t for n, t in sorted(tensors(out.path).items())} == {n: t for n, t in sorted(tensors(path).items())}
    np.testing.assert_equal(fields(out.path), fields(path))


def test_requantised_tensors_are_written_as_they_are(make, tmp_path):
    path = make("q6_k", more={"general.file_type": 18})
    result = convert(path, tmp_path / "m.moegg", "q4@1")
    out = export(Container.open(result.path), tmp_path / "back.gguf")
    got = tensors(out.path)
    assert out.types.keys() == {"f32", "q4_0", "q8_0"} and "general.file_type" not in fields(out.path)
    kind, shape, data = got["blk.0.ffn_up_exps.weight"]
    source = np.frombuffer(tensors(path)["blk.0.ffn_up_exps.weight"][2], np.uint8).reshape(shape[1] * shape[2], -1)
    want = kernels.quantize("q4_0", kernels.dequantize("q6_k", source, shape[0]), search=True)
    assert kind == "Q4_0" and data == want.tobytes()


@pytest.mark.parametrize("name", ["qwen3_moe", "qwen3", "qwen2"])
def test_a_checkpoint_becomes_a_gguf_that_is_the_same_model(name, tmp_path, read_back):
    """Converted again, the GGUF gives the same tensors and the same tokens."""
    first = convert(oracle.rebuild(name, tmp_path / "hf"), tmp_path / "a.moegg", "q8").path
    second = convert(export(Container.open(first), tmp_path / "a.gguf").path, tmp_path / "b.moegg").path
    ours, theirs = read_back(second), read_back(first)
    assert ours.keys() == theirs.keys()
    for tensor, (quant, data, _) in theirs.items():
        assert ours[tensor][:2] == (quant, data), tensor
    a, b = (open_tokenizer(Container.open(p), 512) for p in (first, second))
    for text in ("Hello, wörld! 123\n  def f(x):", "<|im_start|>user\nhi<|im_end|>"):
        assert a.encode(text) == b.encode(text)
    kept = fields(tmp_path / "a.gguf")
    assert kept["tokenizer.ggml.pre"][1] == "qwen2" and len(kept["tokenizer.ggml.tokens"][1]) == 512
    assert "tokenizer.chat_template" in kept


def test_a_checkpoint_that_gguf_would_change_is_refused(make_hf, moe, dense, tmp_path):
    """llama.cpp has no dynamic rope, its qwen3moe always renormalises."""
    plain = convert(make_hf(dense | {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, name="a"), tmp_path / "a.moegg")
    with pytest.raises(UnsupportedModel, match=r"would describe another model.*\[export-source\]"):
        export(Container.open(plain.path), tmp_path / "a.gguf")
    plain = convert(make_hf(moe | {"norm_topk_prob": False}, name="b"), tmp_path / "b.moegg")
    with pytest.raises(UnsupportedModel, match=r"\[export-source\]"):
        export(Container.open(plain.path), tmp_path / "b.gguf")


@pytest.mark.parametrize("source", ["gguf", "hf"])
def test_a_config_that_means_more_than_this_version_knows_is_not_exported(make, make_hf, moe, tmp_path, source):
    """`run` refuses such a file; the GGUF would be another model."""
    c = Container.open(convert(make("q8_0") if source == "gguf" else make_hf(moe), tmp_path / "m.moegg").path)
    c.config["new_rule"] = 2
    with pytest.raises(FormatError, match=r"stored config: got key 'new_rule', expected only keys that .* reads.*\[arch-mismatch\]"):
        export(c, tmp_path / "back.gguf")
    assert not (tmp_path / "back.gguf").exists()


def test_existing_targets_are_refused(make, tmp_path):
    kept = convert(make("q8_0"), tmp_path / "b.moegg")
    (tmp_path / "b.gguf").write_bytes(b"mine")
    with pytest.raises(UsageError, match="exists already"):
        export(Container.open(kept.path), tmp_path / "b.gguf")
    assert (tmp_path / "b.gguf").read_bytes() == b"mine"
    export(Container.open(kept.path), tmp_path / "b.gguf", force=True)
    assert (tmp_path / "b.gguf").stat().st_size > 1000 and not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("change", [
    {"version": 7}, {"alignment": 3}, {"alignment": "x"}, {"tensors": [["a", "q9_9", [1]]]}, {"tensors": [["a", "f32", [0]]]},
    {"tensors": 5}, {"tensors": [["a", "f32", [2**62]]]}, {"kv": [["a", "u32"]]}, {"kv": [["a", "u32", -1]]},
    {"kv": [["a", "[u8]", [300]]]}, {"kv": [["a", "x", 1]]}, {"kv": [["a", "str", 5]]}, {"kv": [["a", "u64", "many"]]},
    {"values": {"token_embd.weight": [1.0]}}, {"values": []}, {"kv": [["a", "[str]", 5]]}])
def test_a_damaged_record_of_the_source_is_one_clear_line(make, tmp_path, monkeypatch, change):
    path = convert(make("q8_0"), tmp_path / "m.moegg").path
    c = Container.open(path)
    kept = json.loads(c.read_section("gguf_metadata")) | change
    monkeypatch.setattr(c, "read_section", lambda name: json.dumps(kept).encode())
    with pytest.raises((FormatError, UnsupportedModel)) as e:
        export(c, tmp_path / "back.gguf")
    assert e.value.slug in ("section-json", "gguf-key", "arch-mismatch") and not (tmp_path / "back.gguf").exists()
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"a":' * 100_000, b"{", b"\xff", b'{"default": 5}', b'{"x": []}', b"[]", b"null"])
@pytest.mark.parametrize("section", ["tokenizer", "tokenizer_config", "chat_template"])
def test_a_damaged_text_section_is_one_clear_line_or_left_out(qwen3_moe_file, tmp_path, monkeypatch, section, data):
    c = Container.open(qwen3_moe_file)
    real = c.read_section
    monkeypatch.setattr(c, "read_section", lambda name: data if name == section else real(name))
    try:
        export(c, tmp_path / "back.gguf")
    except (FormatError, UnsupportedModel) as e:
        assert e.slug in ("section-json", "tokenizer-json", "export-source", "config-type"), e
        assert not (tmp_path / "back.gguf").exists()
    assert not list(tmp_path.glob("*.partial"))


def test_a_vector_that_is_stored_as_blocks_is_refused(qwen3_moe_file, tmp_path, monkeypatch):
    """As a model that runs it is refused too; here it was an internal error."""
    c = Container.open(qwen3_moe_file)
    monkeypatch.setitem(c.tensors, "final_norm", dataclasses.replace(c.tensors["final_norm"], quant="q8_0"))
    with pytest.raises(FormatError, match="'final_norm': is stored as q8_0, expected f32"):
        export(c, tmp_path / "back.gguf")
    assert not list(tmp_path.iterdir())
