"""GLM-5 to 5.3: latent attention that sees the 2048 positions an indexer chose, DeepSeek-V3's router; layers may share a choice.

Source: transformers 5.24 models/glm_moe_dsa (_dsa.py tells where it parts from DeepSeek's own code). All ropes turn pairs. Layers that share
("shared" in indexer_types) have no indexer. GGUF: llama.cpp's architecture "glm-dsa"; early versions read its indexers and did not use them.
Layers for multi-token prediction are left out. Not supported: moe_layer_freq other than 1, activations other than silu and tanh-gelu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import Chat, ConfigReader, Mla, Model
from moegg.models._chat import THINK
from moegg.models._decoder import IGNORED, ROPE_TENSORS
from moegg.models._dsa import gguf_index_keys, gguf_indexed, indexed_model
from moegg.models._moe import MoeDecoder

NAMES = {"arch": "glm-moe-dsa", "hf": ("GlmMoeDsaForCausalLM",), "model_type": ("glm_moe_dsa",), "gguf": ("glm-dsa",),
         "gguf_config_tensors": ROPE_TENSORS, "ignore": (*IGNORED, "model.layers.{n}.*", "blk.{n}.*")}
CHAT = Chat(("<|user|>", "<|observation|>", "<|endoftext|>"), reasoning=THINK)


def describe(cfg: ConfigReader) -> Model:
    m = MoeDecoder(cfg, "glm-moe-dsa", eps_default=1e-5, defaults={"head_dim": 64})       # of rotated keys, which the blocks read
    return indexed_model(cfg, m, rank=2048, heads=32, interleaved=True, sources=_sources(cfg, m.n_layer))


def _sources(cfg: ConfigReader, n: int) -> list[int]:
    """Per layer the one whose indexer chooses for it: itself if it is "full", else the last full one."""
    pattern, freq = cfg.str("index_topk_pattern", default=""), cfg.int("index_topk_freq", default=1)
    offset = cfg.int("index_skip_topk_offset", default=2)
    made = [{"F": "full", "S": "shared"}.get(c, c) for c in pattern] or [
        "shared" if max(i - offset + 1, 0) % max(freq, 1) else "full" for i in range(n)]
    types = cfg.list("indexer_types", of=(str,), default=made)
    key = "indexer_types" if cfg.has("indexer_types") else "index_topk_pattern" if pattern else "index_skip_topk_offset"
    if len(types) != n or not set(types) <= {"full", "shared"} or types[0] != "full":
        raise cfg.wrong(key, f"each of {n} layers is full or shared, the first full")
    return [max(j for j in range(i + 1) if types[j] == "full") for i in range(n)]


def tiny() -> dict[str, Any]:
    return {"model_type": "glm_moe_dsa", "vocab_size": 509, "hidden_size": 60, "num_hidden_layers": 4, "num_attention_heads": 5,
            "num_key_value_heads": 5, "q_lora_rank": 22, "kv_lora_rank": 32, "qk_nope_head_dim": 18, "qk_rope_head_dim": 10,
            "v_head_dim": 16, "intermediate_size": 104, "moe_intermediate_size": 36, "n_routed_experts": 7, "num_experts_per_tok": 3,
            "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
            "index_n_heads": 3, "index_head_dim": 14, "index_topk": 9, "indexer_types": ["full", "shared", "full", "shared"],
            "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "max_position_embeddings": 512,
            "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": False}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    """A layer without an indexer's tensors shares, as does one of which the file says so; files of GLM-5.2's first converters do not say."""
    config, g = gguf_indexed(meta)
    n = config["num_hidden_layers"]
    types = g.list("attention.indexer.types", of=(int, bool), default=[])
    full = [f"blk.{i}.indexer.proj.weight" in meta["tensor_names"] and all(types[i:i + 1]) for i in range(n)]
    return config | {"model_type": "glm_moe_dsa", "indexer_types": ["full" if x else "shared" for x in full]}


def gguf_keys(model: Model) -> dict[str, Any]:
    """llama.cpp reads the types as 32-bit integers; booleans it takes for other ones."""
    types = [int(isinstance(layer.attn, Mla) and layer.attn.indexer is not None) for layer in model.layers]
    return gguf_index_keys(model) | ({} if all(types) else {"attention.indexer.types": types})
