"""OLMo 3 (text, dense): OLMo 2 with sliding windows in three of four layers, in which rope is never scaled.

Source: transformers 5.24 models/olmo3, and allenai's configs: rope_scaling is that of full layers alone. GGUF: files of llama.cpp's
architecture "olmo2" that have a window; its loader knows no other order of layers than three that slide and one that does not. The first
files hold the reference's whole factor on cos and sin as attn_factor, which llama.cpp applies on top of the usual one: it is read as meant.
Not supported: partial_rotary_factor, activations other than silu and tanh-gelu.
"""
import math
from collections.abc import Mapping
from typing import Any

from moegg.arch import Chat, ConfigReader, Model, read_layer_ropes
from moegg.models._chat import THINK
from moegg.models._decoder import IGNORED, ROPE_TENSORS, Decoder, gguf_decoder
from moegg.models._post_norm import gguf_window_keys, gguf_windows, layer

NAMES = {"arch": "olmo3", "hf": ("Olmo3ForCausalLM",), "model_type": ("olmo3",), "gguf": ("olmo2",),
         "gguf_config_tensors": ROPE_TENSORS, "ignore": IGNORED}
CHAT = Chat(("<|im_end|>", "<|endoftext|>"), "python", THINK)
_THETA = 5e5


def describe(cfg: ConfigReader) -> Model:
    m = Decoder(cfg, "olmo3", eps_default=1e-5)
    if cfg.float("rope_theta", default=_THETA) != _THETA:
        raise cfg.refuse("rope_theta", f"supported beside layer types: {_THETA:.0f}, the reference gives sliding layers no other")
    full, local = read_layer_ropes(cfg, m.head_dim, m.ctx_train, _THETA, _THETA)
    bias = cfg.bool("attention_bias", default=False)
    window = cfg.int("sliding_window", low=1, default=0 if cfg.given("sliding_window") else 4096)
    windows = m.windows(window, ["sliding_attention" if (i + 1) % 4 else "full_attention" for i in range(m.n_layer)])
    layers = [layer(m, i, m.attention(i, local if windows[i] else full, window=windows[i], qkv_bias=bias, o_bias=bias, wide_norm=True))
              for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=False))


def tiny() -> dict[str, Any]:
    return {"model_type": "olmo3", "vocab_size": 509, "hidden_size": 72, "num_hidden_layers": 4, "num_attention_heads": 6,
            "num_key_value_heads": 2, "head_dim": 20, "intermediate_size": 104, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
            "rope_theta": 5e5, "sliding_window": 11, "tie_word_embeddings": False, "rope_scaling": {
                "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}}


def gguf_own(meta: Mapping[str, Any]) -> bool:
    return bool(meta.get("olmo2.attention.sliding_window"))


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_decoder(meta)
    scaling = config.get("rope_scaling", {})
    if "attention_factor" in scaling and math.isclose(g.float("rope.scaling.attn_factor"), 0.1 * math.log(scaling["factor"]) + 1, rel_tol=1e-5):
        del scaling["attention_factor"]
    return config | gguf_windows(g, config, g.int("attention.sliding_window", low=1))


def gguf_keys(model: Model) -> dict[str, Any]:
    return gguf_window_keys(model)
