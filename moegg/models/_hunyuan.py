"""What Hunyuan's dense and MoE models share: attention with norms after rope, a rope whose base `alpha` stretches, keys without effect.
No architecture.

Rope of type "dynamic" with alpha is theta * alpha^(d / (d - 2)), whatever the length. Refuses cross-layer and latent attention.
"""
from dataclasses import replace

from moegg.arch import ConfigReader, Gqa, Rope, read_rope
from moegg.models._decoder import Decoder

_UNUSED = ("add_classification_head", "attention_head_dim", "cla_share_factor", "class_num", "dense_list", "eod_token_id", "im_end_id",
           "im_newline_id", "im_start_id", "mask_init_id", "num_media_embeds", "org_vocab_size", "pool_type", "sep_token_id", "text_end_id",
           "text_start_id")
_ONLY = {"use_cla": False, "use_qk_norm": True, "norm_type": "rms", "mlp_bias": False, "use_rotary_pos_emb": True}


def attention(m: Decoder, layer: int, rope: Rope, bias: bool) -> Gqa:
    """GQA whose norms of q and k heads come after rope."""
    q, k = (m.norm(layer, f"attn.{x}_norm", f"self_attn.{long}_layernorm", f"attn_{x}_norm", m.head_dim)
            for x, long in (("q", "query"), ("k", "key")))
    return replace(m.attention(layer, rope, qkv_bias=bias, o_bias=bias), q_norm=q, k_norm=k, norm_last=True)


def common_keys(cfg: ConfigReader) -> None:
    """The keys that must have one value, and those that change nothing."""
    for key, value in _ONLY.items():
        cfg.expect(key, value)
    cfg.ignore(*_UNUSED)


def read_alpha_rope(cfg: ConfigReader, m: Decoder) -> Rope:
    """The rope of a config whose type "dynamic" may have alpha."""
    params = cfg.child("rope_scaling" if cfg.dict("rope_scaling", default=None) else "rope_parameters")
    alpha = params.float("alpha", default=0.0, low=0)
    if not alpha:
        return read_rope(cfg, m.head_dim, m.ctx_train)
    params.expect("type" if params.has("type") else "rope_type", "dynamic")
    params.ignore("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
    theta = params.float("rope_theta", default=None) or cfg.float("rope_theta", default=10000.0)
    try:
        theta *= alpha ** (m.head_dim / (m.head_dim - 2))
    except ArithmeticError:
        raise params.wrong("alpha", f"the base of {m.head_dim} dimensions is not finite") from None
    return read_rope(ConfigReader({"rope_theta": theta}), m.head_dim, m.ctx_train)
