"""Hunyuan-A13B: norms of q and k heads after rope, softmax over the chosen experts, one shared expert of the same width.

Source: transformers 5.24 models/hunyuan_v1_moe. GGUF: llama.cpp's architecture "hunyuan-moe", whose files hold the stretched base of rope.
Not supported: cross-layer attention (use_cla), latent attention (use_mla), sizes that differ between layers, several shared experts,
activations other than silu and tanh-gelu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import Chat, ConfigReader, Layer, Model, Moe
from moegg.models._chat import THINK
from moegg.models._decoder import IGNORED, ROPE_TENSORS, gguf_decoder
from moegg.models._hunyuan import attention, common_keys, read_alpha_rope
from moegg.models._moe import MoeDecoder

NAMES = {"arch": "hunyuan-moe", "hf": ("HunYuanMoEV1ForCausalLM",), "model_type": ("hunyuan_v1_moe",), "gguf": ("hunyuan-moe",),
         "gguf_config_tensors": ROPE_TENSORS, "ignore": IGNORED}
CHAT = Chat(("<|eos|>", "<|endoftext|>"), "marked", THINK, ("<answer>", "</answer>"))
_UNUSED = ("moe_drop_tokens", "moe_random_routing_dropped_token", "capacity_factor", "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim",
           "qk_rope_head_dim", "v_head_dim", "n_group", "topk_group", "routed_scaling_factor", "use_mixed_mlp_moe")


def describe(cfg: ConfigReader) -> Model:
    m = MoeDecoder(cfg, "hunyuan-moe", eps_default=1e-5)
    rope, bias, width = read_alpha_rope(cfg, m), cfg.bool("attention_bias", default=False), m.width
    n, top_k = (_same(cfg, m, keys) for keys in (("num_experts", "num_local_experts"), ("moe_topk", "num_experts_per_tok")))
    if top_k > n:
        raise cfg.wrong("moe_topk", f"there are {n} experts")
    for key, value in (("moe_intermediate_size", width), ("num_shared_expert", 1)):
        if cfg.has(key) and _same(cfg, m, (key,)) != value:
            raise cfg.refuse(key, f"supported: {value}")
    common_keys(cfg)
    for key, value in (("use_mla", False), ("norm_topk_prob", True), ("moe_layer_num_skipped", 0), ("group_limited_greedy", False),
                       ("position_embedding_xdrope", False)):
        cfg.expect(key, value)
    cfg.ignore(*_UNUSED)
    layers = [Layer(m.attn_norm(i), attention(m, i, rope, bias),
                    m.ffn_norm(i),
                    Moe(m.router(i, n, top_k, "mlp.gate.wg"), m.experts(i, n, width), m.act, shared=m.shared(i, width, "mlp.shared_mlp")))
              for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=False))


def _same(cfg: ConfigReader, m: MoeDecoder, keys: tuple[str, ...]) -> int:
    """A number, or a list with the same one for each layer."""
    key = next((k for k in keys if cfg.has(k)), keys[0])
    if not isinstance(values := cfg.used().get(key), list):
        return cfg.int(*keys, low=1, high=1 << 24)
    values = cfg.list(key, of=(int,))
    if len(values) != m.n_layer or set(values) != {values[0]} or values[0] < 1:
        raise cfg.refuse(key, f"supported: one number for all of {m.n_layer} layers")
    return values[0]


def tiny() -> dict[str, Any]:
    return {"model_type": "hunyuan_v1_moe", "vocab_size": 509, "hidden_size": 60, "num_hidden_layers": 3, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 18, "intermediate_size": 44, "num_experts": 7, "moe_topk": [3, 3, 3],
            "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": True}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_decoder(meta)
    width = g.int("expert_feed_forward_length", default=config["intermediate_size"])
    g.expect("expert_shared_count", 1)
    return config | {"intermediate_size": width, "num_experts": g.int("expert_count"), "moe_topk": g.int("expert_used_count")}
