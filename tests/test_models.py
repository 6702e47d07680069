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
from moegg.arch import ConfigReader, Gqa, Mla, Mlp, Moe
from moegg.errors import FormatError, MoeggError, UnsupportedModel
from tests import tiny

ARCHS = registry.names()
ROLES = {"embed", "norm", "attn", "dense", "shared", "router", "head", "bias", "aux"}


def describe(arch, config, **changes):
    return registry.find(arch=arch).describe(ConfigReader(config | changes))


# --- form ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHS)
def test_a_module_defines_its_names_and_says_what_it_does_not_support(arch):
    """NAMES, CHAT, describe, tiny, gguf_config; a docstring with Source and Not supported; nothing else is public."""
    tree = ast.parse(inspect.getsource(registry.find(arch=arch)))
    names = [n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
    names += [t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets]
    assert {n for n in names if not n.startswith("_")} <= {"NAMES", "CHAT", "describe", "tiny", "gguf_config"}
    assert {"NAMES", "CHAT", "describe", "tiny"} <= set(names)
    assert "Source:" in ast.get_docstring(tree) and "Not supported:" in ast.get_docstring(tree)


@pytest.mark.parametrize("arch", [a for a in ARCHS if a != "maple"])        # which refuses both changes
def test_the_canonical_config_gives_the_same_model(arch):
    for changes in ({}, {"rope_scaling": {"type": "linear", "factor": 2.0}}, {"tie_word_embeddings": True}):
        if "rope_scaling" in changes and arch in ("gemma4", "bailing-hybrid"):     # has rope_parameters alone; refuses it
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
    assert model.vocab % 16 and len(model.layers) in (3, 4) and head * attn.n_head != model.d or arch == "qwen2"
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


# --- released configs ---------------------------------------------------------------------------------------------------

COMMON = {"bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "initializer_range": 0.02, "use_cache": True,
          "attention_dropout": 0.0, "torch_dtype": "bfloat16", "transformers_version": "4.51.0"}
QWEN = COMMON | {"vocab_size": 151936, "rms_norm_eps": 1e-6, "rope_theta": 1000000, "use_sliding_window": False}
RELEASED = {  # name: (arch, keys that matter, parameters as published)
    "Qwen3-30B-A3B": ("qwen3-moe", QWEN | {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "attention_bias": False, "decoder_sparse_step": 1,
        "head_dim": 128, "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960,
        "max_window_layers": 48, "mlp_only_layers": [], "moe_intermediate_size": 768, "norm_topk_prob": True,
        "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
        "num_key_value_heads": 4, "output_router_logits": False, "rope_scaling": None, "router_aux_loss_coef": 0.001,
        "sliding_window": None, "tie_word_embeddings": False}, 30532122624),
    "Mixtral-8x7B-v0.1": ("mixtral", COMMON | {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336,
        "max_position_embeddings": 32768, "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": False, "rms_norm_eps": 1e-5,
        "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02, "sliding_window": None, "tie_word_embeddings": False,
        "vocab_size": 32000}, 46702792704),
    "Qwen1.5-MoE-A2.7B": ("qwen2-moe", QWEN | {
        "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "decoder_sparse_step": 1, "hidden_size": 2048,
        "intermediate_size": 5632, "max_position_embeddings": 8192, "max_window_layers": 21, "moe_intermediate_size": 1408,
        "norm_topk_prob": False, "num_attention_heads": 16, "num_experts": 60, "num_experts_per_tok": 4, "num_hidden_layers": 24,
        "num_key_value_heads": 16, "output_router_logits": False, "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": 5632, "sliding_window": 32768, "tie_word_embeddings": False}, 14315784192),
    "ERNIE-4.5-21B-A3B-PT": ("ernie4-5-moe", {
        "architectures": ["Ernie4_5_MoeForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "hidden_act": "silu",
        "hidden_size": 2560, "initializer_range": 0.02, "intermediate_size": 12288, "max_position_embeddings": 131072,
        "model_type": "ernie4_5_moe", "moe_capacity": [64, 64, 64], "moe_gate": "topk", "moe_intermediate_size": 1536, "moe_k": 6,
        "moe_layer_interval": 1, "moe_layer_start_index": 1, "moe_num_experts": 64, "moe_num_shared_experts": 2,
        "moe_use_aux_free": True, "num_attention_heads": 20, "num_hidden_layers": 28, "num_key_value_heads": 4,
        "num_nextn_predict_layers": 1, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": True,
        "torch_dtype": "bfloat16", "use_bias": False, "use_cache": False, "vocab_size": 103424}, 21825437888),
    "OLMoE-1B-7B-0924": ("olmoe", COMMON | {
        "architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "attention_bias": False, "clip_qkv": None, "hidden_size": 2048,
        "intermediate_size": 1024, "max_position_embeddings": 4096, "norm_topk_prob": False, "num_attention_heads": 16,
        "num_experts": 64, "num_experts_per_tok": 8, "num_hidden_layers": 16, "num_key_value_heads": 16,
        "output_router_logits": False, "rms_norm_eps": 1e-5, "rope_scaling": None, "rope_theta": 10000.0,
        "router_aux_loss_coef": 0.01, "tie_word_embeddings": False, "vocab_size": 50304}, 6919161856),
    "Phi-3.5-MoE-instruct": ("phimoe", COMMON | {
        "architectures": ["PhiMoEForCausalLM"], "model_type": "phimoe", "attention_bias": True, "hidden_size": 4096,
        "input_jitter_noise": 0.01, "intermediate_size": 6400, "lm_head_bias": True, "max_position_embeddings": 131072,
        "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "num_local_experts": 16, "original_max_position_embeddings": 4096, "output_router_logits": False, "rms_norm_eps": 1e-5,
        "rope_scaling": {"long_factor": [1.5] * 64, "long_mscale": 1.243163121016122, "short_factor": [1.0] * 64,
                         "original_max_position_embeddings": 4096, "short_mscale": 1.243163121016122, "type": "longrope"},
        "rope_theta": 10000.0, "router_aux_loss_coef": 0.0, "router_jitter_noise": 0.01, "sliding_window": 131072,
        "tie_word_embeddings": False, "vocab_size": 32064}, 41873153344),
    "DeepSeek-V3": ("deepseek", COMMON | {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "attention_bias": False, "aux_loss_alpha": 0.001,
        "ep_size": 1, "first_k_dense_replace": 3, "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512,
        "max_position_embeddings": 163840, "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256,
        "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
        "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "pretraining_tp": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "rms_norm_eps": 1e-6, "rope_scaling": {
            "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096, "type": "yarn"},
        "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "seq_aux": True, "tie_word_embeddings": False,
        "topk_group": 4, "topk_method": "noaux_tc", "v_head_dim": 128, "vocab_size": 129280}, 671026419200),
    "DeepSeek-V2-Lite": ("deepseek", COMMON | {
        "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "attention_bias": False, "aux_loss_alpha": 0.001,
        "first_k_dense_replace": 1, "hidden_size": 2048, "intermediate_size": 10944, "kv_lora_rank": 512,
        "max_position_embeddings": 163840, "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64,
        "n_shared_experts": 2, "norm_topk_prob": False, "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27,
        "num_key_value_heads": 16, "pretraining_tp": 1, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-6, "rope_scaling": {
            "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
            "original_max_position_embeddings": 4096, "type": "yarn"},
        "rope_theta": 10000, "routed_scaling_factor": 1.0, "scoring_func": "softmax", "seq_aux": True, "tie_word_embeddings": False,
        "topk_group": 1, "topk_method": "greedy", "v_head_dim": 128, "vocab_size": 102400}, 15706484224),
    "dots.llm1.inst": ("dots1", COMMON | {
        "architectures": ["Dots1ForCausalLM"], "model_type": "dots1", "attention_bias": False, "first_k_dense_replace": 1,
        "head_dim": 128, "hidden_size": 4096, "intermediate_size": 10944, "max_position_embeddings": 32768,
        "max_window_layers": 62, "moe_intermediate_size": 1408, "n_group": 1, "n_routed_experts": 128, "n_shared_experts": 2,
        "norm_topk_prob": True, "num_attention_heads": 32, "num_experts_per_tok": 6, "num_hidden_layers": 62,
        "num_key_value_heads": 32, "pretraining_tp": 1, "rms_norm_eps": 1e-5, "rope_scaling": None, "rope_theta": 10000000,
        "routed_scaling_factor": 2.5, "scoring_func": "noaux_tc", "sliding_window": None, "tie_word_embeddings": False,
        "topk_group": 1, "topk_method": "noaux_tc", "vocab_size": 152064}, 142774381696),
    "Qwen3-0.6B": ("qwen3", QWEN | {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False, "head_dim": 128,
        "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
        "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rope_scaling": None,
        "sliding_window": None,
        "tie_word_embeddings": True}, 596049920),
    "Qwen2.5-0.5B-Instruct": ("qwen2", QWEN | {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864,
        "max_position_embeddings": 32768, "max_window_layers": 21, "num_attention_heads": 14, "num_hidden_layers": 24,
        "num_key_value_heads": 2, "sliding_window": 32768, "tie_word_embeddings": True}, 494032768),
    "Llama-3.2-1B": ("llama", COMMON | {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "head_dim": 64,
        "hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": False,
        "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8, "pretraining_tp": 1,
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "rope_type": "llama3",
                         "original_max_position_embeddings": 8192},
        "tie_word_embeddings": True, "vocab_size": 128256}, 1235814400),
    "SmolLM2-135M": ("llama", COMMON | {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "hidden_size": 576,
        "intermediate_size": 1536, "is_llama_config": True, "max_position_embeddings": 8192, "mlp_bias": False,
        "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3, "pretraining_tp": 1, "rms_norm_eps": 1e-5,
        "rope_interleaved": False, "rope_scaling": None, "rope_theta": 100000, "tie_word_embeddings": True,
        "vocab_size": 49152}, 134515008),
    "Mistral-7B-v0.1": ("llama", COMMON | {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336,
        "max_position_embeddings": 32768, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": False,
        "vocab_size": 32000}, 7241732096),
    "Phi-4-mini-instruct": ("phi3", COMMON | {
        "architectures": ["Phi3ForCausalLM"], "auto_map": {}, "attention_bias": False, "embd_pdrop": 0.0, "full_attn_mod": 1,
        "hidden_size": 3072, "intermediate_size": 8192, "interpolate_factor": 1, "lm_head_bias": False,
        "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "phi3", "num_attention_heads": 24,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "original_max_position_embeddings": 4096, "pad_token_id": 199999,
        "partial_rotary_factor": 0.75, "resid_pdrop": 0.0, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [1.0 + i for i in range(48)]},
        "sliding_window": 262144, "tie_word_embeddings": True, "vocab_size": 200064}, 3836021760),
    "gemma-2-2b-it": ("gemma2", COMMON | {
        "architectures": ["Gemma2ForCausalLM"], "attention_bias": False, "attn_logit_softcapping": 50.0,
        "cache_implementation": "hybrid", "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "intermediate_size": 9216, "max_position_embeddings": 8192,
        "model_type": "gemma2", "num_attention_heads": 8, "num_hidden_layers": 26, "num_key_value_heads": 4, "pad_token_id": 0,
        "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "sliding_window": 4096, "vocab_size": 256000},
        2614341888),
    "GLM-4-9B-0414": ("glm", COMMON | {
        "architectures": ["Glm4ForCausalLM"], "attention_bias": True, "head_dim": 128, "hidden_size": 4096,
        "intermediate_size": 13696, "max_position_embeddings": 32768, "model_type": "glm4", "num_attention_heads": 32,
        "num_hidden_layers": 40, "num_key_value_heads": 2, "pad_token_id": 151329, "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "vocab_size": 151552}, 9400279040),
    "OLMo-2-1124-7B": ("olmo2", COMMON | {
        "architectures": ["Olmo2ForCausalLM"], "attention_bias": False, "hidden_size": 4096, "intermediate_size": 11008,
        "max_position_embeddings": 4096, "model_type": "olmo2", "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 32, "pad_token_id": 100277, "rms_norm_eps": 1e-6, "rope_scaling": None, "rope_theta": 500000,
        "tie_word_embeddings": False, "vocab_size": 100352}, 7298617344),
    "SmolLM3-3B": ("smollm3", COMMON | {
        "architectures": ["SmolLM3ForCausalLM"], "attention_bias": False, "hidden_size": 2048, "intermediate_size": 11008,
        "layer_types": ["full_attention"] * 36, "max_position_embeddings": 65536, "max_window_layers": 28, "mlp_bias": False,
        "model_type": "smollm3", "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0] * 9, "num_attention_heads": 16,
        "num_hidden_layers": 36, "num_key_value_heads": 4, "pad_token_id": 128004, "pretraining_tp": 2, "rms_norm_eps": 1e-6,
        "rope_scaling": None, "rope_theta": 5000000.0, "sliding_window": None, "tie_word_embeddings": True,
        "use_sliding_window": False, "vocab_size": 128256}, 3075098624),
    "granite-3.3-2b-instruct": ("granite", COMMON | {
        "architectures": ["GraniteForCausalLM"], "attention_bias": False, "attention_multiplier": 0.015625,
        "embedding_multiplier": 12.0, "hidden_size": 2048, "intermediate_size": 8192, "logits_scaling": 8.0,
        "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "granite", "num_attention_heads": 32,
        "num_hidden_layers": 40, "num_key_value_heads": 8, "pad_token_id": 0, "residual_multiplier": 0.22, "rms_norm_eps": 1e-5,
        "rope_scaling": None, "rope_theta": 10000000.0, "tie_word_embeddings": True, "vocab_size": 49159}, 2533539840),
    "c4ai-command-r7b-12-2024": ("cohere2", COMMON | {
        "architectures": ["Cohere2ForCausalLM"], "attention_bias": False, "cache_implementation": "hybrid", "head_dim": 128,
        "hidden_size": 4096, "intermediate_size": 14336, "layer_norm_eps": 1e-5, "layer_switch": 4, "logit_scale": 0.25,
        "max_position_embeddings": 8192, "model_type": "cohere2", "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "order_of_interleaved_layers": "local_attn_first", "pad_token_id": 0,
        "position_embedding_type": "rope_gptj", "rope_scaling": None, "rope_theta": 50000, "rotary_pct": 1.0,
        "sliding_window": 4096, "sliding_window_pattern": 4, "use_embedding_sharing": True, "use_gated_activation": True,
        "use_parallel_block": True, "use_parallel_embedding": True, "vocab_size": 256000}, 8028033024),
    "starcoder2-3b": ("starcoder2", COMMON | {
        "architectures": ["Starcoder2ForCausalLM"], "activation_function": "gelu", "embedding_dropout": 0.1,
        "hidden_act": "gelu_pytorch_tanh", "hidden_size": 3072, "initializer_range": 0.018042, "intermediate_size": 12288,
        "layer_norm_epsilon": 1e-5, "max_position_embeddings": 16384, "mlp_type": "default", "model_type": "starcoder2",
        "norm_epsilon": 1e-5, "norm_type": "layer_norm", "num_attention_heads": 24, "num_hidden_layers": 30,
        "num_key_value_heads": 2, "residual_dropout": 0.1, "rope_theta": 999999.4420358813, "sliding_window": 4096,
        "use_bias": True, "vocab_size": 49152}, 3030371328),
    "stablelm-2-1_6b": ("stablelm", COMMON | {
        "architectures": ["StableLmForCausalLM"], "hidden_size": 2048, "intermediate_size": 5632, "layer_norm_eps": 1e-5,
        "max_position_embeddings": 4096, "model_type": "stablelm", "num_attention_heads": 32, "num_hidden_layers": 24,
        "num_key_value_heads": 32, "partial_rotary_factor": 0.25, "rope_theta": 10000, "tie_word_embeddings": False,
        "use_qkv_bias": True, "vocab_size": 100352}, 1644515328),
    "gpt-oss-20b": ("gpt-oss", COMMON | {
        "architectures": ["GptOssForCausalLM"], "attention_bias": True, "experts_per_token": 4, "head_dim": 64, "hidden_size": 2880,
        "initial_context_length": 4096, "intermediate_size": 2880, "layer_types": ["sliding_attention", "full_attention"] * 12,
        "max_position_embeddings": 131072, "model_type": "gpt_oss", "num_attention_heads": 64, "num_experts_per_tok": 4,
        "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": False,
        "pad_token_id": 199999, "quantization_config": {"quant_method": "mxfp4"}, "rms_norm_eps": 1e-5,
        "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
                         "rope_type": "yarn", "truncate": False},
        "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": False,
        "vocab_size": 201088}, 20914757184),
    "gemma-3-270m": ("gemma3", {
        "_sliding_window_pattern": 6, "architectures": ["Gemma3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "attn_logit_softcapping": None, "bos_token_id": 2, "eos_token_id": 1, "final_logit_softcapping": None, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 640, "initializer_range": 0.02, "intermediate_size": 2048,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3, "max_position_embeddings": 32768,
        "model_type": "gemma3_text", "num_attention_heads": 4, "num_hidden_layers": 18, "num_key_value_heads": 1,
        "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-6, "rope_local_base_freq": 10000.0,
        "rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": 512, "torch_dtype": "bfloat16",
        "transformers_version": "4.55.0",
        "use_bidirectional_attention": False, "use_cache": True, "vocab_size": 262144}, 268098176),
    "gemma-3-1b-it": ("gemma3", {
        "architectures": ["Gemma3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "attn_logit_softcapping": None,
        "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": [1, 106], "final_logit_softcapping": None,
        "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "initializer_range": 0.02,
        "intermediate_size": 6912, "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4,
        "num_hidden_layers": 26, "num_key_value_heads": 1, "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-6,
        "rope_local_base_freq": 10000, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": 512,
        "sliding_window_pattern": 6, "torch_dtype": "bfloat16", "transformers_version": "4.50.0", "use_cache": True,
        "vocab_size": 262144}, 999885952),
    "gemma-3-4b-it": ("gemma3", {       # a nested config leaves out what equals the class default
        "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999, "eoi_token_index": 256000,
        "eos_token_id": [1, 106], "image_token_index": 262144, "initializer_range": 0.02, "mm_tokens_per_image": 256,
        "model_type": "gemma3", "text_config": {
            "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024},
        "torch_dtype": "bfloat16", "transformers_version": "4.50.0", "vision_config": {"hidden_size": 1152}},
        4300079472 - 416866032 - 2950272),      # all, less vision tower and projector
}


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
    assert [(a.chunk, a.rope is None, a.temperature) for a in (x.attn for x in model.layers)] == [(12, False, None)] * 3 + [(0, True, (0.1, 8))]
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
                                                 "lfm2-moe", "ernie4-5-moe"))
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


ONE_ACT = {"bailing-hybrid", "kimi-linear", "lfm2", "lfm2-moe", "jamba", "maple", "minimax", "qwen3-next", "qwen3-5-moe", "qwen4-exp",
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


# --- documents ----------------------------------------------------------------------------------------------------------


def test_the_readme_beside_the_modules_explains_every_key_of_names():
    folder = Path(importlib.import_module("moegg.models").__path__[0])
    text = (folder / "README.md").read_text(encoding="utf-8")
    keys = {k for arch in ARCHS for k in registry.find(arch=arch).NAMES}
    assert [k for k in sorted(keys) if f'"{k}"' not in text] == []
