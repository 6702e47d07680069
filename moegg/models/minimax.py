"""MiniMax-Text-01 (the Hugging Face port): lightning attention with a full GQA layer now and then, experts in every layer.

Source: transformers 5.24 models/minimax. The residual is the normed hidden state: x = alpha h + beta block(h) with h = norm(x), for
attention and experts alike. Lightning heads decay by exp(-slope), slope = 2^(-8 (h + 1) / H) (1 - layer / (L - 1 + 1e-5) + 1e-5);
checkpoints carry such buffers, which are not read. The norm inside lightning layers has an eps of 1e-6 whatever the config says.
Full layers rotate `rotary_dim` of each head, 64 of 128 in the release, as its own code does; the port drops that key and rotates all.
Not supported: GGUF (llama.cpp has no name for it), sliding_window, activations other than silu.
"""
import math
from typing import Any

from moegg.arch import Chat, ConfigReader, Layer, Lightning, Model, Moe, Norm, Src, Tensor, read_rope
from moegg.models._chat import ASKED
from moegg.models._decoder import IGNORED
from moegg.models._moe import MIXTRAL, MoeDecoder

NAMES = {"arch": "minimax", "hf": ("MiniMaxForCausalLM",), "model_type": ("minimax",),
         "ignore": (*IGNORED, "*.slope_rate", "*.query_decay", "*.key_decay", "*.diagonal_decay")}
CHAT = Chat(("<end_of_sentence>",), "marked", template=(
    "{% for m in messages %}{% set name = {'user': 'user name=user', 'assistant': 'ai name=assistant'}[m.role] %}"
    "{{ '<beginning_of_sentence>' + (name or 'system ai_setting=assistant') + '\\n' + m.content + '<end_of_sentence>\\n' }}{% endfor %}"
    + ASKED + "{{ '<beginning_of_sentence>ai name=assistant\\n' }}{% endif %}"))
_DEFAULTS = {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
             "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5}


def describe(cfg: ConfigReader) -> Model:
    m = MoeDecoder(cfg, "minimax", defaults=_DEFAULTS)
    cfg.expect("hidden_act", "silu")
    cfg.expect("sliding_window", None)
    turned = cfg.int("rotary_dim", low=2, default=m.head_dim)
    rope = read_rope(cfg, m.head_dim, m.ctx_train, theta_default=1e6, partial=turned / m.head_dim)
    cfg.ignore("block_size", "router_jitter_noise")
    n, top_k, _ = m.moe_sizes(("num_local_experts", "num_experts"), width="intermediate_size")
    types = cfg.list("layer_types", of=(str,), default=["full_attention" if i % 2 == 0 else "linear_attention" for i in range(m.n_layer)])
    if len(types) != m.n_layer:
        raise cfg.wrong("layer_types", f"it has {len(types)} entries for {m.n_layer} layers")
    if not set(types) <= {"full_attention", "linear_attention"}:
        raise cfg.refuse("layer_types", "supported: full_attention, linear_attention")
    factors = {key: (cfg.float(f"{key}_alpha_factor", default=1.0), cfg.float(f"{key}_beta_factor", default=1.0))
               for key in ("full_attn", "linear_attn", "mlp")}

    def layer(i: int) -> Layer:
        full = types[i] == "full_attention"
        moe = Moe(m.router(i, n, top_k, hf="block_sparse_moe.gate"), m.experts(i, n, m.width, **MIXTRAL), m.act)
        return Layer(m.attn_norm(i), m.attention(i, rope) if full else _lightning(m, i),
                     m.ffn_norm(i), moe,
                     normed=(factors["full_attn" if full else "linear_attn"], factors["mlp"]))
    return m.model(map(layer, range(m.n_layer)), tied=cfg.bool("tie_word_embeddings", default=False))


def _lightning(m: MoeDecoder, i: int) -> Lightning:
    wide, dim = m.n_head * m.head_dim, m.head_dim

    def find(name: str, shape: tuple[int, ...], src: str, role: str = "attn", **steps) -> Tensor:
        return Tensor(f"layers.{i}.mix.{name}", shape, role, (Src(f"model.layers.{i}.self_attn.{src}.weight", **steps),), (), i)
    q, k, v = (find(x, (wide, m.d), "qkv_proj", rows=(j * dim, (j + 1) * dim, 1), groups=m.n_head) for j, x in enumerate("qkv"))
    late = 1 - i / (m.n_layer - 1 + 1e-5) + 1e-5
    decays = tuple(math.exp(-(2 ** (-8 * (h + 1) / m.n_head)) * late) for h in range(m.n_head))
    return Lightning(m.n_head, dim, decays, q, k, v, find("gate", (wide, m.d), "output_gate"),
                     Norm(find("norm", (wide,), "norm", "norm"), 1e-6), find("o", (m.d, wide), "out_proj"))


def tiny() -> dict[str, Any]:
    return {"model_type": "minimax", "vocab_size": 509, "hidden_size": 72, "num_hidden_layers": 4, "num_attention_heads": 6,
            "num_key_value_heads": 2, "head_dim": 20, "intermediate_size": 40, "num_local_experts": 7, "num_experts_per_tok": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"], "rms_norm_eps": 1e-5,
            "linear_attn_alpha_factor": 1.6, "full_attn_alpha_factor": 1.7, "mlp_alpha_factor": 1.5, "mlp_beta_factor": 0.9,
            "max_position_embeddings": 512, "rope_theta": 1e6, "tie_word_embeddings": False}
