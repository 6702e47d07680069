"""What a model will need in memory, from sizes alone: weights, KV state, scratch. Reads no weights, allocates nothing.

Takes plain sizes, not the container, so that it can plan a file that is not here.
"""
from dataclasses import asdict, dataclass

from moegg.arch import Gqa, Model, Moe
from moegg.errors import BudgetTooSmall
from moegg.units import fmt_bytes

TILE = 64                     # key positions per attention tile (kernels/csrc/ops.h, MG_TILE)
DEFAULT_CTX = 8192
DEFAULT_UBATCH = 512


def kv_positions(attn: Gqa, ctx: int, ubatch: int) -> int:
    """Positions that one attention layer keeps: all of ctx, or a ring of window + ubatch; a multiple of the tile."""
    need = ctx if not attn.window else min(ctx, attn.window + ubatch)
    return -(-need // TILE) * TILE


def kv_bytes(attn: Gqa, ctx: int, ubatch: int, kv: str) -> int:
    """Bytes of one session's keys and values in one layer."""
    pad = -(-attn.head_dim // 16) * 16
    return attn.n_kv_head * kv_positions(attn, ctx, ubatch) * (attn.head_dim + pad) * (4 if kv == "f32" else 2)


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes by purpose for one session of `ctx` tokens. resident and experts lie in the mapped file."""
    ctx: int
    ubatch: int
    kv: str
    resident: int
    experts: int
    kv_state: int
    rope_tables: int
    scratch: int

    @property
    def total(self) -> int:
        return self.resident + self.experts + self.anonymous

    @property
    def anonymous(self) -> int:
        return self.kv_state + self.rope_tables + self.scratch

    def to_dict(self) -> dict:
        return asdict(self) | {"total": self.total}

    def lines(self) -> list[str]:
        """The plan as a table, one purpose a line."""
        rows = [("resident weights", self.resident), ("experts", self.experts), (f"KV state ({self.ctx} tokens, {self.kv})", self.kv_state),
                ("rope tables", self.rope_tables), (f"scratch (ubatch {self.ubatch})", self.scratch), ("total", self.total)]
        return [f"{name:<34}{fmt_bytes(n):>12}" for name, n in rows]


def scratch_bytes(model: Model, ubatch: int) -> int:
    """Float buffers and activation rows of one pass of `ubatch` tokens (an upper bound, engine/forward.pyx allocates them)."""
    widths = [3 * model.d]
    pair = 0
    for layer in model.layers:
        a = layer.attn
        widths.append(2 * a.head_dim * (a.n_head + a.n_kv_head))
        if isinstance(layer.ffn, Moe):
            width = layer.ffn.experts.part("gate").shape[0]
            pair = max(pair, layer.ffn.top_k * (4 * (2 * width + model.d) + 6 * width))
        else:
            widths.append(3 * layer.ffn.gate.shape[0])
    return ubatch * (4 * (widths[0] + sum(sorted(widths[1:])[-2:])) + pair) + 4 * model.vocab


def plan(model: Model, resident: int, experts: int, ctx: int | None = None, ubatch: int = DEFAULT_UBATCH, kv: str = "f16",
         available: int | None = None) -> MemoryPlan:
    """Splits the memory. ctx None: the least of the trained length, 8192 and what fits into half of `available` bytes.

    Raises BudgetTooSmall, naming the longest context that fits, if KV state and scratch of a given ctx exceed `available`.
    """
    ubatch = max(1, min(ubatch, ctx or DEFAULT_CTX))

    def build(n: int) -> MemoryPlan:
        attn = [layer.attn for layer in model.layers]
        ropes = dict.fromkeys(a.rope for a in attn if a.rope)
        tables = sum(len(r.regimes()) * n * r.dim * 4 for r in ropes)
        return MemoryPlan(n, ubatch, kv, resident, experts, sum(kv_bytes(a, n, ubatch, kv) for a in attn), tables, scratch_bytes(model, ubatch))

    def longest(limit: int, top: int) -> int:
        lo, hi = 0, top
        while lo < hi:                                   # anonymous memory grows with ctx
            mid = (lo + hi + 1) // 2
            lo, hi = (mid, hi) if build(mid).anonymous <= limit else (lo, mid - 1)
        return lo

    if ctx is None:
        ctx = min(model.ctx_train or DEFAULT_CTX, DEFAULT_CTX)
        if available is not None and build(ctx).anonymous > available // 2:
            ctx = max(TILE, longest(available // 2, ctx))
    p = build(ctx)
    if available is not None and p.anonymous > available:
        raise BudgetTooSmall(f"--ctx {ctx}: KV state and scratch need {fmt_bytes(p.anonymous)}, available are {fmt_bytes(available)}; "
                             f"the longest context that fits is {longest(available, ctx)}", "budget-small")
    return p
