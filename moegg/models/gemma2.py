"""Gemma 2 (text): norms before and after attention and MLP, soft caps on attention and logits, every other layer with a window.

Source: transformers 5.24 models/gemma2. GGUF: llama.cpp's architecture "gemma2". Checkpoints store norm weights as w - 1, GGUF as w.
Embeddings are multiplied by sqrt(D) in f32, as llama.cpp does; a bf16 run of the reference rounds that factor to bf16.
Not supported: use_bidirectional_attention, partial_rotary_factor, activations other than silu and tanh-gelu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import ConfigReader, Layer, Model, read_rope
from moegg.models._chat import GEMMA
from moegg.models._decoder import IGNORED, ROPE_TENSORS, Decoder, gguf_decoder

NAMES = {
    "arch": "gemma2", "hf": ("Gemma2ForCausalLM",), "model_type": ("gemma2",), "gguf": ("gemma2",),
    "gguf_config_tensors": ROPE_TENSORS, "ignore": IGNORED,
}
CHAT = GEMMA
_DEFAULTS = {"vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
             "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 8192}


def describe(cfg: ConfigReader) -> Model:
    m = Decoder(cfg, "gemma2", plus_one=True, defaults=_DEFAULTS, act_key="hidden_activation", act_default="gelu_pytorch_tanh")
    cfg.ignore("hidden_act")
    cfg.expect("use_bidirectional_attention", False)
    rope = read_rope(cfg, m.head_dim, m.ctx_train)
    window = cfg.int("sliding_window", low=1, default=0 if cfg.given("sliding_window") else 4096)
    windows = m.windows(window, ["full_attention" if i % 2 else "sliding_attention" for i in range(m.n_layer)])
    scale = cfg.float("query_pre_attn_scalar", default=256.0, low=1e-3) ** -0.5
    softcap = cfg.float("attn_logit_softcapping", default=0.0 if cfg.given("attn_logit_softcapping") else 50.0, low=0)
    logit_softcap = cfg.float("final_logit_softcapping", default=0.0 if cfg.given("final_logit_softcapping") else 30.0, low=0)
    bias = cfg.bool("attention_bias", default=False)
    layers = [Layer(m.attn_norm(i),
                    m.attention(i, rope, scale=scale, window=windows[i], qkv_bias=bias, o_bias=bias, softcap=softcap),
                    m.norm(i, "ffn_norm", "pre_feedforward_layernorm", "ffn_norm"), m.mlp(i),
                    m.norm(i, "attn_post_norm", "post_attention_layernorm", "post_attention_norm"),
                    m.norm(i, "ffn_post_norm", "post_feedforward_layernorm", "post_ffw_norm"))
              for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=True), embed_scale=m.d ** 0.5, logit_softcap=logit_softcap)


def tiny() -> dict[str, Any]:
    return {"model_type": "gemma2", "vocab_size": 509, "hidden_size": 56, "num_hidden_layers": 4, "num_attention_heads": 3,
            "num_key_value_heads": 1, "head_dim": 22, "intermediate_size": 90, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
            "rope_theta": 1e4, "query_pre_attn_scalar": 22, "sliding_window": 11}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_decoder(meta)
    # 27B, the only size of 46 layers, scales by hidden / heads; the file does not say so
    scalar = config["hidden_size"] // config["num_attention_heads"] if config["num_hidden_layers"] == 46 else config["head_dim"]
    return config | {
        "sliding_window": g.int("attention.sliding_window", default=4096, low=1), "query_pre_attn_scalar": scalar,
        "attn_logit_softcapping": g.float("attn_logit_softcapping", default=50.0, low=0),
        "final_logit_softcapping": g.float("final_logit_softcapping", default=30.0, low=0)}
