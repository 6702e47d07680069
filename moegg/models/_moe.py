"""What decoders with experts share: their sizes, routers, routed and shared experts, and where sources keep them. No architecture.

Names in sources are given where families differ: the defaults are those of Qwen and DeepSeek; MIXTRAL are the other common ones.
"""
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from moegg.arch import MAX_GROUPS, ConfigReader, Experts, Mlp, Model, Moe, Part, Router, Src, Tensor
from moegg.models._decoder import SIZE_MAX, Decoder

EXPERT_MAX = 1 << 16
MIXTRAL = {"hf": "block_sparse_moe.experts", "parts": ("w1", "w3", "w2")}       # gate, up, down


class MoeDecoder(Decoder):
    """A Decoder some of whose layers have experts."""

    def experts(self, layer: int, n: int, width: int, hf: str = "mlp.experts", parts: Iterable[str] = ("gate_proj", "up_proj", "down_proj"),
                fused: tuple[str, str] = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")) -> Experts:
        """n experts of `width`: one tensor per expert and matrix, below `hf` with the names `parts`, or stacks [E, 2F, D] and [E, D, F]
        named `fused` (transformers 5 in memory, some releases), or GGUF's stacks (old files: one each; or gate and up in one)."""
        def part(name: str, each: str, stack: str, first: int, rows: int) -> Part:
            cut = (first, first + rows, 1) if name != "down" else None
            own = tuple(Src(f"{r}layers.{layer}.{hf}.{{e}}.{each}.weight") for r in self.roots)
            stacks = tuple(Src(f"{r}layers.{layer}.{stack}", stacked=True, rows=cut) for r in self.roots)
            return Part(name, (rows, self.d if cut else width), own + stacks,
                        (Src(f"blk.{layer}.ffn_{name}_exps.weight", stacked=True), Src(f"blk.{layer}.ffn_{name}.{{e}}.weight"),
                         *((Src(f"blk.{layer}.ffn_gate_up_exps.weight", stacked=True, rows=cut),) if cut else ())))
        gate, up, down = parts
        return Experts(layer, n, (part("gate", gate, fused[0], 0, width), part("up", up, fused[0], width, width),
                                  part("down", down, fused[1], 0, self.d)))

    def router(self, layer: int, n: int, top_k: int, hf: str = "mlp.gate", select_bias: str = "", **rules: Any) -> Router:
        """A router [n, D]; hf: its name in the layer, select_bias: the name of its bias for the choice, '' for none. rules: of Router."""
        weight = self.tensor(layer, "ffn.router", (n, self.d), "router", f"{hf}.weight", "ffn_gate_inp.weight")
        if select_bias:
            own = tuple(Src(f"{r}layers.{layer}.{select_bias}", squeeze=True) for r in self.roots)
            rules["select_bias"] = Tensor(f"layers.{layer}.ffn.select_bias", (n,), "bias", own, (Src(f"blk.{layer}.exp_probs_b.bias"),), layer)
        return Router(weight, top_k, **rules)

    def moe_sizes(self, n: tuple[str, ...], top_k: tuple[str, ...] = ("num_experts_per_tok",), width: str = "moe_intermediate_size",
                  least: int = 1) -> tuple[int, int, int]:
        """(number of experts, experts per token, width of one) from the config's keys of these names."""
        cfg = self.cfg
        count, k = cfg.int(*n, low=least, high=EXPERT_MAX), cfg.int(*top_k, low=1)
        if count and k > count:
            raise cfg.wrong(next(key for key in top_k if cfg.has(key)), f"there are {count} experts")
        return count, k, cfg.int(width, low=1, high=SIZE_MAX)

    def deepseek_moe(self, *, dense: int = 0, renormalise: bool = True, softmax: bool = False, grouped: bool = True,
                     bias: str = "e_score_correction_bias") -> Callable[[int], Mlp | Moe]:
        """DeepSeek's FFN of layer i, from its keys: dense below first_k_dense_replace, then experts with an ungated shared one.

        V3: sigmoid scores, a bias for the choice, groups that count as their two best. softmax: V2, without bias; groups as their best,
        if they are in use (grouped). dense, renormalise: class defaults of first_k_dense_replace and norm_topk_prob. bias: its name.
        """
        cfg = self.cfg
        n, top_k, width = self.moe_sizes(("n_routed_experts", "num_local_experts", "num_experts"))
        shared, dense = cfg.int("n_shared_experts", "num_shared_experts", default=0, high=64), cfg.int("first_k_dense_replace", default=dense)
        scale, groups = cfg.float("routed_scaling_factor", default=1.0), cfg.int("n_group", low=1, default=1, high=MAX_GROUPS)
        kept, renormalise = cfg.int("topk_group", low=1, default=1), cfg.bool("norm_topk_prob", default=renormalise and not softmax)
        cfg.expect("moe_layer_freq", 1)
        cfg.ignore("ep_size", "seq_aux", "aux_loss_alpha", "num_nextn_predict_layers", "num_mtp_layers")
        groups, kept = (groups, kept) if grouped else (1, 1)
        if n % groups or kept > groups or top_k > kept * (n // groups) or (not softmax and groups > 1 and n // groups < 2):
            raise cfg.wrong("n_group", f"{top_k} of {n} experts cannot come from {kept} of its groups")
        rules: dict[str, Any] = {"renormalise": renormalise, "scale": scale, "n_group": groups, "top_group": kept}
        if not softmax:
            rules |= {"score": "sigmoid", "select_bias": f"mlp.gate.{bias}", "group_score": "top2", "sum_eps": 1e-20}

        def ffn(i: int) -> Mlp | Moe:
            if i < dense:
                return self.mlp(i)
            return Moe(self.router(i, n, top_k, **rules), self.experts(i, n, width), self.act, shared=self.shared(i, width * shared))
        return ffn

    def sparse_layers(self, n: int) -> list[bool]:
        """Which layers have experts, by Qwen's keys decoder_sparse_step and mlp_only_layers."""
        step, dense = self.cfg.int("decoder_sparse_step", low=1, default=1), set(self.cfg.list("mlp_only_layers", of=(int,), default=[]))
        return [n > 0 and i not in dense and (i + 1) % step == 0 for i in range(self.n_layer)]

    def shared(self, layer: int, width: int, hf: str = "mlp.shared_experts", bias: bool = False) -> Mlp | None:
        """The expert of `width` that all tokens use, None if that is 0; several shared experts are stored as one. hf: its name."""
        if not width:
            return None
        (gate, gate_bias), (up, up_bias), (down, down_bias) = (
            self.linear(layer, f"shared.{part}", (self.d, width) if part == "down" else (width, self.d), "shared", f"{hf}.{part}_proj",
                        f"ffn_{part}_shexp", bias) for part in ("gate", "up", "down"))
        return Mlp(gate, up, down, self.act, gate_bias, up_bias, down_bias)

    def shared_gate(self, layer: int, hf: str = "mlp.shared_expert_gate") -> Tensor:
        """The gate [D] of the shared expert."""
        own = tuple(Src(f"{r}layers.{layer}.{hf}.weight", squeeze=True) for r in self.roots)
        return Tensor(f"layers.{layer}.shared.router", (self.d,), "router",
                      own, (Src(f"blk.{layer}.ffn_gate_inp_shexp.weight", squeeze=True),), layer)


# --- GGUF ---------------------------------------------------------------------------------------------------------------

def gguf_moe(meta: Mapping[str, Any], g: ConfigReader, *, norm: bool) -> dict[str, Any]:
    """Qwen's keys from '<arch>.expert_*' of GGUF metadata. norm: whether llama.cpp renormalises where the file does not say."""
    g.expect("expert_weights_scale", 0.0, 1.0)
    layers = range(g.int("block_count"))
    return {"moe_intermediate_size": g.int("expert_feed_forward_length"), "num_experts": g.int("expert_count"),
            "num_experts_per_tok": g.int("expert_used_count"), "norm_topk_prob": g.bool("expert_weights_norm", default=norm),
            "mlp_only_layers": [i for i in layers if f"blk.{i}.ffn_gate.weight" in meta["tensor_names"]]}


def gguf_deepseek_moe(meta: Mapping[str, Any], g: ConfigReader) -> dict[str, Any]:
    """DeepSeek's keys from '<arch>.expert_*' of GGUF metadata, as llama.cpp reads them."""
    groups = g.int("expert_group_count", default=1) or 1
    g.ignore("nextn_predict_layers", "expert_shared_feed_forward_length")
    return {"n_routed_experts": g.int("expert_count"), "num_experts_per_tok": g.int("expert_used_count"),
            "moe_intermediate_size": g.int("expert_feed_forward_length"), "n_shared_experts": g.int("expert_shared_count", default=0),
            "first_k_dense_replace": g.int("leading_dense_block_count", default=0), "n_group": groups,
            "topk_group": g.int("expert_group_used_count", default=groups) or groups,
            "routed_scaling_factor": g.float("expert_weights_scale", default=1.0) or 1.0,
            "norm_topk_prob": g.bool("expert_weights_norm", default=False)}


def gguf_norm_keys(model: Model) -> dict[str, Any]:
    """For the loaders that ask a file whether router weights are renormalised; the others know it and read no key."""
    moe = next((x.ffn for x in model.layers if isinstance(x.ffn, Moe)), None)
    return {"expert_weights_norm": moe.router.renormalise} if moe else {}
