"""Gemma 4 (text): sliding and full layers with heads of their own sizes, norms around every block, dense or with experts beside the MLP.

Source: transformers 5.24 models/gemma4. Norm weights are stored as they are (not w - 1). Scores are not scaled; values have a norm
without weights; where attention_k_eq_v, full layers have no v and take keys as values. Full layers turn the first quarter of the pairs
of a head. The last num_kv_shared_layers layers read the keys and values of the last layer of their kind before them, and have twice
the MLP width if use_double_wide_mlp. With hidden_size_per_layer_input every layer gets a second embedding. With experts, router and
experts read the residual stream, so that the choice is made before the dense MLP runs. Embeddings are multiplied by sqrt(D) in f32.
GGUF: llama.cpp's architecture "gemma4"; which pairs of full layers turn is its tensor rope_freqs (1 or 1e30).
Not supported: images and sound (their towers are left out), attention_bias, use_bidirectional_attention for text, experts together
with per-layer inputs, activations other than silu and tanh-gelu.
"""
from collections.abc import Mapping
from typing import Any

from moegg.arch import ConfigReader, Gqa, Layer, Mlp, Model, Moe, Norm, PerLayerGate, PerLayerInputs, Rope, Src, Tensor, rope_of
from moegg.errors import FormatError
from moegg.models._chat import ASKED, Chat
from moegg.models._decoder import HARMLESS, HEAD_MAX, IGNORED, LAYER_MAX, ROPE_TENSORS, SIZE_MAX, gguf_decoder
from moegg.models._moe import MoeDecoder

NAMES = {
    "arch": "gemma4", "hf": ("Gemma4ForConditionalGeneration", "Gemma4ForCausalLM"), "model_type": ("gemma4", "gemma4_text"),
    "gguf": ("gemma4",), "gguf_config_tensors": ROPE_TENSORS, "gguf_tokenizer": "gemma4",
    "ignore": (*IGNORED, "*vision_tower.*", "*embed_vision.*", "*audio_tower.*", "*embed_audio.*",
               *(f"blk.*.attn_{x}.weight" for x in ("k", "v", "k_norm"))),      # of layers that share keys and values
}
CHAT = Chat(("<turn|>", "<|tool_response>"), "gemma", ("<|channel>thought", "<channel|>"), template=(
    "{{ bos_token }}{% set think = enable_thinking is defined and enable_thinking %}"
    "{% if think and messages[0].role != 'system' %}{{ '<|turn>system\\n<|think|>\\n<turn|>\\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' "
    "+ ('<|think|>\\n' if think and loop.first and m.role == 'system' else '') + m.content + '<turn|>\\n' }}{% endfor %}"
    + ASKED + "{{ '<|turn>model\\n' + ('' if think else '<|channel>thought\\n<channel|>') }}{% endif %}"))
_DEFAULTS = {"vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30, "num_attention_heads": 8,
             "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072}
_MEDIA = ("vision_config", "audio_config", "boi_token_id", "eoi_token_id", "image_token_id", "video_token_id", "boa_token_id",
          "eoa_token_id", "eoa_token_index", "audio_token_id", "vision_soft_tokens_per_image", "audio_ms_per_token")


def describe(cfg: ConfigReader) -> Model:
    text = cfg.path("text_config")
    m = MoeDecoder(text, "gemma4", defaults=_DEFAULTS, act_key="hidden_activation", act_default="gelu_pytorch_tanh",
                   roots=("model.language_model.", "language_model.model.", "model."))
    window = text.int("sliding_window", low=1, default=512)
    types = ["sliding_attention" if (i + 1) % 6 and i + 1 < m.n_layer else "full_attention" for i in range(m.n_layer)]
    windows, ropes = m.windows(window, types), _ropes(text, m)
    text.expect("attention_bias", False)
    text.expect("use_bidirectional_attention", None, "vision", default=None)
    wide, shared = text.bool("use_double_wide_mlp", default=False), text.int("num_kv_shared_layers", default=0)
    own, attention = m.n_layer - shared, _Attention(text, m)
    if shared and (own < 1 or any(w not in windows[:own] for w in windows[own:])):
        raise text.wrong("num_kv_shared_layers", "the layers before them have no keys and values to share")
    moe = text.bool("enable_moe_block", default=False)
    sizes = m.moe_sizes(("num_experts",), ("top_k_experts",)) if moe else None
    text.ignore("num_experts", "top_k_experts", "moe_intermediate_size")
    per_layer = text.int("hidden_size_per_layer_input", default=256, high=SIZE_MAX)
    if per_layer and moe:
        raise text.refuse("hidden_size_per_layer_input", "experts together with per-layer inputs are not supported")
    text.expect("vocab_size_per_layer_input", m.vocab) if per_layer else text.ignore("vocab_size_per_layer_input")

    def layer(i: int) -> Layer:
        source = None if i < own else max(j for j in range(own) if windows[j] == windows[i])
        mlp = m.mlp(i, width=m.width * (2 if wide and i >= own else 1))
        return Layer(m.attn_norm(i), attention(i, windows[i], ropes[bool(windows[i])], source),
                     m.norm(i, "ffn_norm", "pre_feedforward_layernorm", "ffn_norm"), _moe(m, i, mlp, *sizes) if sizes else mlp,
                     m.norm(i, "attn_post_norm", "post_attention_layernorm", "post_attention_norm"),
                     m.norm(i, "ffn_post_norm", "post_feedforward_layernorm", "post_ffw_norm"),
                     per_layer=_gate(m, i, per_layer) if per_layer else None,
                     out_scale=m.tensor(i, "out_scale", (1,), "aux", "layer_scalar", "layer_output_scale.weight"))
    layers = [layer(i) for i in range(m.n_layer)]
    inputs = _inputs(m, per_layer) if per_layer else None
    cap = text.float("final_logit_softcapping", default=0.0, low=0)
    if text is not cfg:     # the wrapper's own keys; its tie_word_embeddings is the one in force
        cfg.ignore(*HARMLESS, *_MEDIA)
        text.ignore("tie_word_embeddings")
    return m.model(layers, tied=cfg.bool("tie_word_embeddings", default=True), embed_scale=m.d ** 0.5, logit_softcap=cap, per_layer=inputs,
                   heads=("lm_head.weight", "language_model.lm_head.weight"))


def _ropes(text: ConfigReader, m: MoeDecoder) -> tuple[tuple[ConfigReader, float], tuple[ConfigReader, float]]:
    """(parameters, theta) of full and of sliding layers."""
    params = text.child("rope_parameters")
    if params.has("rope_type"):
        raise text.refuse("rope_parameters", "supported: one object each for full_attention and sliding_attention")
    full, local = params.child("full_attention"), params.child("sliding_attention")
    if not params.has("full_attention"):
        full = ConfigReader({"rope_type": "proportional", "partial_rotary_factor": 0.25})
    return (full, full.float("rope_theta", default=1e6)), (local, local.float("rope_theta", default=1e4))


class _Attention:
    """The attention of a layer; full layers have heads of another size, and perhaps another number of them for keys."""

    def __init__(self, text: ConfigReader, m: MoeDecoder):
        self.m, self.k_is_v = m, text.bool("attention_k_eq_v", default=False)
        self.dim = text.int("global_head_dim", low=2, high=HEAD_MAX, default=512)
        count = text.int("num_global_key_value_heads", low=1, high=HEAD_MAX, default=None)
        self.n_kv = count if self.k_is_v and count else m.n_kv_head
        if m.n_head % self.n_kv or self.dim % 2:
            raise text.wrong("num_global_key_value_heads", f"{m.n_head} query heads of {self.dim} cannot share {self.n_kv} key heads")

    def __call__(self, i: int, window: int, rope: tuple[ConfigReader, float], source: int | None) -> Gqa:
        m = self.m
        dim, n_kv = (m.head_dim, m.n_kv_head) if window else (self.dim, self.n_kv)

        def proj(x: str, shape: tuple[int, int], gguf: str) -> Tensor:
            return m.tensor(i, f"attn.{x}", shape, "attn", f"self_attn.{x}_proj.weight", f"{gguf}.weight")
        k = v = k_norm = v_norm = None
        if source is None:
            k = proj("k", (n_kv * dim, m.d), "attn_k")
            v = None if self.k_is_v and not window else proj("v", (n_kv * dim, m.d), "attn_v")
            k_norm, v_norm = m.norm(i, "attn.k_norm", "self_attn.k_norm", "attn_k_norm", dim), Norm(None, m.eps)
        q, o = proj("q", (m.n_head * dim, m.d), "attn_q"), proj("o", (m.d, m.n_head * dim), "attn_output")
        turn: Rope = rope_of(rope[0], dim, rope[1], m.ctx_train)
        return Gqa(m.n_head, n_kv, dim, 1.0, q, k, v, o, turn, window, v_norm=v_norm, k_norm=k_norm, kv_from=source,
                   q_norm=m.norm(i, "attn.q_norm", "self_attn.q_norm", "attn_q_norm", dim))


def _moe(m: MoeDecoder, i: int, mlp: Mlp, n: int, top_k: int, width: int) -> Moe:
    scale = m.tensor(i, "ffn.router_norm", (m.d,), "norm", "router.scale", "ffn_gate_inp.scale")
    router = m.router(i, n, top_k, "router.proj", renormalise=True,
                      expert_scale=m.tensor(i, "ffn.expert_scale", (n,), "aux", "router.per_expert_scale", "ffn_down_exps.scale"))
    experts = m.experts(i, n, width, fused=("experts.gate_up_proj", "experts.down_proj"))
    return Moe(router, experts, m.act, shared=mlp, router_norm=Norm(scale, m.eps), router_scale=m.d ** -0.5,
               norm=m.norm(i, "ffn.norm", "pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
               post_norm=m.norm(i, "ffn.post_norm", "post_feedforward_layernorm_2", "post_ffw_norm_2"),
               shared_post_norm=m.norm(i, "shared.post_norm", "post_feedforward_layernorm_1", "post_ffw_norm_1"))


def _gate(m: MoeDecoder, i: int, width: int) -> PerLayerGate:
    return PerLayerGate(m.tensor(i, "inputs.gate", (width, m.d), "dense", "per_layer_input_gate.weight", "inp_gate.weight"),
                        m.tensor(i, "inputs.proj", (m.d, width), "dense", "per_layer_projection.weight", "proj.weight"),
                        m.norm(i, "inputs.post_norm", "post_per_layer_input_norm", "post_norm"), m.act)


def _inputs(m: MoeDecoder, width: int) -> PerLayerInputs:
    def tensor(name: str, shape: tuple[int, ...], role: str, hf: str, gguf: str, gather: bool = False) -> Tensor:
        return Tensor(f"inputs.{name}", shape, role, tuple(Src(f"{r}{hf}.weight") for r in m.roots), (Src(f"{gguf}.weight"),), gather=gather)
    rows = m.n_layer * width
    return PerLayerInputs(tensor("table", (m.vocab, rows), "embed", "embed_tokens_per_layer", "per_layer_token_embd", True),
                          tensor("proj", (rows, m.d), "dense", "per_layer_model_projection", "per_layer_model_proj"),
                          Norm(tensor("norm", (width,), "norm", "per_layer_projection_norm", "per_layer_proj_norm"), m.eps))


def tiny() -> dict[str, Any]:
    return {"model_type": "gemma4_text", "vocab_size": 509, "hidden_size": 60, "num_hidden_layers": 4, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 18, "global_head_dim": 28, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
            "intermediate_size": 88, "moe_intermediate_size": 40, "num_experts": 5, "top_k_experts": 2, "enable_moe_block": True,
            "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "sliding_window": 11, "hidden_size_per_layer_input": 0,
            "layer_types": ["sliding_attention", "full_attention"] * 2, "final_logit_softcapping": 30.0,
            "rope_parameters": {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
                                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}


def gguf_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    own, names = ConfigReader({k.removeprefix("gemma4."): v for k, v in meta.items()}, "gemma4.", "GGUF metadata"), meta["tensor_names"]
    n = own.int("block_count", low=1, high=LAYER_MAX)
    slides = own.list("attention.sliding_window_pattern", of=(bool,))
    kv, ffn = (_each(own, key, n) for key in ("attention.head_count_kv", "feed_forward_length"))
    if len(slides) != n:
        raise own.wrong("attention.sliding_window_pattern", f"there are {n} layers")
    full, sliding = ([c for c, s in zip(kv, slides, strict=True) if s is kind] or kv for kind in (False, True))
    if len({*full}) > 1 or len({*sliding}) > 1:
        raise own.refuse("attention.head_count_kv", "supported: one value for full layers and one for those with a window")
    shared = own.int("attention.shared_kv_layers", default=0, high=n)
    if ffn not in ([ffn[0]] * n, doubled := [ffn[0] * (2 if i >= n - shared else 1) for i in range(n)]):
        raise own.refuse("feed_forward_length", "supported: one value, or twice as much in layers that share keys and values")
    config, g = gguf_decoder({**meta, "gemma4.attention.head_count_kv": sliding[0], "gemma4.feed_forward_length": ffn[0]})
    config |= {
        "global_head_dim": config["head_dim"], "head_dim": g.int("attention.key_length_swa", low=2, high=HEAD_MAX),
        "num_global_key_value_heads": full[0],
        "layer_types": ["sliding_attention" if s else "full_attention" for s in slides], "num_kv_shared_layers": shared,
        "use_double_wide_mlp": shared > 0 and ffn == doubled, "sliding_window": g.int("attention.sliding_window", low=1),
        "attention_k_eq_v": any(not s and f"blk.{i}.attn_v.weight" not in names for i, s in enumerate(slides[:n - shared])),
        "hidden_size_per_layer_input": g.int("embedding_length_per_layer_input", default=0),
        "final_logit_softcapping": g.float("final_logit_softcapping", default=0.0),
        "rope_parameters": {"full_attention": _turning(config, g, meta), "sliding_attention": {
            "rope_type": "default", "rope_theta": g.float("rope.freq_base_swa", default=config.pop("rope_theta"))}}}
    for key in ("attention.value_length_swa", "rope.dimension_count_swa"):
        g.expect(key, config["head_dim"])
    if experts := g.int("expert_count", default=0):
        config |= {"enable_moe_block": True, "num_experts": experts, "top_k_experts": g.int("expert_used_count"),
                   "moe_intermediate_size": g.int("expert_feed_forward_length")}
    return config


def gguf_keys(model: Model) -> dict[str, Any]:
    attn = [x.attn for x in model.layers]
    local = next((a for a in attn if a.window), None)
    dim = (local or attn[0]).head_dim
    return {"attention.sliding_window_pattern": [a.window > 0 for a in attn], "rope.freq_base_swa": local.rope.theta if local else None,
            "attention.shared_kv_layers": sum(a.kv_from is not None for a in attn),
            "embedding_length_per_layer_input": model.per_layer.norm.weight.shape[0] if model.per_layer else 0,
            "attention.key_length_swa": dim, "attention.value_length_swa": dim, "rope.dimension_count_swa": dim}


def _each(own: ConfigReader, key: str, n: int) -> list[int]:
    """The value of each of n layers; a file may state one for all."""
    if not isinstance(own.used().get(key) if own.has(key) else None, list):
        return [own.int(key, low=1, high=SIZE_MAX)] * n
    values = own.list(key, of=(int,))
    if len(values) != n or min(values) < 1:
        raise own.wrong(key, f"expected a positive value for each of {n} layers")
    return values


def _turning(config: dict[str, Any], g: ConfigReader, meta: Mapping[str, Any]) -> dict[str, Any]:
    """rope_parameters of full layers; llama.cpp divides the frequencies of pairs that do not turn by 1e30."""
    config.pop("rope_scaling", None)
    factors, dim = meta.get("tensor:rope_freqs.weight"), config["head_dim"]
    if factors is None:
        raise FormatError("GGUF metadata: tensor 'rope_freqs.weight' is missing; full layers of gemma4 need it", "gguf-tensor")
    turning = sum(f == 1.0 for f in factors)
    if len(factors) != dim // 2 or any(f != 1.0 for f in factors[:turning]) or any(f < 1e29 for f in factors[turning:]):
        raise g.refuse("rope.dimension_count", "supported: a tensor 'rope_freqs.weight' of ones, then 1e30")
    # half a dimension more, so that rounding takes no pair away
    return {"rope_type": "proportional", "partial_rotary_factor": (2 * turning + 0.5) / dim, "rope_theta": config["rope_theta"]}
