"""DeepSeek V2 and V3 (V3.1, R1, Kimi-K2, Moonlight) and GLM-4.7-Flash: latent attention, experts with shared ones, dense first layers.

Source: transformers 5.24 models/deepseek_v2, deepseek_v3, glm4_moe_lite. GGUF: llama.cpp's architecture "deepseek2", which all of them share.
V2 routes by softmax, V3 and GLM by sigmoid with a bias for the choice. V2's reference ignores norm_topk_prob, so true is refused there.
Layers for multi-token prediction are left out. Not supported: moe_layer_freq other than 1, activations other than silu and tanh-gelu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import Chat, ConfigReader, Layer, Model, read_rope
from moegg.models._chat import KIMI, THINK
from moegg.models._decoder import IGNORED, ROPE_TENSORS
from moegg.models._mla import Latent, gguf_latent, gguf_yarn_config, gguf_yarn_keys
from moegg.models._moe import MoeDecoder, gguf_deepseek_moe, gguf_norm_keys

NAMES = {"arch": "deepseek", "hf": ("DeepseekV3ForCausalLM", "DeepseekV2ForCausalLM", "Glm4MoeLiteForCausalLM"),
         "model_type": ("deepseek_v3", "deepseek_v2", "glm4_moe_lite", "kimi_k2"), "gguf": ("deepseek2",),
         "gguf_config_tensors": ROPE_TENSORS, "ignore": (*IGNORED, "model.layers.{n}.*")}
CHAT = (KIMI, Chat(("<|user|>", "<|observation|>", "<|endoftext|>"), reasoning=THINK, marks=("<|observation|>",)),
        Chat(("<｜end▁of▁sentence｜>",), "deepseek", THINK))
_GLM = {"num_key_value_heads": 20, "rms_norm_eps": 1e-5, "head_dim": 64}


def describe(cfg: ConfigReader) -> Model:
    kind = cfg.str("model_type", default="deepseek_v3")
    v2, glm = kind == "deepseek_v2", kind == "glm4_moe_lite"
    m = MoeDecoder(cfg, "deepseek", defaults=_GLM if glm else {"head_dim": 64})     # head_dim: of rotated keys, which Latent reads
    if m.n_kv_head != m.n_head:
        raise cfg.refuse("num_key_value_heads", f"latent attention has as many as query heads, {m.n_head}")
    latent = Latent(m, q_rank=768 if glm else 1536)
    rope = read_rope(cfg, latent.rope_dim, m.ctx_train, interleaved=cfg.bool("rope_interleave", default=True))
    ffn = _softmax_moe(cfg, m) if v2 else _sigmoid_moe(cfg, m, glm)
    cfg.expect("mlp_bias", False)
    layers = [Layer(m.attn_norm(i), latent.attention(i, rope),
                    m.ffn_norm(i), ffn(i))
              for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=False))


def _softmax_moe(cfg: ConfigReader, m: MoeDecoder):
    cfg.expect("scoring_func", "softmax")
    cfg.expect("norm_topk_prob", False)
    return m.deepseek_moe(softmax=True, grouped=cfg.expect("topk_method", "greedy", "group_limited_greedy") != "greedy")


def _sigmoid_moe(cfg: ConfigReader, m: MoeDecoder, glm: bool):
    cfg.expect("scoring_func", "sigmoid")
    cfg.expect("topk_method", "noaux_tc")
    if glm:
        cfg.expect("first_k_dense_replace", 1)
        if cfg.list("mlp_layer_types", of=(str,), default=["dense"])[1:] not in ([], ["sparse"] * (m.n_layer - 1)):
            raise cfg.refuse("mlp_layer_types", "supported: one dense layer, then sparse ones")
    return m.deepseek_moe(dense=1 if glm else 3)


def tiny() -> dict[str, Any]:
    return {"model_type": "deepseek_v3", "vocab_size": 509, "hidden_size": 60, "num_hidden_layers": 3, "num_attention_heads": 5,
            "num_key_value_heads": 5, "q_lora_rank": 22, "kv_lora_rank": 32, "qk_nope_head_dim": 18, "qk_rope_head_dim": 10,
            "v_head_dim": 16, "intermediate_size": 104, "moe_intermediate_size": 36, "n_routed_experts": 8, "num_experts_per_tok": 3,
            "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2, "norm_topk_prob": True,
            "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "max_position_embeddings": 512,
            "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": False, "rope_scaling": {
                "type": "yarn", "factor": 8.0, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 64}}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_latent(meta)
    sigmoid = g.expect("expert_gating_func", 0, 1, 2) == 2
    kind = {"model_type": "deepseek_v3"} if sigmoid else {"model_type": "deepseek_v2", "topk_method": "group_limited_greedy"}
    return gguf_yarn_config(config, g) | gguf_deepseek_moe(meta, g) | kind


def gguf_keys(model: Model) -> dict[str, Any]:
    return gguf_norm_keys(model) | gguf_yarn_keys(model)
