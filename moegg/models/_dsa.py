"""DeepSeek Sparse Attention as DeepSeek-V3.2's and GLM-5's checkpoints store it: latent attention that sees what an indexer chose. No architecture.

An indexer scores each earlier position by heads of its own, made from the short query, against one key per token, and the best
index_topk are seen. Source: transformers 5.24 models/deepseek_v32, glm_moe_dsa. DeepSeek's own code turns index queries and keys by a
Hadamard matrix first, which changes no product, and rounds them to FP8, which is left out there and here. Refuses models without short queries.
"""
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from moegg.arch import ConfigReader, Indexer, Layer, Mla, Model, Norm, Rope, read_rope
from moegg.models._decoder import HEAD_MAX
from moegg.models._mla import NORM_EPS, Latent, gguf_latent
from moegg.models._moe import MoeDecoder, gguf_deepseek_moe, gguf_norm_keys

TOPK_MAX = 1 << 20


class _Indexed(Latent):
    """Latent attention with indexers. rank, heads: class defaults of q_lora_rank and index_n_heads; turned: the indexer's rope."""

    def __init__(self, m: MoeDecoder, rank: int, heads: int):
        super().__init__(m, rank)
        cfg = m.cfg
        if not self.q_rank:
            raise cfg.refuse("q_lora_rank", "supported: a rank, index queries are made of the short query")
        self.heads = cfg.int("index_n_heads", low=1, high=HEAD_MAX, default=heads)
        self.dim = cfg.int("index_head_dim", low=2, high=HEAD_MAX, default=128)
        self.most = cfg.int("index_topk", low=1, high=TOPK_MAX, default=2048)
        if self.rope_dim > self.dim:
            raise cfg.wrong("index_head_dim", f"rope turns {self.rope_dim} dimensions")
        if cfg.int("qk_head_dim", default=self.nope + self.rope_dim) != self.nope + self.rope_dim:
            raise cfg.wrong("qk_head_dim", f"its parts are {self.nope} and {self.rope_dim}")

    def indexer(self, i: int, rope: Rope) -> Indexer:
        def part(name: str, shape: tuple[int, ...], role: str, hf: str, gguf: str):
            return self.m.tensor(i, f"attn.index_{name}", shape, role, f"self_attn.indexer.{hf}", f"indexer.{gguf}")
        norm = Norm(part("k_norm", (self.dim,), "norm", "k_norm.weight", "k_norm.weight"), NORM_EPS, "layer",
                    part("k_norm_bias", (self.dim,), "bias", "k_norm.bias", "k_norm.bias"))
        return Indexer(self.heads, self.dim, self.most, 1, (self.dim * self.heads) ** -0.5,
                       part("q", (self.heads * self.dim, self.q_rank), "attn", "wq_b.weight", "attn_q_b.weight"),
                       part("k", (self.dim, self.m.d), "attn", "wk.weight", "attn_k.weight"), None, norm, rope,
                       part("weights", (self.heads, self.m.d), "router", "weights_proj.weight", "proj.weight"))

    def chosen(self, i: int, source: int, rope: Rope, turned: Rope) -> Mla:
        """The block of layer i, which sees what the indexer of layer `source` chooses."""
        own = self.attention(i, rope)
        return replace(own, indexer=self.indexer(i, turned)) if source == i else replace(own, seen_from=source)


def indexed_model(cfg: ConfigReader, m: MoeDecoder, *, rank: int, heads: int, interleaved: bool, sources: list[int]) -> Model:
    """The model of a config. rank, heads: as above; interleaved: whether the indexer's rope is; sources: per layer the one whose indexer
    chooses for it."""
    if m.n_kv_head != m.n_head:
        raise cfg.refuse("num_key_value_heads", f"latent attention has as many as query heads, {m.n_head}")
    latent = _Indexed(m, rank, heads)
    cfg.expect("rope_interleave", True)
    cfg.expect("indexer_rope_interleave", interleaved)
    cfg.expect("mlp_bias", False)
    cfg.expect("scoring_func", "sigmoid")
    cfg.expect("topk_method", "noaux_tc")
    cfg.ignore("moe_router_dtype", "index_share_for_mtp_iteration")
    if set(cfg.list("layer_types", of=(str,), default=[])) - {"indexed_attention", "deepseek_sparse_attention"}:
        raise cfg.refuse("layer_types", "supported: indexed_attention in all layers")
    dense = min(cfg.int("first_k_dense_replace", default=3), m.n_layer)
    kinds = ["dense"] * dense + ["sparse"] * (m.n_layer - dense)
    if cfg.list("mlp_layer_types", of=(str,), default=kinds) != kinds:
        raise cfg.refuse("mlp_layer_types", f"supported: {dense} dense layers (first_k_dense_replace), then sparse ones")
    rope, ffn = read_rope(cfg, latent.rope_dim, m.ctx_train, interleaved=True), m.deepseek_moe(dense=3)
    layers = [Layer(m.attn_norm(i), latent.chosen(i, source, rope, replace(rope, interleaved=interleaved)), m.ffn_norm(i), ffn(i))
              for i, source in enumerate(sources)]
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=False))


# --- GGUF ---------------------------------------------------------------------------------------------------------------

def gguf_indexed(meta: Mapping[str, Any]) -> tuple[dict[str, Any], ConfigReader]:
    """(config, g) as gguf_latent() gives, with experts and indexers; layers that predict several tokens are not counted."""
    config, g = gguf_latent(meta)
    extra = g.int("nextn_predict_layers", default=0)
    g.expect("expert_gating_func", 2)
    return config | gguf_deepseek_moe(meta, g) | {
        "num_hidden_layers": max(1, config["num_hidden_layers"] - extra), "index_n_heads": g.int("attention.indexer.head_count", low=1),
        "index_head_dim": g.int("attention.indexer.key_length", low=2), "index_topk": g.int("attention.indexer.top_k", low=1)}, g


def gguf_index_keys(model: Model) -> dict[str, Any]:
    x = next(a.indexer for layer in model.layers if isinstance(a := layer.attn, Mla) and a.indexer)
    return gguf_norm_keys(model) | {"attention.indexer.head_count": x.n_head,
                                    "attention.indexer.key_length": x.dim, "attention.indexer.top_k": x.budget}
