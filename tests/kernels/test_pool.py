"""The thread pool: every item once, with more threads than cores, without spinning, in forked children."""
import os
import signal
import warnings

import numpy as np
import pytest

from moegg import kernels


@pytest.mark.parametrize("spin_us", [0, 200])
@pytest.mark.parametrize("n_threads", [1, 2, 3, 16])
def test_every_item_is_visited_once_per_job(n_threads, spin_us):
    pool = kernels.Pool(n_threads, spin_us)
    for n_items, chunk in ((0, 1), (1, 1), (7, 7), (8, 7), (1000, 1), (1000, 33), (10, 1000)):
        assert (pool.count(n_items, chunk, 20) == 20).all()


def test_a_hundred_thousand_tiny_jobs():
    assert (kernels.Pool(3).count(4, 1, 100_000) == 100_000).all()


def test_sleeping_workers_are_woken():
    pool = kernels.Pool(2, 0)
    for _ in range(200):
        assert (pool.count(64, 1) == 1).all()


def test_workers_that_the_system_stops_lose_nothing():
    """The pool leaves such a worker out for a while; all items are still visited, and it works again afterwards."""
    pool = kernels.Pool(3)
    assert (pool.count(64, 1, 40, worker_sleep_us=1500) == 40).all()
    assert (pool.count(64, 1, 2000) == 2000).all()


def test_many_pools_come_and_go():
    for n in range(60):
        assert (kernels.Pool(1 + n % 4, n % 2 * 50).count(50, 3) == 1).all()


def in_child(body) -> None:
    """Runs body in a forked child that has ten seconds; a hang or a false result fails the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)         # Python 3.12: fork beside threads, which is the point
        pid = os.fork()
    if not pid:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)
        os._exit(0 if body() else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_forked_child_makes_its_own_workers_and_does_not_hang():
    """libgomp hangs here."""
    pool = kernels.Pool(3)
    assert (pool.count(100, 1) == 1).all()
    in_child(lambda: (pool.count(100, 1, 50) == 50).all())
    assert (pool.count(100, 1) == 1).all()


def test_forked_child_may_drop_an_inherited_pool():
    pools = [kernels.Pool(2)]
    pools[0].count(10, 1)
    in_child(lambda: pools.clear() is None)


def test_product_in_a_forked_child_has_the_same_bits():
    x = np.linspace(-1, 1, 32 * 64, dtype=np.float32).reshape(32, 64)
    w = kernels.interleave("f32", x.view(np.uint8), 64)
    want = kernels.matmul("f32", w, 32, 64, x, 2)
    in_child(lambda: np.array_equal(kernels.matmul("f32", w, 32, 64, x, 2), want))
