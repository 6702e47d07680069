"""Sources of every architecture: tensor names of checkpoints, and GGUF files and metadata, which must describe the same model."""
import fnmatch
import json
import math

import numpy as np
import pytest

from moegg import registry
from moegg.arch import ConfigReader
from moegg.errors import FormatError, MoeggError, UnsupportedModel
from tests import oracle, tiny
from tests.converters.test_gguf_families import OWN_LAYOUT
from tests.reference.forward import forward
from tests.reference.weights import gguf_meta, load_gguf, load_hf, read_safetensors
from tests.released import RELEASED
from tests.test_models import ARCHS, describe


def sources(node, kind):
    return [s.name for s in getattr(node, kind)]


OTHERS = ("qwen4_exp", "minimax")      # with hash tables, decay buffers that are left out, as vision towers are


@pytest.mark.parametrize("name", oracle.PLAIN)
def test_descriptions_name_every_tensor_of_the_checkpoint_or_ignore_it(name, tmp_path):
    folder = oracle.rebuild(name, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    module = registry.find(hf=config["architectures"][0])
    model, have = module.describe(ConfigReader(config)), set(read_safetensors(folder))
    used = {next(n for n in sources(t, "hf") if n in have) for t in model.tensors()}
    used |= {next(n.format(e=e) for n in sources(p, "hf") if n.format(e=e) in have)
             for x in model.experts() for e in range(x.n) for p in x.parts}
    have -= used
    left = [n for n in have if not any(fnmatch.fnmatch(n, g) for g in module.NAMES["ignore"])]
    assert left == [] and (have == set() or "vision_config" in config or name in OTHERS)


def test_fused_experts_of_transformers_5_give_the_same_weights(tmp_path):
    model = tiny.describe("qwen3-moe")
    folder = tiny.hf(tmp_path, "qwen3-moe", dtype="F32")
    plain, arrays = load_hf(folder, model), read_safetensors(folder)
    for x in model.experts():
        at = f"model.layers.{x.layer}.mlp.experts"
        gate, up, down = ([arrays.pop(f"{at}.{e}.{p}_proj.weight") for e in range(x.n)] for p in ("gate", "up", "down"))
        arrays[f"{at}.gate_up_proj"] = np.concatenate([gate, up], 1)
        arrays[f"{at}.down_proj"] = np.stack(down)
    (folder / "model.safetensors").unlink()
    oracle.write_safetensors(folder / "model.safetensors", arrays, "F32")
    fused = load_hf(folder, model)
    assert fused.keys() == plain.keys() and all(np.array_equal(fused[k], plain[k]) for k in plain)


@pytest.mark.parametrize("arch, changes", [
    *((a, {}) for a in ARCHS if "gguf" in registry.find(arch=a).NAMES and a not in OWN_LAYOUT),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 3.0}, "tie_word_embeddings": True}),
    ("llama", {"model_type": "internlm3", "qkv_bias": True, "bias": True, "rope_scaling": None}),
    ("qwen2", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}}),
    ("qwen3-moe", {"norm_topk_prob": False, "mlp_only_layers": None, "attention_bias": True}),
    ("gemma3", {"final_logit_softcapping": 5.0, "query_pre_attn_scalar": 40, "rope_local_base_freq": 500.0}),
    ("glm", {"model_type": "glm", "attention_bias": False}), ("phi3", {"rope_scaling": None, "tie_word_embeddings": True}),
    ("granite", {"attention_bias": True, "mlp_bias": True}), ("stablelm", {"use_parallel_residual": True, "use_qkv_bias": False}),
    ("starcoder2", {"use_bias": False})])
def test_hf_and_gguf_of_the_same_weights_give_the_same_logits(arch, changes, tmp_path):
    module = registry.find(arch=arch)
    folder, path = tiny.hf(tmp_path / "hf", arch, **changes), tiny.gguf(tmp_path / "tiny.gguf", arch, **changes)
    model = module.describe(ConfigReader(json.loads((folder / "config.json").read_text())))
    cfg = ConfigReader(module.gguf_config(gguf_meta(path, module.NAMES["gguf_config_tensors"])))
    other = module.describe(cfg)
    table, table2 = ([(t.name, t.shape, t.role, t.gather) for t in m.tensors()] for m in (model, other))
    assert table == table2
    assert cfg.unused() == [] and module.describe(ConfigReader(json.loads(json.dumps(cfg.used())))) == other
    ids = np.arange(3, 43) * 11 % 500
    ours, theirs = forward(model, load_hf(folder, model), ids), forward(other, load_gguf(path, other), ids)
    np.testing.assert_allclose(ours.logits, theirs.logits, rtol=0, atol=2e-4)
    np.testing.assert_array_equal(ours.router_idx, theirs.router_idx)
    assert ours.logits.std() > 1


META = {
    "smollm2": {"general.architecture": "llama", "llama.block_count": 30, "llama.context_length": 8192,
                "llama.embedding_length": 576, "llama.feed_forward_length": 1536, "llama.attention.head_count": 9,
                "llama.attention.head_count_kv": 3, "llama.rope.freq_base": 100000.0,
                "llama.attention.layer_norm_rms_epsilon": 9.999999747378752e-06,
                "llama.vocab_size": 49152, "llama.rope.dimension_count": 64, "tensor_names": frozenset()},
    "gemma3": {"general.architecture": "gemma3", "gemma3.context_length": 32768, "gemma3.embedding_length": 640,
               "gemma3.block_count": 18, "gemma3.feed_forward_length": 2048, "gemma3.attention.head_count": 4,
               "gemma3.attention.layer_norm_rms_epsilon": 9.999999974752427e-07, "gemma3.attention.key_length": 256,
               "gemma3.attention.value_length": 256, "gemma3.rope.freq_base": 1000000.0, "gemma3.attention.sliding_window": 512,
               "gemma3.attention.head_count_kv": 1, "tokenizer.ggml.tokens": ["x"] * 262144, "tensor_names": frozenset()},
}


def from_gguf(name, **changes):
    meta = META[name] | {f"{META[name]['general.architecture']}.{k}": v for k, v in changes.items()}
    return from_meta(meta)


def from_meta(meta):
    name = meta["general.architecture"]
    module = registry.find_gguf(name, meta)
    return module.describe(ConfigReader(module.gguf_config(meta), where="GGUF metadata"))


def test_metadata_of_two_real_files():
    """SmolLM2-135M-Instruct Q4_1 and Gemma-3 270M Q4_K_M."""
    llama, gemma = from_gguf("smollm2"), from_gguf("gemma3")
    assert llama.parameter_count() == 134515008 and llama.head is None and llama.layers[0].attn.rope.interleaved
    assert gemma.parameter_count() == 268098176 and [x.attn.window for x in gemma.layers] == ([512] * 5 + [0]) * 3
    assert (gemma.layers[0].attn.rope.theta, gemma.layers[5].attn.rope.theta, gemma.layers[0].attn.scale) == (1e4, 1e6, 1 / 16)
    released = describe("gemma3", RELEASED["gemma-3-270m"][1])
    assert [t.shape for t in released.tensors()] == [t.shape for t in gemma.tensors()]


def test_gguf_scale_of_gemma3_27b_is_hidden_over_heads():
    model = from_gguf("gemma3", **{"block_count": 62, "embedding_length": 5376, "attention.head_count": 32,
                                   "attention.key_length": 128, "attention.value_length": 128})
    assert model.layers[0].attn.scale == pytest.approx(168 ** -0.5)


def test_gguf_rope_scaling_as_llama_cpp_reads_it():
    def rope(**changes):
        return from_gguf("smollm2", **changes).layers[0].attn.rope
    assert rope().scaling == () and rope(**{"rope.scaling.type": "none", "rope.scaling.factor": 4.0}).scaling == ()
    assert rope(**{"rope.scale_linear": 2.0}) == rope(**{"rope.scaling.type": "linear", "rope.scaling.factor": 2.0})
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 2048}
    assert rope(**yarn).regimes()[0][2] == pytest.approx(0.1 * math.log(4) + 1)
    assert rope(**yarn, **{"rope.scaling.attn_factor": 0.5}).regimes()[0][2] == pytest.approx(0.5 * (0.1 * math.log(4) + 1))
    with pytest.raises(UnsupportedModel, match="'llama.rope.scaling.type' is 'su'"):
        rope(**{"rope.scaling.type": "su"})
    meta = META["smollm2"] | {"tensor:rope_freqs.weight": [1.0] * 16 + [32.0] * 16}
    assert from_meta(meta).layers[0].attn.rope.regimes()[0][1][31] == pytest.approx(1e5 ** (-62 / 64) / 32)
    with pytest.raises(UnsupportedModel, match="rope_freqs"):
        from_meta(meta | {f"llama.{k}": v for k, v in yarn.items()})
    with pytest.raises(FormatError, match="rope_factors_"):
        rope(**{"rope.scaling.type": "longrope"})


@pytest.mark.parametrize("name", META)
def test_damaged_gguf_metadata_is_an_error_of_ours_or_another_sound_model(name):
    arch = META[name]["general.architecture"]
    keys = [k for k in META[name] if k.startswith(arch)] + ["tensor:rope_freqs.weight", *(f"{arch}.{k}" for k in (
        "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scale_linear",
        "attention.scale"))]
    for key in keys:
        for value in (None, True, -1, 0, 1, 2.5, math.nan, math.inf, 1e-300, 1 << 40, "", "yarn", [], [0], [[1]], [-1, 2]):
            for scaled in ({}, {f"{arch}.rope.scaling.type": "yarn", f"{arch}.rope.scaling.factor": 4.0}):
                try:
                    from_meta(META[name] | scaled | {key: value})
                except MoeggError as e:
                    assert len(str(e)) < 600


@pytest.mark.parametrize("changes, error, key", [
    ({"block_count": "x"}, FormatError, "block_count"),
    ({"rope.dimension_count": 32}, UnsupportedModel, "dimension_count"),
    ({"attention.head_count_kv": [3] * 29 + [1]}, UnsupportedModel, "head_count_kv"),
    ({"vocab_size": None}, FormatError, "vocab_size"), ({"attention.value_length": 128}, UnsupportedModel, "value_length")])
def test_gguf_metadata_that_cannot_be_honoured_is_named(changes, error, key):
    with pytest.raises(error, match=key):
        from_gguf("smollm2", **changes)


@pytest.mark.parametrize("key", ["block_count", "embedding_length", "attention.head_count", "attention.head_count_kv", "context_length",
                                 "attention.key_length", "feed_forward_length", "vocab_size"])
@pytest.mark.parametrize("arch", ["qwen3moe", "llama"])
def test_huge_gguf_counts_are_refused_before_anything_loops_over_them(arch, key):
    """3e8 layers took minutes to list."""
    meta = {k.replace("llama.", f"{arch}."): v for k, v in META["smollm2"].items()} | {
        "general.architecture": arch, f"{arch}.expert_count": 0, f"{arch}.expert_used_count": 1,
        f"{arch}.expert_feed_forward_length": 8, f"{arch}.{key}": 2 ** 31 - 1}
    with pytest.raises(MoeggError, match=key):
        registry.find(gguf=arch).gguf_config(meta)


@pytest.mark.parametrize("arch, key", [("llama", "sliding_window"), ("qwen2", "sliding_window"), ("gemma3", "sliding_window")])
def test_a_window_beyond_i32_is_refused(arch, key):
    changes = {"model_type": "mistral"} if arch == "llama" else {"use_sliding_window": True, "max_window_layers": 0}
    describe(arch, tiny.config(arch), **changes, **{key: 2 ** 31 - 1})
    with pytest.raises(FormatError, match=key):
        describe(arch, tiny.config(arch), **changes, **{key: 2 ** 31})


@pytest.mark.parametrize("key, value", [("attn_logit_softcapping", 1e300), ("final_logit_softcapping", 1e39), ("rms_norm_eps", 1e300)])
def test_soft_caps_and_eps_beyond_f32_are_refused_not_nan(key, value):
    with pytest.raises(FormatError, match=key):
        describe("gemma3", tiny.config("gemma3"), **{key: value})


def test_gguf_head_counts_may_be_equal_arrays():
    assert from_gguf("smollm2", **{"attention.head_count_kv": [3] * 30}) == from_gguf("smollm2")


def test_gguf_untied_head_is_seen_by_its_tensor():
    model = from_meta(META["smollm2"] | {"tensor_names": frozenset({"output.weight"})})
    assert model.head.gguf[0].name == "output.weight" and model.embed.gather
