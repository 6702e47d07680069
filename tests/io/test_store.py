"""The expert store: the right bytes under any budget, order of reads, faults, cancel. Every fetched byte is compared."""
import errno
import os
import threading
import time

import numpy as np
import pytest

from moegg.errors import BadRequest, BudgetTooSmall, Cancelled, IOFailure
from tests.io.conftest import ABSENT, LOADING, READY, RecordFile
from tests.io.faults import Faults

MODES = [{"direct": True}, {"direct": False}, {"direct": False, "copy": True}]


@pytest.fixture(params=MODES, ids=["direct", "advice", "copy"])
def mode(request):
    return request.param


def random_passes(reader, n, seed=0, most=12):
    rng = np.random.default_rng(seed)
    for _ in range(n):
        for layer in range(len(reader.file.layers)):
            k = int(rng.integers(1, most + 1))
            reader.fetch(layer, rng.choice(reader.file.n, k, replace=False), begin=0 if layer else int(rng.choice([1, 1, 8])))


@pytest.mark.parametrize("records", [None, 7, 1000])
def test_every_record_is_the_right_one_under_any_budget(record_file, mode, records):
    """known_failures H1: a buffer reused while in use shows as wrong bytes, at cap = 2 * top_k with unions larger than the cache."""
    r = record_file.store(records, **mode)
    random_passes(r, 12)
    n = r.counters()
    assert n["hits"] > 0 and n["misses"] > 0 and n["peak_bytes"] <= n["budget"] and n["cache_bytes"] <= n["budget"]
    if records == 1000:
        assert n["evictions"] == 0 and n["misses"] <= 36


def test_records_of_another_size_take_memory_back(record_file):
    """Slots of one size that are free are given back before those of another size grow beyond the budget."""
    r = record_file.store(budget=6 * record_file.slot_bytes())
    for _ in range(5):
        r.fetch(0, range(12))
        r.fetch(2, range(12))
        assert r.counters()["cache_bytes"] <= r.counters()["budget"]


def test_records_of_nearly_one_size_share_memory(tmp_path):
    """Recipes give edge layers more bits. With slots of their own, each token gave back and faulted in a fifth of what it read."""
    file, places = RecordFile(tmp_path / "records.bin", sizes=(147_000, 163_000, 70_004)), {}
    r = file.store(4, n_threads=4, max_part=1 << 20)
    compare = r.compare

    def noted(layer, expert, address):
        places.setdefault(layer, set()).add(address)
        compare(layer, expert, address)
    r.compare = noted
    for _ in range(3):
        for layer in range(3):
            r.fetch(layer, range(12))
            assert r.counters()["cache_bytes"] <= r.counters()["budget"]
    assert places[0] == places[1] and not places[0] & places[2]
    roomy = file.store(40)                       # all fit: nothing is rounded up
    for layer in (0, 1, 2):
        roomy.fetch(layer, range(12))
    assert roomy.counters()["cache_bytes"] == 12 * sum(file.slot_bytes(i) for i in range(3))


def test_reads_are_in_file_order_and_parts_are_in_one_request(record_file):
    """known_failures H17: one read per miss, whatever the parts; no call that only advises."""
    hook = Faults()
    r = record_file.store(100, hook=hook.address, n_threads=1, min_part=1 << 20, max_part=1 << 20)
    r.fetch(1, range(12))
    offsets = [at for _, at in hook.calls]
    assert offsets == sorted(offsets) and len(offsets) == 12


def test_a_lone_record_is_read_by_several_threads(record_file):
    """Large records are read in parallel parts; several at once are read whole, as far as max_part allows."""
    hook = Faults()
    r = record_file.store(100, hook=hook.address, n_threads=4, min_part=16384, max_part=1 << 20)
    r.fetch(2, [3])
    assert sorted(n for n, _ in hook.calls) == [8192, 32768, 32768]                   # 70004 bytes, cut at multiples of 16 KiB
    hook.calls.clear()
    r.fetch(2, [4, 5, 6, 7])
    assert len(hook.calls) == 4


def test_what_is_present_is_ready_at_once_and_costs_no_read(record_file, mode):
    hook = Faults()
    r = record_file.store(100, hook=hook.address, **mode)
    r.fetch(0, [1, 2, 3])
    before = len(hook.calls)
    experts, state, records = np.array([1, 2, 3], np.int32), np.zeros(3, np.uint8), np.zeros(3, np.uint64)
    r.store.begin(1)
    assert r.store.request(0, experts, np.ones(3, np.int32), records, state) == 0
    assert (state == READY).all() and len(hook.calls) == before
    r.store.release(0, np.arange(3, dtype=np.int32), experts, state)


def test_hits_come_first_while_misses_load(record_file):
    hook = Faults()
    r = record_file.store(100, hook=hook.address)
    r.fetch(0, [5, 6])
    hook.stall.clear()
    experts, state, records = np.arange(4, 8, dtype=np.int32), np.zeros(4, np.uint8), np.zeros(4, np.uint64)
    r.store.begin(1)
    r.store.request(0, experts, np.ones(4, np.int32), records, state)
    assert state.tolist() == [LOADING, READY, READY, LOADING]
    hook.stall.set()
    while (state == LOADING).any():
        r.store.wait(0, experts, records, state)
    r.store.release(0, np.arange(4, dtype=np.int32), experts, state)


def test_the_union_of_a_pass_is_read_once_each_however_small_the_cache(record_file, mode):
    r = record_file.store(None, **mode)
    r.fetch(0, range(12), begin=8)
    n = r.counters()
    assert n["misses"] == 12 and n["demanded"] == 12 * 40_000


def test_records_that_are_present_are_not_evicted_by_the_misses_of_the_same_request(record_file):
    r = record_file.store(budget=8 * record_file.slot_bytes(0))
    r.fetch(0, [8, 9, 10, 11])
    r.fetch(0, range(12))
    assert r.counters()["hits"] == 4


def test_a_smaller_budget_holds_at_once(record_file, mode):
    """known_failures H4."""
    size = record_file.slot_bytes()
    r = record_file.store(20, **mode)
    random_passes(r, 4)
    for records in (11, 4, 9):
        r.store.set_budget(records * size)
        assert r.counters()["cache_bytes"] <= records * size
        random_passes(r, 3, seed=records)
        assert r.counters()["cache_bytes"] <= records * size
    with pytest.raises(BudgetTooSmall):
        r.store.set_budget(3 * size)
    with pytest.raises(BudgetTooSmall):
        r.store.set_budget(21 * size)


def test_a_budget_below_two_top_k_is_refused(record_file):
    with pytest.raises(BudgetTooSmall, match=f"expected at least {4 * record_file.slot_bytes()}"):
        record_file.store(3)


# --- guesses and warm-up ------------------------------------------------------------------------------------------------

def wait_until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_guesses_are_read_in_idle_time_and_count_as_hits(record_file, mode):
    r = record_file.store(20, **mode)
    r.fetch(0, [0])
    r.store.predict(1, np.array([3, 7], np.int32))
    wait_until(lambda: r.counters()["predicted"] == 2 * 40_000)
    r.fetch(1, [3, 7], begin=0)
    n = r.counters()
    assert n["hits"] == 2 and n["misses"] == 1 and n["wasted"] == 0


def test_a_demand_overtakes_guesses_and_wrong_guesses_are_dropped(record_file):
    hook = Faults()
    r = record_file.store(20, hook=hook.address, n_threads=1, min_part=1 << 20, max_part=1 << 20)
    r.fetch(0, [0])
    hook.calls.clear()
    hook.stall.clear()
    r.store.predict(2, np.array([1, 2], np.int32))                # one is being read, and hangs
    wait_until(lambda: hook.waiting == 1)
    experts, state, records = np.array([5, 6], np.int32), np.zeros(2, np.uint8), np.zeros(2, np.uint64)
    r.store.request(2, experts, np.ones(2, np.int32), records, state)
    hook.stall.set()
    while (state == LOADING).any():
        r.store.wait(2, experts, records, state)
    r.store.release(2, np.arange(2, dtype=np.int32), experts, state)
    _, _, base, stride, size, slot = record_file.layers[2]
    assert r.counters()["predicted"] <= size and r.counters()["demanded"] == 40_000 + 2 * size
    assert base + stride * int(slot[2]) not in [at for _, at in hook.calls]            # the second guess is never read


def test_guesses_never_evict_what_is_in_use_and_stay_within_the_budget(record_file):
    r = record_file.store(None)
    rng = np.random.default_rng(3)
    for _ in range(30):
        for layer in range(3):
            r.fetch(layer, rng.choice(12, 2, replace=False), begin=layer == 0)
            r.store.predict((layer + 1) % 3, rng.choice(12, 4, replace=False).astype(np.int32))
            assert r.counters()["cache_bytes"] <= r.counters()["budget"]


def test_history_warms_the_cache_in_the_background(record_file, mode):
    r = record_file.store(6, **mode)
    uses = np.zeros(36)
    uses[[3, 5, 12 + 7, 24 + 1]] = [5, 9, 7, 8]
    assert r.store.seed(uses) == 0
    r.store.warm()
    wait_until(lambda: not r.store.warming())
    assert r.fetch(0, [3, 5]) and r.fetch(1, [7]) and r.fetch(2, [1])
    n = r.counters()
    assert n["hits"] == 4 and n["misses"] == 0 and n["warmed"] == 3 * 40_000 + 70_004


def test_without_history_nothing_is_warmed_unless_all_fits(record_file):
    r = record_file.store(6)
    r.store.warm()
    wait_until(lambda: not r.store.warming())
    assert r.counters()["warmed"] == 0
    r = record_file.store(budget=sum(n * stride for n, _, _, stride, _, _ in record_file.layers))
    r.store.warm()
    wait_until(lambda: not r.store.warming())
    assert r.counters()["warmed"] == 12 * (40_000 + 40_000 + 70_004)
    random_passes(r, 2)
    assert r.counters()["misses"] == 0


def test_kept_records_are_never_evicted(record_file):
    r = record_file.store(8)
    uses = np.arange(36, dtype=np.float64) % 12
    assert r.store.seed(uses, 1) == 3                              # expert 11 of each layer
    r.store.warm()
    wait_until(lambda: not r.store.warming())
    for _ in range(5):
        for layer in range(3):
            r.fetch(layer, range(10))
    before = r.counters()["hits"]
    for layer in range(3):
        r.fetch(layer, [11])
    assert r.counters()["hits"] == before + 3


def test_uses_are_those_of_this_run(record_file):
    """known_failures H18: what came from the history must not be counted again."""
    r = record_file.store(20)
    r.store.seed(np.full(36, 100.0))
    r.fetch(1, [2, 3], uses=[4, 1], begin=5)
    uses = r.store.uses()
    assert uses[12 + 2] == 4 and uses[12 + 3] == 1 and uses.sum() == 5 and r.counters()["tokens"] == 5


# --- faults -------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("plan", [[errno.EINTR] * 5, [("short", 4096)], [("short", 1000), ("short", 7)], [errno.EIO], [errno.EIO, errno.EIO],
                                  [errno.EINTR, ("short", 4096), errno.EIO, ("short", 1)], [errno.EAGAIN]], ids=str)
def test_interrupted_short_and_passing_errors_are_retried(record_file, plan):
    """known_failures H15: n - 1 bytes are no record."""
    hook = Faults()
    r = record_file.store(20, hook=hook.address, n_threads=1)
    hook.plan = list(plan)
    r.fetch(2, [4])
    assert r.counters()["retries"] >= len(plan) - 1 and not hook.plan


@pytest.mark.parametrize("copy", [False, True])
def test_page_cache_fills_are_retried_too(record_file, copy):
    hook = Faults()
    r = record_file.store(20, hook=hook.address, n_threads=1, direct=False, copy=copy)
    hook.plan = [errno.EINTR, errno.EIO, errno.EIO]
    r.fetch(2, [4])
    assert r.counters()["retries"] == 3


def test_a_lasting_error_names_layer_expert_offset_and_reason_and_passes_when_it_heals(record_file, mode):
    hook = Faults()
    r = record_file.store(20, hook=hook.address, **mode)
    hook.broken = True
    with pytest.raises(IOFailure, match=r"records\.bin: expert 4 of layer 12: read of \d+ B at byte \d+ failed: .*\(errno 5\) \[io-read\]"):
        r.fetch(2, [4])
    hook.broken = False
    r.fetch(2, [3, 4, 5])
    assert r.counters()["cache_bytes"] == 3 * record_file.slot_bytes()


def test_a_guess_that_fails_is_read_again_when_it_is_wanted(record_file, mode):
    """The owner must not get the error of a read that it did not ask for."""
    hook = Faults()
    r = record_file.store(20, hook=hook.address, n_threads=1, **mode)
    hook.broken = True
    hook.stall.clear()
    r.store.begin(1)
    r.store.predict(1, np.array([4], np.int32))
    wait_until(lambda: hook.waiting == 1)
    experts, state, records = np.array([4], np.int32), np.zeros(1, np.uint8), np.zeros(1, np.uint64)
    r.store.request(1, experts, np.ones(1, np.int32), records, state)
    assert state[0] == LOADING
    hook.stall.set()
    wait_until(lambda: len(hook.calls) >= 3)                       # it has used up its tries
    hook.broken = False
    while state[0] != READY:
        if state[0] == ABSENT:
            r.store.request(1, experts, None, records, state)
        else:
            r.store.wait(1, experts, records, state)
    r.compare(1, 4, int(records[0]))
    r.store.release(1, np.zeros(1, np.int32), experts, state)


def test_a_refused_direct_read_becomes_a_buffered_one_and_is_reported(record_file):
    """known_failures H16: EINVAL on the first read, as tmpfs and some network file systems answer."""
    hook = Faults()
    r = record_file.store(20, hook=hook.address, n_threads=1)
    assert r.counters()["direct"] == 1
    hook.plan = [errno.EINVAL]
    r.fetch(0, [1, 2])
    assert r.counters()["direct"] == 0
    random_passes(r, 3)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no tmpfs")
def test_a_file_system_without_direct_reads_works():
    path = f"/dev/shm/moegg-test-{os.getpid()}"
    try:
        f = RecordFile(path)
        for options in ({"direct": True}, {"direct": False}):
            r = f.store(5, **options)
            random_passes(r, 3)
    finally:
        os.unlink(path)


def test_a_file_cut_while_running_is_an_error_not_garbage(tmp_path, mode):
    f = RecordFile(tmp_path / "r.bin")
    r = f.store(20, **mode)
    r.fetch(0, [1])
    os.truncate(f.path, f.layers[2][2] + 20_000)
    with pytest.raises(IOFailure, match="file-changed"):
        r.fetch(2, range(12))


def test_a_file_that_ends_inside_a_record_is_an_error(tmp_path, mode):
    """Cut in the middle of a pass, so that only the read can notice."""
    f = RecordFile(tmp_path / "r.bin")
    r = f.store(20, **mode)
    r.store.begin(1)
    os.truncate(f.path, f.layers[2][2] + 20_000)
    with pytest.raises(IOFailure, match="file-changed"):
        r.fetch(2, range(12), begin=0)


def test_a_file_written_in_place_is_noticed(tmp_path):
    f = RecordFile(tmp_path / "r.bin")
    r = f.store(20)
    with open(f.path, "r+b") as g:
        g.write(b"other")
    os.utime(f.path, ns=(5, 5))
    with pytest.raises(IOFailure, match=r"changed, cut or replaced.*\[file-changed\]"):
        r.store.begin(1)


def test_a_file_that_is_not_the_one_that_was_checked_is_refused(tmp_path):
    f = RecordFile(tmp_path / "r.bin")
    with open(f.path, "ab") as g:
        g.write(b"more")
    with pytest.raises(IOFailure, match="file-changed"):
        f.store(20)
    os.unlink(f.path)
    with pytest.raises(IOFailure, match="cannot be opened: No such file.*io-open"):
        f.store(20)


def test_touching_the_mapping_of_a_cut_file_is_noticed_not_a_signal(tmp_path):
    import ctypes
    f = RecordFile(tmp_path / "r.bin")
    r = f.store(20, direct=False)
    os.truncate(f.path, 16384)
    assert ctypes.string_at(r.store.map_address + f.layers[2][2], 16) == bytes(16)
    with pytest.raises(IOFailure, match="file-changed"):
        r.store.begin(1)


def test_a_stalled_disk_lets_go_when_it_is_asked_to(record_file, mode):
    hook = Faults()
    r = record_file.store(20, hook=hook.address, **mode)
    hook.stall.clear()
    threading.Timer(0.05, r.store.cancel).start()
    with pytest.raises(Cancelled):
        r.fetch(0, [1, 2, 3])
    hook.stall.set()
    r.store.rearm()
    r.fetch(0, [1, 2, 3])
    r.fetch(1, range(12))


def test_closing_does_not_wait_for_a_read_that_hangs(record_file):
    hook = Faults()
    r = record_file.store(20, hook=hook.address)
    hook.stall.clear()
    r.store.predict(0, np.array([1], np.int32))
    wait_until(lambda: hook.waiting)
    start = time.monotonic()
    del r
    assert time.monotonic() - start < 20
    hook.stall.set()
    time.sleep(0.1)                                                # the thread that was left behind frees everything


def test_a_forked_child_is_told_to_open_the_model_itself(record_file):
    """I/O threads do not survive a fork; a child that waits for them would hang."""
    r = record_file.store(20)
    r.fetch(0, [1])
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            r.store.begin(1)
        except BadRequest as e:
            code = 0 if e.slug == "forked" else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    r.fetch(0, [2])


# --- loads --------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("direct", [True, False])
def test_a_range_is_read_whole(tmp_path, direct):
    import ctypes
    data = np.random.default_rng(0).integers(0, 256, (9 << 20) + 12_345, np.uint8)
    f = RecordFile(tmp_path / "r.bin")
    with open(f.path, "ab") as g:
        at = g.tell()
        g.write(data.tobytes())
    f.identify()
    store = f.store(20, direct=direct).store
    dst = store.alloc(data.nbytes) if direct else 0
    store.load(at, data.nbytes, dst)
    got = np.frombuffer((ctypes.c_uint8 * data.nbytes).from_address(dst or store.map_address + at), np.uint8)
    np.testing.assert_array_equal(got, data)
    assert store.counters()["loaded"] == data.nbytes


def test_a_load_reports_errors_and_can_be_cancelled(record_file):
    hook = Faults()
    store = record_file.store(20, hook=hook.address).store
    dst, nbytes = store.alloc(8 << 20), 1 << 20
    hook.broken = True
    with pytest.raises(IOFailure, match="io-read"):
        store.load(0, nbytes, dst)
    hook.broken = False
    hook.stall.clear()
    threading.Timer(0.05, store.cancel).start()
    with pytest.raises(Cancelled):
        store.load(0, nbytes, dst)
    hook.stall.set()
    store.rearm()
    store.load(0, nbytes, dst)


def test_unreleased_state_is_not_a_trap(record_file):
    """Entries that were never requested can be released."""
    r = record_file.store(20)
    state = np.full(3, ABSENT, np.uint8)
    r.store.release(0, np.arange(3, dtype=np.int32), np.arange(3, dtype=np.int32), state)
    assert (state == ABSENT).all()
