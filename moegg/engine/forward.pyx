"""Executor: owns the exec.h structs of a Program (filled by structs.pyx) and every buffer, runs passes without the GIL.

All memory is taken when the executor is made; a pass allocates nothing. A session's state is state.py's.
Callers (engine.py) have checked token ids, positions and sizes.
"""
import numpy as np

from cython cimport final
from libc.stdint cimport int32_t, int64_t, uint8_t, uintptr_t
from libc.string cimport memset

from moegg.engine.structs cimport fill_attn, fill_indexer, fill_latent, fill_mixer, fill_moe, fill_ngram, fill_op, fill_rope, temperature
from moegg.kernels cimport _core
from moegg.kernels.exec cimport *
from moegg.kernels.store cimport Store

from moegg.arch import Mla
from moegg.engine.state import pad16
from moegg.engine.structs import Arena, pad32
from moegg.errors import Cancelled, InternalError

cdef enum:
    STATUS_OK = 0
    STATUS_CANCEL = -4
    STATUS_FETCH = -5


@final
cdef class Executor:
    """Runs passes of up to `ubatch` tokens. One at a time, from one thread.

    store: brings expert records and rows of gathered tables in; None: they lie at MoeRef.base and WeightRef.address. lookahead: ranks
    that lookahead ops guess. groups: ubatches that run_groups takes at once. records: decoder layer -> (the store's layer, offset in
    its file) of layers of a dense model that stream.
    """
    cdef mg_exec e
    cdef object arena
    cdef readonly object program
    cdef readonly int ubatch, max_out, n_threads, groups
    cdef float *residual                # [groups, ubatch, ld of buffer 0]
    cdef int32_t *seen                  # [ubatch, seen_ld], of each group if layers share it: group_seen apart
    cdef int64_t group_seen
    cdef readonly int vocab, top_k
    cdef readonly Store store
    cdef const mg_kv *kv[256]           # of the pass: per session
    cdef float *const *state[256]
    cdef const mg_index *index[256]
    cdef const int32_t *history[256]
    cdef int32_t mark_at[256]
    cdef int32_t mark_slot[256]
    cdef int32_t own_flag
    cdef object op_ns
    cdef int32_t *flag

    def __cinit__(self):
        memset(&self.e, 0, sizeof(mg_exec))

    def __init__(self, program, weights: dict, moe: list, *, ctx: int, ubatch: int, max_out: int, kv: str, n_threads: int,
                 store=None, lookahead: int = 0, groups: int = 1, records: dict = {}):
        self.flag = &self.own_flag
        if store is not None:
            self.store = store
            self.e.store, self.flag = self.store.ptr, &self.store.flag
        self.e.lookahead = lookahead
        self.program, self.ubatch, self.max_out, self.groups = program, ubatch, max_out, groups
        self.arena = Arena()
        self.vocab = program.model.vocab
        self._buffers(program, ctx)
        self._ops(program, weights, moe, ctx, kv, records)
        self.e.pool = _core.pool_new(n_threads)
        if self.e.pool == NULL:
            raise InternalError(f"thread pool of {n_threads} threads could not be made")
        self.n_threads = n_threads
        part = MG_PART_HEAD + max((pad16(a.value_dim) for a in program.attn), default=0)
        self.e.attn_scratch_floats = MG_QROWS * (MG_SCORES + (1 + MG_ATTN_ITEMS) * part)
        self.e.attn_scratch = <float *>self.take(n_threads * self.e.attn_scratch_floats * 4)
        self.e.max_split_rows = 4 * n_threads * MG_QROWS
        self._sparse(program, ctx, kv, n_threads, part)
        self.e.attn_parts = <float *>self.take(self.e.max_split_rows * (ctx // MG_CHUNK + 1) * part * 4)
        self.e.cancel = self.flag
        if groups > 1:
            self.residual = <float *>self.take(groups * ubatch * self.e.ld[0] * 4 + 64)

    def __dealloc__(self):
        if self.e.pool != NULL:
            _core.pool_free(self.e.pool)
            self.e.pool = NULL

    cdef uintptr_t take(self, int64_t nbytes) except 0:
        return self.arena.take(nbytes)

    def _buffers(self, program, ctx: int):
        """Float buffers, activation rows, and the scratch of the MoE ops."""
        S = self.ubatch
        n = len(program.widths)
        self.e.max_tokens, self.e.max_out = S, self.max_out
        self.e.buf = <float **>self.take(n * sizeof(void *))
        self.e.ld = <int64_t *>self.take(n * sizeof(int64_t))
        for i, width in enumerate(program.widths):
            self.e.ld[i] = pad16(width)
            self.e.buf[i] = <float *>self.take(max(S, self.max_out) * pad16(width) * 4 + 64)
        acts = [max(S, self.max_out) * max(_core.act_bytes(act, pad32(w)) for act in range(2)) for w in program.widths]
        self.top_k = max((m.top_k for m in program.moe), default=0)
        experts = max((m.experts.n for m in program.moe), default=0)
        width = max((m.experts.width for m in program.moe), default=0)
        pairs = S * self.top_k
        self.e.max_pairs, self.e.max_experts = pairs, experts
        if pairs:
            self.e.pair_act = <uint8_t *>self.take(pairs * max(_core.act_bytes(act, pad32(width)) for act in range(2)))
            self.e.pair_gate = <float *>self.take(pairs * pad16(width) * 4 + 64)
            self.e.pair_up = <float *>self.take(pairs * pad16(width) * 4 + 64)
            self.e.pair_out = <float *>self.take(pairs * self.e.ld[6] * 4 + 64)       # program.Y
            self.e.pair_token = <int32_t *>self.take(pairs * 4)
            self.e.pair_of = <int32_t *>self.take(pairs * 4)
            self.e.pair_w = <float *>self.take(pairs * 4)
            self.e.batch_pair = <int32_t *>self.take(pairs * 4)
            self.e.expert_ids = <int32_t *>self.take(experts * 4)
            self.e.expert_uses = <int32_t *>self.take(experts * 4)
            self.e.batch = <int32_t *>self.take(experts * 4)
            self.e.expert_state = <uint8_t *>self.take(experts)
            self.e.expert_first = <int32_t *>self.take((experts + 1) * 4)
            self.e.records = <const uint8_t **>self.take(experts * sizeof(void *))
            self.e.route_logits = <float *>self.take(S * pad16(experts) * 4 + 64)
            self.e.route_choice = <float *>self.take(S * pad16(experts) * 4 + 64)
            self.e.route_idx = <int32_t *>self.take(pairs * 4)
            self.e.route_w = <float *>self.take(pairs * 4)
        heads = max((op.heads for op in program.ops), default=0)
        acts += [S * op.heads * max(_core.act_bytes(act, pad32(op.linears[0].weight.shape[1])) for act in range(2)) for op in program.ops if op.heads]
        self.e.act = <uint8_t *>self.take(max(acts))
        self.e.act_ptr = <const void **>self.take(max(5 * max(S, self.max_out, pairs), S * heads) * sizeof(void *))
        self.e.blocks = <int32_t *>self.take((S + 1) * 4)
        self.e.jobs = <mg_job *>self.take((max(2 * experts, heads) + 4) * _core.job_bytes())

    def _sparse(self, program, int ctx, kv: str, int n_threads, int part):
        """Scratch of indexers and of attention over what they choose. What layers share is kept for each group."""
        both = [(a, x) for a in program.attn if (x := a.indexer)]
        if not both:
            return
        self.e.sparse_floats = max(2 * pad16(ctx // x.ratio + 1) for _, x in both)
        self.e.sparse_scratch = <float *>self.take(n_threads * self.e.sparse_floats * 4 + 64)
        self.e.seen_ld = 1 + max(x.most for _, x in both)
        shared = any(a.seen_from is not None for a in program.attn if isinstance(a, Mla))
        self.seen = <int32_t *>self.take((self.groups if shared else 1) * self.ubatch * self.e.seen_ld * 4)
        self.group_seen = self.ubatch * self.e.seen_ld if shared else 0
        values = max((x.most + MG_TILE) * a.kept[1] if isinstance(a, Mla) else n_threads * MG_CHUNK * sum(a.kept[1:]) for a, x in both)
        self.e.gathered = <uint8_t *>self.take(values * (4 if kv == "f32" else 2))
        self.e.sparse_parts = <float *>self.take(max(a.n_head * (x.most // MG_CHUNK + 1) for a, x in both) * part * 4)

    def _ops(self, program, weights: dict, moe: list, ctx: int, kv: str, records: dict):
        cdef mg_op *ops = <mg_op *>self.take(len(program.ops) * sizeof(mg_op))
        cdef mg_attn_layer *attn = <mg_attn_layer *>self.take((len(program.readers) + 1) * sizeof(mg_attn_layer))
        cdef mg_moe_layer *layers = <mg_moe_layer *>self.take((len(program.moe) + 1) * sizeof(mg_moe_layer))
        cdef mg_mixer_layer *mixers = <mg_mixer_layer *>self.take((len(program.mixers) + 1) * sizeof(mg_mixer_layer))
        indexed = [j for j, (a, _) in enumerate(program.readers) if a.indexer]
        cdef mg_indexer *indexers = <mg_indexer *>self.take((len(indexed) + 1) * sizeof(mg_indexer))
        cdef mg_ngram *ngrams = <mg_ngram *>self.take((len(program.ngrams) + 1) * sizeof(mg_ngram))
        cdef mg_rope *ropes = <mg_rope *>self.take((len(program.ropes) + 1) * sizeof(mg_rope))
        cdef int i
        tables = {t: <uintptr_t>temperature(self.arena, t, ctx) for t in {a.temperature for a, _ in program.readers} if t}
        for i, r in enumerate(program.ropes):
            fill_rope(self.arena, &ropes[i], r, ctx)
        for i, (a, entry) in enumerate(program.readers):
            if isinstance(a, Mla):
                fill_latent(&attn[i], a, entry, weights, kv, ctx, self.ubatch)
            else:
                fill_attn(&attn[i], a, entry, weights, kv, ctx, self.ubatch)
            if a.rope is not None:
                attn[i].rope = &ropes[program.ropes.index(a.rope)]
            if a.temperature is not None:
                attn[i].q_scale = <const float *><uintptr_t>tables[a.temperature]
        for i, m in enumerate(program.moe):
            fill_moe(self.arena, &layers[i], m, i, weights, moe[i])
        for i, j in enumerate(indexed):
            fill_indexer(&indexers[i], program.readers[j][0].indexer, i, weights, kv, ctx)
            indexers[i].rope = &ropes[program.ropes.index(program.readers[j][0].indexer.rope)]
        for i, m in enumerate(program.ngrams):
            fill_ngram(self.arena, &ngrams[i], m, weights)
        for i, (m, buffers) in enumerate(program.mixers):
            fill_mixer(self.arena, &mixers[i], m, i, weights, buffers)
        for i, op in enumerate(program.ops):
            fill_op(self.arena, &ops[i], op, weights)
            ops[i].record = records.get(op.layer, (-1, 0))[0]
            if op.attn_index >= 0:
                ops[i].attn = &attn[op.attn_index]
            if op.index_of >= 0:
                ops[i].indexer = &indexers[indexed.index(op.index_of)]
            if op.ple is not None:
                ops[i].ngram = &ngrams[program.ngrams.index(op.ple)]
            if op.moe_index >= 0:
                ops[i].moe = &layers[op.moe_index]
            if op.mixer_index >= 0:
                ops[i].mixer = &mixers[op.mixer_index]
        self.e.ops, self.e.n_ops, self.e.layer_held = ops, len(program.ops), -1
        self.e.layers = <mg_layer_record *>self.take((len(records) + 1) * sizeof(mg_layer_record))
        for i, offset in records.values():
            self.e.layers[i].offset = offset

    @property
    def nbytes(self) -> int:
        """Bytes of buffers and tables."""
        return self.arena.nbytes

    def clock(self):
        """Int64 [ops], to which every later pass adds the nanoseconds that each op of the program took."""
        self.op_ns = np.zeros(self.e.n_ops, np.int64)
        cdef int64_t[::1] ns = self.op_ns
        self.e.op_ns = &ns[0]
        return self.op_ns

    def cancel(self):
        """Makes the running pass, or the next one, stop before its next op; safe from any thread and a signal handler."""
        self.flag[0] = 1

    def rearm(self):
        """Forgets an earlier cancel; called where a new piece of work starts."""
        self.flag[0] = 0

    def run(self, tokens, pos, seq, states: list, seq_len, out_row, logits, capture=None):
        """One pass. tokens, pos, seq [T] int32; states: SessionState per seq; seq_len [n_seq] int64; out_row [n_out] int32.

        Fills logits [n_out, pad16(V)] float32. capture: (idx [M, T, K] int32, w [M, T, K] float32) or None.
        Raises Cancelled, IOFailure.
        """
        cdef int32_t[:, :, ::1] ci
        cdef float[:, :, ::1] cw
        cdef int status
        self._states(states, seq_len)
        self._remember(states, tokens, pos, seq)
        self._tokens(tokens, pos, seq, out_row, logits)
        self.e.seen = self.seen
        if capture is not None:
            ci, cw = capture
            self.e.capture_idx, self.e.capture_w = &ci[0, 0, 0], &cw[0, 0, 0]
        with nogil:
            status = _core.exec_run(&self.e)
        self._check(status)

    def run_groups(self, tokens, pos, seq, states: list, seq_len, out_rows: list, logits, progress=None):
        """A long prompt, layer by layer over groups of ubatch tokens, so that each record is brought in once for all of them.

        As run, with at most groups * ubatch tokens; out_rows: [n_out] rows inside each group. progress(ops done, ops in all).
        Raises Cancelled, IOFailure: then no token of the call has been evaluated.
        """
        cdef int status
        cdef int32_t first = 0, end, g, n = <int32_t>len(out_rows), S = self.ubatch, T = <int32_t>len(tokens)
        cdef int64_t size = S * self.e.ld[0]
        if n > self.groups or not (n - 1) * S < T <= n * S:
            raise InternalError(f"{T} tokens in {n} groups do not fit the executor")
        self._states(states, seq_len)
        self._remember(states, tokens, pos, seq)
        status = _core.exec_begin(&self.e, T)
        self._check(status)
        while first < self.e.n_ops:
            end = _core.exec_span(&self.e, first)
            at = 0
            for g in range(n):
                part = slice(g * S, min((g + 1) * S, T))
                self._tokens(tokens[part], pos[part], seq[part], out_rows[g], logits[at:])
                self.e.seen = self.seen + g * self.group_seen
                at += len(out_rows[g])
                with nogil:
                    status = _core.exec_part(&self.e, first, end, self.residual + g * size, g + 1 < n)
                self._check(status)
            first = end
            if progress is not None:
                progress(first, self.e.n_ops)
        self._check(_core.exec_check(&self.e))

    cdef _states(self, list states, seq_len):
        cdef const int64_t[::1] n = seq_len
        cdef int i
        if len(states) > 256:
            raise InternalError(f"{len(states)} sessions do not fit the executor")
        for i, state in enumerate(states):
            self.kv[i] = <const mg_kv *><uintptr_t>state.entries.ctypes.data
            self.state[i] = <float *const *><uintptr_t>state.states.ctypes.data
            self.index[i] = <const mg_index *><uintptr_t>state.index.ctypes.data
            self.history[i] = <const int32_t *><uintptr_t>state.ids.ctypes.data
            self.mark_at[i], self.mark_slot[i] = state.mark_at, state.mark_slot
        self.e.seq_len, self.e.kv, self.e.capture_idx = &n[0], self.kv, NULL
        self.e.index, self.e.history = self.index, self.history
        self.e.state, self.e.mark_at, self.e.mark_slot = self.state, self.mark_at, self.mark_slot

    def _remember(self, list states, tokens, pos, seq):
        """Token ids by position, for n-grams."""
        if self.program.ngrams:
            for i in np.unique(seq):
                states[i].ids[pos[seq == i]] = tokens[seq == i]

    cdef _tokens(self, tokens, pos, seq, out_row, logits):
        cdef const int32_t[::1] t = tokens
        cdef const int32_t[::1] p = pos
        cdef const int32_t[::1] s = seq
        cdef const int32_t[::1] o = out_row
        cdef float[:, ::1] y
        if t.shape[0] > self.ubatch or o.shape[0] > self.max_out or t.shape[0] == 0:
            raise InternalError(f"pass of {t.shape[0]} tokens, {o.shape[0]} outputs does not fit the executor")
        self.e.n_tokens, self.e.n_out = <int32_t>t.shape[0], <int32_t>o.shape[0]
        self.e.token, self.e.pos, self.e.seq = &t[0], &p[0], &s[0]
        if o.shape[0]:
            y = logits
            self.e.out_row, self.e.logits, self.e.ld_logits = &o[0], &y[0, 0], y.shape[1]

    cdef _check(self, int status):
        if status == STATUS_CANCEL:
            raise Cancelled("forward pass: stopped on request", "cancelled")
        if status == STATUS_FETCH:
            self.store.check(status)
        if status != STATUS_OK:
            raise InternalError(f"executor returned status {status}")
