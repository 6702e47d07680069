"""Apertus (Swiss AI, text): pre-norm GQA with RMS norms on each q and k head, and an MLP without gate whose xIELU has learned values.

Source: transformers 5.24 models/apertus and activations.XIELUActivation: alphas before their softplus, beta and eps are stored, a number each
per layer. GGUF: llama.cpp's architecture "apertus", which keeps them as metadata, arrays of all layers or one number for all.
Without a rope scaling transformers 4 has none and transformers 5 Llama 3's by a factor of 8, so a config has to name one.
Not supported: other activations, post_norm, MLP biases, partial_rotary_factor; the images and sounds of Apertus 1.5.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import Chat, ConfigReader, Layer, Mlp, Model, Src, Tensor, Xielu, read_rope
from moegg.models._decoder import IGNORED, ROPE_TENSORS, Decoder, gguf_decoder

_VALUES = ("alpha_p", "alpha_n", "beta", "eps")
NAMES = {
    "arch": "apertus", "hf": ("ApertusForCausalLM",), "model_type": ("apertus",), "gguf": ("apertus",),
    "gguf_config_tensors": ROPE_TENSORS, "gguf_weight_keys": tuple(f"xielu.{value}" for value in _VALUES), "ignore": IGNORED,
}
CHAT = Chat(("<|assistant_end|>",), "apertus", ("<|inner_prefix|>", "<|inner_suffix|>"))


def describe(cfg: ConfigReader) -> Model:
    m = Decoder(cfg, "apertus", acts={"xielu": "xielu"}, act_default="xielu", eps_default=1e-5)
    if not (cfg.has("rope_scaling") or cfg.has("rope_parameters")):
        raise cfg.refuse("rope_scaling", "its classes disagree on what that means; expected an object, {\"rope_type\": \"default\"} for none")
    rope = read_rope(cfg, m.head_dim, m.ctx_train, 12e6)
    bias = cfg.bool("attention_bias", default=False)
    for key, only in (("mlp_bias", False), ("post_norm", False), ("qk_norm", True)):
        cfg.expect(key, only)
    cfg.ignore("hidden_dropout")
    layers = [Layer(m.norm(i, "attn_norm", "attention_layernorm", "attn_norm"),
                    m.attention(i, rope, qkv_bias=bias, o_bias=bias, qk_norm=True),
                    m.norm(i, "ffn_norm", "feedforward_layernorm", "ffn_norm"), _mlp(m, i))
              for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=False))


def _mlp(m: Decoder, layer: int) -> Mlp:
    up, _ = m.linear(layer, "ffn.up", (m.width, m.d), "dense", "mlp.up_proj", "ffn_up")
    down, _ = m.linear(layer, "ffn.down", (m.d, m.width), "dense", "mlp.down_proj", "ffn_down")
    values = (Tensor(f"layers.{layer}.ffn.{value}", (1,), "aux",
                     tuple(Src(f"{root}layers.{layer}.mlp.act_fn.{value}", squeeze=True) for root in m.roots),
                     (Src(f"xielu.{value}", rows=(layer, layer + 1, 1)),), layer) for value in _VALUES)
    return Mlp(None, up, down, Xielu(*values))


def tiny() -> dict[str, Any]:
    return {"model_type": "apertus", "vocab_size": 509, "hidden_size": 72, "num_hidden_layers": 3, "num_attention_heads": 6,
            "num_key_value_heads": 2, "head_dim": 20, "intermediate_size": 104, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
            "hidden_act": "xielu", "rope_theta": 12e6, "tie_word_embeddings": False, "rope_scaling": {
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64}}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_decoder(meta)
    if biased := [name for name in meta["tensor_names"] if name.startswith("blk.") and name.endswith(".bias")]:
        raise g.refuse("attention.head_count", f"biases (tensor {min(biased)!r}) are not supported")
    return {"rope_scaling": {"rope_type": "default"}} | config
