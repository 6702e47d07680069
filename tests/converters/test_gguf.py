"""moegg.converters.gguf: metadata to config, templates and metadata kept, files that are refused."""
import json

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from moegg.converters.gguf import GGUFSource
from moegg.converters.plan import make_plan
from moegg.converters.policy import RECIPES
from moegg.errors import FormatError, UnsupportedModel

TOKENS = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": ["a", "b", "<|end|>"],
          "tokenizer.ggml.token_type": [1, 1, 3], "tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.eos_token_id": 2}
TOKENS["tokenizer.ggml.tokens"].append("ab")
TOKENS["tokenizer.ggml.token_type"].append(1)


def section(source: GGUFSource, name: str):
    return json.loads(source.sections[name][1])


def test_metadata_becomes_config_and_is_kept_with_its_types(make_gguf):
    path = make_gguf(more={"general.name": "Tiny One", "general.license": "mit", "x.inf": float("inf"),
                           "x.floats": [0.1, float("nan")]})
    s = GGUFSource(path)
    assert s.name == "Tiny One" and s.stem == "m" and s.kind == "gguf" and s.provenance == {"license": "mit"}
    assert s.config["hidden_size"] == 64 and s.config["num_experts"] == 5 and s.config["vocab_size"] == 301
    kept = section(s, "gguf_metadata")
    assert kept["version"] == 3 and kept["alignment"] == 32
    kv = {k: (t, v) for k, t, v in kept["kv"]}
    assert list(kv)[0] == "general.architecture" and kv["general.architecture"] == ("str", "qwen3moe")
    assert kv["qwen3moe.block_count"] == ("u32", 2) and kv["x.inf"] == ("f32", "inf")
    assert kv["x.floats"][0] == "[f32]" and np.float32(kv["x.floats"][1][0]) == np.float32(0.1) and kv["x.floats"][1][1] == "nan"


def test_tokenizer_templates_and_end_tokens_come_from_metadata(make_gguf):
    more = TOKENS | {"tokenizer.chat_template": "T ü", "tokenizer.chat_template.tool_use": "U", "general.sampling.temp": 0.5}
    s = GGUFSource(make_gguf(more=more))
    assert section(s, "chat_template") == {"default": "T ü", "tool_use": "U"}
    assert "chat_template" not in section(s, "tokenizer_config")
    assert section(s, "tokenizer")["model"]["vocab"]["ab"] == 3 and not s.warnings
    assert section(s, "generation_config") == {"eos_token_id": [2], "temperature": 0.5}


def test_a_file_without_tokenizer_converts_with_a_warning(make_gguf):
    """F15."""
    s = GGUFSource(make_gguf())
    assert "tokenizer" not in s.sections and len(s.warnings) == 1 and "tokenizer" in s.warnings[0]


def test_an_output_matrix_means_untied(make_gguf, dense):
    assert GGUFSource(make_gguf(dense, name="tied.gguf")).config["tie_word_embeddings"] is True
    untied = dense | {"tie_word_embeddings": False}
    assert GGUFSource(make_gguf(untied, name="untied.gguf")).config["tie_word_embeddings"] is False


def test_rope_factors_in_a_tensor_reach_the_frequencies(make_gguf, dense):
    """llama.cpp stores Llama 3's rope scaling as a vector of divisors only; dropping it gives text that rots with length."""
    factors = np.linspace(1, 8, 8, dtype="f4")
    tensors = {"rope_freqs.weight": (factors, GGMLQuantizationType.F32)}
    plain = make_plan(GGUFSource(make_gguf(dense, name="a.gguf")), RECIPES["keep"]).model.layers[0].attn.rope.regimes()
    plan = make_plan(GGUFSource(make_gguf(dense, name="b.gguf", tensors=tensors)), RECIPES["keep"])
    got = plan.model.layers[0].attn.rope.regimes()
    assert plan.ignored == {"rope_freqs.weight": 1}
    np.testing.assert_allclose(got[-1][1], np.array(plain[-1][1]) / factors, rtol=1e-6)


def test_what_is_no_model_is_refused(make_gguf):
    with pytest.raises(UnsupportedModel, match=r"holds a 'adapter'.*\[gguf-kind\]"):
        GGUFSource(make_gguf(more={"general.type": "adapter"}))


def test_a_type_without_a_kernel_is_named(make_gguf):
    def to_q8_k(tensors):
        del tensors["blk.1.attn_q.weight"]
    rows = np.zeros((128, 292), np.uint8)
    path = make_gguf(edit=to_q8_k, tensors={"blk.1.attn_q.weight": (rows, GGMLQuantizationType.Q8_K)})
    with pytest.raises(UnsupportedModel, match=r"blk.1.attn_q.weight.*q8_k \(1 tensor\)"):
        make_plan(GGUFSource(path), RECIPES["keep"])


def test_a_key_that_the_architecture_needs_is_named_when_missing(make_gguf, dense):
    config = dict(dense)
    del config["rms_norm_eps"]
    with pytest.raises(FormatError, match="layer_norm_rms_epsilon"):
        GGUFSource(make_gguf(config, values=None))
