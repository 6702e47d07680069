"""MiniMax-M2: RMS norms over the whole width of q and k, rope over part of each head, sigmoid router whose choice a bias corrects.

Source: transformers 5.24 models/minimax_m2. GGUF: llama.cpp's architecture "minimax-m2".
Layers for multi-token prediction are left out. Not supported: attention other than softmax (MiniMax-01 is another class), shared experts,
sliding windows, activations other than silu and tanh-gelu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import Chat, ConfigReader, Layer, Model, Moe, read_rope
from moegg.models._chat import ASKED, THINK
from moegg.models._decoder import IGNORED, ROPE_TENSORS, gguf_decoder
from moegg.models._moe import MIXTRAL, MoeDecoder

NAMES = {"arch": "minimax-m2", "hf": ("MiniMaxM2ForCausalLM",), "model_type": ("minimax_m2",), "gguf": ("minimax-m2",),
         "gguf_config_tensors": ROPE_TENSORS, "ignore": (*IGNORED, "model.layers.{n}.*", "blk.{n}.*")}
CHAT = Chat(("[e~[",), "minimax", THINK, template=(
    "{{ ']~!b[' }}{% for m in messages %}{{ ']~b]' + ('ai' if m.role == 'assistant' else m.role) + '\\n' + m.content + '[e~[\\n' }}{% endfor %}"
    + ASKED + "{{ ']~b]ai\\n<think>\\n' }}{% endif %}"))


def describe(cfg: ConfigReader) -> Model:
    m = MoeDecoder(cfg, "minimax-m2", defaults={"head_dim": 128, "num_key_value_heads": 8})
    turned = cfg.int("rotary_dim", low=2, default=m.head_dim)
    rope = read_rope(cfg, m.head_dim, m.ctx_train, theta_default=5e6, partial=turned / m.head_dim)
    n, top_k, width = m.moe_sizes(("num_local_experts", "num_experts"), width="intermediate_size")
    if set(cfg.list("attn_type_list", of=(int,), default=[1])) != {1}:
        raise cfg.refuse("attn_type_list", "supported: 1 for every layer")
    for key, value in (("scoring_func", "sigmoid"), ("use_qk_norm", True), ("qk_norm_type", "per_layer"), ("use_routing_bias", True),
                       ("shared_intermediate_size", 0), ("sliding_window", None)):
        cfg.expect(key, value)
    cfg.ignore("router_jitter_noise", "use_mtp", "num_mtp_modules", "mtp_transformer_layers", "shared_moe_mode")

    def moe(i: int) -> Moe:
        router = m.router(i, n, top_k, "block_sparse_moe.gate", "block_sparse_moe.e_score_correction_bias", score="sigmoid")
        return Moe(router, m.experts(i, n, width, **MIXTRAL), m.act)
    layers = [Layer(m.attn_norm(i), m.attention(i, rope, wide_norm=True),
                    m.ffn_norm(i), moe(i))
              for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=False))


def tiny() -> dict[str, Any]:
    return {"model_type": "minimax_m2", "vocab_size": 509, "hidden_size": 60, "num_hidden_layers": 3, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 20, "rotary_dim": 10, "intermediate_size": 44, "num_local_experts": 7,
            "num_experts_per_tok": 3, "scoring_func": "sigmoid", "use_routing_bias": True, "use_qk_norm": True,
            "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 5e6, "tie_word_embeddings": False}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_decoder(meta, partial=True)
    g.expect("expert_gating_func", 2)
    return config | {"num_local_experts": g.int("expert_count"), "num_experts_per_tok": g.int("expert_used_count")}
