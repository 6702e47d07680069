"""ERNIE 4.5 MoE (text): interleaved rope, softmax router whose choice a bias corrects, shared experts without a gate, dense first layers.

Source: transformers 5.24 models/ernie4_5_moe. GGUF: llama.cpp's architecture "ernie4_5-moe".
A layer has experts if (layer + 1) is a multiple of moe_layer_interval and it lies in moe_layer_start_index .. moe_layer_end_index.
Not supported: partial_rotary_factor, images, activations other than silu and tanh-gelu; the layers for multi-token prediction are left out.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import Chat, ConfigReader, Layer, Model, Moe, read_rope
from moegg.models._chat import THINK
from moegg.models._decoder import IGNORED, ROPE_TENSORS, gguf_decoder
from moegg.models._moe import MoeDecoder

NAMES = {"arch": "ernie4-5-moe", "hf": ("Ernie4_5_MoeForCausalLM",), "model_type": ("ernie4_5_moe",), "gguf": ("ernie4_5-moe",),
         "gguf_config_tensors": ROPE_TENSORS, "ignore": (*IGNORED, "model.mtp_*", "blk.{n}.*")}
CHAT = Chat(("</s>", "<|end_of_sentence|>"), reasoning=THINK, answer=("<response>", "</response>"))


def describe(cfg: ConfigReader) -> Model:
    m = MoeDecoder(cfg, "ernie4-5-moe", defaults={"num_key_value_heads": 4}, eps_default=1e-5)
    rope, bias = read_rope(cfg, m.head_dim, m.ctx_train, theta_default=5e5, interleaved=True), cfg.bool("use_bias", default=False)
    n, top_k, width = m.moe_sizes(("moe_num_experts", "num_experts"), ("moe_k", "num_experts_per_tok"))
    shared, floor = cfg.int("moe_num_shared_experts", default=2, high=64), cfg.float("moe_norm_min", default=1e-12, low=0)
    start, interval = cfg.int("moe_layer_start_index", default=1), cfg.int("moe_layer_interval", low=1, default=1)
    end = cfg.int("moe_layer_end_index", low=-1, default=-1)
    end = m.n_layer - 1 if end == -1 else end
    cfg.expect("moe_gate", "topk")
    cfg.expect("moe_use_aux_free", True)
    cfg.ignore("moe_capacity", "num_nextn_predict_layers")

    def ffn(i: int) -> Any:
        if (i + 1) % interval or not start <= i <= end:
            return m.mlp(i, bias)
        router = m.router(i, n, top_k, select_bias="mlp.moe_statics.e_score_correction_bias", sum_min=floor)
        return Moe(router, m.experts(i, n, width), m.act, shared=m.shared(i, width * shared, bias=bias))
    layers = [Layer(m.attn_norm(i), m.attention(i, rope, qkv_bias=bias, o_bias=bias),
                    m.ffn_norm(i), ffn(i))
              for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=True))


def tiny() -> dict[str, Any]:
    return {"model_type": "ernie4_5_moe", "vocab_size": 509, "hidden_size": 60, "num_hidden_layers": 4, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 18, "intermediate_size": 104, "moe_intermediate_size": 36, "moe_num_experts": 7,
            "moe_k": 3, "moe_num_shared_experts": 2, "moe_layer_start_index": 1, "max_position_embeddings": 512,
            "rms_norm_eps": 1e-6, "rope_theta": 5e5, "tie_word_embeddings": False}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_decoder(meta)
    names, layers = meta["tensor_names"], range(config["num_hidden_layers"])
    sparse = [i for i in layers if f"blk.{i}.ffn_gate_inp.weight" in names]
    return config | {
        "moe_num_experts": g.int("expert_count"), "moe_k": g.int("expert_used_count"), "moe_intermediate_size": g.int("expert_feed_forward_length"),
        "moe_num_shared_experts": g.int("expert_shared_count", default=0),
        "moe_layer_start_index": min(sparse, default=0), "moe_layer_interval": sparse[1] - sparse[0] if len(sparse) > 1 else 1,
        "moe_layer_end_index": max(sparse, default=-1)}
