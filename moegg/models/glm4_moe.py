"""GLM-4.5, 4.6 and 4.7: biases on q, k and v, rope over half of each head, DeepSeek-V3's router, a shared expert, dense first layers.

Source: transformers 5.24 models/glm4_moe; norms of q and k heads with use_qk_norm. GGUF: llama.cpp's architecture "glm4moe".
Layers for multi-token prediction are left out. Not supported: images, activations other than silu and tanh-gelu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import Chat, ConfigReader, Layer, Model, read_rope
from moegg.models._chat import THINK
from moegg.models._decoder import IGNORED, ROPE_TENSORS, gguf_decoder
from moegg.models._moe import MoeDecoder, gguf_deepseek_moe, gguf_norm_keys

NAMES = {"arch": "glm4-moe", "hf": ("Glm4MoeForCausalLM",), "model_type": ("glm4_moe",), "gguf": ("glm4moe",),
         "gguf_config_tensors": ROPE_TENSORS, "ignore": (*IGNORED, "model.layers.{n}.*", "blk.{n}.*")}
CHAT = Chat(("<|user|>", "<|observation|>", "<|endoftext|>"), reasoning=THINK)


def describe(cfg: ConfigReader) -> Model:
    m = MoeDecoder(cfg, "glm4-moe", defaults={"num_key_value_heads": 8}, eps_default=1e-5)
    rope, bias = read_rope(cfg, m.head_dim, m.ctx_train, partial=0.5), cfg.bool("attention_bias", default=False)
    qk_norm, ffn = cfg.bool("use_qk_norm", default=False), m.deepseek_moe(dense=1)
    cfg.expect("scoring_func", "sigmoid")
    cfg.expect("topk_method", "noaux_tc")
    layers = [Layer(m.attn_norm(i), m.attention(i, rope, qkv_bias=bias, qk_norm=qk_norm),
                    m.ffn_norm(i, "post_attention_norm"), ffn(i))
              for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=False))


def tiny() -> dict[str, Any]:
    return {"model_type": "glm4_moe", "vocab_size": 509, "hidden_size": 60, "num_hidden_layers": 3, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 20, "partial_rotary_factor": 0.5, "attention_bias": True, "use_qk_norm": True,
            "intermediate_size": 104, "moe_intermediate_size": 36, "n_routed_experts": 7, "num_experts_per_tok": 3, "n_shared_experts": 1,
            "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
            "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": False}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_decoder(meta, partial=True)
    names, extra = meta["tensor_names"], g.int("nextn_predict_layers", default=0)
    g.expect("expert_gating_func", 2)
    return config | gguf_deepseek_moe(meta, g) | {
        "num_hidden_layers": max(1, config["num_hidden_layers"] - extra), "attention_bias": "blk.0.attn_q.bias" in names,
        "use_qk_norm": "blk.0.attn_q_norm.weight" in names}


def gguf_keys(model: Model) -> dict[str, Any]:
    return gguf_norm_keys(model)
