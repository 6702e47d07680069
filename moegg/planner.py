"""What a model needs in memory, from sizes alone, and how a budget is split: weights, KV state, scratch, staging, expert cache.

Takes plain sizes, not the container, so that it can plan a file that is not here; reads nothing, allocates nothing. Planner and
engine share these functions: what is planned is what is allocated (forward.pyx, session.py). Sizes in bytes.
"""
from dataclasses import asdict, dataclass, replace

from moegg.arch import Gqa, Mixer, Mla, Model, Moe, walk
from moegg.errors import BudgetTooSmall
from moegg.units import fmt_bytes

TILE = 64                     # positions that a layer keeps are a multiple of this (kernels/csrc/ops.h, MG_TILE)
DEFAULT_CTX, LEAST_CTX = 8192, 512
DEFAULT_UBATCH, LEAST_UBATCH = 512, 64
MARKS = 2                     # copies of a mixer's state that a session can go back to
MAX_OUT = 64                  # rows of logits in one pass: sessions of a step, or positions of Engine.forward
CHUNK = 512                   # key positions per partial attention result (MG_CHUNK)
QROWS, ITEMS = 8, 16          # query rows per attention item, items per walk over the keys (MG_QROWS, MG_ATTN_ITEMS)
GROUP_TOKENS = 2048           # of a prompt that streams: its residual stream is kept, 4 * D bytes per token
RECORD_ALIGN = 16 << 10
PROCESS_BYTES = 160 << 20     # interpreter, tokenizer and index of a model with a large vocabulary, where it is not measured
ROWS_BYTES = 16 << 20         # rows of looked-up tables that the store keeps (kernels/csrc/store.c, ROWS_KEPT)
IO_BYTES = 8 << 20            # I/O threads' stacks; arenas are rounded to huge pages
STATE_SHARE, SCRATCH_SHARE = 4, 16     # without --ctx, KV takes at most 1/4 of what is free; scratch at most 1/16 of the budget
FEW_LAYERS = 4                # so few that stream lie so far apart that one place serves them all: CONTRIBUTING.md, Decisions


@dataclass(frozen=True)
class ExpertSizes:
    """The experts of one layer: n records of which a token uses top_k."""
    n: int
    top_k: int
    record_bytes: int

    @property
    def slot(self) -> int:
        """What one record takes of the cache."""
        return -(-self.record_bytes // RECORD_ALIGN) * RECORD_ALIGN


@dataclass(frozen=True)
class FileSizes:
    """What a container holds. gather: tables that are only looked up by row. dense: records of the layers of a dense model, () if they
    cannot stream; rest: what stays resident if they do. cycle: `layers` are those layers.
    """
    resident: int
    gather: int = 0
    layers: tuple[ExpertSizes, ...] = ()
    dense: tuple[int, ...] = ()
    rest: int = 0
    cycle: bool = False

    @classmethod
    def of(cls, container) -> "FileSizes":
        """Those of a container, or of anything with resident.nbytes, gather.nbytes and layers of n, top_k and record_bytes."""
        return cls(container.resident.nbytes, container.gather.nbytes,
                   tuple(ExpertSizes(x.n, x.top_k, x.record_bytes) for x in container.layers))

    def streamed(self) -> "FileSizes":
        """The same file if its dense layers stream."""
        return FileSizes(self.rest, self.gather, tuple(ExpertSizes(1, 1, n) for n in self.dense), cycle=True)

    @property
    def experts(self) -> int:
        """Bytes of all that streams."""
        return sum(x.n * x.slot for x in self.layers)

    @property
    def least_cache(self) -> int:
        """The hard minimum: 2 * top_k records of the layer where that is most (kernels/csrc/policy.c, mg_policy_minimum), or the places
        that dense layers pass through if none stays."""
        if self.cycle:
            return places(len(self.layers)) * max(x.slot for x in self.layers)
        return max((min(2 * x.top_k, x.n) * x.slot for x in self.layers), default=0)


@dataclass(frozen=True)
class Cycle:
    """How n layers of a dense model stream: `kept` stay in memory, the others pass through `places`, pass_bytes in each pass."""
    n: int
    kept: tuple[int, ...]
    places: int
    pass_bytes: int


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes by purpose for `sessions` of `ctx` tokens each. budget None: no limit was given or found.

    groups: ubatches of a long prompt that go through the layers together, so that each record is read once for all of them.
    cache, experts: of what streams, experts or the layers of a dense model; what it takes and what all of it would.
    """
    ctx: int
    sessions: int
    ubatch: int
    groups: int
    kv: str
    budget: int | None
    process: int
    resident: int
    kv_state: int
    rope_tables: int
    scratch: int
    staging: int
    cache: int
    experts: int
    cycle: Cycle | None = None

    @property
    def all_fits(self) -> bool:
        """Every record has a place: nothing will ever be evicted."""
        return self.cache >= self.experts

    @property
    def anonymous(self) -> int:
        """What the engine allocates whatever the weights do."""
        return self.kv_state + self.rope_tables + self.scratch

    @property
    def fixed(self) -> int:
        """All but what streams."""
        return self.process + self.resident + self.anonymous + self.staging

    @property
    def total(self) -> int:
        return self.fixed + self.cache

    @property
    def contexts(self) -> str:
        """Such as '4 x 8192 tokens'."""
        return f"{f'{self.sessions} x ' if self.sessions > 1 else ''}{self.ctx} tokens"

    def to_dict(self) -> dict:
        return asdict(self) | {"total": self.total, "all_fits": self.all_fits}

    def lines(self) -> list[str]:
        """The plan as a table, one purpose a line."""
        share = f", {100 * self.cache / self.experts:.0f} % of {fmt_bytes(self.experts)}" if self.experts else ""
        cache, c = f"expert cache{share}", self.cycle
        if c:
            cache = f"layers: {len(c.kept)} of {c.n} stay, {c.places} {'place' if c.places == 1 else 'places'} for the others"
        rows = [("process", self.process), ("resident weights", self.resident),
                (f"KV state ({self.contexts}, {self.kv})", self.kv_state), ("rope tables", self.rope_tables),
                (f"scratch (ubatch {self.ubatch})", self.scratch), ("staging", self.staging),
                (cache, self.cache), ("total", self.total)]
        if self.budget is not None:
            rows.append(("budget", self.budget))
        if c:
            rows.append(("read for every token", c.pass_bytes))
        return [f"{name:<40}{fmt_bytes(n):>12}" for name, n in rows]


# --- parts --------------------------------------------------------------------------------------------------------------

def kv_positions(attn: Gqa | Mla, ctx: int, ubatch: int) -> int:
    """Positions that one attention layer keeps: all of ctx, or a ring of what a query sees + ubatch; a multiple of the tile."""
    need = ctx if not attn.span else min(ctx, attn.span + ubatch)
    return -(-need // TILE) * TILE


def kv_bytes(attn: Gqa | Mla, ctx: int, ubatch: int, kv: str) -> int:
    """Bytes of one session's keys and values in one layer, and of its index keys."""
    (heads, key, value), n, x = attn.kept, kv_positions(attn, ctx, ubatch), attn.indexer
    size = 4 if kv == "f32" else 2
    index = x.dim * (4 * (n + n // x.ratio + 16) if x.ratio > 1 else size * (n + 16)) if x else 0
    return heads * n * (key + value) * size + index


def state_bytes(block: Gqa | Mla | Mixer, ctx: int, ubatch: int, kv: str) -> int:
    """Bytes that one layer keeps of one session: keys and values, or a mixer's live state and its marks."""
    if isinstance(block, Gqa) and block.kv_from is not None:
        return 0
    return kv_bytes(block, ctx, ubatch, kv) if isinstance(block, (Gqa, Mla)) else 4 * block.state_floats * (1 + MARKS)


def session_bytes(model: Model, ctx: int, ubatch: int, kv: str) -> int:
    """Bytes of one session's state: that of all layers, and the token ids that n-grams look back at."""
    blocks = [b for x in model.layers for b in (x.attn, x.ple) if b]
    return sum(state_bytes(b, ctx, ubatch, kv) for b in blocks) + (4 * ctx if any(x.ple for x in model.layers) else 0)


def _act(cols: int) -> int:
    """Bytes of one activation row, the larger of the two formats (kernels/csrc/kernels.h), with room for alignment."""
    return 4 * cols + 256


def scratch_bytes(model: Model, ctx: int, ubatch: int, n_threads: int) -> int:
    """An upper bound of what engine/forward.pyx allocates beside KV state and rope tables: float buffers, activation rows,
    MoE pairs, attention results, logits.
    """
    rows = max(ubatch, MAX_OUT)
    attn = [layer.attn for layer in model.layers if isinstance(layer.attn, Gqa)]
    moe = [layer.ffn for layer in model.layers if isinstance(layer.ffn, Moe)]
    mixed = [sum(t.shape[0] for t in walk(layer.attn) if len(t.shape) == 2) for layer in model.layers if not isinstance(layer.attn, (Gqa, Mla))]
    heads, latent = 0, [layer.attn for layer in model.layers if isinstance(layer.attn, Mla)]
    both = [(a, x) for a in (*attn, *latent) if (x := a.indexer)]
    mixed += [x.dim for _, x in both] + [layer.ple.ngram.width for layer in model.layers if layer.ple]
    mlps = [layer.ffn.shared if isinstance(layer.ffn, Moe) else layer.ffn for layer in model.layers]
    dense = max((m.up.shape[0] for m in mlps if m), default=0)
    dense = max(dense, *(a.n_head * a.head_dim for a in attn if a.gate), *(x.n_head * x.dim for _, x in both), 0)
    dense, wide = (max(dense, model.d * model.streams), model.d * model.streams) if model.streams > 1 else (dense, model.d)
    q, kv = (max((h * a.head_dim for h, a in heads), default=0) for heads in ([(a.n_head, a) for a in attn], [(a.n_kv_head, a) for a in attn]))
    q = max(q, model.d if moe else 0)
    inputs = model.per_layer.proj.shape[0] if model.per_layer else 0
    widths = [wide, model.d, model.d, q, q, kv, kv, dense, dense, max(mixed, default=0) + 176, inputs, inputs, 0]
    for a in latent:                            # queries, the sums, [c | kr], the short queries and gates; queries for latents
        own = (a.n_head * max(a.nope + a.rope_dim, a.v_dim), a.n_head * a.rank,
               a.kept[1], a.q_down.shape[0] if a.q_down else 0, a.n_head if a.gate else 0)
        widths[3:8] = map(max, widths[3:8], own)
        widths[-1] = max(widths[-1], a.n_head * a.kept[1])
        heads = max(heads, rows * a.n_head * (max(_act(a.nope), _act(a.rank)) + 16))
    n = sum(rows * (4 * w + 64) for w in widths) + max(rows * max(map(_act, widths)), heads)
    if moe:
        width, experts = max(m.experts.width for m in moe), max(m.experts.n for m in moe)
        pairs = ubatch * max(m.top_k for m in moe)
        n += pairs * (4 * (2 * width + model.d) + _act(width) + 256) + ubatch * (8 * experts + 128) + 512 * experts
    part = 4 * (48 + max((a.value_dim for a in (*attn, *latent)), default=0))
    n += n_threads * QROWS * (4 * (CHUNK + 16) + (1 + ITEMS) * part) + 4 * n_threads * QROWS * (ctx // CHUNK + 1) * part
    if both:                                    # scores; what is seen; that side by side
        n += n_threads * max(8 * (ctx // x.ratio + 17) for _, x in both)
        n += 4 * ubatch * (1 + max(x.most for _, x in both))
        n += max(4 * ((x.most + TILE) * a.kept[1] if isinstance(a, Mla) else n_threads * CHUNK * sum(a.kept[1:])) for a, x in both)
        n += max(a.n_head * (x.most // CHUNK + 1) for a, x in both) * part
    return n + MAX_OUT * 4 * (model.vocab + 16) + len(model.layers) * 8192 + (1 << 16)


def group_bytes(model: Model, ubatch: int) -> int:
    """What one more group of a long prompt takes: its residual stream, and what its tokens see if layers share that."""
    latent = [layer.attn for layer in model.layers if isinstance(layer.attn, Mla)]
    shared = any(a.seen_from is not None for a in latent)
    return ubatch * 4 * (model.d * model.streams + 15 + (1 + max(a.indexer.most for a in latent if a.indexer) if shared else 0))


def rope_bytes(model: Model, ctx: int) -> int:
    attn = [layer.attn for layer in model.layers if isinstance(layer.attn, (Gqa, Mla))]
    ropes = dict.fromkeys(r for a in attn for r in (a.rope, a.indexer and a.indexer.rope) if r)
    temperatures = {a.temperature for a in attn if a.temperature}
    return sum(len(r.regimes()) * ctx * r.dim * 4 for r in ropes) + len(temperatures) * ctx * 4


def places(n: int) -> int:
    """Where n dense layers that stream lie: two places, so that one is read while the one before is computed."""
    return min(n, 1 if n <= FEW_LAYERS else 2)


def cycle(sizes: FileSizes, cache: int) -> tuple[Cycle, int] | None:
    """The layers of a dense model that stay if `cache` bytes hold them and the places of the others, and what both take: as many as
    possible, the others spread evenly, so that the disk works all the time. None: not even the places fit."""
    slots, n = [x.slot for x in sizes.layers], len(sizes.layers)
    for m in range(n + 1):
        out = [i for i in range(n) if (i + 1) * m // n > i * m // n]
        kept = tuple(sorted({*range(n)}.difference(out)))
        need = sum(slots[i] for i in kept) + places(m) * max((slots[i] for i in out), default=0)
        if need <= cache:
            return Cycle(n, kept, places(m), sum(sizes.layers[i].record_bytes for i in out)), need
    return None


# --- the plan -----------------------------------------------------------------------------------------------------------

def plan(model: Model, sizes: FileSizes, *, ctx: int | None = None, sessions: tuple[int, int] = (1, 1), ubatch: int = DEFAULT_UBATCH,
         kv: str = "f16", n_threads: int = 1, budget: int | None = None, process: int = PROCESS_BYTES, option: str = "--ram") -> MemoryPlan:
    """Splits `budget` (None: no limit). ctx None: the least of the trained length, 8192 and what leaves the experts their share. The
    layers of a dense model stream only if all of it does not fit.

    sessions: the least and the most; more than the least only as far as the experts keep their share. process: bytes that this
    process takes already. option: where the budget comes from, for the error. A small budget gets shorter passes. Raises
    BudgetTooSmall with the smallest workable budget, or the longest context that fits.
    """
    given = ctx, sessions, ubatch, kv, n_threads, budget, process, option
    try:
        return _plan(model, sizes, *given)
    except BudgetTooSmall:
        if not sizes.dense:
            raise
        return _plan(model, sizes.streamed(), *given)


def _plan(model: Model, sizes: FileSizes, wanted: int | None, sessions: tuple[int, int], ubatch: int, kv: str, n_threads: int, budget: int | None,
          process: int, option: str) -> MemoryPlan:
    ctx_most = wanted or min(model.ctx_train or DEFAULT_CTX, DEFAULT_CTX)
    ctx_least = wanted or min(ctx_most, LEAST_CTX)
    least, most = sessions
    ubatch = max(1, min(ubatch, ctx_most))
    ubatch_least = min(ubatch, LEAST_UBATCH)

    def build(n: int, s: int, k: int = least) -> MemoryPlan:
        staging = min(sizes.gather, ROWS_BYTES) + (IO_BYTES if sizes.layers else 0)
        state = k * session_bytes(model, n, s, kv)

        def split(groups: int) -> MemoryPlan:
            residual = groups * group_bytes(model, s) if groups > 1 else 0
            p = MemoryPlan(n, k, s, groups, kv, budget, process, sizes.resident, state, rope_bytes(model, n),
                           scratch_bytes(model, n, s, n_threads) + residual, staging, 0, sizes.experts)
            free = sizes.experts if budget is None else budget - p.fixed
            if sizes.cycle and (found := cycle(sizes, free)):
                return replace(p, cycle=found[0], cache=found[1])
            return replace(p, cache=max(0, min(free, sizes.experts)))
        p = split(1)
        groups = max(1, min(GROUP_TOKENS, n) // s)
        return p if p.all_fits or groups == 1 or not fits(split(groups)) else split(groups)

    def fits(p: MemoryPlan) -> bool:
        return budget is None or p.fixed + sizes.least_cache <= budget

    if budget is not None:
        while ubatch // 2 >= ubatch_least and scratch_bytes(model, ctx_least, ubatch, n_threads) > budget // SCRATCH_SHARE:
            ubatch //= 2
        if not fits(build(ctx_least, ubatch_least)):
            raise _too_small(build(ctx_least, ubatch_least), sizes, wanted, option, lambda n: fits(build(n, ubatch_least)))
        while not fits(build(ctx_least, ubatch)):
            ubatch = max(ubatch // 2, ubatch_least)
    if budget is None:
        return build(ctx_most, ubatch, most)
    bare = build(ctx_least, ubatch)
    room = (budget - bare.fixed + bare.kv_state + bare.rope_tables - sizes.least_cache) // STATE_SHARE

    def small(n: int, k: int) -> bool:
        p = build(n, ubatch, k)
        return fits(p) and (p.all_fits or p.kv_state + p.rope_tables <= room)
    n = wanted or max(ctx_least, _largest(lambda n: small(n, least), ctx_most))
    return build(n, ubatch, max(least, _largest(lambda k: small(n, k), most)))


def _largest(good, top: int) -> int:
    """The largest n <= top for which good(n), a condition that holds up to some n; 0 if it never does."""
    lo, hi = 0, top
    while lo < hi:
        mid = (lo + hi + 1) // 2
        lo, hi = (mid, hi) if good(mid) else (lo, mid - 1)
    return lo


def _too_small(p: MemoryPlan, sizes: FileSizes, wanted: int | None, option: str, good) -> BudgetTooSmall:
    """The message for a budget that holds not even the least plan `p`."""
    need = -(-(p.fixed + sizes.least_cache) // (1 << 20))
    parts = [("process", p.process), ("resident weights", p.resident),
             (f"KV state and tables of {p.contexts}", p.kv_state + p.rope_tables),
             ("scratch and staging", p.scratch + p.staging), ("places for layers" if sizes.cycle else "experts", sizes.least_cache)]
    text = ", ".join(f"{name} {fmt_bytes(n)}" for name, n in parts if n)
    longest = _largest(good, p.ctx) if wanted else 0
    hint = f", the longest context that fits is {longest}" if longest >= 1 else ""
    return BudgetTooSmall(f"{option} {fmt_bytes(p.budget)}: too small: {text}; the smallest workable budget is {need}M{hint}",
                          "budget-small")


def tokens_per_s(p: MemoryPlan, sizes: FileSizes, memory_rate: float, disk_rate: float) -> tuple[float, float]:
    """(least, most) tokens per second of one answer, by bytes alone: if experts are used evenly and reads and computing take turns, and
    if every expert is in memory when it is wanted. Real routing lies between: it is uneven. Of a dense model whose layers stream: if
    reads and computing take turns, and if they never wait for each other. Rates in bytes per second.
    """
    if p.cycle:
        compute, read = (p.resident + p.experts) / memory_rate, p.cycle.pass_bytes / disk_rate
        return 1 / (compute + read), 1 / max(compute, read)
    active = sum(min(x.top_k, x.n) * x.record_bytes for x in sizes.layers)
    compute = (p.resident + active) / memory_rate
    missed = active * (1 - min(1.0, p.cache / sizes.experts)) if sizes.experts else 0
    return 1 / (compute + missed / disk_rate), 1 / compute
