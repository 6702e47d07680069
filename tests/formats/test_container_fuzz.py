"""10,000 seeded mutations of a small container: a named FormatError, or the same data. Never another exception, crash or hang."""
import os
import random
from contextlib import suppress

import pytest

from moegg.errors import FormatError
from moegg.formats.container import Container
from moegg.formats.validate import RULES

from .corrupt import header_of, reseal, reseal_tail, write

MUTATIONS = 10_000


@pytest.fixture
def target(tmp_path):
    path = tmp_path / "fuzz.moegg"
    data = write(path)
    with open(path, "r+b", buffering=0) as f:
        yield path, data, f.fileno()


def places(data: bytes) -> list[tuple[int, int]]:
    """Ranges that deserve more hits than the long runs of padding: every run of 64 bytes that is not all zero."""
    return [(at, min(at + 64, len(data))) for at in range(0, len(data), 64) if any(data[at:at + 64])]


def test_single_bytes_and_truncations(target):
    path, data, fd = target
    rng, busy, rules = random.Random(20260101), places(data), {}
    for i in range(MUTATIONS):
        at = rng.randrange(*rng.choice(busy)) if rng.random() < 0.8 else rng.randrange(len(data))
        cut = i % 10 == 0
        if cut:
            os.ftruncate(fd, at)
        else:
            os.pwrite(fd, bytes([data[at] ^ rng.randrange(1, 256)]), at)
        try:
            Container.open(path).verify()
        except FormatError as e:
            assert e.slug == RULES[e.rule]
            rules[e.rule] = rules.get(e.rule, 0) + 1
        else:       # every byte is covered
            pytest.fail(f"byte {at} {'cut' if cut else 'changed'}: not noticed")
        os.pwrite(fd, data[at:] if cut else data[at:at + 1], at)
    assert sum(rules.values()) == MUTATIONS
    assert {"R1", "R2", "R3", "R4", "R5", "R7", "R23", "R27", "R28", "R29"} <= rules.keys()


def test_bytes_with_repaired_hashes_reach_the_structural_rules(target):
    """The same with preamble checksum, root and tail hash made true again, so that the parsers see the damage."""
    path, data, fd = target
    tail = header_of(data).tail_offset
    rng, busy, rules = random.Random(7), [p for p in places(data) if p[0] < 70_000 or p[0] >= tail], set()
    for _ in range(2_000):
        buf = bytearray(data)
        at = rng.randrange(*rng.choice(busy))
        buf[at] = rng.choice([0, 1, 0x7f, 0x80, 0xff, buf[at] ^ 1 << rng.randrange(8), rng.randrange(256)])
        with suppress(ValueError):              # the repairs cannot follow every damaged header
            reseal(buf)
            reseal_tail(buf)
        os.pwrite(fd, buf[:70_000], 0)
        os.pwrite(fd, buf[tail:], tail)
        try:
            Container.open(path).verify()
        except FormatError as e:
            assert e.slug == RULES[e.rule]
            rules.add(e.rule)
    assert len(rules) >= 18
