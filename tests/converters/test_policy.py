"""moegg.converters.policy: which quant for which role, and what a row that does not fit becomes."""
import pytest

from moegg.arch import ROLES
from moegg.converters.policy import RECIPES, Recipe, find_recipe
from moegg.errors import UsageError
from moegg.quants import QUANTS


@pytest.mark.parametrize("name", RECIPES)
def test_norms_biases_routers_and_vectors_are_f32_in_every_recipe(name):
    for role in ("norm", "bias", "router"):
        assert RECIPES[name].choose(role, (8, 64), "bf16") == ("f32", "f32")
    assert RECIPES[name].choose("attn", (64,), "bf16") == ("f32", "f32")


def test_q4_is_four_bits_for_experts_and_six_to_eight_for_what_every_token_uses():
    choose = RECIPES["q4"].choose
    assert choose("expert", (64, 256), "bf16")[0] == "q4_0" and choose("dense", (64, 256), "bf16")[0] == "q4_0"
    for role in ("attn", "embed", "head", "shared"):
        assert 6 <= QUANTS[choose(role, (64, 256), "bf16")[0]].bpw <= 8.5


@pytest.mark.parametrize("name, quant", [("f32", "f32"), ("bf16", "bf16"), ("f16", "f16"), ("q8", "q8_0"), ("keep", "q5_1")])
def test_other_recipes_write_one_quant(name, quant):
    for role in ("attn", "expert", "dense", "shared", "embed", "head"):
        assert RECIPES[name].choose(role, (64, 256), "q5_1") == (quant, quant)


@pytest.mark.parametrize("wanted, cols, got", [
    ("q4_k", 256, "q4_k"), ("q4_k", 96, "q5_0"), ("q5_k", 96, "q5_1"), ("q6_k", 96, "q8_0"), ("q4_k", 40, "f16"),
    ("q8_0", 40, "f16"), ("q4_0", 40, "f16"), ("bf16", 41, "bf16")])
def test_a_row_that_is_no_whole_number_of_blocks_falls_back_as_in_ggml(wanted, cols, got):
    """G1: never a partial block."""
    assert Recipe("x", 1, {"": wanted}).choose("attn", (4, cols), "f32") == (got, wanted)


def test_every_role_of_the_vocabulary_has_a_quant_in_every_recipe():
    for recipe in RECIPES.values():
        for role in (*ROLES, "expert"):
            assert recipe.choose(role, (64, 256), "f16")[0] in QUANTS


def test_defaults_and_unknown_recipes():
    assert find_recipe("q4").name == "q4" and find_recipe("keep").quants is None
    with pytest.raises(UsageError, match="q5.*keep, f32"):
        find_recipe("q5")
