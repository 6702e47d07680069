"""Mistral Small 3.1 and 3.2, Ministral 3 (text): Llama without biases; Ministral 3 scales q by position.

Source: transformers 5.24 models/ministral3, mistral3 and mistral. The text part of Mistral3ForConditionalGeneration, whose text_config is a
"ministral3" or a "mistral"; the vision tower, and in FP8 releases the static scales of activations, are left out.
Ministral 3: q of position i times 1 + beta log(1 + floor(i / n)), beta and n (original_max_position_embeddings) those of its rope.
A wrapper that does not say whether the head is tied leaves it to text_config, as releases do.
GGUF: llama.cpp's architecture "mistral3", whose q and k rows are permuted for interleaved rope (older files are a "llama").
Not supported: images, sliding windows, part of a head turned by rope, activations other than silu and tanh-gelu.
"""
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from moegg.arch import ConfigReader, Layer, Model, read_rope
from moegg.models._chat import MISTRAL
from moegg.models._decoder import HARMLESS, IGNORED, ROPE_TENSORS, Decoder, gguf_decoder

NAMES = {
    "arch": "mistral3", "hf": ("Mistral3ForConditionalGeneration", "Ministral3ForCausalLM"), "model_type": ("mistral3", "ministral3"),
    "gguf": ("mistral3",), "gguf_config_tensors": ROPE_TENSORS,
    "ignore": (*IGNORED, "vision_tower.*", "model.vision_tower.*", "multi_modal_projector.*", "model.multi_modal_projector.*",
               "*.activation_scale"),
}
CHAT = MISTRAL
_WRAPPER = ("vision_config", "image_token_index", "image_token_id", "multimodal_projector_bias", "projector_hidden_act", "spatial_merge_size",
            "vision_feature_layer")


def describe(cfg: ConfigReader) -> Model:
    text, wrapped = cfg.path("text_config"), cfg.has("text_config")
    kind = text.str("model_type", default="mistral" if wrapped else "ministral3")
    if kind not in ("mistral", "ministral3"):
        raise text.refuse("model_type", "supported: mistral, ministral3")
    m = Decoder(text, "mistral3", defaults={"head_dim": 128} if kind == "ministral3" else None, eps_default=1e-5,
                roots=("language_model.model.", "model.language_model.") if wrapped else ("model.",))
    text.expect("sliding_window", None)
    rope = read_rope(text, m.head_dim, m.ctx_train, interleaved=text.bool("rope_interleaved", default=False))
    temperature = _temperature(text) if kind == "ministral3" else None
    layers = [Layer(m.attn_norm(i), replace(m.attention(i, rope), temperature=temperature), m.ffn_norm(i), m.mlp(i)) for i in range(m.n_layer)]
    if wrapped:
        cfg.ignore(*HARMLESS, *_WRAPPER)
    tied = cfg.bool("tie_word_embeddings", default=text.bool("tie_word_embeddings", default=False))
    return m.model(layers, tied=tied, heads=("language_model.lm_head.weight", "lm_head.weight"))


def _temperature(text: ConfigReader) -> tuple[float, int, int]:
    if not text.has("rope_parameters"):
        raise text.refuse("rope_parameters", "a ministral3 needs it: it holds 'llama_4_scaling_beta'")
    params = text.child("rope_parameters")
    params.ignore("max_position_embeddings")
    return params.float("llama_4_scaling_beta"), params.int("original_max_position_embeddings", low=1), 0


def tiny() -> dict[str, Any]:
    return {"model_type": "ministral3", "vocab_size": 509, "hidden_size": 72, "num_hidden_layers": 3, "num_attention_heads": 6,
            "num_key_value_heads": 2, "head_dim": 20, "intermediate_size": 104, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 8,
                                "llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0}, "tie_word_embeddings": False}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_decoder(meta)
    g.expect("expert_count", 0)
    scaling, beta = config.pop("rope_scaling", {"rope_type": "default"}), g.float("attention.temperature_scale", default=0.0)
    if scaling["rope_type"] == "yarn" and (m := g.float("rope.scaling.yarn_log_multiplier", default=0.0)):
        g.expect("rope.scaling.attn_factor", 1.0)
        scaling |= {"mscale": 1.0, "mscale_all_dim": m}
    config |= {"rope_interleaved": True, "rope_parameters": scaling | {"rope_theta": config.pop("rope_theta")}}
    if not beta:
        return config | {"model_type": "mistral"}
    orig = g.int("rope.scaling.original_context_length", default=config["max_position_embeddings"], low=1)
    return config | {"model_type": "ministral3", "rope_parameters": config["rope_parameters"] | {
        "llama_4_scaling_beta": beta, "original_max_position_embeddings": orig}}


def gguf_keys(model: Model) -> dict[str, Any]:
    attn = model.layers[0].attn
    m = dict(attn.rope.scaling).get("mscale_all_dim")
    return ({"attention.temperature_scale": attn.temperature[0]} if attn.temperature else {}) | (
        {"rope.scaling.attn_factor": None, "rope.scaling.yarn_log_multiplier": m} if m else {})
