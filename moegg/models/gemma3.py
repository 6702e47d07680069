"""Gemma 3 (text): norms before and after attention and MLP, RMS norms on each q and k head, five sliding layers per full one.

Source: transformers 5.24 models/gemma3; GGUF: llama.cpp's architecture "gemma3". Sliding layers have rope theta
rope_local_base_freq and no scaling. Checkpoints store norm weights as w - 1, GGUF as w. Embeddings are multiplied by sqrt(D) in
f32, as llama.cpp does; a bf16 run of the reference rounds that factor to bf16. attn_logit_softcapping is applied as documented
(the reference reads it and does not use it; no release sets it). Gemma3ForConditionalGeneration: the text part only.
Not supported: use_bidirectional_attention, partial_rotary_factor, images, activations other than silu and tanh-gelu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import ConfigReader, Layer, Model, read_layer_ropes
from moegg.models._chat import GEMMA
from moegg.models._decoder import HARMLESS, IGNORED, ROPE_TENSORS, Decoder, gguf_decoder

NAMES = {
    "arch": "gemma3", "hf": ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"), "model_type": ("gemma3_text", "gemma3"),
    "gguf": ("gemma3",), "gguf_config_tensors": ROPE_TENSORS,
    "ignore": (*IGNORED, "language_model.lm_head.weight", "*vision_tower.*", "*multi_modal_projector.*"),
}
CHAT = GEMMA
_DEFAULTS = {"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
             "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072}


def describe(cfg: ConfigReader) -> Model:
    text, wrapped = cfg.path("text_config"), cfg.has("text_config")
    m = Decoder(text, "gemma3", plus_one=True, defaults=_DEFAULTS, act_key="hidden_activation", act_default="gelu_pytorch_tanh",
                roots=("language_model.model.", "model.language_model.") if wrapped else ("model.",))
    text.expect("use_bidirectional_attention", False)
    ropes = read_layer_ropes(text, m.head_dim, m.ctx_train, 1e6, text.float("rope_local_base_freq", default=1e4))
    pattern = text.int("sliding_window_pattern", "_sliding_window_pattern", low=1, default=6)
    window = text.int("sliding_window", low=1, default=0 if text.given("sliding_window") else 4096)
    windows = m.windows(window, ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(m.n_layer)])
    scale = text.float("query_pre_attn_scalar", default=256.0, low=1e-3) ** -0.5
    softcap = text.float("attn_logit_softcapping", default=0.0, low=0)
    bias = text.bool("attention_bias", default=False)
    layers = [Layer(m.attn_norm(i),
                    m.attention(i, ropes[bool(windows[i])], scale=scale, window=windows[i], qkv_bias=bias, o_bias=bias,
                                qk_norm=True, softcap=softcap),
                    m.norm(i, "ffn_norm", "pre_feedforward_layernorm", "ffn_norm"), m.mlp(i),
                    m.norm(i, "attn_post_norm", "post_attention_layernorm", "post_attention_norm"),
                    m.norm(i, "ffn_post_norm", "post_feedforward_layernorm", "post_ffw_norm"))
              for i in range(m.n_layer)]
    if wrapped:     # the wrapper's own keys; its tie_word_embeddings is the one in force
        cfg.ignore(*HARMLESS, "vision_config", "mm_tokens_per_image", "image_token_index", "image_token_id", "boi_token_index",
                   "boi_token_id", "eoi_token_index", "eoi_token_id")
        text.ignore("tie_word_embeddings")
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=True), embed_scale=m.d ** 0.5,
                   heads=("lm_head.weight", "language_model.lm_head.weight"),
                   logit_softcap=text.float("final_logit_softcapping", default=0.0, low=0))


def tiny() -> dict[str, Any]:
    return {"model_type": "gemma3_text", "vocab_size": 509, "hidden_size": 56, "num_hidden_layers": 4, "num_attention_heads": 3,
            "num_key_value_heads": 1, "head_dim": 22, "intermediate_size": 90, "max_position_embeddings": 512,
            "rms_norm_eps": 1e-6, "rope_theta": 1e6, "rope_local_base_freq": 1e4, "query_pre_attn_scalar": 22,
            "sliding_window": 11, "sliding_window_pattern": 3, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_decoder(meta)
    pattern = g.int("attention.sliding_window_pattern", low=1, default=6)
    # 27B, the only size of 62 layers, scales by hidden / heads; the file does not say so
    scalar = config["hidden_size"] // config["num_attention_heads"] if config["num_hidden_layers"] == 62 else config["head_dim"]
    scale = g.float("attention.scale", default=0.0, low=0)
    return config | {
        "sliding_window": g.int("attention.sliding_window"), "sliding_window_pattern": pattern,
        "rope_local_base_freq": g.float("rope.freq_base_swa", default=1e4),
        "query_pre_attn_scalar": scale ** -2 if scale > 1e-6 else scalar,
        "attn_logit_softcapping": g.float("attn_logit_softcapping", default=0.0),
        "final_logit_softcapping": g.float("final_logit_softcapping", default=0.0)}


def gguf_keys(model: Model) -> dict[str, Any]:
    windows = [x.attn.window for x in model.layers]
    local = next((x.attn for x in model.layers if x.attn.window), None)
    return {"attention.sliding_window_pattern": 1 + (windows.index(0) if 0 in windows else len(windows)),
            "rope.freq_base_swa": local.rope.theta if local else None}
