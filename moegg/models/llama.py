"""Llama (text): pre-norm GQA, gated MLP. Covers Llama 1-3, SmolLM 1-2, Mistral (sliding window in every layer) and InternLM3.

Source: transformers 5.24 models/llama and models/mistral; internlm3 differs in the names of its bias keys only.
GGUF: llama.cpp's architecture "llama"; its q and k rows are permuted for interleaved rope, and Llama 3's frequency divisors are
the tensor rope_freqs.weight. A sliding window in its metadata is ignored, as llama.cpp does.
Not supported: partial_rotary_factor, Mistral with mixed layer_types, experts (Mixtral), activations but silu and tanh-gelu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import Chat, ConfigReader, Layer, Model, read_rope
from moegg.models._chat import CHATML, MISTRAL, turns
from moegg.models._decoder import IGNORED, ROPE_TENSORS, Decoder, gguf_decoder

NAMES = {
    "arch": "llama", "hf": ("LlamaForCausalLM", "MistralForCausalLM", "InternLM3ForCausalLM"),
    "model_type": ("llama", "mistral", "internlm3"), "gguf": ("llama",),
    "gguf_config_tensors": ROPE_TENSORS, "ignore": IGNORED,
}
CHAT = (Chat(("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"), "llama", marks=("<|start_header_id|>",), template=(
    "{{ bos_token }}" + turns("<|start_header_id|>", "<|end_header_id|>\\n\\n", "<|eot_id|>"))), CHATML, MISTRAL, Chat(("</s>",)))


def describe(cfg: ConfigReader) -> Model:
    mistral = cfg.str("model_type", default="llama") == "mistral"
    m = Decoder(cfg, "llama")
    rope = read_rope(cfg, m.head_dim, m.ctx_train, interleaved=cfg.bool("rope_interleaved", default=False))
    qkv_bias = cfg.bool("attention_bias", "qkv_bias", default=False)
    o_bias = cfg.bool("attention_bias", "bias", default=False)
    mlp_bias = cfg.bool("mlp_bias", "bias", default=False)
    window = 0
    if mistral:
        window = cfg.int("sliding_window", low=1, default=0 if cfg.given("sliding_window") else 4096)
        if set(cfg.list("layer_types", of=(str,), default=[])) - {"sliding_attention" if window else "full_attention"}:
            raise cfg.refuse("layer_types", "Mistral has 'sliding_window' in every layer")
    layers = [Layer(m.attn_norm(i),
                    m.attention(i, rope, window=window, qkv_bias=qkv_bias, o_bias=o_bias),
                    m.ffn_norm(i), m.mlp(i, mlp_bias))
              for i in range(m.n_layer)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=False))


def tiny() -> dict[str, Any]:
    return {"model_type": "llama", "vocab_size": 509, "hidden_size": 72, "num_hidden_layers": 3, "num_attention_heads": 6,
            "num_key_value_heads": 2, "head_dim": 20, "intermediate_size": 104, "max_position_embeddings": 512,
            "rms_norm_eps": 1e-5, "rope_theta": 5e5, "tie_word_embeddings": False, "rope_scaling": {
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64}}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    config, g = gguf_decoder(meta)
    g.expect("expert_count", 0)
    names = meta["tensor_names"]
    return config | {"rope_interleaved": True, "qkv_bias": "blk.0.attn_q.bias" in names,
                     "bias": "blk.0.attn_output.bias" in names, "mlp_bias": "blk.0.ffn_gate.bias" in names}
