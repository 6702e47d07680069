"""Kinds of mixers and attention at the shapes of released models: time of each op beside that of the layer's products and the machine's limit.

    python bench/mixers.py [--cases deltanet,mla] [--threads 1] [--tokens 1,512] [--depth 4096] [--levels avx512] [--runs 5] [--table]

Layers of one kind run as in the engine, in the program of a model that consists of them, with random weights (attention q8_0, experts
q4_0) that lie in buffers larger than the last-level cache. One token at --depth is decode; more, from position 0, are prefill. Per op kind
and layer: median time; the time that its state and keys take at the read bandwidth, or its multiply-adds at the rate of registers,
whichever is longer; and the share of the layer's products, experts included.
"""
import json
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from common import header, numbers, parser

from moegg import kernels, registry
from moegg.arch import ConfigReader, DeltaNet, Gqa, Lightning, Mamba, Mla, Model, ShortConv, Tensor
from moegg.commands.measure import fma_rate, machine, read_rate
from moegg.engine.forward import Executor
from moegg.engine.program import lower
from moegg.engine.state import SessionState
from moegg.engine.structs import MoeRef, WeightRef
from moegg.quants import GROUP_ROWS, INTERLEAVED, QUANTS, ROW_MAJOR, layout_of

QWEN = {"hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 151936,
        "linear_num_value_heads": 32, "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "norm_topk_prob": True, "partial_rotary_factor": 0.25, "rope_theta": 1e7,
        "max_position_embeddings": 262144}
FLASH = QWEN | {"hidden_size": 3072, "num_attention_heads": 24, "linear_num_value_heads": 48, "moe_intermediate_size": 640,
                "shared_expert_intermediate_size": 640, "output_gate_type": "sigmoid", "hc_count": 4, "hc_lowrank": 320,
                "ple_layer_ids": [1, 2, 3], "ple_embed_dim": 2560, "ngram_size": 3, "heads_per_ngram": 8, "ngram_vocab_size_base": 200_000,
                "split_ngram_parts": 16, "make_ngram_vocab_size_divisible_by": 128, "indexer_n_heads": 4, "indexer_kv_heads": 1,
                "indexer_head_dim": 128, "indexer_budget": 2048, "indexer_compress_ratio": 4, "eos_token_id": 2}
KIMI = {"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 27, "num_attention_heads": 32, "num_key_value_heads": 32,
        "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "head_dim": 72,
        "moe_intermediate_size": 1024, "num_experts": 256, "num_experts_per_token": 8, "num_shared_experts": 1, "first_k_dense_replace": 1,
        "linear_attn_config": {"full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4,
                               "kda_layers": [i for i in range(1, 27) if i % 4]}}
DEEPSEEK = {"vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 8, "num_attention_heads": 128,
            "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
            "v_head_dim": 128, "moe_intermediate_size": 2048, "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1,
            "first_k_dense_replace": 3, "n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5, "norm_topk_prob": True,
            "max_position_embeddings": 163840, "rope_theta": 1e4}
JAMBA = {"vocab_size": 65536, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
         "num_key_value_heads": 8, "num_experts": 16, "num_experts_per_tok": 2, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2,
         "mamba_dt_rank": 256, "attn_layer_period": 8, "attn_layer_offset": 4, "expert_layer_period": 2, "expert_layer_offset": 1}
LFM2 = {"vocab_size": 65536, "hidden_size": 2048, "intermediate_size": 7168, "num_hidden_layers": 24, "num_attention_heads": 32,
        "num_key_value_heads": 8, "norm_eps": 1e-5, "rope_theta": 1e6, "num_dense_layers": 2, "num_experts": 32, "num_experts_per_tok": 4,
        "moe_intermediate_size": 1792, "layer_types": ["full_attention" if i in (2, 6, 10, 14, 18, 21) else "conv" for i in range(24)]}
MINIMAX = {"vocab_size": 200064, "hidden_size": 6144, "intermediate_size": 9216, "num_hidden_layers": 80, "num_attention_heads": 64,
           "num_key_value_heads": 8, "head_dim": 128, "num_local_experts": 32, "num_experts_per_tok": 2, "rms_norm_eps": 1e-5,
           "max_position_embeddings": 65536, "layer_types": ["full_attention" if i % 8 == 7 else "linear_attention" for i in range(80)]}
GPT_OSS = {"vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64,
           "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4, "max_position_embeddings": 131072,
           "sliding_window": 128, "rope_theta": 150000.0}
QWEN3 = {"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48, "num_attention_heads": 32,
         "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
         "norm_topk_prob": True, "max_position_embeddings": 262144, "rope_theta": 1e7}


@dataclass(frozen=True)
class Case:
    """Layers of `config` whose attention is a `block` and passes `which`."""
    arch: str
    config: dict[str, Any]
    block: type
    which: Callable[[Any], bool] = lambda layer: True


CASES = {
    "deltanet": Case("qwen3-next", QWEN, DeltaNet), "kda": Case("kimi-linear", KIMI, DeltaNet), "mamba": Case("jamba", JAMBA, Mamba),
    "shortconv": Case("lfm2-moe", LFM2, ShortConv), "lightning": Case("minimax", MINIMAX, Lightning),
    "mla": Case("deepseek", DEEPSEEK, Mla), "dsa": Case("deepseek-v32", DEEPSEEK | {"model_type": "deepseek_v32"}, Mla),
    "mla-kimi": Case("kimi-linear", KIMI, Mla),
    "sparse": Case("qwen4-exp", FLASH, Gqa), "ngram": Case("qwen4-exp", FLASH, DeltaNet, lambda layer: layer.ple is not None),
    "gqa": Case("qwen3-moe", QWEN3, Gqa), "sinks": Case("gpt-oss", GPT_OSS, Gqa, lambda layer: not layer.attn.window),
    "sinks-window": Case("gpt-oss", GPT_OSS, Gqa, lambda layer: layer.attn.window > 0)}
PRODUCTS = ("linear", "route", "moe")       # the layer's matrix products; those by head of latent attention are a line of their own
PARTS = ("conv", "matrix", "scan", "latent", "heads", "rope_kv", "attention", "index", "choose", "sparse", "ngram", "ple")
SEED, STD, VOCAB = 1, 0.02, 4096


# --- a model of such layers -------------------------------------------------------------------------------------------------

def model_of(case: Case, n: int) -> Model:
    """At most n layers of the case behind a small embedding."""
    whole = registry.find(arch=case.arch).describe(ConfigReader(case.config))
    layers = [layer for layer in whole.layers if isinstance(layer.attn, case.block) and case.which(layer)]
    layers = [layer if layer.ple is None or case.which is CASES["ngram"].which else replace(layer, ple=None) for layer in layers]
    return replace(whole, layers=tuple(layers[:n]), vocab=VOCAB, embed=Tensor("embed", (VOCAB, whole.d), "embed", ()), head=None)


class Bytes:
    """Weights: one buffer per quant of rows drawn from a normal distribution, of which matrices take turns."""

    def __init__(self, mib: int):
        rng = np.random.default_rng(SEED)
        self._rng, self._keep, self._at = rng, [], {}
        x = (rng.standard_normal((512, 4096)) * STD).astype(np.float32)
        self._data = {}
        for quant in ("q4_0", "q8_0", "f32"):
            rows = kernels.quantize(quant, x) if quant != "f32" else x.view(np.uint8)
            unit = kernels.interleave(quant, rows, x.shape[1])
            self._data[quant] = np.tile(unit, -(-(mib << 20) // unit.nbytes))

    def take(self, quant: str, nbytes: int) -> int:
        """The address of the next nbytes of whole groups."""
        data = self._data[quant]
        if nbytes > data.nbytes:
            raise SystemExit(f"a matrix has {nbytes} bytes; use a larger --mib")
        at = self._at.get(quant, 0)
        at = 0 if at + nbytes > data.nbytes else at
        self._at[quant] = at + -(-nbytes // (GROUP_ROWS * QUANTS[quant].block_bytes)) * GROUP_ROWS * QUANTS[quant].block_bytes
        return data.ctypes.data + at

    def vector(self, name: str, shape: tuple[int, ...], role: str) -> int:
        """The address of f32 values such as trained models have, interleaved if they are a matrix."""
        rows, cols = shape if len(shape) == 2 else (1, shape[0])
        x = self._rng.standard_normal((rows, cols)).astype(np.float32)
        if name.endswith("a_log"):
            x = np.log(1 + 15 * self._rng.random((rows, cols), np.float32))
        elif name.endswith("dt_bias"):
            x -= 4
        elif role == "norm":
            x = 1 + x / 8
        x = kernels.interleave("f32", x.view(np.uint8), cols) if len(shape) == 2 else x
        self._keep.append(x)
        return x.ctypes.data

    def weights(self, model: Model) -> dict[str, WeightRef]:
        out = {}
        for t in model.tensors():
            rows, cols = t.shape if len(t.shape) == 2 else (1, t.shape[0])
            if len(t.shape) == 1 or t.role == "aux":
                out[t.name] = WeightRef(self.vector(t.name, t.shape, t.role), "f32", rows, cols)
                continue
            quant = "f32" if t.role in ("embed", "router") and not t.gather else "q8_0"
            layout = layout_of(t.shape, t.gather)
            out[t.name] = WeightRef(self.take(quant, QUANTS[quant].matrix_bytes(rows, cols, layout)), quant, rows, cols, t.gather)
        return out

    def experts(self, moe: Any) -> MoeRef:
        """Records without biases, as many as fit into the buffer."""
        at, parts = 0, {}
        for p in (p for p in moe.experts.parts if len(p.shape) == 2):
            parts[p.name] = ("q4_0", *p.shape, at)
            at += QUANTS["q4_0"].matrix_bytes(*p.shape, INTERLEAVED)
        n = max(1, self._data["q4_0"].nbytes // at)
        return MoeRef(self.take("q4_0", min(n, moe.experts.n) * at), at, np.arange(moe.experts.n, dtype=np.int32) % n, parts)


# --- what an op does at least ------------------------------------------------------------------------------------------------

def floor(kind: str, layer: Any, first: int, tokens: int) -> tuple[float, float]:
    """(bytes, multiply-adds) of `tokens` tokens from position `first`: the state once in and out, or the keys and values in reach; each
    product, sum or term of exp in the slot of a multiply-add. Zeros where neither says anything."""
    a = layer.ple if kind in ("conv", "ngram") and layer.ple else layer.attn
    positions = range(first, first + tokens)
    if kind == "conv":
        convs = [a.q_conv, a.k_conv, a.v_conv] if isinstance(a, DeltaNet) else [a.conv]
        channels, taps, act = sum(c.weight.shape[0] for c in convs), convs[0].weight.shape[1], 20 if convs[0].silu else 2
        return 4 * channels * taps + 8 * sum(c.state_floats for c in convs), channels * (taps + act) * tokens
    if kind == "matrix":
        n = a.n_head * (a.key_dim * a.value_dim if isinstance(a, DeltaNet) else a.head_dim ** 2)
        return 8 * n, n * (4 if isinstance(a, DeltaNet) else 3) * tokens
    if kind == "scan":
        n = math.prod(a.a_log.shape)
        return 12 * n, 20 * n * tokens
    if kind == "ngram":
        return tokens * len(a.ngram.moduli) * QUANTS["q8_0"].row_bytes(a.ngram.shards[0].shape[1], ROW_MAJOR), 0
    if kind in ("attention", "choose", "sparse"):
        heads, key, value = a.kept
        seen = [p + 1 - a.oldest(p) for p in positions]
        if kind == "choose":
            x, scored = a.indexer, [n // a.indexer.ratio for n in seen if n > a.indexer.budget]
            return (2 if x.ratio == 1 else 4) * x.dim * max(scored, default=0), x.n_head * x.dim * sum(scored)
        if x := a.indexer:
            seen = [min(n, x.budget + n % x.ratio) for n in seen]
        reach = max(seen) if a.indexer else first + tokens - a.oldest(first)
        return 2 * heads * (key + value) * reach, a.n_head * (key + a.value_dim) * sum(seen)
    return 0, 0


# --- measuring ----------------------------------------------------------------------------------------------------------------

def times(model: Model, data: Bytes, threads: int, first: int, tokens: int, runs: int) -> dict[str, list[float]]:
    """Seconds per layer of each kind of op, run by run, after one that does not count."""
    program = lower(model)
    ctx = -(-(first + tokens) // 64) * 64
    ex = Executor(program, data.weights(model), [data.experts(m) for m in program.moe],
                  ctx=ctx, ubatch=tokens, max_out=1, kv="f16", n_threads=threads)
    state = SessionState(program.attn, program.mixer_blocks, ctx, tokens, "f16")
    rng = np.random.default_rng(SEED)
    if first:
        state.high = state.at = first
        state.load(first, first, [rng.standard_normal(x.shape, np.float32).astype(x.dtype) if x.dtype != np.int32 else x for x in state.save(first)])
    ids, pos = rng.integers(3, VOCAB, tokens).astype(np.int32), np.arange(first, first + tokens, dtype=np.int32)
    clock, out = ex.clock(), {}
    for run in range(runs + 1):
        clock[:] = 0
        ex.run(ids, pos, np.zeros(tokens, np.int32), [state], np.array([ctx], np.int64), np.zeros(0, np.int32), None)
        total: dict[str, float] = {}
        for op, ns in zip(program.ops, clock.tolist(), strict=True):
            total[op.kind] = total.get(op.kind, 0.0) + ns / 1e9 / len(model.layers)
        if run:
            for kind, s in total.items():
                out.setdefault(kind, []).append(s)
    return out


@cache
def limits(level: str, threads: int) -> tuple[float, float]:
    """Bytes read and float operations per second."""
    return read_rate(threads), fma_rate(threads)


def records(name: str, level: str, threads: int, depth: int, tokens: int, runs: int, data: Bytes, n_layers: int) -> Iterator[dict[str, Any]]:
    first = depth if tokens == 1 else 0
    model = model_of(CASES[name], n_layers)
    got = times(model, data, threads, first, tokens, runs)
    products = statistics.median(map(sum, zip(*(got[k] for k in PRODUCTS if k in got), strict=True)))
    rest = [k for k in got if k not in (*PRODUCTS, *PARTS, "embed", "head")]
    got["others"] = list(map(sum, zip(*(got[k] for k in rest), strict=True)))
    read, fma = limits(level, threads)
    for kind in (k for k in (*PARTS, "others") if k in got):
        nbytes, madds = floor(kind, model.layers[0], first, tokens)
        limit, seconds = max(nbytes / read, 2 * madds / fma), statistics.median(got[kind])
        yield {"case": name, "op": kind, "level": level, "threads": threads, "tokens": tokens, "depth": first, "layers": len(model.layers),
               "us": round(seconds * 1e6, 1), "spread_us": [round(f(got[kind]) * 1e6, 1) for f in (min, max)], "limit_us": round(limit * 1e6, 1),
               "products_us": round(products * 1e6, 1), "share": round(seconds / products, 3), "read_gbps": round(read / 1e9, 1),
               "fma_gops": round(fma / 1e9, 1), "runs": runs}


def main() -> None:
    p = parser(__doc__)
    names = lambda s: s.split(",")                                                                       # noqa: E731
    p.add_argument("--cases", type=names, default=list(CASES))
    p.add_argument("--levels", type=names, default=[kernels.level()])
    p.add_argument("--threads", type=numbers, default=[1])
    p.add_argument("--tokens", type=numbers, default=[1, 512], help="of a pass; 1: decode (default: 1,512)")
    p.add_argument("--depth", type=int, default=4096, help="keys before a decoded token (default: 4096)")
    p.add_argument("--layers", type=int, default=0, help="per pass (default: 6 at decode, 1 at prefill)")
    p.add_argument("--mib", type=int, default=256, help="size of a buffer of weights (default: 256)")
    p.add_argument("--runs", type=int, default=5)
    p.add_argument("--table", action="store_true", help="a Markdown table instead of JSON lines")
    a = p.parse_args()
    facts, data = {"bench": "mixers", **header(), **machine()}, Bytes(a.mib)
    if a.table:
        print("| kind | tokens | threads | level | op | µs per layer | limit | share of the products |\n|---|---|---|---|---|---|---|---|")
    for level in a.levels:
        kernels.select(level)
        for threads in a.threads:
            for tokens in a.tokens:
                for name in a.cases:
                    for r in records(name, level, threads, a.depth, tokens, a.runs, data, a.layers or (6 if tokens == 1 else 1)):
                        if a.table:
                            limit = f"{r['limit_us']:.0f}" if r["limit_us"] else ""
                            print(f"| {name} | {tokens} | {threads} | {level} | {r['op']} | {r['us']:.0f} | {limit} | {100 * r['share']:.1f} % |",
                                  flush=True)
                        else:
                            print(json.dumps(facts | r), flush=True)
    kernels.select()


if __name__ == "__main__":
    main()
