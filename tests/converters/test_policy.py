"""moegg.converters.policy: which quant for which weight, versions, overrides, and what a row that does not fit becomes."""
from dataclasses import replace

import pytest

from moegg import registry
from moegg.arch import ROLES, ConfigReader
from moegg.commands.options import OPTIONS
from moegg.converters.policy import NAMES, RECIPES, Recipe, Weight, find_recipe, weights_of
from moegg.errors import UsageError
from moegg.quants import QUANTS

EVERY = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
WHAT = {"expert": "layers.3.experts.up", "attn": "layers.3.attn.q", "dense": "layers.3.ffn.up", "shared": "layers.3.shared.up",
        "embed": "embed", "head": "head"}


def weight(role: str, shape=(64, 256), name: str = "", layer: int = 3, n_layers: int = 8) -> Weight:
    return Weight(name or WHAT.get(role, f"layers.3.{role}"), role, shape, layer, n_layers)


@EVERY
def test_norms_biases_routers_and_vectors_are_f32_in_every_recipe(recipe):
    for role in ("norm", "bias", "router"):
        assert recipe.choose(weight(role, (8, 64)), "bf16") == ("f32", "f32")
    assert recipe.choose(weight("attn", (64,)), "bf16") == ("f32", "f32")


@EVERY
def test_every_role_of_the_vocabulary_has_a_quant_in_every_recipe(recipe):
    for role in (*ROLES, "expert"):
        assert recipe.choose(weight(role), "f16")[0] in QUANTS


@pytest.mark.parametrize("name, quant", [("f32", "f32"), ("bf16", "bf16"), ("f16", "f16"), ("q8", "q8_0"), ("keep", "q5_1")])
def test_other_recipes_write_one_quant(name, quant):
    for role in WHAT:
        assert find_recipe(name).choose(weight(role), "q5_1") == (quant, quant)


@pytest.mark.parametrize("bits", [8, 6, 5, 4, 3, 2])
def test_experts_have_the_bits_of_the_name_and_what_every_token_uses_has_no_fewer(bits):
    """What every token passes through is protected, the closer to the output the more."""
    recipe = find_recipe(f"q{bits}")
    bpw = {role: QUANTS[recipe.choose(weight(role), "bf16")[0]].bpw for role in WHAT}
    assert bits <= bpw["expert"] < bits + 1 and bpw["dense"] == bpw["expert"]
    assert min(bpw["attn"], bpw["shared"]) >= bpw["expert"] and min(bpw["embed"], bpw["head"]) >= min(6, bits)


@pytest.mark.parametrize("bits", [6, 5, 4, 3, 2])
def test_dense_ffns_before_the_first_experts_are_protected_as_shared_experts_are(bits):
    """deepseek's first_k_dense_replace: less than 1 % of a released model, and every token passes through first (bench/kld_families.md)."""
    recipe, old = find_recipe(f"q{bits}"), find_recipe(f"q{bits}@{find_recipe(f'q{bits}').version - 1}")
    shared = recipe.choose(weight("shared"), "bf16")
    for leaf in ("gate", "up", "down"):
        first = Weight(f"layers.0.ffn.{leaf}", "dense", (64, 256), 0, 8, first_moe=1)
        assert recipe.choose(first, "bf16") == shared and (leaf == "down" or shared != old.choose(first, "bf16"))
        for w in (replace(first, first_moe=0), replace(first, layer=1), replace(first, role="expert", first_moe=0)):       # no experts, or after them
            assert recipe.choose(w, "bf16") == old.choose(w, "bf16")
    assert recipe.choose(weight("attn"), "bf16") == old.choose(weight("attn"), "bf16")


def test_what_is_leading_is_read_from_the_model():
    def dense(arch, **config):
        module = registry.find(arch=arch)
        weights = weights_of(module.describe(ConfigReader(module.tiny() | config)))
        return [w.leading for w in weights.values() if w.name.endswith("ffn.up")], [w for w in weights.values() if w.role == "expert"]
    leading, experts = dense("deepseek")
    assert leading and all(leading) and experts and not any(w.leading for w in experts)
    assert not any(dense("qwen3")[0])


def test_edge_layers_are_the_first_and_last_eighth():
    edges = {n: [i for i in range(n) if weight("expert", layer=i, n_layers=n).edge] for n in (1, 6, 16)}
    assert edges == {1: [0], 6: [0, 5], 16: [0, 1, 14, 15]} and not weight("head", layer=-1).edge


def test_the_closest_entry_of_a_recipe_counts():
    r = Recipe("x", 1, {"": "q8_0", "expert": "q4_k", "expert.down": "q5_k", "edge expert": "q6_k"})
    names = {(leaf, layer): r.choose(weight("expert", name=f"layers.{layer}.experts.{leaf}", layer=layer), "f32")[0]
             for leaf in ("up", "down") for layer in (0, 3)}
    assert names == {("up", 3): "q4_k", ("down", 3): "q5_k", ("up", 0): "q6_k", ("down", 0): "q6_k"}
    assert r.choose(weight("attn"), "f32")[0] == "q8_0"


@pytest.mark.parametrize("wanted, cols, got", [
    ("q4_k", 256, "q4_k"), ("q4_k", 96, "q5_0"), ("q5_k", 96, "q5_1"), ("q6_k", 96, "q8_0"), ("q4_k", 40, "f16"),
    ("q3_k", 96, "iq4_nl"), ("q2_k", 96, "iq4_nl"), ("iq4_xs", 96, "iq4_nl"), ("q8_0", 40, "f16"), ("q4_0", 40, "f16"), ("bf16", 41, "bf16")])
def test_a_row_that_is_no_whole_number_of_blocks_falls_back_as_in_ggml(wanted, cols, got):
    """G1: never a partial block."""
    assert Recipe("x", 1, {"": wanted}).choose(weight("attn", (4, cols)), "f32") == (got, wanted)


@pytest.mark.parametrize("name, down, attn, embed", [("q3", "q4_k", "q5_1", "q5_1"), ("q2", "q3_k", "q5_1", "q5_1"),
                                                     ("q4", "q4_k", "q5_1", "q8_0"), ("q3@1", "q3_k", "q8_0", "q8_0")])
def test_where_gates_fall_back_downs_are_no_weaker_and_the_rest_is_no_heavier(name, down, attn, embed):
    """SmolLM2 and Gemma-3 270M (hidden sizes 576, 640) at 3 and 2 bits lost to llama.cpp at equal size: bench/quants.md."""
    def quants(hidden, wide):
        shapes = {"layers.3.ffn.down": ("dense", (hidden, wide)), "layers.3.attn.q": ("attn", (hidden, hidden)), "embed": ("embed", (512, hidden))}
        return [find_recipe(name).choose(weight(role, shape, what), "f32")[0] for what, (role, shape) in shapes.items()]
    assert quants(576, 1536) == [down, attn, embed]
    plain = {"q2": ["q2_k", "q5_k", "q6_k"], "q4": ["q4_k", "q6_k", "q6_k"]}
    assert quants(512, 1536) == plain.get(name, ["q3_k", "q6_k", "q6_k"])
    assert quants(2880, 2880)[0] == ("q5_0" if name == "q4" else "iq4_nl")


def test_an_override_that_does_not_fit_falls_back_as_in_ggml():
    r = find_recipe("q3", ["attn=q6_k", "embed=q4_k"])
    assert r.choose(weight("attn", (64, 96)), "f32") == ("q8_0", "q6_k") and r.choose(weight("embed", (64, 96)), "f32") == ("q5_0", "q4_k")


def test_a_version_that_was_released_keeps_its_meaning():
    old = find_recipe("q4@1")
    assert (old.name, old.version, old.quants) == ("q4", 1, {"": "q8_0", "expert": "q4_0", "dense": "q4_0"})
    assert [find_recipe(f"{name}@2").quants.get("short attn") for name in ("q4", "q3", "q2")] == [None, "q5_1", "q5_1"]
    assert find_recipe("q4").version > 1 and find_recipe("q8@1") == find_recipe("q8")


def test_overrides_match_names_and_roles_and_the_last_wins():
    r = find_recipe("q4", ["layers.*.attn.*=q8_0", "expert=q3_k", "layers.3.experts.up=f16", "layers.3.attn.v=bf16"])
    assert r.choose(weight("attn"), "f32")[0] == "q8_0" and r.choose(weight("attn", name="layers.3.attn.v"), "f32")[0] == "bf16"
    assert r.choose(weight("expert"), "f32")[0] == "f16"
    assert r.choose(weight("expert", name="layers.3.experts.down"), "f32")[0] == "q3_k"
    assert r.choose(weight("router"), "f32")[0] == "f32"
    assert r.record()["overrides"][1] == "expert=q3_k" and "overrides" not in find_recipe("q4").record()


@pytest.mark.parametrize("rule", ["q4_0", "=q4_0", "attn=", "attn=q9", "attn q4_0", "attn=iq3_xxs"])
def test_a_rule_that_is_none_is_refused(rule):
    with pytest.raises(UsageError, match="expected GLOB=QUANT"):
        find_recipe("q4", [rule])


def test_defaults_unknown_recipes_and_what_the_command_line_takes():
    assert find_recipe("q4").name == "q4" and find_recipe("keep").quants is None
    for name in ("q7", "q4@9"):
        with pytest.raises(UsageError, match="expected one of keep, f32"):
            find_recipe(name)
    assert all(OPTIONS["--quant"](name, "--quant") == name for name in (*NAMES, *RECIPES))
