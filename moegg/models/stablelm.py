"""StableLM 3B and 2 (text): pre-norm GQA with LayerNorm, rope over a quarter of each head, gated MLP.

Source: transformers 5.24 models/stablelm. GGUF: llama.cpp's architecture "stablelm". With use_parallel_residual the MLP reads what
attention read.
Not supported: qk_layernorm (StableLM 2 12B), activations other than silu and tanh-gelu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import Chat, ConfigReader, Layer, Model, read_rope
from moegg.models._chat import CHATML
from moegg.models._decoder import IGNORED, ROPE_TENSORS, Decoder, gguf_decoder

NAMES = {
    "arch": "stablelm", "hf": ("StableLmForCausalLM",), "model_type": ("stablelm",), "gguf": ("stablelm",),
    "gguf_config_tensors": ROPE_TENSORS, "ignore": IGNORED,
}
CHAT = (CHATML, Chat(("<|endoftext|>",)))


def describe(cfg: ConfigReader) -> Model:
    m = Decoder(cfg, "stablelm", eps_key="layer_norm_eps", eps_default=1e-5, layer_norm=True, norm_bias=True)
    rope = read_rope(cfg, m.head_dim, m.ctx_train, partial=0.25)
    bias, parallel = cfg.bool("use_qkv_bias", default=False), cfg.bool("use_parallel_residual", default=False)
    cfg.expect("qk_layernorm", False)
    cfg.ignore("hidden_dropout")
    layers = [Layer(m.attn_norm(i), m.attention(i, rope, qkv_bias=bias),
                    None if parallel else m.ffn_norm(i), m.mlp(i), parallel=parallel)
              for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=False))


def tiny() -> dict[str, Any]:
    return {"model_type": "stablelm", "vocab_size": 509, "hidden_size": 72, "num_hidden_layers": 3, "num_attention_heads": 6,
            "num_key_value_heads": 2, "head_dim": 20, "intermediate_size": 104, "max_position_embeddings": 512, "layer_norm_eps": 1e-5,
            "rope_theta": 1e4, "partial_rotary_factor": 0.4, "use_qkv_bias": True, "tie_word_embeddings": False}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_decoder(meta, partial=True, eps="layer_norm_eps")
    names = meta["tensor_names"]
    if "blk.0.attn_q_norm.weight" in names:
        raise g.refuse("attention.layer_norm_epsilon", "q and k norms (tensor 'blk.0.attn_q_norm.weight') are not supported")
    g.ignore("use_parallel_residual")
    return config | {"use_qkv_bias": "blk.0.attn_q.bias" in names, "use_parallel_residual": "blk.0.ffn_norm.weight" not in names}


def gguf_keys(model: Model) -> dict[str, Any]:
    return {"use_parallel_residual": model.layers[0].parallel}
