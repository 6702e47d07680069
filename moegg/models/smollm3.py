"""SmolLM3 (text, dense): Llama with every fourth layer without rope.

Source: transformers 5.24 models/smollm3; no_rope_layers holds 1 for a layer with rope. GGUF: llama.cpp's architecture "smollm3"; its
q and k rows are permuted for interleaved rope, and the pattern of four is not in the file.
Not supported: partial_rotary_factor, activations other than silu and tanh-gelu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import Chat, ConfigReader, Layer, Model, read_rope
from moegg.models._chat import CLOSED, THINK, chatml
from moegg.models._decoder import IGNORED, ROPE_TENSORS, Decoder, gguf_decoder

NAMES = {
    "arch": "smollm3", "hf": ("SmolLM3ForCausalLM",), "model_type": ("smollm3",), "gguf": ("smollm3",),
    "gguf_config_tensors": ROPE_TENSORS, "ignore": IGNORED,
}
CHAT = Chat(("<|im_end|>", "<|end_of_text|>"), reasoning=THINK, template=chatml(CLOSED))


def describe(cfg: ConfigReader) -> Model:
    m = Decoder(cfg, "smollm3", defaults={"num_key_value_heads": 4})
    rope = read_rope(cfg, m.head_dim, m.ctx_train, 2e6, interleaved=cfg.bool("rope_interleaved", default=False))
    every = cfg.int("no_rope_layer_interval", low=1, default=4)
    turns = cfg.list("no_rope_layers", of=(int,), default=None) or [int((i + 1) % every != 0) for i in range(m.n_layer)]
    if len(turns) != m.n_layer:
        raise cfg.wrong("no_rope_layers", f"it has {len(turns)} entries for {m.n_layer} layers")
    use, window = cfg.bool("use_sliding_window", default=False), cfg.int("sliding_window", low=1, default=0)
    windows = m.windows(window, ["sliding_attention" if use and window and not t else "full_attention" for t in turns])
    cfg.ignore("max_window_layers")
    bias, mlp_bias = cfg.bool("attention_bias", default=False), cfg.bool("mlp_bias", default=False)
    layers = [Layer(m.attn_norm(i),
                    m.attention(i, rope if turns[i] else None, window=windows[i], qkv_bias=bias, o_bias=bias),
                    m.ffn_norm(i), m.mlp(i, mlp_bias))
              for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=True))


def tiny() -> dict[str, Any]:
    return {"model_type": "smollm3", "vocab_size": 509, "hidden_size": 72, "num_hidden_layers": 4, "num_attention_heads": 6,
            "num_key_value_heads": 2, "head_dim": 20, "intermediate_size": 104, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
            "rope_theta": 5e6, "no_rope_layer_interval": 4, "tie_word_embeddings": True}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    return gguf_decoder(meta)[0] | {"rope_interleaved": True, "no_rope_layer_interval": 4}
