"""DeepSeek-V3.2 (Exp, V3.2, Speciale): DeepSeek-V3 whose latent attention sees the 2048 positions that an indexer chose in each layer.

Source: transformers 5.24 models/deepseek_v32 (_dsa.py tells where it parts from DeepSeek's own code). The indexer's rope turns halves, attention's
pairs. GGUF: llama.cpp's architecture "deepseek32"; files that call themselves deepseek2 have lost the indexer. Releases after Exp have an encoding
script instead of a chat template. Layers for multi-token prediction are left out. Not supported: DSML, the notation of tool calls of releases
after Exp (Exp writes V3.1's), moe_layer_freq other than 1, activations other than silu and tanh-gelu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import Chat, ConfigReader, Model
from moegg.models._chat import THINK
from moegg.models._decoder import IGNORED, ROPE_TENSORS
from moegg.models._dsa import gguf_index_keys, gguf_indexed, indexed_model
from moegg.models._mla import gguf_yarn_config, gguf_yarn_keys
from moegg.models._moe import MoeDecoder

NAMES = {"arch": "deepseek-v32", "hf": ("DeepseekV32ForCausalLM",), "model_type": ("deepseek_v32",), "gguf": ("deepseek32",),
         "gguf_config_tensors": ROPE_TENSORS, "ignore": (*IGNORED, "model.layers.{n}.*", "blk.{n}.*")}
CHAT = Chat(("<｜end▁of▁sentence｜>",), "deepseek", THINK)


def describe(cfg: ConfigReader) -> Model:
    m = MoeDecoder(cfg, "deepseek-v32", defaults={"head_dim": 64})      # of rotated keys, which the blocks read
    return indexed_model(cfg, m, rank=1536, heads=64, interleaved=False, sources=list(range(m.n_layer)))


def tiny() -> dict[str, Any]:
    return {"model_type": "deepseek_v32", "vocab_size": 509, "hidden_size": 60, "num_hidden_layers": 3, "num_attention_heads": 5,
            "num_key_value_heads": 5, "q_lora_rank": 22, "kv_lora_rank": 32, "qk_nope_head_dim": 18, "qk_rope_head_dim": 10,
            "v_head_dim": 16, "intermediate_size": 104, "moe_intermediate_size": 36, "n_routed_experts": 8, "num_experts_per_tok": 3,
            "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2, "norm_topk_prob": True,
            "index_n_heads": 3, "index_head_dim": 14, "index_topk": 9,
            "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "max_position_embeddings": 512,
            "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": False, "rope_scaling": {
                "type": "yarn", "factor": 8.0, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 64}}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_indexed(meta)
    return gguf_yarn_config(config, g) | {"model_type": "deepseek_v32"}


def gguf_keys(model: Model) -> dict[str, Any]:
    return gguf_index_keys(model) | gguf_yarn_keys(model)
