"""The vocabulary of descriptions: ConfigReader, rope frequencies, and what a Model says about itself."""
import json
import math

import numpy as np
import pytest

from moegg.arch import ConfigReader, Experts, Moe, Rope, Tensor, read_rope
from moegg.errors import FormatError, UnsupportedModel
from tests import tiny

# --- ConfigReader -------------------------------------------------------------------------------------------------------


def test_reads_are_typed_and_convert():
    c = ConfigReader({"i": 3.0, "f": 2, "b": True, "s": "x", "l": [1], "d": {"k": 1}})
    assert (c.int("i"), c.float("f"), c.bool("b"), c.str("s"), c.list("l"), c.dict("d")) == (3, 2.0, True, "x", [1], {"k": 1})
    assert type(c.int("i")) is int and type(c.float("f")) is float


@pytest.mark.parametrize("kind, value", [
    ("int", True), ("int", 1.5), ("int", "3"), ("int", -1), ("int", 1 << 40), ("int", math.nan), ("int", math.inf), ("int", [1]),
    ("float", "1"), ("float", True), ("float", math.nan), ("float", -math.inf), ("float", 10 ** 400),
    ("bool", 1), ("bool", "true"), ("str", 1), ("list", "abc"), ("list", {}), ("dict", [])])
def test_a_value_of_the_wrong_type_is_named_with_its_key(kind, value):
    with pytest.raises(FormatError, match=r"config\.json: 'some_key': got .*, expected .*\[config-type\]"):
        getattr(ConfigReader({"some_key": value}), kind)("some_key")


def test_list_elements_are_checked():
    assert ConfigReader({"l": [1, 2]}).list("l", of=(int,)) == [1, 2]
    for bad in ([1, "a"], [True], [[1]]):
        with pytest.raises(FormatError, match="expected a list of int"):
            ConfigReader({"l": bad}).list("l", of=(int,))


def test_bounds_are_part_of_the_message():
    with pytest.raises(FormatError, match="'n': got 9, expected a whole number from 1 to 8"):
        ConfigReader({"n": 9}).int("n", low=1, high=8)
    with pytest.raises(FormatError, match="'x': got -1, expected a finite number of at least 0"):
        ConfigReader({"x": -1}).float("x", low=0)


@pytest.mark.parametrize("value", [1e-300, 1e300, -1e39, 10 ** 39, 1e-39, 5e-324])
def test_a_number_that_f32_cannot_hold_is_refused_when_it_is_read(value):
    """Checked as float64, used as float32: it became 0 or infinity, and every logit NaN."""
    for read, x in (("float", value), ("floats", [1.0, value])):
        with pytest.raises(FormatError, match="'x': got .*within f32"):
            getattr(ConfigReader({"x": x}), read)("x")
    assert ConfigReader({"x": 0}).float("x") == 0.0 and ConfigReader({"x": 10 ** 38}).float("x") == 1e38


def test_whole_numbers_end_where_i32_does():
    assert ConfigReader({"n": 2 ** 31 - 1}).int("n") == 2 ** 31 - 1
    for read in (lambda: ConfigReader({"n": 2 ** 31}).int("n"), lambda: ConfigReader({"n": [10 ** 30]}).list("n", of=(int,))):
        with pytest.raises(FormatError, match="config-type"):
            read()


def test_the_canonical_config_holds_values_as_read():
    c = ConfigReader({"theta": 10 ** 19, "n": 3.0, "f": [1, 2], "g": None, "s": "x"})
    assert (c.float("theta"), c.int("n"), c.floats("f"), c.has("n"), c.given("g"), c.str("s")) == (1e19, 3, [1.0, 2.0], True, True, "x")
    assert {k: type(v) for k, v in c.used().items()} == {"theta": float, "n": int, "f": list, "g": type(None), "s": str}
    assert type(c.used()["f"][0]) is float


def test_missing_key_names_all_its_spellings():
    with pytest.raises(FormatError, match="missing key: got none, expected 'num_experts' or 'num_local_experts'"):
        ConfigReader({}).int("num_experts", "num_local_experts")


def test_null_is_absent_but_given():
    c = ConfigReader({"window": None})
    assert c.int("window", default=7) == 7 and not c.has("window") and c.given("window")
    assert not ConfigReader({}).given("window")
    assert c.used() == {"window": None} and ConfigReader(c.used()).given("window")


def test_the_first_spelling_that_is_present_counts_and_the_others_are_not_reported():
    c = ConfigReader({"a": None, "b": 2, "c": 3})
    assert c.int("a", "b", "c") == 2
    assert c.used() == {"b": 2} and c.unused() == ["a"]


def test_another_read_of_an_alternative_does_not_take_a_key_out_of_the_canonical_config():
    c = ConfigReader({"a": 1, "b": 2})
    assert (c.int("b"), c.int("a", "b"), c.int("b")) == (2, 1, 2)
    assert c.used() == {"a": 1, "b": 2}


def test_unused_names_nested_keys_and_ignore_silences():
    c = ConfigReader({"hidden": 1, "dropout": 0.1, "typo": 5, "text": {"layers": 2, "odd": 1}})
    c.int("hidden")
    c.ignore("dropout", "not_there")
    assert c.path("text").int("layers") == 2
    assert c.unused() == ["typo", "text.odd"]
    assert c.used() == {"hidden": 1, "text": {"layers": 2}}


def test_path_of_an_absent_key_is_the_reader_itself_and_child_is_empty():
    c = ConfigReader({"x": 1, "null": None})
    assert c.path("text_config") is c and c.path("null") is c
    assert c.child("rope").float("theta", default=2.0) == 2.0 and c.child("rope").used() == {}
    with pytest.raises(FormatError, match="'x': got 1, expected an object"):
        c.child("x")


def test_nested_errors_carry_the_path():
    with pytest.raises(FormatError, match="'rope.factor': got 'two', expected a finite number"):
        ConfigReader({"rope": {"factor": "two"}}).child("rope").float("factor")


def test_expect_refuses_other_values_and_names_the_key():
    c = ConfigReader({"hidden_act": "relu", "bias": False})
    assert c.expect("bias", False) is False and c.expect("absent", "silu", "gelu") == "silu"
    with pytest.raises(UnsupportedModel, match=r"'hidden_act' is 'relu'; supported: 'silu', 'gelu' \[arch-unsupported\]"):
        c.expect("hidden_act", "silu", "gelu")


def test_refuse_and_wrong_are_errors_to_raise():
    c = ConfigReader({"heads": 5}, "text_config.", "x.json")
    assert str(c.refuse("heads", "why")) == "x.json: 'text_config.heads' is 5; why [arch-unsupported]"
    assert isinstance(c.wrong("heads", "why"), FormatError) and c.wrong("heads", "why").slug == "config-value"


# --- rope ---------------------------------------------------------------------------------------------------------------


def regimes(dim=128, ctx=32768, **config):
    return read_rope(ConfigReader(config), dim, ctx).regimes()


def plain(dim, theta):
    return theta ** (-np.arange(0, dim, 2) / dim)


def test_default_frequencies():
    [(limit, inv, factor)] = regimes(4, rope_theta=100.0)
    assert (limit, factor) == (1 << 62, 1.0)
    np.testing.assert_allclose(inv, [1.0, 0.1])      # 100^0, 100^(-2/4)


@pytest.mark.parametrize("spelling", [
    {"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 8}},
    {"rope_theta": 1e6, "rope_scaling": {"rope_type": "linear", "type": "linear", "factor": 8.0}},
    {"rope_parameters": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}},
    {"rope_theta": 1e6, "rope_parameters": {"rope_type": "linear", "factor": 8.0}}])
def test_linear_scaling_in_every_spelling(spelling):
    """gemma-3-4b's full layers: theta 1e6, factor 8, head_dim 256."""
    c = ConfigReader(spelling)
    [(_, inv, factor)] = read_rope(c, 256, 131072).regimes()
    np.testing.assert_allclose(inv, plain(256, 1e6) / 8, rtol=1e-12)
    assert factor == 1.0 and c.unused() == []
    assert read_rope(ConfigReader(c.used()), 256, 131072) == read_rope(ConfigReader(spelling), 256, 131072)


def test_llama3_scaling_of_llama_3_2_1b():
    """theta 5e5, head_dim 64, factor 32, low 1, high 4, original 8192."""
    [(_, inv, factor)] = regimes(64, 131072, rope_theta=5e5, rope_scaling={
        "rope_type": "llama3", "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192})
    f = plain(64, 5e5)
    wavelength = 2 * np.pi / f
    smooth = (8192 / wavelength - 1) / 3
    want = np.where(wavelength > 8192, f / 32, np.where(wavelength < 2048, f, (1 - smooth) * f / 32 + smooth * f))
    np.testing.assert_allclose(inv, want, rtol=1e-12)
    assert factor == 1.0
    assert inv[0] == 1.0 and inv[-1] == pytest.approx(5e5 ** (-62 / 64) / 32)
    assert sum(a < b for a, b in zip(inv, f, strict=True)) == 17        # the first 15 turn more than 4 times in 8192 positions


def test_yarn_scaling_of_qwen3_at_131072():
    """theta 1e6, head_dim 128, factor 4, original 32768: the bounds are 23 and 40, cos and sin grow by 0.1 ln 4 + 1."""
    [(_, inv, factor)] = regimes(128, 32768, rope_theta=1e6, rope_scaling={
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768})
    assert factor == pytest.approx(1.1386294361119891)
    f = plain(128, 1e6)
    low = 128 * math.log(32768 / (32 * 2 * math.pi)) / (2 * math.log(1e6))
    high = 128 * math.log(32768 / (2 * math.pi)) / (2 * math.log(1e6))
    assert (math.floor(low), math.ceil(high)) == (23, 40)
    np.testing.assert_allclose(inv[:24], f[:24])
    np.testing.assert_allclose(inv[40:], f[40:] / 4)
    np.testing.assert_allclose(inv[30], f[30] * (10 / 17) + f[30] / 4 * (7 / 17))


def test_yarn_variants_of_gpt_oss_and_deepseek():
    """gpt-oss: factor 32 gives 1.34657; untruncated bounds. deepseek: equal mscales leave cos and sin alone."""
    scaling = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0, "beta_slow": 1.0}
    [(_, inv, factor)] = regimes(64, 131072, rope_theta=150000.0, rope_scaling=scaling | {"truncate": False})
    assert factor == pytest.approx(1.34657, abs=1e-5)
    low, high = (64 * math.log(4096 / (b * 2 * math.pi)) / (2 * math.log(150000.0)) for b in (32, 1))
    ramp = np.clip((np.arange(32) - low) / (high - low), 0, 1)
    f = plain(64, 150000.0)
    np.testing.assert_allclose(inv, f / 32 * ramp + f * (1 - ramp), rtol=1e-12)
    assert regimes(64, rope_scaling=scaling | {"mscale": 1.0, "mscale_all_dim": 1.0})[0][2] == 1.0
    assert regimes(64, rope_scaling=scaling | {"mscale": 0.707, "mscale_all_dim": 1.0})[0][2] == pytest.approx(
        (0.1 * 0.707 * math.log(32) + 1) / (0.1 * math.log(32) + 1))
    assert regimes(64, rope_scaling=scaling | {"attention_factor": 0.5})[0][2] == 0.5


def test_dynamic_keeps_short_sequences_and_has_one_base_beyond():
    """InternLM3: factor 6, trained for 32768; beyond, the base of 6 x that length: theta (6 * 6 - 5) ** (128/126)."""
    (short, first, one), (beyond, second, _) = regimes(
        128, 32768, rope_theta=5e7, rope_scaling={"rope_type": "dynamic", "factor": 6.0})
    assert (short, one, beyond) == (32768, 1.0, 1 << 62)
    np.testing.assert_allclose(first, plain(128, 5e7))
    np.testing.assert_allclose(second, plain(128, 5e7 * 31 ** (128 / 126)))


def test_longrope_of_phi_3_5_switches_the_whole_sequence():
    """original 4096 of 131072: cos and sin times sqrt(1 + ln 32 / ln 4096) = 1.190238 in both regimes."""
    short, long = [1.0 + 0.01 * i for i in range(48)], [1.5 + i for i in range(48)]
    for kind in ("longrope", "su"):
        (limit, a, fa), (beyond, b, fb) = regimes(
            96, 131072, original_max_position_embeddings=4096,
            rope_scaling={"type": kind, "short_factor": short, "long_factor": long})
        assert (limit, beyond) == (4096, 1 << 62)
        assert fa == fb == pytest.approx(1.1902380714238083)
        np.testing.assert_allclose(a, plain(96, 1e4) / short)
        np.testing.assert_allclose(b, plain(96, 1e4) / long)


def test_the_configs_own_original_length_wins_over_the_scalings():
    [(_, a, _)] = regimes(64, 65536, original_max_position_embeddings=2048, rope_scaling={
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16384})
    [(_, b, _)] = regimes(64, 65536, rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048})
    assert a == b


def test_factors_divide_each_frequency():
    """GGUF's rope_freqs.weight."""
    [(_, inv, factor)] = regimes(8, rope_scaling={"rope_type": "factors", "factors": [1.0, 1.0, 2.0, 8.0]})
    np.testing.assert_allclose(inv, plain(8, 1e4) / [1, 1, 2, 8])
    assert factor == 1.0


@pytest.mark.parametrize("scaling", [{"rope_type": "mrope", "mrope_section": [1]}, {"type": "propeller"}])
def test_unknown_rope_types_are_refused_with_their_key(scaling):
    with pytest.raises(UnsupportedModel, match=r"'rope_scaling\.(rope_)?type' is '(mrope|prop\w+)'; supported: default, linear"):
        regimes(rope_scaling=scaling)


@pytest.mark.parametrize("scaling", [
    {"rope_type": "linear"}, {"rope_type": "linear", "factor": 0}, {"rope_type": "linear", "factor": -2.0},
    {"rope_type": "dynamic", "factor": "6"}, {"rope_type": "llama3", "factor": 8.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0},
    {"rope_type": "yarn", "factor": -1.0}, {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]},
    {"rope_type": "longrope", "short_factor": [0.0] * 64, "long_factor": [1.0] * 64},
    {"rope_type": "longrope", "short_factor": 1.0}, {"rope_type": "factors", "factors": [math.nan] * 64}, {"rope_type": 7}])
def test_incomplete_or_impossible_scaling_is_a_format_error(scaling):
    with pytest.raises(FormatError, match=r"'rope_scaling\."):
        regimes(rope_scaling=scaling)


@pytest.mark.parametrize("theta", [-1.0, 0.0, math.inf, "1e4"])
def test_impossible_theta_is_a_format_error(theta):
    with pytest.raises(FormatError):
        regimes(rope_theta=theta)


@pytest.mark.parametrize("config", [
    {"rope_theta": 1e-300}, {"rope_theta": 1e-38, "rope_scaling": {"rope_type": "linear", "factor": 0.5}},
    {"rope_scaling": {"rope_type": "linear", "factor": 1e38}}, {"rope_scaling": {"rope_type": "linear", "factor": 1e-37}},
    {"rope_scaling": {"rope_type": "yarn", "factor": 1e-300}},
    {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1e300}},
    {"rope_scaling": {"rope_type": "longrope", "short_factor": [1e-300] * 64, "long_factor": [1] * 64}},
    {"rope_scaling": {"rope_type": "longrope", "short_factor": [1] * 64, "long_factor": [10 ** 400] * 64}},
    {"rope_scaling": {"rope_type": "factors", "factors": [1e38] * 64}}])
def test_frequencies_that_f32_cannot_hold_are_refused(config):
    with pytest.raises(FormatError, match="within f32|in f32"):
        regimes(**config)


def test_partial_rotary_factor_is_refused():
    for config in ({"partial_rotary_factor": 0.5}, {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}):
        with pytest.raises(UnsupportedModel, match="partial_rotary_factor"):
            regimes(**config)
    assert len(regimes(partial_rotary_factor=1.0)) == 1


def test_a_rope_is_hashable_and_says_its_kind():
    rope = read_rope(ConfigReader({"rope_scaling": {"rope_type": "factors", "factors": [1, 2]}}), 4, 64, interleaved=True)
    assert hash(rope) and isinstance(rope, Rope) and rope.interleaved and dict(rope.scaling)["rope_type"] == "factors"
    assert read_rope(ConfigReader({}), 4, 64).scaling == ()


# --- models -------------------------------------------------------------------------------------------------------------


def test_tensors_come_in_execution_order_and_once():
    model = tiny.describe("qwen3-moe")
    names = [t.name for t in model.tensors()]
    assert names[:4] == ["embed", "layers.0.attn_norm", "layers.0.attn.q", "layers.0.attn.k"]
    assert names[-2:] == ["final_norm", "head"] and len(set(names)) == len(names)
    assert [n for n in names if n.startswith("layers.1.ffn")] == [f"layers.1.ffn{x}" for x in ("_norm", ".gate", ".up", ".down")]
    assert [n for n in names if n.startswith("layers.2.ffn")] == ["layers.2.ffn_norm", "layers.2.ffn.router"]
    assert [e.layer for e in model.experts()] == [0, 2, 3]


def test_counts_by_hand():
    """embed and head 509 x 72; per layer: q, o 120 x 72, k, v 40 x 72, head norms 2 x 20, norms 2 x 72; experts 3 x 40 x 72."""
    model = tiny.describe("qwen3-moe")
    table, attn, expert, dense = 509 * 72, 2 * 120 * 72 + 2 * 40 * 72 + 2 * 20 + 2 * 72, 3 * 40 * 72, 3 * 104 * 72
    resident = 4 * attn + dense + 3 * 7 * 72 + 72
    assert model.parameter_count() == 2 * table + resident + 3 * 7 * expert
    assert model.active_count() == table + resident + 3 * 3 * expert


def test_a_part_is_found_by_name():
    experts = tiny.describe("qwen3-moe").experts()[0]
    assert isinstance(experts, Experts) and experts.part("down").shape == (72, 40)
    assert [p.name for p in experts.parts] == ["gate", "up", "down"]


def test_models_are_values():
    a, b = tiny.describe("qwen3-moe"), tiny.describe("qwen3-moe", rms_norm_eps=1e-5)
    assert a == tiny.describe("qwen3-moe") and a != b and hash(a) != hash(b)
    assert isinstance(a.layers[0].ffn, Moe) and isinstance(a.embed, Tensor)
    assert json.loads(json.dumps(tiny.config("qwen3-moe"))) == tiny.config("qwen3-moe")
