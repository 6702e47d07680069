"""TeleChat3 (China Telecom's TeleAI, text, dense): Llama with a YaRN whose factor on cos and sin grows by 0.07, not 0.1, per ln(factor).

Source: the release's config.json (Tele-AI/TeleChat3-36B-Thinking); vLLM, which runs it by its Llama class with the rope type "telechat3-yarn"
(rotary_embedding/telechat3_scaling_rope.py); mlx-lm models/telechat3.py for the names of tensors. transformers has no such class: numbers are
held against its Llama with an equal rope. mlx-lm takes the factor of plain YaRN; vLLM's and the release's modeling_telechat3.py have 0.07.
Not confirmed with released weights. Not supported: TeleChat and TeleChat2 (other tensors), TeleChat3 with experts, rope types and keys of
the scaling that the release does not use, activations other than silu and tanh-gelu.
"""
import math
from typing import Any

from moegg.arch import Chat, ConfigReader, Layer, Model, Rope, read_rope, rope_of
from moegg.models._chat import THINK
from moegg.models._decoder import IGNORED, Decoder

NAMES = {"arch": "telechat3", "hf": ("Telechat3ForCausalLM", "TeleChat3ForCausalLM"), "model_type": ("telechat3",), "ignore": IGNORED}
CHAT = Chat(("<_end>",), reasoning=THINK)
_YARN = "telechat3-yarn"


def describe(cfg: ConfigReader) -> Model:
    m = Decoder(cfg, "telechat3")
    rope, bias, mlp_bias = _rope(cfg, m), cfg.bool("attention_bias", default=False), cfg.bool("mlp_bias", default=False)
    layers = [Layer(m.attn_norm(i), m.attention(i, rope, qkv_bias=bias, o_bias=bias), m.ffn_norm(i), m.mlp(i, mlp_bias))
              for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=False))


def _rope(cfg: ConfigReader, m: Decoder) -> Rope:
    scaling = cfg.child("rope_scaling")
    kinds = {scaling.str(key, default=None) for key in ("rope_type", "type")} - {None}
    if _YARN not in kinds:
        return read_rope(cfg, m.head_dim, m.ctx_train)
    if kinds != {_YARN}:
        raise scaling.refuse("type", f"'rope_type' says otherwise; supported: {_YARN!r} in both")
    for key in ("attention_factor", "attn_factor", "mscale", "mscale_all_dim", "truncate"):
        if scaling.has(key):
            raise scaling.refuse(key, f"not known for {_YARN!r}")
    factor = scaling.float("factor", low=1)
    yarn = {"rope_type": "yarn", "factor": factor, "attention_factor": 0.07 * math.log(factor) + 1,
            "original_max_position_embeddings": scaling.int("original_max_position_embeddings", low=1),
            "beta_fast": scaling.float("beta_fast", default=32.0), "beta_slow": scaling.float("beta_slow", default=1.0)}
    return rope_of(ConfigReader(yarn, "rope_scaling."), m.head_dim, cfg.float("rope_theta"), m.ctx_train)


def tiny() -> dict[str, Any]:
    return {"model_type": "telechat3", "vocab_size": 509, "hidden_size": 72, "num_hidden_layers": 3, "num_attention_heads": 6,
            "num_key_value_heads": 2, "head_dim": 20, "intermediate_size": 104, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
            "rope_theta": 1e6, "tie_word_embeddings": False, "rope_scaling": {
                "rope_type": _YARN, "type": _YARN, "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 32.0, "beta_slow": 1.0}}
