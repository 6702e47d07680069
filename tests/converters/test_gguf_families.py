"""GGUF files of every family, written as llama.cpp's converter writes them (tests/gguf_convert.py), are the model that the checkpoint is."""
import json

import gguf
import numpy as np
import pytest

from moegg import registry
from moegg.arch import ConfigReader
from moegg.commands.opening import open_tokenizer
from moegg.converters.export import export
from moegg.converters.gguf import GGUFSource
from moegg.converters.plan import make_plan
from moegg.converters.policy import RECIPES
from moegg.errors import FormatError, UnsupportedModel
from moegg.formats.container import Container
from moegg.models import jamba
from tests import gguf_convert, oracle, tiny
from tests.loading import convert_to, open_engine
from tests.reference.weights import gguf_meta

# one checkpoint per family and layout; the others differ in storage alone
NAMES = [n for n in oracle.PLAIN if not n.endswith(("_fp8", "_f16", "_sharded", "_mxfp4"))
         and registry.find(model_type=json.loads((oracle.FIXTURES / n / "config.json").read_text())["model_type"]).NAMES.get("gguf")]
# what llama.cpp fixes and a file cannot say: windows of llama, phi3, starcoder2 and of exaone4 but with 64 layers, llama4's chunks, scales of gemma 2
# and 3; dynamic rope
FIXED = {"mistral": {"sliding_window": None}, "starcoder2": {"sliding_window": None},
         "llama4": {"attention_chunk_size": 8192, "floor_scale": 8192},
         "gemma2": {"query_pre_attn_scalar": 32}, "gemma3": {"query_pre_attn_scalar": 32},
         "gemma3_text": {"query_pre_attn_scalar": 32},
         "exaone4": {"sliding_window": None, "layer_types": None}, "internlm3": {"rope_scaling": None}, "phi3": {"sliding_window": None}}
REFUSED = ("gemma3", "gemma3_text", "internlm3", "phi3", "mistral", "starcoder2", "llama4", "gemma2", "exaone4")
# that tiny.gguf() does not write; exaone4's has windows, which take 64 layers
OWN_LAYOUT = ("bailing-hybrid", "exaone4", "gemma4", "jamba", "kimi-linear", "llama4", "maple", "qwen3-5", "qwen3-5-moe", "qwen3-next")


def changed(folder, changes):
    """`changes` made to the config of the checkpoint in `folder`, or to its text_config."""
    config = json.loads((folder / "config.json").read_text())
    config.get("text_config", config).update(changes)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def logits(path, ids):
    return open_engine(path, ctx=256).forward(ids)[0]


def same_logits(folder, tmp_path, ids, tolerance):
    """Of the checkpoint and of the GGUF made of it."""
    source = gguf_convert.convert(folder, tmp_path / "m.gguf")
    theirs, ours = logits(convert_to(folder, tmp_path, "f32"), ids), logits(convert_to(source, tmp_path, "keep"), ids)
    assert theirs.std() > 1
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance)


def plain(path):
    """{name: (shape without axes of size 1, values)} of an F32 GGUF, gate and up apart."""
    tensors = {}
    for t in gguf.GGUFReader(path).tensors:
        if "gate_up_exps" in t.name:
            tensors |= {t.name.replace("gate_up", part): x for part,
                        x in zip(("gate", "up"), np.split(t.data, 2, 1), strict=True)}
        else:
            tensors[t.name] = t.data
    return {n: x.squeeze() for n, x in tensors.items()}


@pytest.fixture(scope="module", params=NAMES)
def case(request, tmp_path_factory):
    """(name, folder, f32 container of its checkpoint, GGUF of the checkpoint)."""
    tmp = tmp_path_factory.mktemp(request.param)
    folder = changed(oracle.rebuild(request.param, tmp / "hf"), FIXED.get(request.param, {}))
    return request.param, tmp, convert_to(folder, tmp, "f32"), gguf_convert.convert(folder, tmp / "m.gguf")


def test_a_gguf_gives_the_logits_of_its_checkpoint(case):
    name, tmp, container, source = case
    prompt = oracle.load(name)[0][2]
    ids = prompt.ids.tolist()
    np.testing.assert_allclose(logits(convert_to(source, tmp, "keep"), ids), logits(container, ids), rtol=0,
                               atol=prompt.tolerance)


def test_a_checkpoint_exports_what_the_converter_of_llama_cpp_writes(case):
    _, tmp, container, path = case
    out = export(Container.open(container), tmp / "out.gguf").path
    ours, theirs = plain(out), plain(path)
    assert ours.keys() == theirs.keys()
    for n, x in theirs.items():
        assert x.shape == ours[n].shape, n
        np.testing.assert_allclose(ours[n], x, rtol=3e-7 if n.endswith(("ssm_a", "rope_freqs.weight")) else 0, atol=0, err_msg=n)
    (a, meta), (b, wanted) = ((f.fields["general.architecture"].contents(), f.fields)
                              for f in (gguf.GGUFReader(out), gguf.GGUFReader(path)))
    assert a == b
    assert {k for k in meta if k.startswith("xielu.")} == {k for k in wanted if k.startswith("xielu.")}
    for key in meta.keys() & wanted.keys() - {f"{a}.feed_forward_length"}:      # which no model with experts alone reads
        mine, value = meta[key].contents(), wanted[key].contents()
        assert not key.startswith((f"{a}.", "xielu.")) or mine == (value if isinstance(value, str) else pytest.approx(value, rel=1e-6)), key


def test_an_export_has_the_shapes_of_llama_cpps_converter(case):
    """Axes of size 1 included, which KDA's loader asks for; those after the others are there anyway: ggml has four."""
    _, tmp, container, path = case
    out = export(Container.open(container), tmp / "shapes.gguf").path
    ours, theirs = ({t.name: [*t.shape.tolist(), 1, 1, 1][:4] for t in gguf.GGUFReader(p).tensors} for p in (out, path))
    assert {n: ours[n] for n in ours.keys() & theirs.keys()} == {n: theirs[n] for n in ours.keys() & theirs.keys()}


TOKENIZERS = oracle.FIXTURES.parent / "tokenizers"
KDA = {"full_attn_layers": [2], "kda_layers": [1, 3, 4], "head_dim": 12, "num_heads": 3, "short_conv_kernel_size": 4}


@pytest.mark.parametrize("arch, changes", [("gemma4", {}), ("llama4", FIXED["llama4"]), ("qwen3-5", {}), ("qwen3-5-moe", {}),
                                           ("jamba", {"head_dim": None}),
                                           ("kimi-linear", {"linear_attn_config": KDA}), ("bailing-hybrid", {}),
                                           ("exaone4", {"num_hidden_layers": 64, "sliding_window_pattern": 4}),
                                           ("maple", {"layer_types": ["sliding_attention", "full_attention"] * 2})])
def test_odd_sizes_survive_the_layouts_of_gguf(arch, changes, tmp_path):
    """Of jamba's heads and of KDA's number of them a file says nothing."""
    same_logits(tiny.hf(tmp_path / "hf", arch, dtype="F32", **changes), tmp_path, list(range(3, 50)), 2e-3)


def rewritten(path, out, edit):
    """The GGUF `path` again, its {name: array} and {key: value} changed by edit(tensors, keys)."""
    reader = gguf.GGUFReader(path)
    tensors = {t.name: t.data.copy() for t in reader.tensors}
    keys = {k: f for k, f in reader.fields.items() if not k.startswith("GGUF.") and k != "general.architecture"}
    values = {}
    edit(tensors, values)
    writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents())
    for key, field in keys.items():
        kind = field.types[0]
        writer.add_key_value(key, values.get(key, field.contents()), kind, *field.types[1:2]
                             if kind == gguf.GGUFValueType.ARRAY else ())
    for key in values.keys() - keys.keys():
        (writer.add_float32 if isinstance(values[key], float) else writer.add_uint32)(key, values[key])
    for name, x in tensors.items():
        writer.add_tensor(name, x)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    return out


@pytest.fixture
def make(tmp_path):
    """make(oracle, edit) -> a GGUF of it, edited."""
    def make(name, edit):
        return rewritten(gguf_convert.convert(oracle.rebuild(name, tmp_path / "hf"), tmp_path / "plain.gguf"),
                         tmp_path / "edited.gguf", edit)
    return make


def test_the_first_qwen3next_files_kept_the_projections_fused(make, tmp_path):
    """ssm_in holds [q | k | v | z] of each key head."""
    def fuse(tensors, _):
        for i in (n.split(".")[1] for n in list(tensors) if n.endswith("ssm_a")):
            qkv, z = tensors.pop(f"blk.{i}.attn_qkv.weight"), tensors.pop(f"blk.{i}.attn_gate.weight")
            parts = [p.reshape(2, -1, p.shape[-1]) for p in (*np.split(qkv, [32, 64]), z)]
            tensors[f"blk.{i}.ssm_in.weight"] = np.concatenate(parts, 1).reshape(-1, qkv.shape[-1])
    path, p = make("qwen3_next", fuse), oracle.load("qwen3_next")[0][1]
    p.check(logits(convert_to(path, tmp_path, "keep"), p.ids.tolist()))


def test_gate_and_up_of_experts_may_be_one_tensor(make, tmp_path):
    def fuse(tensors, _):
        for i in range(4):
            gate, up = (tensors.pop(f"blk.{i}.ffn_{x}_exps.weight") for x in ("gate", "up"))
            tensors[f"blk.{i}.ffn_gate_up_exps.weight"] = np.concatenate([gate, up], 1)
    path, p = make("qwen3_moe", fuse), oracle.load("qwen3_moe")[0][1]
    p.check(logits(convert_to(path, tmp_path, "keep"), p.ids.tolist()))


def test_gemma4_without_its_frequencies_is_refused(make):
    path = make("gemma4_text", lambda tensors, _: tensors.pop("rope_freqs.weight"))
    with pytest.raises(FormatError, match="'rope_freqs.weight' is missing"):
        GGUFSource(path)
    path = make("gemma4_text", lambda tensors, _: tensors.update({"rope_freqs.weight": np.full(16, 2, "f4")}))
    with pytest.raises(UnsupportedModel, match="rope_freqs.weight"):
        GGUFSource(path)


@pytest.mark.parametrize("name, key, value", [
    ("llama4", "llama4.attention.sliding_window", 0), ("gemma4_text", "gemma4.attention.head_count_kv", [2, 1, 2, 2, 1, 2]),
    ("gemma4_dense", "gemma4.feed_forward_length", [7] * 7 + [9]),
                                              ("jamba", "jamba.attention.head_count_kv", [0, 2, 2, 0, 0, 2, 0, 0]),
    ("jamba", "jamba.ssm.inner_size", 100), ("qwen3_next", "qwen3next.ssm.inner_size", 63),
                                              ("kimi_linear", "kimi-linear.expert_gating_func", 1)])
def test_what_these_families_cannot_be_is_named_by_its_key(make, name, key, value):
    path = make(name, lambda _, keys: keys.update({key: value}))
    with pytest.raises((FormatError, UnsupportedModel), match=key.split(".")[-1] if name != "jamba"
                       or "ssm" in key else "equal distances"):
        make_plan(GGUFSource(path), RECIPES["keep"])


def test_decays_that_are_not_negative_are_an_error(make, tmp_path):
    """Their logarithm was NaN, and so was every token."""
    path = make("qwen3_next", lambda tensors, _: tensors["blk.0.ssm_a"].fill(0.5))
    with pytest.raises(FormatError, match=r"'blk.0.ssm_a'.*expected negative"):
        convert_to(path, tmp_path, "keep")


XIELU = ("alpha_p", "alpha_n", "beta", "eps")


def xielu_keys(path, out, change):
    """The GGUF `path` with other values of xIELU: change(key, its four numbers), None for none."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(out, "apertus")
    for key, field in reader.fields.items():
        if key.startswith("xielu."):
            if (value := change(key, field.contents())) is not None:
                (writer.add_array if isinstance(value, list) else writer.add_float32)(key, value)
        elif not key.startswith("GGUF.") and key != "general.architecture":
            writer.add_key_value(key, field.contents(), field.types[0], *field.types[1:2] if len(field.types) > 1 else ())
    for t in reader.tensors:
        writer.add_tensor(t.name, t.data.copy())
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    return out


def test_one_number_of_xielu_is_every_layers(tmp_path):
    """As llama.cpp's loader reads it; exported again it is that number."""
    plain, ids = gguf_convert.convert(oracle.rebuild("apertus", tmp_path / "hf"), tmp_path / "m.gguf"), list(range(3, 30))
    one = xielu_keys(plain, tmp_path / "one.gguf", lambda key, values: values[0])
    four = xielu_keys(plain, tmp_path / "four.gguf", lambda key, values: values[:1] * 4)
    container = convert_to(one, tmp_path, "keep")
    np.testing.assert_array_equal(logits(container, ids), logits(convert_to(four, tmp_path, "keep"), ids))
    back = gguf.GGUFReader(export(Container.open(container), tmp_path / "back.gguf").path)
    assert all(isinstance(back.fields[f"xielu.{x}"].contents(), float) for x in XIELU)


@pytest.mark.parametrize("value", [None, [0.5] * 3, [0.5] * 5, [float("nan")] * 4, float("inf"), [1, 1, 1, 1]], ids=str)
def test_values_of_xielu_that_are_none_are_an_error(value, tmp_path):
    plain = gguf_convert.convert(oracle.rebuild("apertus", tmp_path / "hf"), tmp_path / "m.gguf")
    path = xielu_keys(plain, tmp_path / "bad.gguf", lambda key, values: value if key == "xielu.alpha_n" else values)
    with pytest.raises(FormatError, match=r"'xielu.alpha_n': got .*, expected a finite number, or one for each of 4 layers \[gguf-key\]"):
        GGUFSource(path)


def test_layers_for_multi_token_prediction_are_left_out(make, tmp_path):
    def more(tensors, keys):
        tensors["blk.8.nextn.eh_proj.weight"] = np.zeros((64, 128), "f4")
        keys |= {"qwen35moe.block_count": 9, "qwen35moe.nextn_predict_layers": 1}
    plan = make_plan(GGUFSource(make("qwen3_5_moe", more)), RECIPES["keep"])
    assert len(plan.model.layers) == 8 and sum(plan.ignored.values()) == 1


@pytest.mark.parametrize("there", [[False, True] * 3, [True] * 4, [False] * 4, [False, False, True], [True, False, False]])
def test_layers_at_equal_distances_have_a_period(there):
    keys = jamba._period("x", there)
    assert there == [i % keys["x_period"] == keys["x_offset"] for i in range(len(there))]


@pytest.mark.parametrize("name, key, value, arch", [
    ("llama", "expert_count", 8, "mixtral"), ("llama", "expert_count", 0, "llama"), ("olmo2", "attention.sliding_window", 4096, "olmo3"),
    ("olmo2", "attention.sliding_window", None, "olmo2"), ("deepseek2", "expert_count", 64, "deepseek"), ("deepseek2", "expert_count", None, "youtu"),
    ("glm4moe", "block_count", 48, "solar-open")])
def test_files_of_one_general_architecture_are_told_apart(name, key, value, arch):
    assert registry.find_gguf(name, {f"{name}.{key}": value, "tensor_names": frozenset()}).NAMES["arch"] == arch


@pytest.mark.parametrize("tensor", ["attn_q.bias", "attn_q_norm.weight", "ffn_gate.weight"])
def test_what_solar_open_lacks_is_glm(tensor):
    assert registry.find_gguf("glm4moe", {"tensor_names": frozenset([f"blk.0.{tensor}"])}).NAMES["arch"] == "glm4-moe"


@pytest.mark.parametrize("factor", [1.2079441541679836, None])
def test_the_first_ggufs_of_olmo3_hold_the_whole_factor_of_yarn(make, tmp_path, factor):
    """Their attn_factor is transformers' attention_factor, not what the usual one is multiplied by."""
    edited = {} if factor is None else {"olmo2.rope.scaling.attn_factor": factor}
    path, p = make("olmo3", lambda _, keys: keys.update(edited)), oracle.load("olmo3")[0][2]
    p.check(logits(convert_to(path, tmp_path, "keep"), p.ids.tolist()))


@pytest.mark.parametrize("name, changes, why", [
    ("olmo3", {"olmo2.attention.sliding_window_pattern": [True, False, True, False]}, "sliding_window_pattern"),
    ("olmo3", {"olmo2.rope.freq_base_swa": 10000}, "freq_base_swa"),
    ("exaone4", {"exaone4.attention.sliding_window": 32}, "none in a file of 4 layers, but of 64"),
    ("ministral3", {"mistral3.rope.scaling.attn_factor": 2}, "attn_factor"),
    ("youtu", {"deepseek2.rope.scaling.factor": 2}, "supported without experts: none")])
def test_what_a_loader_would_read_otherwise_is_refused_by_its_key(make, name, changes, why):
    path = make(name, lambda _, keys: keys.update(changes))
    with pytest.raises(UnsupportedModel, match=why):
        make_plan(GGUFSource(path), RECIPES["keep"])


def test_a_gguf_of_what_runs_from_safetensors_alone_says_so():
    with pytest.raises(UnsupportedModel,
                       match=r"'qwen4exp' are not read; qwen4-exp is converted from safetensors \[arch-unsupported\]"):
        registry.find_gguf("qwen4exp", {})


@pytest.mark.parametrize("name, near", [("qwen3vl", "'qwen35'"), ("gemma3n", "'gemma3'"), ("deepseek", "'deepseek2'")])
def test_an_architecture_that_gguf_files_may_have_and_moegg_not_names_its_neighbours(name, near):
    with pytest.raises(UnsupportedModel, match=rf"got '{name}'.*did you mean .*{near}.*\[arch-unknown\]"):
        registry.find_gguf(name, {})


@pytest.mark.parametrize("name", ["qwen3_next", "qwen3_5_moe", "kimi_linear", "gemma4_dense", "llama4", "jamba", "apertus"])
def test_an_imported_gguf_comes_back_bit_by_bit(name, tmp_path):
    """Decays too, of which a file holds the logarithm: exp(log(x)) is not always x."""
    path = gguf_convert.convert(oracle.rebuild(name, tmp_path / "hf"), tmp_path / "m.gguf")
    out = export(Container.open(convert_to(path, tmp_path, "keep")), tmp_path / "back.gguf").path
    ours, theirs = ({t.name: t for t in gguf.GGUFReader(p).tensors} for p in (out, path))
    assert list(ours) == list(theirs)
    for n, t in theirs.items():
        assert ours[n].shape.tolist() == t.shape.tolist() and ours[n].data.tobytes() == t.data.tobytes(), n


# --- export -------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", REFUSED)
def test_what_llama_cpp_would_compute_otherwise_is_not_exported(name, tmp_path):
    container = Container.open(convert_to(oracle.rebuild(name, tmp_path / "hf"), tmp_path, "f32"))
    with pytest.raises(UnsupportedModel, match=r"would describe another model.*\[export-source\]"):
        export(container, tmp_path / "out.gguf")


@pytest.mark.parametrize("name, quant", [("llama", "q8"), ("qwen3_next", "q8"), ("lfm2_moe", "q4"), ("phi3", "q8")])
def test_a_quantised_file_exports_its_blocks(name, quant, tmp_path):
    """Fused, permuted and squeezed tensors included; the logits are those of the file."""
    ids, folder = oracle.load(name)[0][1].ids.tolist(), changed(oracle.rebuild(name, tmp_path / "hf"), FIXED.get(name, {}))
    first = convert_to(folder, tmp_path, quant)
    second = convert_to(export(Container.open(first), tmp_path / "out.gguf").path, tmp_path, "keep")
    np.testing.assert_allclose(logits(second, ids), logits(first, ids), rtol=0, atol=2e-3)


def test_blocks_across_value_heads_are_refused_by_name(tmp_path):
    """qwen35moe wants the columns of ssm_out by head, here of 16, and a block of q8_0 has 32."""
    container = Container.open(convert_to(oracle.rebuild("qwen3_5_moe", tmp_path / "hf"), tmp_path, "q8"))
    with pytest.raises(UnsupportedModel, match=r"'blk.0.ssm_out.weight'.*q8_0.*\[export-quant\]"):
        export(container, tmp_path / "out.gguf")
    assert not list(tmp_path.glob("out.gguf*"))


@pytest.mark.parametrize("style, name", [("gemma", "gemma2"), ("llama2", "llama"), ("gemma", "gemma4_text")])
def test_tokenizers_of_sentencepiece_are_exported_by_their_scores(style, name, tmp_path):
    """Merges as transformers makes them of a SentencePiece model: all pairs of each token, best token first."""
    folder = changed(oracle.rebuild(name, tmp_path / "hf"), FIXED.get(name, {}))
    for file in (TOKENIZERS / style).glob("*.json"):
        if file.name != "samples.json":
            (folder / file.name).write_text(file.read_text())
    document = json.loads((folder / "tokenizer.json").read_text())
    vocab = document["model"]["vocab"] = {t: i for t, i in document["model"]["vocab"].items() if i < 512}
    document["added_tokens"] = [t for t in document["added_tokens"] if t["id"] < 512]
    made = list(dict.fromkeys(a + b for a, b in document["model"]["merges"] if a + b in vocab))
    parts = {t: i for t, i in vocab.items() if t not in {a["content"] for a in document["added_tokens"]}
             and not t.startswith("<0x")}
    document["model"]["merges"] = [[t[:i], t[i:]] for t in made for i in sorted(
        (i for i in range(1, len(t)) if t[:i] in parts and t[i:] in parts), key=lambda i: (parts[t[:i]], parts[t[i:]]))]
    (folder / "tokenizer.json").write_text(json.dumps(document))
    first = Container.open(convert_to(folder, tmp_path, "q8"))
    second = Container.open(convert_to(export(first, tmp_path / "out.gguf").path, tmp_path, "keep"))
    a, b = (open_tokenizer(c, 512) for c in (first, second))
    for text in ("Hello, wörld! 123\n  def f(x):", " two  spaces\n\n", "<|im_start|>user\nhi<|im_end|>"):
        assert a.encode(text) == b.encode(text) and a.encode(text)
    document["model"]["merges"].reverse()
    (folder / "tokenizer.json").write_text(json.dumps(document))
    if name != "gemma4_text":
        with pytest.raises(UnsupportedModel, match=r"merges that GGUF cannot spell.*\[export-source\]"):
            export(Container.open(convert_to(folder, tmp_path / "hf", "q8")), tmp_path / "out2.gguf")


def test_a_layer_that_a_file_calls_shared_has_no_indexer(tmp_path):
    """As integers, the way llama.cpp reads them; of files that do not say it, tensors tell."""
    path = gguf_convert.convert(oracle.rebuild("glm_moe_dsa", tmp_path / "hf"), tmp_path / "m.gguf")
    meta, module = gguf_meta(path), registry.find(arch="glm-moe-dsa")
    assert meta["glm-dsa.attention.indexer.types"] == [1, 1, 1, 0, 1, 0]

    def sources(**changes):
        model = module.describe(ConfigReader(module.gguf_config(meta | {f"glm-dsa.attention.indexer.{k}": v for k, v in changes.items()})))
        return [x.attn.seen_from for x in model.layers]
    assert sources() == sources(types=None) == sources(types=[True, True, True, False, True, False]) == [None, None, None, 2, None, 4]
    assert sources(types=[1, 1, 0, 0, 1, 0]) == [None, None, 1, 1, None, 4]
    exported = export(Container.open(convert_to(tmp_path / "hf", tmp_path, "f32")), tmp_path / "out.gguf").path
    assert gguf.GGUFReader(exported).fields["glm-dsa.attention.indexer.types"].contents() == [1, 1, 1, 0, 1, 0]
