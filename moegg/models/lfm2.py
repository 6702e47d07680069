"""LFM2: short gated convolutions with a GQA layer now and then; RMS norms on each q and k head, a gated MLP after every mixer.

Source: transformers 5.24 models/lfm2; GGUF: llama.cpp's architecture "lfm2". The final norm is `embedding_norm`. Gate, up and down are
w1, w3 and w2; their width is derived from intermediate_size if block_auto_adjust_ff_dim. Not supported: conv_bias.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import ConfigReader, Model
from moegg.models._chat import LFM
from moegg.models._decoder import IGNORED, ROPE_TENSORS, SIZE_MAX, Decoder, gguf_decoder, one_kv_count
from moegg.models._lfm2 import DEFAULTS, kv_types, mlp, model

NAMES = {
    "arch": "lfm2", "hf": ("Lfm2ForCausalLM",), "model_type": ("lfm2",), "gguf": ("lfm2",),
    "gguf_config_tensors": ROPE_TENSORS, "ignore": IGNORED,
}
CHAT = LFM
_DEFAULTS = DEFAULTS | {"hidden_size": 2560, "num_hidden_layers": 32}


def describe(cfg: ConfigReader) -> Model:
    width = cfg.int("block_ff_dim", "intermediate_size", low=1, high=SIZE_MAX, default=12288)
    m = Decoder(cfg, "lfm2", defaults=_DEFAULTS | {"intermediate_size": width})
    m.eps = cfg.float("norm_eps", default=1e-5, low=0)
    multiplier, multiple = cfg.float("block_ffn_dim_multiplier", default=1.0, low=0), cfg.int("block_multiple_of", low=1, default=256)
    if cfg.bool("block_auto_adjust_ff_dim", default=True):
        width = int(multiplier * int(2 * width / 3))
        width = -(-width // multiple) * multiple
    if not 0 < width <= SIZE_MAX:
        raise cfg.wrong("block_ffn_dim_multiplier", f"it gives an MLP of width {width}")
    full = cfg.list("full_attn_idxs", of=(int,), default=range(m.n_layer))
    types = cfg.list("layer_types", of=(str,), default=["full_attention" if i in full else "conv" for i in range(m.n_layer)])
    return model(m, types, lambda i: mlp(m, i, width))


def tiny() -> dict[str, Any]:
    return {"model_type": "lfm2", "vocab_size": 509, "hidden_size": 72, "intermediate_size": 120, "num_hidden_layers": 4,
            "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 20, "max_position_embeddings": 512, "norm_eps": 1e-5,
            "rope_theta": 1e6, "conv_L_cache": 3, "block_auto_adjust_ff_dim": False, "tie_word_embeddings": True,
            "layer_types": ["full_attention", "conv", "conv", "conv"]}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_decoder(one_kv_count(meta))
    return config | {"norm_eps": config["rms_norm_eps"], "conv_L_cache": g.int("shortconv.l_cache", low=2),
                     "block_auto_adjust_ff_dim": False, "layer_types": kv_types(meta)}


