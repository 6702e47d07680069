"""Where records live: the rule, and when a measurement overrules it."""
import pytest

from moegg.errors import UsageError
from moegg.io.profile import Profile, Reading
from moegg.io.residency import choose

GIB = 1 << 30


def profile(direct, cached):
    """Rates in GB/s of one depth."""
    return Profile("k", 2, (Reading("direct", "", 1 << 20, 4, direct * 1e9, 0.0), Reading("page-cache", "advice", 1 << 20, 4, cached * 1e9, 0.0)))


@pytest.mark.parametrize("io, ram, experts, cache, rates, mode, exact", [
    ("auto", True, 10, 10, None, "page-cache", False),         # a budget that holds the whole file
    ("auto", True, 10, 4, None, "direct", True),
    ("auto", False, 10, 4, None, "page-cache", True),
    ("auto", False, 10, 3, None, "direct", True),              # far larger than memory
    ("auto", False, 10, 4, (3.0, 1.0), "direct", True),        # measured
    ("auto", True, 10, 4, (1.0, 3.0), "page-cache", True),
    ("auto", True, 10, 4, (1.0, 1.1), "direct", True),         # no clear difference: the rule
    ("auto", False, 10, 4, (1.1, 1.0), "page-cache", True),
    ("auto", True, 10, 10, (9.0, 1.0), "page-cache", False),   # nothing is read twice
    ("direct", False, 10, 10, None, "direct", False),
    ("page-cache", True, 10, 2, (9.0, 1.0), "page-cache", True),
    ("auto", True, 0, 0, None, "page-cache", False)])          # a dense model
def test_the_choice(io, ram, experts, cache, rates, mode, exact):
    r = choose(io, ram_given=ram, experts=experts * GIB, cache=cache * GIB, profile=profile(*rates) if rates else None)
    assert (r.mode, r.exact, r.direct) == (mode, exact, mode == "direct") and r.why


def test_an_unknown_mode_names_the_known_ones():
    with pytest.raises(UsageError, match="--io: got 'mmap', expected one of auto, page-cache, direct"):
        choose("mmap", ram_given=False, experts=1, cache=1)
