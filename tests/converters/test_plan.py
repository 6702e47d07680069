"""moegg.converters.plan: everything that can be wrong with a source is found before a weight is read."""
import json

import numpy as np
import pytest

from moegg.converters.gguf import GGUFSource
from moegg.converters.hf import HFSource
from moegg.converters.plan import make_plan
from moegg.converters.policy import RECIPES, find_recipe
from moegg.errors import FormatError, UnsupportedModel, UsageError
from moegg.quants import QUANTS


def plan(folder, recipe: str = "q4@1"):
    return make_plan(HFSource(folder), RECIPES[recipe])


def refuse(folder, slug: str, error=FormatError) -> str:
    with pytest.raises(error) as e:
        plan(folder)
    assert e.value.slug == slug and "\n" not in str(e.value)
    return str(e.value)


def test_a_plan_knows_quants_layouts_and_bytes(make_hf, moe):
    p = plan(make_hf())
    quants = {t.tensor.name: (t.quant, t.layout) for t in p.tensors}
    assert quants["embed"] == ("q8_0", "row-major") and quants["head"] == ("q8_0", "interleaved")
    assert quants["layers.0.attn.q"] == ("q8_0", "interleaved") and quants["layers.0.ffn.router"] == ("f32", "interleaved")
    assert quants["layers.0.attn_norm"] == ("f32", "row-major")
    assert [(e.layer, e.n, e.top_k, [x.quant for x in e.parts]) for e in p.experts] == [(i, 5, 2, ["q4_0"] * 3) for i in (0, 1)]
    assert p.experts[0].parts[0].nbytes == QUANTS["q4_0"].matrix_bytes(32, 64, "interleaved")
    assert sum(r["bytes"] for r in p.rows()) == p.weight_bytes
    assert sum(r["parameters"] for r in p.rows()) == p.model.parameter_count()
    assert json.loads(json.dumps(p.to_dict()))["recipe"] == {"name": "q4", "version": 1}
    text = "\n".join(p.lines())
    assert "10 expert records" in text and "q4 v1" in text and not p.ignored and not p.warnings


def test_a_plan_tells_bits_per_weight_and_what_overrides_changed(make_hf):
    p = make_plan(HFSource(make_hf()), find_recipe("q4", ["layers.1.experts.down=q8_0", "attn=f16"]))
    quants = {e.layer: [x.quant for x in e.parts] for e in p.experts}
    assert quants == {0: ["q5_0", "q5_0", "q5_1"], 1: ["q5_0", "q5_0", "q8_0"]}        # rows of 64 and 32 do not fit k-quants
    assert next(t.quant for t in p.tensors if t.tensor.name == "layers.0.attn.o") == "f16"
    assert p.bpw == pytest.approx(8 * p.weight_bytes / p.model.parameter_count()) and f"q4 v4, {p.bpw:.2f} bits per weight" in p.lines()[1]
    assert p.to_dict()["recipe"]["overrides"] == ["layers.1.experts.down=q8_0", "attn=f16"] and p.to_dict()["bits_per_weight"] == p.bpw


@pytest.mark.parametrize("rule", ["layers.9.*=q8_0", "router=q8_0", "layers.*.attn_norm=q8_0", "nothing=f16"])
def test_an_override_that_changes_nothing_is_refused(make_hf, rule):
    with pytest.raises(UsageError, match=r"matches no weight.*layers\.\*\.attn\.q.*\[usage\]"):
        make_plan(HFSource(make_hf()), find_recipe("q4", [rule]))


def test_a_tied_embedding_is_interleaved_and_stored_once(make_hf, dense):
    p = plan(make_hf(dense))
    assert next((t.quant, t.layout) for t in p.tensors if t.tensor.name == "embed") == ("q8_0", "interleaved")
    assert not any(t.tensor.name == "head" for t in p.tensors)


def test_rows_that_do_not_fit_fall_back_and_the_plan_says_so(make_hf, moe):
    p = plan(make_hf(moe | {"moe_intermediate_size": 40}))
    assert {x.part.name: x.quant for x in p.experts[0].parts} == {"gate": "q4_0", "up": "q4_0", "down": "f16"}
    assert any("rows do not fit q4_0" in line for line in p.lines())
    assert next(r for r in p.rows() if r["role"] == "expert down")["fallback_from"] == "q4_0"


def test_experts_stored_in_several_types_are_widened(make_hf, moe):
    folder = make_hf()
    source = HFSource(folder)
    name = "model.layers.0.mlp.experts.3.up_proj.weight"
    t = source.tensors[name]
    source.tensors[name] = type(t)(name, t.shape, "F16", "f16")
    p = make_plan(source, RECIPES["keep"])
    assert [x.quant for x in p.experts[0].parts] == ["bf16", "f32", "bf16"]


def test_missing_tensors_are_counted_and_five_are_named(make_hf):
    """F9."""
    def edit(tensors):
        for name in [n for n in tensors if "layers.1.mlp.experts" in n]:
            tensors[name.replace("experts", "xperts")] = tensors.pop(name)
    message = refuse(make_hf(edit=edit), "convert-missing")
    assert "15 tensors" in message and "and 10 more" in message and "'model.layers.1.mlp.experts.0.gate_proj.weight'" in message


def test_a_config_that_asks_for_a_billion_tensors_is_refused_at_once(make_hf, moe):
    folder = make_hf()
    (folder / "config.json").write_text(json.dumps(moe | {"num_experts": 65_000, "num_hidden_layers": 400}))
    assert "10000 tensors" in refuse(folder, "convert-missing")


def test_a_fused_matrix_with_rows_left_over_is_refused(make_hf):
    def fuse(tensors):
        for i in range(2):
            for name in [n for n in tensors if f"layers.{i}.mlp.experts." in n]:
                del tensors[name]
            tensors[f"model.layers.{i}.mlp.experts.gate_up_proj"] = np.zeros((5, 96, 64), "f4")
            tensors[f"model.layers.{i}.mlp.experts.down_proj"] = np.zeros((5, 64, 32), "f4")
    assert "[5, 96, 64], expected 64 where it has 96" in refuse(make_hf(edit=fuse), "arch-shape")


def test_a_missing_output_matrix_of_an_untied_model_is_named(make_hf):
    message = refuse(make_hf(edit=lambda t: t.pop("lm_head.weight")), "convert-missing")
    assert "1 tensor of" in message and "'lm_head.weight'" in message


def test_unknown_tensors_are_an_error_not_silence(make_hf):
    """F9."""
    more = {"ngram_embedding.shards.3.weight": np.zeros((2, 2), "f4")}
    message = refuse(make_hf(edit=lambda t: t.update(more)), "convert-unknown")
    assert "1 tensor with" in message and "'ngram_embedding.shards.3.weight'" in message


def test_tensors_that_mean_nothing_are_left_out_and_listed(make_hf, dense):
    def edit(t):
        t["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(8, "f4")
        t["lm_head.weight"] = np.ones((300, 64), "f4")
    p = plan(make_hf(dense, edit=edit))
    assert sum(p.ignored.values()) == 2 and p.ignored["lm_head.weight"] == 1
    assert any("lm_head.weight" in line for line in p.lines())


@pytest.mark.parametrize("name, shape, want", [
    ("model.layers.0.self_attn.q_proj.weight", (64, 128), "[128, 64]"), ("model.norm.weight", (63,), "[64]"),
    ("model.embed_tokens.weight", (300, 64), "[301, 64]"), ("model.norm.weight", (64, 1), "[64]"),
    ("model.layers.1.mlp.experts.4.down_proj.weight", (64, 31), "[64, 32]")])
def test_a_wrong_shape_names_tensor_got_and_expected(make_hf, name, shape, want):
    """G6."""
    message = refuse(make_hf(edit=lambda t: t.update({name: np.zeros(shape, "f4")})), "arch-shape")
    assert repr(name) in message and str(list(shape)) in message and want in message


def test_a_type_that_moegg_has_no_row_for_is_named(make_hf):
    """G8."""
    folder = make_hf(edit=lambda t: t.update({"model.norm.weight": np.zeros(64, "u1")}))
    message = refuse(folder, "quant-unsupported", UnsupportedModel)
    assert "'model.norm.weight'" in message and "u8 (1 tensor)" in message and "bf16" in message


def test_keys_that_nobody_reads_are_one_warning(make_hf, moe):
    p = plan(make_hf(moe | {"frobnicate": 1, "zap": {"a": 2}}))
    assert [w for w in p.warnings if "frobnicate" in w and "zap" in w] == list(p.warnings)


def test_the_canonical_config_describes_the_same_model(make_hf, make_gguf, dense):
    from moegg.arch import ConfigReader
    for source in (HFSource(make_hf()), GGUFSource(make_gguf(dense))):
        p = make_plan(source, RECIPES["keep"])
        assert source.module.describe(ConfigReader(json.loads(json.dumps(p.config)))) == p.model


def tokenizer(folder, ids: int, added: int = 0) -> None:
    flags = {"special": True, **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)}
    more = [{"id": ids + i, "content": f"<{i}>", **flags} for i in range(added)]
    content = {"model": {"type": "BPE", "vocab": {f"t{i}": i for i in range(ids)}, "merges": []}, "added_tokens": more}
    (folder / "tokenizer.json").write_text(json.dumps(content))


def test_a_tokenizer_larger_than_the_model_is_refused(make_hf):
    """A10."""
    folder = make_hf()
    tokenizer(folder, 302)
    assert "got ids up to 301, expected less than 301" in refuse(folder, "tokenizer-vocab")
    tokenizer(folder, 301)
    assert not plan(folder).warnings


def test_an_added_token_beyond_the_model_is_a_warning_as_in_gemma_3(make_hf):
    """A10: released Gemma 3 text models have one."""
    folder = make_hf()
    tokenizer(folder, 301, 1)
    assert "'<0>'" in plan(folder).warnings[0]


@pytest.mark.parametrize("name, content, slug", [
    ("tokenizer.json", {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["zz", "qq"]]}}, "tokenizer-damaged"),
    ("tokenizer_config.json", {"bos_token": [1]}, "config-type"), ("generation_config.json", {"temperature": "hot"}, "config-type"),
    ("generation_config.json", {"temperature": -1}, "config-value"), ("generation_config.json", {"top_p": 7}, "config-value")])
def test_what_could_not_run_is_not_converted(make_hf, name, content, slug):
    folder = make_hf()
    (folder / name).write_text(json.dumps(content))
    refuse(folder, slug)


@pytest.mark.parametrize("changes", [{"tokenizer.ggml.merges": ["zz qq"]}, {"tokenizer.ggml.tokens": [""]},
                                     {"general.sampling.temp": 1e9}])
def test_gguf_metadata_that_could_not_run_is_not_converted(make_gguf, changes):
    meta = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": ["a", "b", "ab"],
            "tokenizer.ggml.merges": ["a b"]}
    assert not make_plan(GGUFSource(make_gguf(more=meta)), RECIPES["keep"]).warnings
    with pytest.raises(FormatError):
        make_plan(GGUFSource(make_gguf(more=meta | changes, name="broken.gguf")), RECIPES["keep"])


def test_names_of_unread_keys_are_one_printable_line(make_hf, moe):
    """A lone surrogate cannot be written to a terminal; a line break would forge a message."""
    names = ["odd\ud800", "a\nmoegg: b", "\x1b]0;x\x07", "plain"]
    folder = make_hf(moe | {"rope_scaling": {"rope_type": "default", **dict.fromkeys(names, 1)}})
    [line] = plan(folder).warnings
    assert line.isprintable() and r"odd\ud800" in line and "rope_scaling.plain" in line


@pytest.mark.parametrize("theta", [10**19, 10**6, 10_000.0])
def test_a_whole_number_where_a_float_is_read_is_stored_as_that_float(make_hf, moe, theta):
    """10**19 is no 64-bit integer, which a stored config must have."""
    config = plan(make_hf(moe | {"rope_theta": theta})).config
    assert type(config["rope_theta"]) is float and config["rope_theta"] == theta


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"model": {}}', '{"model": {"vocab": {"a": "b"}}}', '{"model": {"vocab": 3}}',
                                  "[" * 10**5])
def test_a_broken_tokenizer_is_a_format_error(make_hf, text):
    folder = make_hf()
    (folder / "tokenizer.json").write_text(text)
    refuse(folder, "tokenizer-json")
