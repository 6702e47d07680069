"""StarCoder2 (text): pre-norm GQA with LayerNorm, biases everywhere, and an MLP without gate.

Source: transformers 5.24 models/starcoder2. GGUF: llama.cpp's architecture "starcoder2", which reads no sliding window.
A sliding window is in every layer.
Not supported: partial_rotary_factor, other norms or MLP types than the released ones, activations other than silu and tanh-gelu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import Chat, ConfigReader, Layer, Mlp, Model, read_rope
from moegg.models._decoder import IGNORED, ROPE_TENSORS, Decoder, gguf_decoder

NAMES = {
    "arch": "starcoder2", "hf": ("Starcoder2ForCausalLM",), "model_type": ("starcoder2",), "gguf": ("starcoder2",),
    "gguf_config_tensors": ROPE_TENSORS, "ignore": IGNORED,
}
CHAT = Chat(("<|endoftext|>",))


def describe(cfg: ConfigReader) -> Model:
    m = Decoder(cfg, "starcoder2", defaults={"num_key_value_heads": 2}, act_default="gelu_pytorch_tanh", eps_key="norm_epsilon",
                eps_default=1e-5, layer_norm=True, norm_bias=True)
    rope = read_rope(cfg, m.head_dim, m.ctx_train)
    window, bias = cfg.int("sliding_window", low=1, default=0), cfg.bool("use_bias", default=True)
    cfg.expect("mlp_type", "default")
    cfg.expect("norm_type", "layer_norm")
    cfg.ignore("embedding_dropout", "residual_dropout", "activation_function", "layer_norm_epsilon")
    layers = [Layer(m.attn_norm(i),
                    m.attention(i, rope, window=window, qkv_bias=bias, o_bias=bias),
                    m.ffn_norm(i), _mlp(m, i, bias))
              for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=True))


def _mlp(m: Decoder, layer: int, bias: bool) -> Mlp:
    up, up_bias = m.linear(layer, "ffn.up", (m.width, m.d), "dense", "mlp.c_fc", "ffn_up", bias)
    down, down_bias = m.linear(layer, "ffn.down", (m.d, m.width), "dense", "mlp.c_proj", "ffn_down", bias)
    return Mlp(None, up, down, m.act, None, up_bias, down_bias)


def tiny() -> dict[str, Any]:
    return {"model_type": "starcoder2", "vocab_size": 509, "hidden_size": 72, "num_hidden_layers": 3, "num_attention_heads": 6,
            "num_key_value_heads": 2, "head_dim": 20, "intermediate_size": 104, "max_position_embeddings": 512, "norm_epsilon": 1e-5,
            "rope_theta": 1e5, "tie_word_embeddings": True}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, _ = gguf_decoder(meta, eps="norm_epsilon")
    return config | {"use_bias": "blk.0.attn_q.bias" in meta["tensor_names"]}
