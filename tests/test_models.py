"""Every architecture module: its form, every key it honours or refuses, released configs. Sources: test_model_sources.py."""
import ast
import copy
import importlib
import inspect
import json
import math
from pathlib import Path

import pytest

from moegg import registry
from moegg.arch import ConfigReader, Gqa, Mla, Mlp, Moe, walk
from moegg.errors import FormatError, MoeggError, UnsupportedModel
from tests import oracle, tiny
from tests.released import RELEASED

ARCHS = registry.names()
ROLES = {"embed", "norm", "attn", "dense", "shared", "router", "head", "bias", "aux"}


def describe(arch, config, **changes):
    return registry.find(arch=arch).describe(ConfigReader(config | changes))


# --- form ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHS)
def test_a_module_defines_its_names_and_says_what_it_does_not_support(arch):
    """NAMES, CHAT, describe, tiny, gguf_config, gguf_keys, gguf_own; a docstring with Source and Not supported; nothing else is public."""
    tree = ast.parse(inspect.getsource(registry.find(arch=arch)))
    names = [n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
    names += [t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets]
    assert {n for n in names if not n.startswith("_")} <= {"NAMES", "CHAT", "describe", "tiny", "gguf_config", "gguf_keys", "gguf_own"}
    assert {"NAMES", "CHAT", "describe", "tiny"} <= set(names)
    assert "Source:" in ast.get_docstring(tree) and "Not supported:" in ast.get_docstring(tree)


@pytest.mark.parametrize("arch", [a for a in ARCHS if a != "maple"])        # which refuses both changes
def test_the_canonical_config_gives_the_same_model(arch):
    for changes in ({}, {"rope_scaling": {"type": "linear", "factor": 2.0}}, {"tie_word_embeddings": True}):
        if "rope_scaling" in changes and ("rope_parameters" in tiny.config(arch) or arch == "bailing-hybrid"):      # which refuses it
            continue
        cfg = ConfigReader(tiny.config(arch, **changes))
        model = registry.find(arch=arch).describe(cfg)
        stored = json.loads(json.dumps(cfg.used()))
        assert registry.find(arch=arch).describe(ConfigReader(stored)) == model
        assert cfg.unused() == [] and model.arch == arch


@pytest.mark.parametrize("arch", ARCHS)
def test_tiny_has_odd_sizes(arch):
    model = tiny.describe(arch)
    attn = next(x.attn for x in model.layers if isinstance(x.attn, (Gqa, Mla)))
    head = attn.nope if isinstance(attn, Mla) else attn.head_dim
    # but for two, heads do not fill the hidden size
    assert model.vocab % 16 and len(model.layers) in (3, 4) and head * attn.n_head != model.d or arch in ("qwen2", "helium")
    assert all(t.role in ROLES for t in model.tensors())


@pytest.mark.parametrize("arch", ARCHS)
def test_a_damaged_config_is_an_error_of_ours_or_another_sound_model(arch):
    """Every key of the tiny config replaced by values of every kind: a model or a MoeggError, never another exception."""
    nasty = [None, True, False, -1, 0, 1, 3, 1.5, 1 << 40, 10 ** 400, math.nan, math.inf, 1e308, 5e-324, "", "silu", [], [0],
             ["x"], [[]], {}, {"rope_type": "factors", "factors": [10 ** 400] * 10}, {"type": "yarn", "factor": 1e-300}, {"a": 1}]
    base = tiny.config(arch)
    paths = [(k,) for k in base] + [(k, s) for k, v in base.items() if isinstance(v, dict) for s in v]
    paths += [(k,) for k in ("layer_types", "sliding_window", "rope_parameters", "text_config", "rope_local_base_freq",
                             "attn_logit_softcapping", "partial_rotary_factor", "original_max_position_embeddings")]
    for path in paths:
        for value in nasty:
            config = copy.deepcopy(base)
            (config if len(path) == 1 else config[path[0]])[path[-1]] = value
            try:
                describe(arch, config)
            except MoeggError as e:
                assert "\n" not in str(e) and len(str(e)) < 600


def test_architectures_are_named_in_their_modules_alone():
    """No code outside moegg/models compares with the name of one. Tokenizers and notations of calls have names of their own there."""
    found = [registry.find(arch=arch).NAMES for arch in ARCHS]
    names = {name for n in found for name in (n["arch"], *n["hf"], *n["model_type"], *n.get("gguf", ()))}
    root = Path(importlib.import_module("moegg").__path__[0]).parent
    own_names = ("converters/gguf_tokenizer.py", "converters/export_tokenizer.py",
                 "moegg/server/tools.py", "moegg/server/grammar_calls.py", "moegg/server/openai.py")
    files = [p for part in ("moegg", "converters", "formats") for p in (root / part).rglob("*.py")]
    files = [p for p in files if "models" not in p.relative_to(root).parts and not p.as_posix().endswith(own_names)]
    said = [(p.name, node.value) for p in files for node in ast.walk(ast.parse(p.read_text(encoding="utf-8")))
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names]
    assert len(files) > 80 and said == []


def test_no_module_of_an_architecture_is_long():
    folder = Path(importlib.import_module("moegg.models").__path__[0])
    assert [p.name for p in folder.glob("*.py") if len(p.read_text(encoding="utf-8").splitlines()) > 250] == []


# --- released configs ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", RELEASED)
def test_released_configs_are_read_to_the_last_key_and_give_the_published_size(name):
    arch, config, parameters = RELEASED[name]
    cfg = ConfigReader(config)
    model = registry.find(hf=config["architectures"][0]).describe(cfg)
    assert (model.arch, model.parameter_count(), cfg.unused()) == (arch, parameters, [])


def test_sizes_of_qwen3_30b_a3b():
    """3.3 B active; one expert is 768 x 2048 three times."""
    model = describe("qwen3-moe", RELEASED["Qwen3-30B-A3B"][1])
    assert 3.0e9 < model.active_count() < 3.4e9
    assert [p.shape for p in model.experts()[47].parts] == [(768, 2048), (768, 2048), (2048, 768)]
    assert model.layers[0].attn.q.shape == (4096, 2048) and model.layers[0].attn.scale == pytest.approx(128 ** -0.5)


def test_gpt_oss_120b_has_its_published_size():
    """116.83 B parameters, 5.13 B of them active."""
    changes = {"num_hidden_layers": 36, "num_local_experts": 128, "layer_types": ["sliding_attention", "full_attention"] * 18}
    model = describe("gpt-oss", RELEASED["gpt-oss-20b"][1], **changes)
    assert model.parameter_count() == 116829156672 and 5.1e9 < model.active_count() < 5.2e9


def test_gemma_4_26b_a4b_has_the_sizes_it_is_named_after():
    """25.2 B parameters, 3.8 B of them active, 30 x 128 experts; full layers have two key heads of 512 and no values of their own."""
    cfg = ConfigReader({"model_type": "gemma4", "text_config": {
        "model_type": "gemma4_text", "attention_k_eq_v": True, "enable_moe_block": True, "final_logit_softcapping": 30.0,
        "global_head_dim": 512, "head_dim": 256, "hidden_size": 2816, "hidden_size_per_layer_input": 0, "intermediate_size": 2112,
        "max_position_embeddings": 262144, "moe_intermediate_size": 704, "num_attention_heads": 16, "num_experts": 128,
        "num_global_key_value_heads": 2, "num_hidden_layers": 30, "num_key_value_heads": 8, "sliding_window": 1024,
        "top_k_experts": 8, "use_bidirectional_attention": "vision"}, "vision_config": {}})
    model = registry.find(arch="gemma4").describe(cfg)
    full, local = model.layers[5].attn, model.layers[4].attn
    assert cfg.unused() == [] and 25.0e9 < model.parameter_count() < 25.5e9 and 3.7e9 < model.active_count() < 3.95e9
    assert (full.head_dim, full.n_kv_head, full.v, full.window) == (512, 2, None, 0) and full.rope.regimes()[0][1][63:65][1] == 0
    assert (local.head_dim, local.n_kv_head, local.window) == (256, 8, 1024) and model.layers[0].ffn.shared.up.shape == (2112, 2816)


def test_gemma_4_shares_keys_and_values_of_the_last_layer_of_a_kind():
    dense = {"enable_moe_block": False, "num_kv_shared_layers": 2, "use_double_wide_mlp": True, "hidden_size_per_layer_input": 6,
             "vocab_size_per_layer_input": 509}
    model = tiny.describe("gemma4", **dense)
    assert [x.attn.kv_from for x in model.layers] == [None, None, 0, 1] and [x.ffn.up.shape[0] for x in model.layers] == [88, 88, 176, 176]
    with pytest.raises(FormatError, match="num_kv_shared_layers"):
        tiny.describe("gemma4", **dense | {"num_kv_shared_layers": 3})
    with pytest.raises(UnsupportedModel, match="hidden_size_per_layer_input"):
        tiny.describe("gemma4", hidden_size_per_layer_input=6)


def test_layers_of_llama_4():
    model = tiny.describe("llama4", attn_temperature_tuning=4)
    assert [(a.chunk, a.rope is None, a.temperature) for a in (x.attn for x in model.layers)] == [(12, False, None)] * 3 + [(0, True, (0.1, 8, 1))]
    assert [isinstance(x.ffn, Moe) for x in model.layers] == [False, True, False, True] and model.layers[1].ffn.weigh_input
    assert tiny.describe("llama4", attn_temperature_tuning=False).layers[3].attn.temperature is None


def test_gemma_3_4b_takes_what_it_leaves_out_from_the_class():
    model = describe("gemma3", RELEASED["gemma-3-4b-it"][1])
    full, local = model.layers[5].attn, model.layers[4].attn
    assert (full.n_head, full.n_kv_head, full.head_dim, full.scale) == (8, 4, 256, 1 / 16)
    assert (model.vocab, model.ctx_train) == (262208, 131072)
    assert (full.window, local.window) == (0, 1024)
    assert (full.rope.theta, dict(full.rope.scaling)["factor"], local.rope.theta, local.rope.scaling) == (1e6, 8.0, 1e4, ())
    assert model.head is None and model.embed_scale == 2560 ** 0.5 and not model.embed.gather


# --- keys ---------------------------------------------------------------------------------------------------------------


def test_biases_follow_their_keys():
    def biases(arch, **changes):
        attn, ffn = (layer := tiny.describe(arch, **changes).layers[0]).attn, layer.ffn
        return "".join(n for n, t in zip("qkvogud", (attn.q_bias, attn.k_bias, attn.v_bias, attn.o_bias, *(
            getattr(ffn, f"{p}_bias", None) for p in ("gate", "up", "down"))), strict=True) if t)
    assert biases("llama") == "" and biases("llama", attention_bias=True) == "qkvo" and biases("llama", mlp_bias=True) == "gud"
    assert biases("llama", model_type="internlm3", qkv_bias=True) == "qkv"
    assert biases("llama", model_type="internlm3", bias=True) == "ogud"
    assert biases("qwen2") == "qkv"
    for arch in ("qwen3", "qwen3-moe", "gemma3"):
        assert biases(arch) == "" and biases(arch, attention_bias=True) == "qkvo"


def test_tying_defaults_differ_by_class():
    for arch in (a for a in ARCHS if a != "maple"):           # which is never tied
        absent = tiny.describe(arch, tie_word_embeddings=None)
        assert (absent.head is None) == (arch in ("gemma2", "gemma3", "gemma4", "smollm3", "cohere2", "starcoder2", "lfm2",
                                                 "lfm2-moe", "ernie4-5-moe", "ernie4-5", "youtu"))
        assert absent.embed.gather == (absent.head is not None)
        assert tiny.describe(arch, tie_word_embeddings=False).head.shape == tiny.describe(arch).embed.shape


def windows(arch, **changes):
    return [layer.attn.window for layer in tiny.describe(arch, **changes).layers]


def test_sliding_windows_of_mistral_are_in_every_layer_and_null_means_none():
    assert windows("llama", model_type="mistral", sliding_window=32) == [32] * 3
    assert windows("llama", model_type="mistral") == [4096] * 3     # absent: the class default
    assert set(windows("llama", sliding_window=32)) == {0}          # Llama has no such key
    config = tiny.config("llama", model_type="mistral") | {"sliding_window": None}
    model = describe("llama", config)
    assert {layer.attn.window for layer in model.layers} == {0}
    cfg = ConfigReader(config)
    registry.find(arch="llama").describe(cfg)
    assert describe("llama", cfg.used()) == model                   # null survives in the canonical config
    with pytest.raises(UnsupportedModel, match="'layer_types'"):
        windows("llama", model_type="mistral", sliding_window=32, layer_types=["sliding_attention"] * 2 + ["full_attention"])


@pytest.mark.parametrize("arch", ["qwen2", "qwen3"])
def test_sliding_windows_of_qwen_are_in_the_upper_layers(arch):
    assert windows(arch, sliding_window=9, max_window_layers=1) == [0, 0, 0]
    assert windows(arch, use_sliding_window=True, sliding_window=9, max_window_layers=1) == [0, 9, 9]
    assert windows(arch, use_sliding_window=True, max_window_layers=2) == [0, 0, 4096]
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    assert windows(arch, use_sliding_window=True, sliding_window=9, layer_types=types) == [9, 0, 9]
    assert windows(arch, sliding_window=9, layer_types=["full_attention"] * 3) == [0, 0, 0]
    for types in (["sliding_attention"] * 3, ["full_attention"] * 2):
        with pytest.raises(FormatError, match="'layer_types'"):
            windows(arch, sliding_window=9, layer_types=types)
    with pytest.raises(UnsupportedModel, match="'layer_types'"):
        windows(arch, layer_types=["chunked_attention"] * 3)


def test_sliding_windows_of_qwen3_moe_are_in_all_layers():
    """This class ignores max_window_layers."""
    assert windows("qwen3-moe", use_sliding_window=True, sliding_window=9, max_window_layers=2) == [9] * 4
    assert windows("qwen3-moe", sliding_window=9) == [0] * 4


def test_sliding_windows_of_gemma3_follow_the_pattern_or_the_types():
    assert windows("gemma3") == [11, 11, 0, 11]
    assert windows("gemma3", sliding_window_pattern=None) == [11] * 4
    assert windows("gemma3", sliding_window_pattern=None, _sliding_window_pattern=2) == [11, 0, 11, 0]
    assert windows("gemma3", layer_types=["full_attention"] * 3 + ["sliding_attention"]) == [0, 0, 0, 11]


def test_dense_layers_of_qwen3_moe():
    def kinds(**changes):
        return "".join("m" if isinstance(x.ffn, Moe) else "d" for x in tiny.describe("qwen3-moe", **changes).layers)
    assert kinds() == "mdmm" and kinds(mlp_only_layers=[0, 3]) == "dmmd" and kinds(mlp_only_layers=None) == "mmmm"
    assert kinds(mlp_only_layers=None, decoder_sparse_step=2) == "dmdm" and kinds(num_experts=0) == "dddd"
    assert isinstance(tiny.describe("qwen3-moe").layers[1].ffn, Mlp)


def test_router_keys_of_qwen3_moe():
    moe = tiny.describe("qwen3-moe", norm_topk_prob=None, num_experts=None, num_local_experts=5).layers[0].ffn
    r = moe.router
    assert (r.renormalise, moe.top_k, moe.experts.n, r.weight.shape, r.score) == (False, 3, 5, (5, 72), "softmax")
    with pytest.raises(FormatError, match="'num_experts_per_tok' is 3; there are 2 experts"):
        tiny.describe("qwen3-moe", num_experts=2)


def test_head_dim_defaults_differ_by_class():
    assert [tiny.describe(a, head_dim=None, num_attention_heads=4, num_key_value_heads=2, hidden_size=64).layers[0].attn.head_dim
            for a in ("llama", "qwen2", "qwen3", "qwen3-moe", "gemma3")] == [16, 16, 128, 16, 256]


def test_rope_of_gemma3_in_both_spellings():
    new = tiny.describe("gemma3", rope_theta=None, rope_local_base_freq=None, rope_scaling=None, rope_parameters={
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}})
    assert new == tiny.describe("gemma3")
    assert tiny.describe("gemma3", rope_theta=None, rope_local_base_freq=None) == new       # the class defaults
    with pytest.raises(UnsupportedModel, match="'rope_parameters'"):
        tiny.describe("gemma3", rope_scaling=None, rope_parameters={"rope_type": "default", "rope_theta": 1e6})


def test_soft_caps_and_scale_of_gemma3():
    model = tiny.describe("gemma3", attn_logit_softcapping=50.0, final_logit_softcapping=30.0, query_pre_attn_scalar=64)
    assert (model.layers[0].attn.softcap, model.logit_softcap, model.layers[0].attn.scale) == (50.0, 30.0, 0.125)
    plain = tiny.describe("gemma3")
    assert (plain.layers[0].attn.softcap, plain.logit_softcap) == (0.0, 0.0)


ONE_ACT = {"apertus", "bailing-hybrid", "kimi-linear", "lfm2", "lfm2-moe",
           "jamba", "maple", "minimax", "qwen3-next", "qwen3-5", "qwen3-5-moe", "qwen4-exp",
           "gpt-oss"}         # know one activation


@pytest.mark.parametrize("arch", [a for a in ARCHS if a not in ONE_ACT])
def test_activations(arch):
    key = "hidden_activation" if arch in ("gemma2", "gemma3", "gemma4") else "hidden_act"
    for name, act in (("silu", "silu"), ("gelu_pytorch_tanh", "gelu_tanh")):
        assert tiny.describe(arch, **{key: name}).layers[1].ffn.act == act
    with pytest.raises(UnsupportedModel, match=f"'{key}' is 'gelu'; supported: 'silu'"):
        tiny.describe(arch, **{key: "gelu"})


@pytest.mark.parametrize("arch, changes, key", [
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"), ("qwen2", {"use_mrope": True}, "use_mrope"),
    ("qwen3", {"rope_scaling": {"type": "mrope"}}, "rope_scaling.type"), ("qwen3-moe", {"qkv_bias": True}, "qkv_bias"),
    ("qwen3-moe", {"shared_expert_intermediate_size": 64}, "shared_expert_intermediate_size"),
    ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention")])
def test_what_is_not_supported_is_refused_by_key(arch, changes, key):
    with pytest.raises(UnsupportedModel, match=rf"'{key}' is .*\[arch-unsupported\]"):
        tiny.describe(arch, **changes)


@pytest.mark.parametrize("changes, key", [
    ({"num_key_value_heads": 4}, "num_key_value_heads"), ({"head_dim": 21}, "head_dim"),
    ({"head_dim": None, "hidden_size": 71}, "num_attention_heads"), ({"hidden_size": None}, "hidden_size"),
    ({"num_hidden_layers": 5000}, "num_hidden_layers")])
def test_sizes_that_contradict_each_other_are_named(changes, key):
    with pytest.raises(FormatError, match=key):
        tiny.describe("llama", **changes)


def test_lfm2_widths_types_and_taps():
    """LFM2-1.2B's config: the MLP's width is derived; layers that are not attention are convolutions of conv_L_cache taps."""
    config = {"vocab_size": 65536, "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
              "block_ff_dim": 12288, "intermediate_size": 12288, "block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.0,
              "block_multiple_of": 256, "conv_L_cache": 3, "conv_bias": False, "full_attn_idxs": [2, 5, 8, 10, 12, 14], "norm_eps": 1e-5,
              "rope_theta": 1e6, "max_position_embeddings": 128000}
    model = describe("lfm2", config)
    assert model.parameter_count() == 1170340608 and model.layers[0].ffn.up.shape == (8192, 2048)
    assert [isinstance(x.attn, Gqa) for x in model.layers].count(True) == 6 and model.layers[0].attn.state_floats == 2 * 2048
    assert describe("lfm2", config, block_auto_adjust_ff_dim=False).layers[0].ffn.up.shape == (12288, 2048)
    assert describe("lfm2", config, conv_L_cache=4).layers[0].attn.conv.weight.shape == (2048, 4)
    assert describe("lfm2", config, norm_eps=0.5).layers[3].ffn_norm.eps == 0.5
    for key, value in (("conv_bias", True), ("layer_types", ["conv"] * 15 + ["mamba"])):
        with pytest.raises(UnsupportedModel, match=key):
            describe("lfm2", config, **{key: value})
    with pytest.raises(FormatError, match="layer_types"):
        describe("lfm2", config, layer_types=["conv"])


def test_ministral_3_scales_queries_from_the_trained_length_on_and_mistral_small_does_not():
    ministral, small = (describe("mistral3", RELEASED[n][1]) for n in ("Ministral-3-8B-Instruct-2512", "Mistral-Small-3.1-24B-Instruct-2503"))
    assert ministral.layers[0].attn.temperature == (0.1, 16384, 0) and ministral.layers[0].attn.rope.regimes()[0][2] == 1.0
    assert small.layers[0].attn.temperature is None and small.head.hf[0].name == "language_model.lm_head.weight"
    for key, value in (("sliding_window", 9), ("model_type", "qwen3"), ("rope_parameters", None)):
        with pytest.raises(UnsupportedModel, match=key):
            tiny.describe("mistral3", **{key: value})


def test_rope_of_olmo3_is_scaled_in_full_layers_only():
    """Window of the last key 11, every fourth layer full."""
    attn = [layer.attn for layer in tiny.describe("olmo3").layers]
    assert [(a.window, dict(a.rope.scaling).get("rope_type")) for a in attn] == [(11, None)] * 3 + [(0, "yarn")]
    assert [layer.attn.window for layer in tiny.describe("olmo3", layer_types=["full_attention"] * 4).layers] == [0] * 4
    with pytest.raises(UnsupportedModel, match="'rope_theta' is 10000"):
        tiny.describe("olmo3", rope_theta=10000)


def test_full_layers_of_exaone4_have_rope_only_where_none_slides():
    def kinds(**changes):
        return [(a.window, a.rope is not None) for a in (layer.attn for layer in tiny.describe("exaone4", **changes).layers)]
    assert kinds() == [(11, True), (11, True), (0, False), (11, True)]
    letters = {"sliding_window_pattern": "LLLG", "layer_types": ["sliding_attention"] * 3 + ["full_attention"]}
    assert kinds(**letters) == [(11, True)] * 3 + [(0, False)]
    config = tiny.config("exaone4", sliding_window_pattern=None) | {"sliding_window": None}
    assert [(a.attn.window, a.attn.rope is not None) for a in describe("exaone4", config).layers] == [(0, True)] * 4
    with pytest.raises(FormatError, match="sliding_window_pattern"):
        kinds(sliding_window_pattern="LLLG")


@pytest.mark.parametrize("arch", ["hunyuan-dense", "hunyuan-moe"])
def test_alpha_of_hunyuan_stretches_the_base_of_rope(arch):
    plain = tiny.describe(arch).layers[0].attn
    theta = tiny.describe(arch, rope_scaling={"type": "dynamic", "alpha": 1000.0, "factor": 1.0}).layers[0].attn.rope.theta
    assert plain.norm_last and theta == pytest.approx(1e4 * 1000 ** (plain.head_dim / (plain.head_dim - 2)))
    with pytest.raises(UnsupportedModel, match="use_cla"):
        tiny.describe(arch, use_cla=True)


def test_biases_of_seed_oss_and_ernie_have_keys_of_their_own():
    def biases(arch, **changes):
        a = tiny.describe(arch, **changes).layers[0].attn
        return "".join(n for n, t in zip("qkvo", (a.q_bias, a.k_bias, a.v_bias, a.o_bias), strict=True) if t)
    assert biases("seed-oss", attention_bias=None) == "qkv" and biases("seed-oss", attention_out_bias=True) == "qkvo"
    assert biases("ernie4-5") == "" and biases("ernie4-5", use_bias=True) == "qkvo"


@pytest.mark.parametrize("arch, changes, error, key", [
    ("helium", {"head_dim": 20}, UnsupportedModel, "head_dim"), ("youtu", {"qk_head_dim": 20}, FormatError, "qk_head_dim"),
    ("youtu", {"num_key_value_heads": 1}, UnsupportedModel, "num_key_value_heads"),
    ("solar-open", {"use_qk_norm": True}, UnsupportedModel, "use_qk_norm"),
    ("solar-open", {"first_k_dense_replace": 1}, UnsupportedModel, "first_k_dense_replace"),
    ("qwen3-5", {"attn_output_gate": False}, UnsupportedModel, "attn_output_gate"),
    ("apertus", {"hidden_act": "silu"}, UnsupportedModel, "hidden_act"), ("apertus", {"post_norm": True}, UnsupportedModel, "post_norm"),
    ("apertus", {"qk_norm": False}, UnsupportedModel, "qk_norm"), ("apertus", {"mlp_bias": True}, UnsupportedModel, "mlp_bias")])
def test_keys_beyond_the_reference_are_refused(arch, changes, error, key):
    with pytest.raises(error, match=key):
        tiny.describe(arch, **changes)


def test_xielu_has_values_of_every_layer_and_a_rope_that_is_named():
    """Apertus: transformers 4 takes a config without scaling for none, transformers 5 for one by 8."""
    layers = tiny.describe("apertus").layers
    assert [x.ffn.act.alpha_p.name for x in layers] == [f"layers.{i}.ffn.alpha_p" for i in range(3)]
    assert all(x.ffn.gate is None and t.role == "aux" for x in layers for t in walk(x.ffn.act))
    assert tiny.describe("apertus", rope_scaling={"rope_type": "default"}).layers[0].attn.rope.scaling == ()
    assert tiny.describe("apertus", attention_bias=True).layers[0].attn.o_bias and not layers[0].attn.q_bias
    with pytest.raises(UnsupportedModel, match="'rope_scaling' is None; its classes disagree"):
        tiny.describe("apertus", rope_scaling=None)


def test_mimo_is_qwen2_whatever_its_bias_key_says():
    plain, mimo = (tiny.describe("qwen2", model_type=t, num_nextn_predict_layers=1, attention_bias=True) for t in ("qwen2", "mimo"))
    assert plain == mimo and mimo.layers[0].attn.q_bias and registry.find(model_type="mimo") is registry.find(hf="MiMoForCausalLM")


def test_the_equal_by_which_telechat3_was_computed_is_the_same_model():
    """transformers has no class for it; the oracle is its Llama's, by the config beside it."""
    configs = (json.loads((oracle.FIXTURES / "telechat3" / name).read_text()) for name in ("config.json", "equal.json"))
    ours, equal = (registry.find(hf=c["architectures"][0]).describe(ConfigReader(c)) for c in configs)
    ropes = [m.layers[0].attn.rope.regimes() for m in (ours, equal)]
    assert ours.arch == "telechat3" and ropes[0] == ropes[1]
    assert [(t.hf, t.shape) for t in ours.tensors()] == [(t.hf, t.shape) for t in equal.tensors()]


def test_the_yarn_of_telechat3_grows_by_seven_hundredths():
    """Its frequencies are those of plain YaRN; what it does not know of it is refused."""
    changed = {"rope_type": "telechat3-yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    rope, yarn = (tiny.describe("telechat3", rope_scaling=changed | {"rope_type": t}).layers[0].attn.rope.regimes()[0]
                  for t in ("telechat3-yarn", "yarn"))
    assert rope[1] == yarn[1] and (rope[2], yarn[2]) == pytest.approx((1 + 0.07 * math.log(4), 1 + 0.1 * math.log(4)))
    for key, value in (("mscale", 1.0), ("attention_factor", 1.2), ("type", "yarn")):
        with pytest.raises(UnsupportedModel, match=f"'rope_scaling.{key}'"):
            tiny.describe("telechat3", rope_scaling=changed | {key: value})


# --- documents ----------------------------------------------------------------------------------------------------------


def test_the_readme_beside_the_modules_explains_every_key_of_names():
    folder = Path(importlib.import_module("moegg.models").__path__[0])
    text = (folder / "README.md").read_text(encoding="utf-8")
    keys = {k for arch in ARCHS for k in registry.find(arch=arch).NAMES}
    assert [k for k in sorted(keys) if f'"{k}"' not in text] == []


def test_keys_of_indexers_are_honoured():
    """Rope turns pairs in GLM's indexers and halves in DeepSeek's; attention's always turns pairs."""
    for arch, pairs in (("deepseek-v32", False), ("glm-moe-dsa", True)):
        model = tiny.describe(arch, index_n_heads=5, index_head_dim=12, index_topk=7)
        a = model.layers[0].attn
        assert (a.indexer.n_head, a.indexer.dim, a.indexer.budget, a.indexer.ratio) == (5, 12, 7, 1) and a.indexer.scale == 60 ** -0.5
        assert a.indexer.rope.interleaved is pairs and a.rope.interleaved and a.indexer.k_norm.kind == "layer" and a.indexer.k_norm.eps == 1e-6
        whole = tiny.describe(arch, index_n_heads=None, index_head_dim=None, index_topk=None).layers[0].attn.indexer
        assert (whole.n_head, whole.dim, whole.budget) == (32 if pairs else 64, 128, 2048)
        for changes in ({"indexer_rope_interleave": not pairs}, {"rope_interleave": False}, {"mlp_layer_types": ["sparse"] * 4},
                        {"layer_types": ["full_attention"] * 4}, {"num_key_value_heads": 1}):
            with pytest.raises(UnsupportedModel, match=next(iter(changes))):
                tiny.describe(arch, **changes)
        for key, value in (("index_head_dim", 8), ("qk_head_dim", 30)):
            with pytest.raises(FormatError, match=key):
                tiny.describe(arch, **{key: value})
        with pytest.raises(UnsupportedModel, match="q_lora_rank"):
            registry.find(arch=arch).describe(ConfigReader(tiny.config(arch) | {"q_lora_rank": None}))


@pytest.mark.parametrize("changes, want", [
    ({"indexer_types": ["full", "full", "shared", "full"]}, [0, 1, 1, 3]), ({"indexer_types": None}, [0, 1, 2, 3]),
    ({"indexer_types": None, "index_topk_freq": 3}, [0, 1, 1, 1]),
    ({"indexer_types": None, "index_topk_freq": 2, "index_skip_topk_offset": 3}, [0, 1, 2, 2]),
    ({"indexer_types": None, "index_topk_pattern": "FSSF", "index_topk_freq": 1}, [0, 0, 0, 3])], ids=str)
def test_layers_see_what_the_last_indexer_chose(changes, want):
    layers = tiny.describe("glm-moe-dsa", **changes).layers
    assert [i if x.attn.seen_from is None else x.attn.seen_from for i, x in enumerate(layers)] == want
    assert [x.attn.indexer is None for x in layers] == [i != source for i, source in enumerate(want)]


@pytest.mark.parametrize("changes, key", [
    ({"indexer_types": ["shared"] * 4}, "indexer_types"), ({"indexer_types": ["full"]}, "indexer_types"),
    ({"indexer_types": ["full", "half"] * 2}, "indexer_types"),
    ({"indexer_types": None, "index_topk_pattern": "SFFF"}, "index_topk_pattern"),
    ({"indexer_types": None, "index_topk_freq": 2, "index_skip_topk_offset": 0},
                                                                                   "index_skip_topk_offset")])
def test_layers_without_an_indexer_before_them_are_refused(changes, key):
    with pytest.raises(FormatError, match=key):
        tiny.describe("glm-moe-dsa", **changes)
