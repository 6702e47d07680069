"""A store whose layers are used in a cycle: some stay, the others pass through what is left, read in the order of their use."""
import numpy as np
import pytest

from moegg.errors import BudgetTooSmall, IOFailure
from moegg.kernels.store import ExpertPolicy
from tests.io.conftest import LOADING, READY, RecordFile
from tests.io.faults import Faults

MIB = 1 << 20
SIZES = (40_000, 16_384, 70_004, 40_000, 100, 70_004, 40_000)
EVERY = range(len(SIZES))
PLACE = 81_920                                                        # of 70,004 bytes
ONE, ZERO = np.ones(1, np.int32), np.zeros(1, np.int32)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return RecordFile(tmp_path_factory.mktemp("cycle") / "layers.bin", n=1, top_k=1, sizes=SIZES)


def run(r, n, after=lambda layer: None, layers=EVERY, more=False):
    """n passes as the executor does them."""
    for _ in range(n):
        r.store.begin(1, more)
        for layer in layers:
            state, records, uses = np.zeros(1, np.uint8), np.zeros(1, np.uint64), ONE
            while state[0] != READY:
                if state[0] != LOADING:
                    r.store.request(layer, ZERO, uses, records, state)
                uses = None
                r.store.next(layer)
                if state[0] != READY:
                    r.store.wait(layer, ZERO, records, state)
            r.compare(layer, 0, int(records[0]))
            r.store.release(layer, ZERO, ZERO, state)
            after(layer)


@pytest.mark.parametrize("mode", [{"direct": True}, {"direct": False}, {"direct": False, "copy": True}], ids=str)
@pytest.mark.parametrize("kept, places", [((), 1), ((), 2), ((1, 4), 2), ((0, 1, 3, 4, 6), 1)])
def test_every_layer_is_whole_each_time_and_read_once_per_pass(file, mode, kept, places):
    hook = Faults()
    budget = sum(file.slot_bytes(i) for i in kept) + places * PLACE
    r = file.store(budget=budget, kept=kept, hook=hook.address, **mode)
    run(r, 4, lambda layer: r.counters()["cache_bytes"] <= budget or pytest.fail("over the budget"))
    n = r.counters()
    once, each = (sum(SIZES[i] for i in range(7) if (i in kept) == yes) for yes in (True, False))
    assert once + 4 * each <= n["demanded"] <= once + 4 * each + places * 70_004           # and what the next pass begins with
    assert n["peak_bytes"] <= budget and n["wasted"] == n["predicted"] == 0 and n["hits"] + n["misses"] == 28


def test_the_next_layer_is_being_read_before_the_one_at_hand_is_there(file):
    hook = Faults()
    r = file.store(budget=2 * PLACE, kept=(), hook=hook.address, n_threads=1)
    hook.stall.clear()
    state, records = np.zeros(1, np.uint8), np.zeros(1, np.uint64)
    r.store.begin(1)
    r.store.request(0, ZERO, ONE, records, state)
    r.store.next(0)
    assert r.counters()["cache_bytes"] == 2 * PLACE
    hook.stall.set()
    r.store.wait(0, ZERO, records, state)
    r.store.release(0, ZERO, ZERO, state)
    assert r.counters()["cache_bytes"] <= PLACE                       # it went at once
    run(r, 1)
    offsets = [at for _, at in hook.calls]
    starts = [base for _, _, base, *_ in file.layers]
    assert offsets[:2] == sorted(offsets[:2]) and starts[0] in offsets and offsets.index(starts[1]) > offsets.index(starts[0])


def test_a_layer_stays_while_more_groups_of_tokens_need_it(file):
    r = file.store(budget=2 * PLACE, kept=())
    run(r, 3, layers=[2], more=True)
    assert r.counters()["misses"] == 1 and r.counters()["hits"] == 2


def test_emptied_it_holds_nothing_and_works_on(file):
    r = file.store(budget=3 * PLACE, kept=(2,))
    run(r, 2)
    r.store.empty()
    assert r.counters()["cache_bytes"] == 0
    run(r, 1)
    r.store.warm()
    assert r.counters()["cache_bytes"] > 0


def test_what_was_read_ahead_in_vain_makes_room(file):
    """A pass that was cancelled leaves layers that the next one does not begin with."""
    r = file.store(budget=2 * PLACE, kept=())
    for stop in (1, 3, 5, 6):
        run(r, 1, layers=range(stop))
        run(r, 1)


def test_a_layer_that_cannot_be_read_is_named_and_read_again(file):
    hook = Faults()
    r = file.store(budget=2 * PLACE, kept=(), hook=hook.address)
    run(r, 1, layers=range(3))
    hook.broken = True
    with pytest.raises(IOFailure, match=r": layer 1\d: read of \d+ B at byte \d+ failed"):
        run(r, 2)
    hook.broken = False
    run(r, 2)


def test_places_and_what_stays_are_the_least(file):
    kept = (0, 3)
    least = 2 * file.slot_bytes(0) + PLACE
    with pytest.raises(BudgetTooSmall, match=f"layer cache: got too little, expected at least {least} B"):
        file.store(budget=least - 1, kept=kept)
    run(file.store(budget=least, kept=kept), 2)


def test_what_comes_next_takes_no_place_of_what_stays():
    p = ExpertPolicy([1] * 5, [1] * 5, [MIB] * 5, 4 * MIB, kept=(1, 3))
    assert p.admit(0, "next") == [] and p.admit(2, "next") == []
    assert p.admit(4, "next") is None                                 # 1 and 3 are not there yet, but their places are taken
    assert p.admit(1, "next") == [] and p.admit(3, "next") == [] and p.used == 4 * MIB
    for i in range(4):
        p.loaded(i)
    assert not p.drop(1) and p.drop(2) and p.admit(4, "next") == []
    p.pin(0)
    assert not p.drop(0)
    p.unpin(0)
    assert p.drop(0) and p.used == 3 * MIB
