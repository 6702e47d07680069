"""What the pre-norm decoders in this folder share: sizes, tensor names, blocks, the keys of GGUF metadata. No architecture.

An architecture module makes one Decoder from its config, builds its layers from attention(), mlp() and norm() (_moe.py: experts), and ends
with model(). Tensor names in the file are fixed here ("layers.3.attn.q"); names in sources are those of Hugging Face releases
below `roots`, and of llama.cpp. Refuses sizes that contradict each other. Keys and class defaults: transformers 5.24 configs.
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from moegg.arch import ConfigReader, Gqa, Layer, Mlp, Model, Norm, PerLayerInputs, Rope, Src, Tensor
from moegg.errors import UnsupportedModel

HARMLESS = (  # keys of released configs that change nothing in a text forward pass; token ids are the tokenizer's business,
              # how weights are packed is the converter's
    "architectures", "model_type", "torch_dtype", "dtype", "transformers_version", "_name_or_path", "_attn_implementation",
    "attn_implementation", "initializer_range", "use_cache", "cache_implementation", "attention_dropout", "pretraining_tp",
    "output_router_logits", "router_aux_loss_coef", "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id",
    "is_llama_config", "transformers.js_config", "unsloth_version", "unsloth_fixed", "auto_map",
    "quantization", "quantization_config",
)
ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")   # read by gguf_decoder()
IGNORED = ("*.rotary_emb.inv_freq", "lm_head.weight", *ROPE_TENSORS)    # lm_head: some tied checkpoints repeat the embedding
SIZE_MAX, LAYER_MAX, HEAD_MAX, CTX_MAX = 1 << 24, 4096, 1 << 16, 1 << 30       # of widths; layers; heads and head dims; positions
ACTS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}


class Decoder:
    """Sizes of one model as attributes, and its tensors and blocks by layer number.

    roots: prefixes under which sources keep the decoder, the first that exists is used. defaults: values of the reference's
    config class for keys a config may leave out. plus_one: norm weights are stored as w - 1 (gemma; not in GGUF).
    acts: the activations that a config may name. layer_norm: the norms are LayerNorms of eps_key, with or without biases.
    """

    def __init__(self, cfg: ConfigReader, arch: str, *, roots: tuple[str, ...] = ("model.",), plus_one: bool = False,
                 defaults: Mapping[str, Any] | None = None, act_key: str = "hidden_act", act_default: str = "silu", acts: Mapping[str, str] = ACTS,
                 eps_key: str = "rms_norm_eps", eps_default: float = 1e-6, layer_norm: bool = False, norm_bias: bool = False):
        def size(key: str, high: int = SIZE_MAX) -> int:
            return cfg.int(key, low=1, high=high, **({"default": defaults[key]} if defaults and key in defaults else {}))
        self.cfg, self.arch, self.roots, self.plus_one = cfg, arch, roots, 1.0 if plus_one else 0.0
        self.d, self.vocab, self.width = size("hidden_size"), size("vocab_size"), size("intermediate_size")
        self.n_layer, self.n_head = size("num_hidden_layers", LAYER_MAX), size("num_attention_heads", HEAD_MAX)
        self.ctx_train = size("max_position_embeddings", CTX_MAX)
        self.n_kv_head = cfg.int("num_key_value_heads", low=1, default=(defaults or {}).get("num_key_value_heads", self.n_head))
        self.head_dim = cfg.int("head_dim", low=2, high=HEAD_MAX, default=(defaults or {}).get("head_dim"))
        if self.n_head % self.n_kv_head:
            raise cfg.wrong("num_key_value_heads", f"{self.n_head} query heads cannot share {self.n_kv_head} key and value heads")
        if self.head_dim is None and self.d % self.n_head:
            raise cfg.wrong("num_attention_heads", f"'hidden_size' {self.d} is not a multiple of it and there is no 'head_dim'")
        self.head_dim = self.head_dim or self.d // self.n_head
        if self.head_dim % 2:
            raise cfg.wrong("head_dim", f"rope needs an even head dimension, got {self.head_dim}")
        self.eps, self.layer_norm, self.norm_bias = cfg.float(eps_key, default=eps_default, low=0), layer_norm, norm_bias
        self.act = acts[cfg.expect(act_key, *acts, default=act_default)]
        cfg.ignore(*HARMLESS)

    # --- tensors --------------------------------------------------------------------------------------------------------

    def tensor(self, layer: int, name: str, shape: tuple[int, ...], role: str, hf: str, gguf: str, add: float = 0.0) -> Tensor:
        """'layers.{layer}.{name}', found in sources as '{root}layers.{layer}.{hf}' and 'blk.{layer}.{gguf}'."""
        sources = tuple(Src(f"{root}layers.{layer}.{hf}", add=add) for root in self.roots)
        return Tensor(f"layers.{layer}.{name}", shape, role, sources, (Src(f"blk.{layer}.{gguf}"),), layer)

    def norm(self, layer: int, name: str, hf: str, gguf: str, width: int = 0) -> Norm:
        """A norm of this model's kind over `width` (the hidden size if 0); hf and gguf without '.weight'."""
        shape = (width or self.d,)
        bias = self.tensor(layer, f"{name}_bias", shape, "bias", f"{hf}.bias", f"{gguf}.bias") if self.norm_bias else None
        weight = self.tensor(layer, name, shape, "norm", f"{hf}.weight", f"{gguf}.weight", self.plus_one)
        return Norm(weight, self.eps, "layer" if self.layer_norm else "rms", bias)

    def attn_norm(self, layer: int) -> Norm:
        """The norm before attention, by the names that nearly all families give it."""
        return self.norm(layer, "attn_norm", "input_layernorm", "attn_norm")

    def ffn_norm(self, layer: int, gguf: str = "ffn_norm") -> Norm:
        """The norm before the FFN, likewise."""
        return self.norm(layer, "ffn_norm", "post_attention_layernorm", gguf)

    def linear(self, layer: int, name: str, shape: tuple[int, int], role: str, hf: str, gguf: str, bias: bool = False,
               first: int | None = None) -> tuple[Tensor, Tensor | None]:
        """(weight, bias or None); hf and gguf without '.weight'. first: it is the rows from there on of a fused tensor."""
        def part(name: str, shape: tuple[int, ...], role: str, kind: str) -> Tensor:
            t = self.tensor(layer, name, shape, role, f"{hf}.{kind}", f"{gguf}.{kind}")
            if first is None:
                return t
            rows = (first, first + shape[0], 1)
            return replace(t, hf=tuple(replace(s, rows=rows) for s in t.hf), gguf=tuple(replace(s, rows=rows) for s in t.gguf))
        return part(name, shape, role, "weight"), part(f"{name}_bias", shape[:1], "bias", "bias") if bias else None

    # --- blocks ---------------------------------------------------------------------------------------------------------

    def attention(self, layer: int, rope: Rope | None, *, scale: float | None = None, window: int = 0, qkv_bias: bool = False,
                  o_bias: bool = False, qk_norm: bool = False, wide_norm: bool = False, softcap: float = 0.0, fused: bool = False) -> Gqa:
        """Grouped-query attention; scale None: head_dim ** -0.5. qk_norm: over each head of q and k; wide_norm: over all of them.
        fused: q, k and v are the rows of one tensor."""
        wide, narrow = self.n_head * self.head_dim, self.n_kv_head * self.head_dim

        def proj(x: str, rows: int, first: int) -> tuple[Tensor, Tensor | None]:
            names = ("self_attn.qkv_proj", "attn_qkv") if fused else (f"self_attn.{x}_proj", f"attn_{x}")
            return self.linear(layer, f"attn.{x}", (rows, self.d), "attn", *names, qkv_bias, first if fused else None)

        def norm(x: str, width: int) -> Norm | None:
            if not (qk_norm or wide_norm):
                return None
            return self.norm(layer, f"attn.{x}_norm", f"self_attn.{x}_norm", f"attn_{x}_norm", width if wide_norm else self.head_dim)
        (q, q_bias), (k, k_bias), (v, v_bias) = proj("q", wide, 0), proj("k", narrow, wide), proj("v", narrow, wide + narrow)
        o, o_bias_t = self.linear(layer, "attn.o", (self.d, wide), "attn", "self_attn.o_proj", "attn_output", o_bias)
        q_norm, k_norm = norm("q", wide), norm("k", narrow)
        return Gqa(self.n_head, self.n_kv_head, self.head_dim, self.head_dim ** -0.5 if scale is None else scale, q, k, v, o,
                   rope, window, q_bias, k_bias, v_bias, o_bias_t, q_norm, k_norm, softcap)

    def mlp(self, layer: int, bias: bool = False, *, fused: bool = False, width: int = 0) -> Mlp:
        """A gated MLP of `width` (0: the config's intermediate_size). fused: gate and up are the rows of one tensor."""
        f, d = width or self.width, self.d
        hf = ("mlp.gate_up_proj",) * 2 if fused else ("mlp.gate_proj", "mlp.up_proj")
        gate, gate_bias = self.linear(layer, "ffn.gate", (f, d), "dense", hf[0], "ffn_up" if fused else "ffn_gate", bias, 0 if fused else None)
        up, up_bias = self.linear(layer, "ffn.up", (f, d), "dense", hf[1], "ffn_up", bias, f if fused else None)
        down, down_bias = self.linear(layer, "ffn.down", (d, f), "dense", "mlp.down_proj", "ffn_down", bias)
        return Mlp(gate, up, down, self.act, gate_bias, up_bias, down_bias)

    def windows(self, window: int, types: Iterable[str]) -> list[int]:
        """Per layer the attention window: `window` where layer_types says sliding_attention, else 0. types: the class default."""
        types = self.cfg.list("layer_types", of=(str,), default=list(types))
        if len(types) != self.n_layer:
            raise self.cfg.wrong("layer_types", f"it has {len(types)} entries for {self.n_layer} layers")
        if not set(types) <= {"full_attention", "sliding_attention"}:
            raise self.cfg.refuse("layer_types", "supported: full_attention, sliding_attention")
        if "sliding_attention" in types and not window:
            raise self.cfg.wrong("layer_types", "it has sliding layers, but no sliding window is in use")
        return [window if t == "sliding_attention" else 0 for t in types]

    def upper_windows(self) -> list[int]:
        """Qwen's rule: with use_sliding_window, layers from max_window_layers on slide, unless layer_types says otherwise."""
        window = self.cfg.int("sliding_window", low=1, default=0 if self.cfg.given("sliding_window") else 4096)
        first = self.cfg.int("max_window_layers", default=28)
        window = window if self.cfg.bool("use_sliding_window", default=False) else 0
        return self.windows(window, ["sliding_attention" if window and i >= first else "full_attention"
                                     for i in range(self.n_layer)])

    def model(self, layers: Iterable[Layer], *, tied: bool, heads: tuple[str, ...] = ("lm_head.weight",), embed: str = "embed_tokens",
              embed_scale: float = 1.0, logit_softcap: float = 0.0, logit_scale: float = 1.0,
              per_layer: PerLayerInputs | None = None) -> Model:
        """The whole model. tied: the embedding is the head too, else it is only looked up. heads: the head's source names;
        embed: the embedding's."""
        table = (self.vocab, self.d)
        looked_up = Tensor("embed", table, "embed", tuple(Src(f"{r}{embed}.weight") for r in self.roots),
                           (Src("token_embd.weight"),), gather=not tied)
        final = Tensor("final_norm", (self.d,), "norm", tuple(Src(f"{r}norm.weight", add=self.plus_one) for r in self.roots),
                       (Src("output_norm.weight"),))
        bias = Tensor("final_norm_bias", (self.d,), "bias", tuple(Src(f"{r}norm.bias") for r in self.roots), (Src("output_norm.bias"),))
        norm = Norm(final, self.eps, "layer" if self.layer_norm else "rms", bias if self.norm_bias else None)
        head = None if tied else Tensor("head", table, "head", tuple(map(Src, heads)), (Src("output.weight"),))
        return Model(self.arch, self.d, self.vocab, self.ctx_train, looked_up, tuple(layers), norm, head, embed_scale, logit_softcap, logit_scale,
                     per_layer)


# --- GGUF ---------------------------------------------------------------------------------------------------------------

def gguf_decoder(meta: Mapping[str, Any], *, partial: bool = False, eps: str = "rms_norm_eps") -> tuple[dict[str, Any], ConfigReader]:
    """(config, g): the HF-style keys that llama.cpp's loader reads for every decoder, and a reader of '<arch>.*' for the rest.
    partial: rope may leave the end of a head alone. eps: the key that the norms' epsilon gets.

    meta: the file's metadata with Python values, plus what the GGUF source adds: "tensor_names", a frozenset, and
    "tensor:<name>", a list of floats, for each of NAMES["gguf_config_tensors"] that the file has. Sizes have Decoder's limits, so that
    loops over them end.
    """
    arch, names = meta["general.architecture"], meta["tensor_names"]
    own = {k[len(arch) + 1:]: v for k, v in meta.items() if k.startswith(arch + ".")}
    for key in ("attention.head_count", "attention.head_count_kv", "feed_forward_length"):   # arrays when layers may differ
        if isinstance(values := own.get(key), list) and values:
            if any(v != values[0] for v in values):
                raise UnsupportedModel(f"GGUF metadata: '{arch}.{key}' differs between layers; supported: one value",
                                       "arch-unsupported")
            own[key] = values[0]
    g = ConfigReader(own, f"{arch}.", "GGUF metadata")
    tokens = meta.get("tokenizer.ggml.tokens")
    tokens = len(tokens) or None if isinstance(tokens, list) else None
    heads, d = g.int("attention.head_count", low=1, high=HEAD_MAX), g.int("embedding_length", low=1, high=SIZE_MAX)
    head_dim = g.int("attention.key_length", default=d // heads, low=2, high=HEAD_MAX)
    g.expect("attention.value_length", head_dim)
    turned = g.int("rope.dimension_count", default=head_dim, low=2, high=head_dim) if partial else g.expect("rope.dimension_count", head_dim)
    ctx = g.int("context_length", low=1, high=CTX_MAX)
    config = {
        "hidden_size": d, "intermediate_size": g.int("feed_forward_length", "expert_feed_forward_length", high=SIZE_MAX),
        "num_hidden_layers": g.int("block_count", low=1, high=LAYER_MAX), "num_attention_heads": heads,
        "num_key_value_heads": g.int("attention.head_count_kv", default=heads, low=1, high=HEAD_MAX), "head_dim": head_dim,
        eps: g.float("attention.layer_norm_rms_epsilon" if eps == "rms_norm_eps" else "attention.layer_norm_epsilon"),
        "max_position_embeddings": ctx,
        "vocab_size": g.int("vocab_size", default=tokens, low=1, high=SIZE_MAX),
        "rope_theta": g.float("rope.freq_base", default=10000.0), "tie_word_embeddings": "output.weight" not in names,
    }
    if partial:
        config["partial_rotary_factor"] = turned / head_dim
    if scaling := _gguf_scaling(g, meta, ctx):
        config["rope_scaling"] = scaling
    return config, g


def one_kv_count(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata with the KV heads of attention layers alone; mixers have none in the array of all layers."""
    key, counts = _kv_counts(meta)
    return {**meta, key: [n for n in counts if n] if isinstance(counts, list) else counts}


def kv_layers(meta: Mapping[str, Any]) -> list[bool] | None:
    """Which layers have KV heads, by the array of them; None: there is none, all have."""
    _, counts = _kv_counts(meta)
    return [bool(n) for n in counts] if isinstance(counts, list) else None


def _kv_counts(meta: Mapping[str, Any]) -> tuple[str, Any]:
    key = f"{meta['general.architecture']}.attention.head_count_kv"
    return key, meta.get(key)


def _gguf_scaling(g: ConfigReader, meta: Mapping[str, Any], ctx: int) -> dict[str, Any] | None:
    """The rope_scaling object that llama.cpp's reading of rope.scaling.* and of the rope tensors amounts to."""
    freqs, long, short = (meta.get(f"tensor:{name}") for name in ROPE_TENSORS)
    kind = g.expect("rope.scaling.type", "none", "linear", "yarn", "longrope", default="linear")
    factor = g.float("rope.scaling.factor", "rope.scale_linear", default=0.0, low=0) or 1.0
    attention = g.float("rope.scaling.attn_factor", default=1.0)
    orig = g.int("rope.scaling.original_context_length", default=ctx, low=1)
    if freqs is not None:
        if kind != "none" and factor != 1.0:
            raise g.refuse("rope.scaling.type", "supported with the tensor 'rope_freqs.weight': none")
        return {"rope_type": "factors", "factors": freqs}
    if kind == "longrope" or long is not None:      # Phi-3's converter writes the tensors and no type
        if long is None or short is None:
            raise g.wrong("rope.scaling.type", "a tensor 'rope_factors_{long,short}.weight' is missing")
        return {"rope_type": "longrope", "long_factor": long, "short_factor": short, "attention_factor": attention,
                "original_max_position_embeddings": orig}
    if kind == "none" or factor == 1.0:
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    # mscale 1 is the default factor 0.1 ln f + 1 on cos and sin; llama.cpp multiplies it by attn_factor
    yarn = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": orig,
            "beta_fast": g.float("rope.scaling.yarn_beta_fast", default=32.0),
            "beta_slow": g.float("rope.scaling.yarn_beta_slow", default=1.0)}
    return yarn if attention == 1.0 else yarn | {"attention_factor": attention * (0.1 * math.log(factor) + 1.0)}
