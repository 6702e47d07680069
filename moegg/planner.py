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
MAX_OUT = 64                  # rows of logits in one pass: sessions of a step, or positions of Engine.forward
CHUNK = 512                   # key positions per partial attention result (MG_CHUNK)
QROWS, ITEMS = 8, 16          # query rows per attention item, items per walk over the keys (MG_QROWS, MG_ATTN_ITEMS)


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


def _act(cols: int) -> int:
    """Bytes of one activation row, the larger of the two formats (kernels/csrc/kernels.h), with room for alignment."""
    return 4 * cols + 256


def scratch_bytes(model: Model, ctx: int, ubatch: int, n_threads: int) -> int:
    """An upper bound of what engine/forward.pyx allocates beside KV state and rope tables: float buffers, activation rows,
    MoE pairs, attention results, logits.
    """
    rows = max(ubatch, MAX_OUT)
    attn, moe = [layer.attn for layer in model.layers], [layer.ffn for layer in model.layers if isinstance(layer.ffn, Moe)]
    dense = max((layer.ffn.gate.shape[0] for layer in model.layers if not isinstance(layer.ffn, Moe)), default=0)
    q, kv = max(a.n_head * a.head_dim for a in attn), max(a.n_kv_head * a.head_dim for a in attn)
    widths = (model.d, model.d, model.d, q, q, kv, kv, dense, dense)
    n = sum(rows * (4 * w + 64) for w in widths) + rows * max(map(_act, widths))
    if moe:
        width, experts = max(m.experts.part("gate").shape[0] for m in moe), max(m.experts.n for m in moe)
        pairs = ubatch * max(m.top_k for m in moe)
        n += pairs * (4 * (2 * width + model.d) + _act(width) + 256) + ubatch * (4 * experts + 64) + 512 * experts
    part = 4 * (32 + max(a.head_dim for a in attn) + 16)
    n += n_threads * QROWS * (4 * TILE + (1 + ITEMS) * part) + 4 * n_threads * QROWS * (ctx // CHUNK + 1) * part
    return n + MAX_OUT * 4 * (model.vocab + 16) + len(model.layers) * 8192 + (1 << 16)


def plan(model: Model, resident: int, experts: int, ctx: int | None = None, ubatch: int = DEFAULT_UBATCH, kv: str = "f16",
         n_threads: int = 1, available: int | None = None) -> MemoryPlan:
    """Splits the memory. ctx None: the least of the trained length, 8192 and what fits into half of `available` bytes.

    Raises BudgetTooSmall, naming the longest context that fits, if KV state and scratch of a given ctx exceed `available`.
    """
    ubatch = max(1, min(ubatch, ctx or DEFAULT_CTX))

    def build(n: int) -> MemoryPlan:
        attn = [layer.attn for layer in model.layers]
        ropes = dict.fromkeys(a.rope for a in attn if a.rope)
        tables = sum(len(r.regimes()) * n * r.dim * 4 for r in ropes)
        return MemoryPlan(n, ubatch, kv, resident, experts, sum(kv_bytes(a, n, ubatch, kv) for a in attn), tables,
                          scratch_bytes(model, n, ubatch, n_threads))

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
