"""EXAONE 4 (text, dense): norms after attention and MLP only, RMS norms of q and k heads; where layers slide, full ones have no rope.

Source: transformers 5.24 models/exaone4, and LGAI's configs: sliding_window null means full layers with rope throughout. GGUF: llama.cpp's
architecture "exaone4", whose loader knows windows in models of 64 layers alone, three of four; layers that predict more tokens are left out.
Not supported: sliding_window_pattern in letters without layer_types, partial_rotary_factor, activations other than silu and tanh-gelu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import Chat, ConfigReader, Model, read_rope
from moegg.models._chat import THINK
from moegg.models._decoder import IGNORED, ROPE_TENSORS, Decoder, gguf_decoder
from moegg.models._post_norm import gguf_window_keys, gguf_windows, layer

NAMES = {"arch": "exaone4", "hf": ("Exaone4ForCausalLM",), "model_type": ("exaone4",), "gguf": ("exaone4",),
         "gguf_config_tensors": ROPE_TENSORS, "ignore": (*IGNORED, "blk.{n}.*")}
CHAT = Chat(("[|endofturn|]",), reasoning=THINK)


def describe(cfg: ConfigReader) -> Model:
    m = Decoder(cfg, "exaone4", defaults={"num_key_value_heads": 32}, eps_default=1e-5)
    rope = read_rope(cfg, m.head_dim, m.ctx_train)
    window = cfg.int("sliding_window", low=1, default=0 if cfg.given("sliding_window") else 4096)
    if cfg.has("layer_types"):
        cfg.ignore("sliding_window_pattern")
    pattern = 1 if cfg.has("layer_types") or not window else cfg.int("sliding_window_pattern", low=1, default=4)
    windows = m.windows(window, ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(m.n_layer)])
    layers = [layer(m, i, m.attention(i, rope if windows[i] or not window else None, window=windows[i], qk_norm=True)) for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=False))


def tiny() -> dict[str, Any]:
    return {"model_type": "exaone4", "vocab_size": 509, "hidden_size": 72, "num_hidden_layers": 4, "num_attention_heads": 6,
            "num_key_value_heads": 2, "head_dim": 20, "intermediate_size": 104, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
            "rope_theta": 1e6, "sliding_window": 11, "sliding_window_pattern": 3, "tie_word_embeddings": False}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_decoder(meta)
    n = config["num_hidden_layers"] = max(1, config["num_hidden_layers"] - g.int("nextn_predict_layers", default=0))
    if n == 64:
        return config | gguf_windows(g, config, g.int("attention.sliding_window", default=4096, low=1))
    if g.int("attention.sliding_window", default=0):
        raise g.refuse("attention.sliding_window", f"llama.cpp reads none in a file of {n} layers, but of 64")
    return config | {"sliding_window": None}


def gguf_keys(model: Model) -> dict[str, Any]:
    return gguf_window_keys(model)
