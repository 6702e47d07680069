"""What Qwen's hybrids share: gated attention, layers of Gated DeltaNet between them, experts with a gated shared expert. No architecture.

Norm weights are stored as w - 1 (in GGUF as w), but for the one inside linear_attn. q_proj holds per head [q | gate]; the result of
attention is times sigmoid(gate); rope turns the first quarter of a head unless the config says otherwise. Text positions are equal on
all mrope axes, so that mrope is plain rope.
"""
from dataclasses import replace

from moegg.arch import Gqa, Layer, Moe, Rope
from moegg.models._delta import DeltaSizes, gated_delta
from moegg.models._moe import MoeDecoder

DELTA_DEFAULTS = {"linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128}
MROPE = ("mrope_section", "mrope_interleaved")


def gated_attention(m: MoeDecoder, i: int, rope: Rope, bias: bool) -> Gqa:
    """GQA whose q_proj holds q and the gate of the result, head by head."""
    a, dim = m.attention(i, rope, qkv_bias=bias, o_bias=bias, qk_norm=True), m.head_dim

    def half(name: str, t, first: int):
        if t is None:
            return None
        steps = {"rows": (first, first + dim, 1), "groups": m.n_head}
        return replace(t, name=name, hf=tuple(replace(s, **steps) for s in t.hf), gguf=tuple(replace(s, **steps) for s in t.gguf))
    return replace(a, q=half(a.q.name, a.q, 0), q_bias=half(f"{a.q.name}_bias", a.q_bias, 0),
                   gate=half(f"layers.{i}.attn.gate", a.q, dim))


def layers(m: MoeDecoder, rope: Rope, full: list[bool], sizes: DeltaSizes, renormalise: bool, gate_act: str = "silu") -> list[Layer]:
    """All layers: attention or Gated DeltaNet, then experts."""
    cfg = m.cfg
    n, top_k, width = m.moe_sizes(("num_experts", "num_local_experts"))
    shared = cfg.int("shared_expert_intermediate_size", low=1, default=512)
    bias = cfg.expect("attention_bias", False)

    def moe(i: int) -> Moe:
        return Moe(m.router(i, n, top_k, renormalise=renormalise), m.experts(i, n, width), m.act,
                   shared=m.shared(i, shared, "mlp.shared_expert"), shared_gate=m.shared_gate(i))
    return [Layer(m.attn_norm(i),
                  gated_attention(m, i, rope, bias) if full[i] else gated_delta(m, i, sizes, gate_act),
                  m.ffn_norm(i, "post_attention_norm"), moe(i)) for i in range(m.n_layer)]
