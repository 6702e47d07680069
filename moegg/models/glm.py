"""GLM-4 (text, dense): GQA with biases on q, k and v, rope over part of each head in pairs (2i, 2i+1), gate and up in one tensor.

Source: transformers 5.24 models/glm and models/glm4; the latter (GLM-4-0414) has norms after attention and MLP too.
GGUF: llama.cpp's architectures "chatglm" and "glm4", which keep the fused gate and up.
Not supported: the older remote-code layout with fused q, k, v (ChatGLMModel), images, activations other than silu and tanh-gelu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import Chat, ConfigReader, Layer, Model, read_rope
from moegg.models._decoder import IGNORED, ROPE_TENSORS, Decoder, gguf_decoder

NAMES = {
    "arch": "glm", "hf": ("GlmForCausalLM", "Glm4ForCausalLM"), "model_type": ("glm", "glm4"), "gguf": ("chatglm", "glm4"),
    "gguf_config_tensors": ROPE_TENSORS, "ignore": IGNORED,
}
CHAT = Chat(("<|user|>", "<|observation|>", "<|endoftext|>"), "glm4")


def describe(cfg: ConfigReader) -> Model:
    sandwich = cfg.str("model_type", default="glm") == "glm4"
    m = Decoder(cfg, "glm", defaults={"head_dim": 128}, eps_default=1e-5 if sandwich else 1.5625e-7)
    rope = read_rope(cfg, m.head_dim, m.ctx_train, interleaved=True, partial=0.5)
    bias = cfg.bool("attention_bias", default=sandwich is False)
    layers = [Layer(m.attn_norm(i), m.attention(i, rope, qkv_bias=bias),
                    m.ffn_norm(i), m.mlp(i, fused=True),
                    m.norm(i, "attn_post_norm", "post_self_attn_layernorm", "post_attention_norm") if sandwich else None,
                    m.norm(i, "ffn_post_norm", "post_mlp_layernorm", "post_ffw_norm") if sandwich else None)
              for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=False))


def tiny() -> dict[str, Any]:
    return {"model_type": "glm4", "vocab_size": 509, "hidden_size": 72, "num_hidden_layers": 3, "num_attention_heads": 6,
            "num_key_value_heads": 2, "head_dim": 20, "intermediate_size": 104, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
            "rope_theta": 1e4, "partial_rotary_factor": 0.5, "attention_bias": True, "tie_word_embeddings": False}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, _ = gguf_decoder(meta, partial=True)
    return config | {"model_type": "glm4" if meta["general.architecture"] == "glm4" else "glm",
                     "attention_bias": "blk.0.attn_q.bias" in meta["tensor_names"]}
