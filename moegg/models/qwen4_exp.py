"""Qwen4-Exp (text): four residual streams behind gates, Gated DeltaNet and sparse attention, hashed n-gram embeddings, experts everywhere.

Source: transformers 5.24 models/qwen4_exp. No norms but those of the streams; norm weights are stored as w - 1, but for the one inside
linear_attn. The text part of Qwen4ExpForConditionalGeneration; vision and MTP tensors are left out. Multipliers, moduli and offsets of
the n-gram hashes follow from the config, as the checkpoint's own I64 tensors do, which are not read. The table stays in the file and is
looked up by row. Not supported: GGUF (llama.cpp's qwen4exp), images, attention_bias, indexer_kv_heads other than 1, activations other than silu.
"""
from dataclasses import replace
from typing import Any

from moegg.arch import (
    PAST_MAX,
    ConfigReader,
    Conv,
    Indexer,
    Layer,
    Model,
    Moe,
    NGram,
    Norm,
    Ple,
    Src,
    Streams,
    Tensor,
    hash_multipliers,
    offsets_of,
    primes_from,
    read_rope,
)
from moegg.errors import FormatError
from moegg.models._chat import QWEN_OPEN
from moegg.models._decoder import HARMLESS, HEAD_MAX, IGNORED, SIZE_MAX
from moegg.models._delta import DIM_MAX, DeltaSizes, gated_delta
from moegg.models._moe import MoeDecoder
from moegg.models._qwen_hybrid import DELTA_DEFAULTS, MROPE, gated_attention

NAMES = {
    "arch": "qwen4-exp", "hf": ("Qwen4ExpForConditionalGeneration", "Qwen4ExpForCausalLM"), "model_type": ("qwen4_exp", "qwen4_exp_text"),
    "gguf_unread": ("qwen4exp",),
    "ignore": (*IGNORED, "mtp.*", "model.visual.*", "*.layer_multipliers", "*.ngram_heads_vocab_sizes", "*.ngram_heads_offsets"),
}
CHAT = QWEN_OPEN
_DEFAULTS = {"vocab_size": 248320, "hidden_size": 2048, "intermediate_size": 1, "num_hidden_layers": 40, "num_attention_heads": 16,
             "num_key_value_heads": 2, "head_dim": 256, "max_position_embeddings": 32768}


_TABLES_MAX = 16        # moduli are found by trial division
_HEADS_MAX = 64


class _Exp(MoeDecoder):
    def find(self, name: str, shape: tuple[int, ...], role: str, src: str, **steps: Any) -> Tensor:
        layer = int(name.split(".")[1]) if name.startswith("layers.") else -1
        return Tensor(name, shape, role, tuple(Src(f"{r}{src}", **steps) for r in self.roots), (), layer)

    def streams(self, name: str, hf: str, n: int, rank: int, inject: bool = True) -> Streams:
        wide = n * self.d
        return Streams(Norm(self.find(f"{name}.norm", (wide,), "norm", f"{hf}.hc_norm.weight", add=1.0), self.eps),
                       self.find(f"{name}.down", (rank, wide), "attn", f"{hf}.input_mix_weight_down.weight"),
                       self.find(f"{name}.up", (wide, rank), "attn", f"{hf}.input_mix_weight_up.weight"),
                       self.find(f"{name}.inject", (n, wide), "attn", f"{hf}.block_inject_weight.weight") if inject else None)


def describe(cfg: ConfigReader) -> Model:
    text, wrapped = cfg.path("text_config"), cfg.has("text_config")
    m = _Exp(text, "qwen4-exp", plus_one=True, defaults=_DEFAULTS, roots=("model.language_model.",) if wrapped else ("model.",))
    text.expect("hidden_act", "silu")
    text.expect("attention_bias", False)
    gate_act = text.expect("output_gate_type", "sigmoid", "silu", default="silu")
    text.ignore("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mamba_ssm_dtype")
    text.child("rope_parameters").ignore(*MROPE)
    sizes, rope = DeltaSizes(text, **DELTA_DEFAULTS), read_rope(text, m.head_dim, m.ctx_train, partial=0.25)
    full = sizes.layer_types(m, "indexed_attention")
    n, rank = text.int("hc_count", low=2, high=64, default=4), text.int("hc_lowrank", low=1, high=SIZE_MAX, default=320)
    experts, top_k, width = m.moe_sizes(("num_experts", "num_local_experts"))
    shared, renormalise = text.int("shared_expert_intermediate_size", low=1, default=512), text.bool("norm_topk_prob", default=True)
    index = _index_sizes(text) if any(full) else {}
    rows = text.list("ple_layer_ids", of=(int,), default=[])
    if len(rows) > _TABLES_MAX:
        raise text.refuse("ple_layer_ids", f"supported: at most {_TABLES_MAX}")

    def layer(i: int) -> Layer:
        attn = gated_delta(m, i, sizes, gate_act)
        if full[i]:
            attn = replace(gated_attention(m, i, rope, bias=False), indexer=_indexer(m, i, rope, **index))
        moe = Moe(m.router(i, experts, top_k, renormalise=renormalise), m.experts(i, experts, width), m.act,
                  shared=m.shared(i, shared, "mlp.shared_expert"), shared_gate=m.shared_gate(i))
        around = (m.streams(f"layers.{i}.{x}_streams", f"layers.{i}.{hf}_hyper_connection", n, rank) for x, hf in (("attn", "attn"), ("ffn", "mlp")))
        first, second = around
        return Layer(first, attn, second, moe, ple=_ple(m, text, i, n, rows.index(i + 1)) if i + 1 in rows else None)
    if wrapped:
        cfg.ignore(*HARMLESS, "vision_config", "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
        text.ignore("tie_word_embeddings")
    whole = m.model(map(layer, range(m.n_layer)), tied=cfg.bool("tie_word_embeddings", default=False))
    return replace(whole, streams=n, final_norm=m.streams("final_streams", "hyper_connection_mixer", n, rank, inject=False))


def _index_sizes(text: ConfigReader) -> dict[str, int]:
    text.expect("indexer_kv_heads", 1)
    sizes = {"n_head": text.int("indexer_n_heads", low=1, high=HEAD_MAX), "dim": text.int("indexer_head_dim", low=2, high=DIM_MAX),
             "budget": text.int("indexer_budget", low=1, high=1 << 20), "ratio": text.int("indexer_compress_ratio", low=1, high=1 << 10)}
    if sizes["budget"] % sizes["ratio"]:
        raise text.wrong("indexer_budget", f"blocks have {sizes['ratio']} keys")
    return sizes


def _indexer(m: _Exp, i: int, rope, *, n_head: int, dim: int, budget: int, ratio: int) -> Indexer:
    at, hf = f"layers.{i}.attn.index_", f"layers.{i}.self_attn.indexer"
    q = m.find(f"{at}q", (n_head * dim, m.d), "attn", f"{hf}.index_qk_proj.weight", rows=(0, n_head * dim, 1))
    k = m.find(f"{at}k", (dim, m.d), "attn", f"{hf}.index_qk_proj.weight", rows=(n_head * dim, (n_head + 1) * dim, 1))
    q_norm, k_norm = (Norm(m.find(f"{at}{x}_norm", (dim,), "norm", f"{hf}.{x}_layernorm.weight", add=1.0), m.eps) for x in "qk")
    if rope.dim > dim:
        raise m.cfg.wrong("indexer_head_dim", f"rope turns {rope.dim} dimensions")
    return Indexer(n_head, dim, budget, ratio, dim ** -0.5, q, k, q_norm, k_norm, rope)


def _ple(m: _Exp, text: ConfigReader, i: int, n: int, which: int) -> Ple:
    size, heads = text.int("ngram_size", low=2, high=8, default=3), text.int("heads_per_ngram", low=1, high=64, default=8)
    width, total = text.int("ple_embed_dim", low=1, high=SIZE_MAX), heads * (size - 1)
    if width % total or total > _HEADS_MAX:
        raise text.wrong("ple_embed_dim", f"{total} heads cannot share it, or are more than {_HEADS_MAX}")
    base = text.int("ngram_vocab_size_base", low=2, high=1 << 28, default=20_000_000)
    moduli = tuple(primes_from(base, total * (which + 1))[total * which:])
    parts, unit = text.int("split_ngram_parts", low=1, high=1 << 12, default=512), text.int("make_ngram_vocab_size_divisible_by", low=1, default=128)
    rows = -(-sum(moduli) // unit) * unit
    if rows % parts:
        raise text.wrong("split_ngram_parts", f"the table has {rows} rows")
    hf, at, wide = f"layers.{i}.ple", f"layers.{i}.ple", n * m.d
    shards = tuple(replace(m.find(f"{at}.table.{s}", (rows // parts, width // total), "embed",
                                  f"{hf}.ple_embedding.ngram_embedding.shard_{s}.weight"), gather=True) for s in range(parts))
    ngram = NGram(hash_multipliers(m.vocab, size, which, text.int("seed", default=1234)), moduli, offsets_of(moduli), _eos(text), shards)
    taps = text.int("ple_conv_kernel_size", low=2, high=PAST_MAX // size + 1, default=4)
    norms = (Norm(m.find(f"{at}.norm_{x}", (wide,), "norm", f"{hf}.norm_{x}.weight", add=1.0), m.eps) for x in ("key", "query", "conv"))
    conv = Conv(m.find(f"{at}.taps", (wide, taps), "aux", f"{hf}.conv1d.weight", squeeze=True), dilation=size)
    return Ple(ngram, m.find(f"{at}.key", (wide, width), "attn", f"{hf}.key_proj.weight"),
               m.find(f"{at}.value", (m.d, width), "attn", f"{hf}.value_proj.weight"), *norms, conv)


def _eos(text: ConfigReader) -> int:
    """The first end-of-sequence id, which also ends an n-gram."""
    try:
        return text.int("eos_token_id")
    except FormatError:
        ids = text.list("eos_token_id", of=(int,))
        if not ids or ids[0] < 0:
            raise
        return ids[0]


def tiny() -> dict[str, Any]:
    return {"model_type": "qwen4_exp_text", "vocab_size": 509, "hidden_size": 72, "num_hidden_layers": 4, "num_attention_heads": 6,
            "num_key_value_heads": 2, "head_dim": 20, "moe_intermediate_size": 40, "num_experts": 7, "num_experts_per_tok": 3,
            "shared_expert_intermediate_size": 24, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 12,
            "linear_value_head_dim": 20, "full_attention_interval": 2, "hc_count": 3, "hc_lowrank": 11, "indexer_n_heads": 2,
            "indexer_kv_heads": 1, "indexer_head_dim": 14, "indexer_budget": 8, "indexer_compress_ratio": 4, "ple_layer_ids": [2, 3],
            "ple_embed_dim": 28, "heads_per_ngram": 2, "ngram_size": 3, "ngram_vocab_size_base": 101, "split_ngram_parts": 4,
            "make_ngram_vocab_size_divisible_by": 16, "output_gate_type": "sigmoid", "eos_token_id": 2, "max_position_embeddings": 512,
            "rms_norm_eps": 1e-6, "rope_theta": 1e6, "partial_rotary_factor": 0.5,
            "tie_word_embeddings": False}
