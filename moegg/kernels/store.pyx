"""The expert store and its cache policy as objects: csrc/store.h and csrc/policy.h behind numpy arrays and Python errors.

moegg/io/store.py makes a Store from a container; the executor uses it in C. ExpertPolicy is for replay and tests. Sizes in bytes.
"""
import errno
import os

import numpy as np

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc

from moegg.kernels cimport _core
from moegg.kernels.store_c cimport *

from moegg.errors import BadRequest, BudgetTooSmall, Cancelled, InternalError, IOFailure, NoRoom
from moegg.units import fmt_bytes

cdef enum:
    E_NOMEM = -3                # kernels.h
    E_CANCEL = -4
    E_FETCH = -5

cdef const mg_store_calls *S = _core.store_calls()
cdef const mg_policy_calls *P = _core.policy_calls()


def _text(number):
    return f"{os.strerror(number)} (errno {number})"


cdef class Store:
    """The expert store (csrc/store.h) of one file; moegg/io/store.py makes and explains it. One thread calls, any may cancel.

    layers: (n, top_k, base, stride, record_bytes, slot int32 [n]) for each layer that has records, `numbers` their layer numbers.
    kept: None, or of a cycle of layers with one record each: the indices of those that stay.
    parts: (path, identity) of each part of a file that lies on the disk in several, else empty.
    hook: address of an mg_read_hook, for tests. Raises BudgetTooSmall, IOFailure.
    """

    def __cinit__(self, path, identity, layers, numbers, budget, *, parts=(), max_budget=0, kept=None, direct=False, exact=False, fresh=False,
                  copy=False, n_threads=4, max_rows=1, min_part=256 << 10, max_part=4 << 20, half_life=256.0, hook=0):
        cdef mg_store_config c
        cdef mg_io_error error
        cdef const int32_t[::1] slot
        self.path, self.numbers = str(path), list(numbers)
        files = list(parts) or [(path, identity)]
        names = [os.fsencode(name) for name, _ in files]
        cdef int64_t[::1] identities = np.array([x for _, one in files for x in one], np.int64)
        keep = [np.ascontiguousarray(layer[5], np.int32) for layer in layers]
        cdef mg_store_layer *l = <mg_store_layer *>malloc((len(layers) + 1) * sizeof(mg_store_layer))
        if l == NULL:
            raise MemoryError
        self.count = 0
        for i, (n, top_k, base, stride, nbytes, _) in enumerate(layers):
            slot = keep[i]
            l[i].n, l[i].top_k, l[i].base, l[i].stride, l[i].record_bytes, l[i].slot = n, top_k, base, stride, nbytes, &slot[0]
            self.count += <int64_t>n
        cdef const char **paths = <const char **>malloc(len(names) * sizeof(char *))
        if paths == NULL:
            free(l)
            raise MemoryError
        for i, name in enumerate(names):
            paths[i] = name
        c.file.n_parts, c.file.paths, c.file.identity = <int32_t>len(names), paths, &identities[0]
        c.file.direct, c.file.exact, c.file.fresh, c.copy, c.max_rows = direct, exact, fresh, copy, max_rows
        c.file.hook, c.file.hook_ctx = <mg_read_hook><uintptr_t>hook, NULL
        c.n_layers, c.layers = <int32_t>len(layers), l
        c.budget, c.max_budget, c.n_threads = budget, max_budget, n_threads
        cdef uint8_t[::1] keep_flags
        self.cycle, c.keep = kept is not None, NULL
        if kept is not None:
            flags = np.zeros(max(len(layers), 1), np.uint8)
            flags[list(kept)] = 1
            keep_flags = flags
            c.keep = &keep_flags[0]
        c.min_part, c.max_part, c.half_life, c.cancel = min_part, max_part, half_life, &self.flag
        with nogil:
            self.ptr = S.open(&c, &error)
        free(l)
        free(paths)
        if self.ptr != NULL:
            return
        if error.kind != MG_IO_ERRNO:
            self.fail(&error)
        if error.os_errno == errno.ENOMEM:
            raise NoRoom(f"{self.path}: {self.noun} cache of {fmt_bytes(budget)}: the system gives no memory", "no-memory")
        raise IOFailure(f"{self.path}: cannot be opened: {_text(error.os_errno)}", "io-open")

    def __dealloc__(self):
        with nogil:
            S.close(self.ptr)

    cdef fail(self, mg_io_error *e):
        layer = f"layer {self.numbers[e.layer]}: " if e.layer >= 0 else ""
        what = f"expert {e.expert} of {layer}" if layer and not self.cycle else layer
        where = f"{self.path}: {what}"
        if e.kind == MG_IO_CHANGED:
            raise IOFailure(f"{where}the file was changed, cut or replaced while it was in use; open it again", "file-changed")
        if e.kind == MG_IO_SHORT:
            raise IOFailure(f"{where}the file ends at byte {e.offset}, expected {e.nbytes} B more; it was cut while it was read",
                            "file-changed")
        if e.kind == MG_IO_BUDGET:
            raise BudgetTooSmall(f"{where}{self.noun} cache: got too little, expected at least {e.nbytes} B ({fmt_bytes(e.nbytes)})",
                                 "budget-small")
        if e.kind == MG_IO_FORKED:
            raise BadRequest(f"{where}the process was forked after the model was opened; open it in the child", "forked")
        if e.kind == MG_IO_STUCK:
            raise InternalError(f"{where}{self.noun} cache of {e.nbytes} B is full of records in use")
        raise IOFailure(f"{where}read of {e.nbytes} B at byte {e.offset} failed: {_text(e.os_errno)}", "io-read")

    cdef raise_for(self, int status):
        cdef mg_io_error e
        if status == E_CANCEL:
            raise Cancelled("read: stopped on request", "cancelled")
        if status == E_NOMEM:
            raise BudgetTooSmall(f"{self.path}: {self.noun} cache: the budget is outside what this store was made for", "budget-small")
        if status == E_FETCH:
            S.error(self.ptr, &e)
            self.fail(&e)

    def check(self, status: int):
        """Raises what an executor status of this store means, if it is one of the store's."""
        self.raise_for(status)

    @property
    def noun(self) -> str:
        """What one record is."""
        return "layer" if self.cycle else "expert"

    def cancel(self):
        """Ends the wait that runs, or the next one; safe from any thread and a signal handler."""
        self.flag = 1

    def rearm(self):
        self.flag = 0

    @property
    def map_address(self) -> int:
        """Where the mapping of the whole file begins."""
        return <uintptr_t>S.map(self.ptr)

    def counters(self) -> dict:
        """What mg_counters holds, by its names; sizes in bytes, since the store was made."""
        cdef mg_counters n
        S.counters(self.ptr, &n)
        return n

    def set_budget(self, int64_t budget):
        """Between passes: evicts at once. Raises BudgetTooSmall, Cancelled."""
        cdef int status
        with nogil:
            status = S.set_budget(self.ptr, budget)
        self.raise_for(status)

    def empty(self):
        """Between passes: all records go, kept ones too, until they are wanted again. Raises Cancelled."""
        cdef int status
        with nogil:
            status = S.empty(self.ptr)
        self.raise_for(status)

    def seed(self, uses, int32_t keep=0) -> int:
        """uses: float64 [records] by layer and expert. The `keep` most used of each layer stay for good; returns how many fit."""
        cdef const double[::1] u = np.ascontiguousarray(uses, np.float64)
        if u.shape[0] != self.count:
            raise BadRequest(f"usage: got {u.shape[0]} records, expected {self.count}", "usage-shape")
        return S.seed(self.ptr, &u[0], keep)

    def uses(self):
        """How often this store's passes used each record, without the seed: float64 [records]."""
        out = np.zeros(self.count, np.float64)
        cdef double[::1] view = out
        if self.count:
            S.uses(self.ptr, &view[0])
        return out

    def warm(self):
        """Fills what is free of the budget in the background, most used first."""
        S.warm(self.ptr)

    def warming(self) -> int:
        """Records that the warm-up still has to read."""
        return S.warming(self.ptr)

    def alloc(self, int64_t nbytes) -> int:
        """Address of 2 MiB aligned memory that lives as long as the store."""
        cdef void *at = S.alloc(self.ptr, nbytes)
        if at == NULL:
            raise MemoryError(f"{nbytes} B for weights")
        return <uintptr_t>at

    def load(self, int64_t offset, int64_t nbytes, uintptr_t dst=0):
        """Reads a range to an address inside alloc()'s memory, or (0) into the page cache. Raises IOFailure, Cancelled."""
        cdef int status
        with nogil:
            status = S.load(self.ptr, offset, nbytes, <void *>dst)
        self.raise_for(status)

    # one layer by hand: what the executor does in C

    def begin(self, n_tokens: int, more: bool = False):
        self.raise_for(S.begin(self.ptr, n_tokens))
        S.more(self.ptr, more)

    def request(self, int32_t layer, const int32_t[::1] experts, uses, uint64_t[::1] records, uint8_t[::1] state) -> int:
        """experts int32 [n], uses int32 [n] or None, records uint64 [n] addresses, state uint8 [n]; see mg_store_request."""
        cdef const int32_t[::1] u
        cdef const int32_t *at = NULL
        if uses is not None:
            u = uses
            at = &u[0]
        return S.request(self.ptr, layer, <int32_t>experts.shape[0], &experts[0], at, <const uint8_t **>&records[0], &state[0])

    def wait(self, int32_t layer, const int32_t[::1] experts, uint64_t[::1] records, uint8_t[::1] state):
        """Raises Cancelled, IOFailure."""
        cdef int status
        with nogil:
            status = S.wait(self.ptr, layer, <int32_t>experts.shape[0], &experts[0], <const uint8_t **>&records[0], &state[0])
        self.raise_for(status)

    def release(self, int32_t layer, const int32_t[::1] which, const int32_t[::1] experts, uint8_t[::1] state):
        S.release(self.ptr, layer, <int32_t>which.shape[0], &which[0], &experts[0], &state[0])

    def predict(self, int32_t layer, const int32_t[::1] experts):
        S.predict(self.ptr, layer, <int32_t>experts.shape[0], &experts[0])


    def next(self, int32_t layer):
        S.next(self.ptr, layer)


def store_minimum(layers) -> int:
    """Bytes below which no store works: 2 * top_k records. layers: (n, top_k, record_bytes)."""
    cdef int64_t need = 0
    cdef mg_store_layer l
    for n, top_k, nbytes in layers:
        l.n, l.top_k, l.record_bytes = n, top_k, nbytes
        need = max(need, S.minimum(1, &l, NULL))
    return need


cdef class ExpertPolicy:
    """The cache policy alone (csrc/policy.h), for replay of recorded routing and for its tests.

    n_experts, top_k, record_bytes: one entry per layer. kept: of a cycle, the layers that stay. Raises BudgetTooSmall.
    """
    cdef mg_policy *ptr

    def __cinit__(self, n_experts, top_k, record_bytes, int64_t budget, double half_life=256.0, kept=None):
        cdef mg_policy_config c
        cdef int32_t[::1] n = np.array(n_experts, np.int32), k = np.array(top_k, np.int32)
        cdef int64_t[::1] b = np.array(record_bytes, np.int64)
        c.n_layers, c.n_experts, c.top_k, c.record_bytes = <int32_t>n.shape[0], &n[0], &k[0], &b[0]
        c.budget, c.half_life, c.keep = budget, half_life, NULL
        cdef uint8_t[::1] flags
        if kept is not None:
            flags = np.array([i in kept for i in range(len(n_experts))], np.uint8)
            c.keep = &flags[0]
        self.ptr = P.make(&c)
        if self.ptr == NULL:
            raise BudgetTooSmall(f"expert cache: got {budget} B, expected at least {P.minimum(&c)}", "budget-small")

    def __dealloc__(self):
        P.discard(self.ptr)

    @property
    def used(self) -> int:
        return P.used(self.ptr)

    def id(self, layer: int, expert: int) -> int:
        return P.id(self.ptr, layer, expert)

    def state(self, id: int) -> str:
        return ("absent", "loading", "ready")[P.state(self.ptr, id)]

    def score(self, id: int) -> float:
        return P.score(self.ptr, id)

    def begin(self, n_tokens: int, scan: bool = False):
        P.begin(self.ptr, n_tokens, scan)

    def access(self, int32_t layer, const int32_t[::1] experts, uses=None) -> int:
        """One layer of one pass: how many of experts [n] were present; the others are now, as far as there is room."""
        cdef const int32_t[::1] u
        cdef const int32_t *at = NULL
        if uses is not None:
            u = uses
            at = &u[0]
        return P.access(self.ptr, layer, <int32_t>experts.shape[0], &experts[0], at, NULL)

    def arrive(self, layer: int):
        P.arrive(self.ptr, layer)

    def use(self, id: int, uses: float = 1.0, again: bool = False):
        P.use(self.ptr, id, uses, again)

    def pin(self, id: int):
        P.pin(self.ptr, id)

    def unpin(self, id: int):
        P.unpin(self.ptr, id)

    def admit(self, id: int, how: str = "demand") -> list | None:
        """Ids evicted to make room for `id`, which is loading now; None if there is no room."""
        cdef int n = P.admit(self.ptr, id, {"demand": MG_ADMIT_DEMAND, "guess": MG_ADMIT_GUESS, "free": MG_ADMIT_FREE,
                                                "next": MG_ADMIT_NEXT}[how])
        return None if n < 0 else [P.evicted(self.ptr)[i] for i in range(n)]

    def loaded(self, id: int):
        P.loaded(self.ptr, id)

    def failed(self, id: int):
        P.failed(self.ptr, id)

    def drop(self, id: int) -> bool:
        """Whether it went: a record that nobody uses and that is not kept."""
        return P.drop(self.ptr, id) > 0

    def set_budget(self, budget: int) -> list | None:
        """Ids evicted; None if the budget is below the minimum."""
        cdef int n = P.set_budget(self.ptr, budget)
        return None if n < 0 else [P.evicted(self.ptr)[i] for i in range(n)]

    def keep(self, id: int) -> bool:
        return P.keep(self.ptr, id) == 0

    def seed(self, id: int, uses: float):
        P.seed(self.ptr, id, uses)

    def warm_order(self) -> list:
        """Ids worth loading at the start, most wanted first, as many as the budget holds."""
        out = np.empty(P.count(self.ptr), np.int32)
        cdef int32_t[::1] view = out
        return out[:P.warm_order(self.ptr, &view[0])].tolist()
