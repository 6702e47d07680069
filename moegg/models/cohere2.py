"""Command R7B and Command A (cohere2, text): attention and MLP read the same norm side by side; LayerNorm without bias.

Source: transformers 5.24 models/cohere2. GGUF: llama.cpp's architecture "cohere2". Layers with a window have rope in pairs (2i, 2i+1),
full ones have none; logits are multiplied by logit_scale.
Not supported: q and k norms, separate norms for attention and MLP, partial rope, activations other than silu and tanh-gelu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import Chat, ConfigReader, Layer, Model, read_rope
from moegg.models._decoder import IGNORED, ROPE_TENSORS, Decoder, gguf_decoder

NAMES = {
    "arch": "cohere2", "hf": ("Cohere2ForCausalLM",), "model_type": ("cohere2",), "gguf": ("cohere2",),
    "gguf_config_tensors": ROPE_TENSORS, "ignore": IGNORED,
}
CHAT = Chat(("<|END_OF_TURN_TOKEN|>",), "marked", ("<|START_THINKING|>", "<|END_THINKING|>"), ("<|START_RESPONSE|>", "<|END_RESPONSE|>"))


def describe(cfg: ConfigReader) -> Model:
    m = Decoder(cfg, "cohere2", eps_key="layer_norm_eps", eps_default=1e-5, layer_norm=True)
    rope = read_rope(cfg, m.head_dim, m.ctx_train, interleaved=True)
    pattern = cfg.int("sliding_window_pattern", "layer_switch", low=1, default=4)
    window = cfg.int("sliding_window", low=1, default=0 if cfg.given("sliding_window") else 4096)
    windows = m.windows(window, ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(m.n_layer)])
    bias = cfg.bool("attention_bias", default=False)
    for key, value in (("use_qk_norm", False), ("use_parallel_block", True), ("use_gated_activation", True), ("rotary_pct", 1.0),
                       ("position_embedding_type", "rope_gptj"), ("order_of_interleaved_layers", "local_attn_first")):
        cfg.expect(key, value)
    cfg.ignore("use_embedding_sharing", "use_parallel_embedding")
    layers = [Layer(m.attn_norm(i),
                    m.attention(i, rope if windows[i] else None, window=windows[i], qkv_bias=bias, o_bias=bias), None, m.mlp(i), parallel=True)
              for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=True), logit_scale=cfg.float("logit_scale", default=0.0625))


def tiny() -> dict[str, Any]:
    return {"model_type": "cohere2", "vocab_size": 509, "hidden_size": 72, "num_hidden_layers": 4, "num_attention_heads": 6,
            "num_key_value_heads": 2, "head_dim": 20, "intermediate_size": 104, "max_position_embeddings": 512, "layer_norm_eps": 1e-5,
            "rope_theta": 5e4, "logit_scale": 0.5, "sliding_window": 11, "sliding_window_pattern": 4}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_decoder(meta, eps="layer_norm_eps")
    return config | {"sliding_window": g.int("attention.sliding_window", low=1), "sliding_window_pattern": 4,
                     "logit_scale": g.float("logit_scale"), "attention_bias": "blk.0.attn_q.bias" in meta["tensor_names"]}


def gguf_keys(model: Model) -> dict[str, Any]:
    return {"logit_scale": model.logit_scale}
