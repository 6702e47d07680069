"""Where expert records live: the choice between page cache and direct mode. One function; the reasons are its result.

Page cache: the mapping itself, filled by exact reads; nothing is copied, and what another process or an earlier run has cached is
used. Direct: records in anonymous memory, read past the page cache; costs the least CPU per byte, and what the budget counts is
what the process uses. See CONTRIBUTING.md, Decisions, for the measurements.
"""
from dataclasses import dataclass
from typing import Protocol

from moegg.errors import UsageError

PAGE_CACHE, DIRECT, AUTO = "page-cache", "direct", "auto"
CHOICES = (AUTO, PAGE_CACHE, DIRECT)
FAR_LARGER = 3.0            # records over cache: from here the system's own choice of pages costs more than a copy
BETTER = 1.2                # a measurement overrules the rule only when it is this much better


class Rates(Protocol):
    """What residency needs of a machine profile: seconds that one GB costs by mode, CPU time weighed in; None: not measured."""
    def cost(self, mode: str) -> float | None: ...


@dataclass(frozen=True)
class Residency:
    """mode: page-cache or direct. exact: cached pages of the file count, so that those beyond the budget are dropped. why: a reason."""
    mode: str
    exact: bool
    why: str

    @property
    def direct(self) -> bool:
        return self.mode == DIRECT


def choose(io: str, *, ram_given: bool, experts: int, cache: int, profile: Rates | None = None) -> Residency:
    """io: --io. ram_given: --ram is a size, not auto. experts, cache: bytes of all records, of experts or layers, and of those that fit at once.

    Raises UsageError for an unknown --io.
    """
    if io not in CHOICES:
        raise UsageError(f"--io: got {io!r}, expected one of {', '.join(CHOICES)}", "usage")
    fits = cache >= experts
    if io != AUTO:
        return Residency(io, not fits, f"--io {io}")
    if fits:
        return Residency(PAGE_CACHE, False, "all experts fit into memory" if experts else "nothing streams")
    measured = {m: profile.cost(m) for m in (PAGE_CACHE, DIRECT)} if profile else {}
    if all(measured.get(m) for m in (PAGE_CACHE, DIRECT)):
        ratio = measured[PAGE_CACHE] / measured[DIRECT]
        if ratio >= BETTER:
            return Residency(DIRECT, True, f"measured: direct reads cost {ratio:.1f} times less here")
        if ratio <= 1 / BETTER:
            return Residency(PAGE_CACHE, True, f"measured: page cache reads cost {1 / ratio:.1f} times less here")
    if ram_given:
        return Residency(DIRECT, True, "--ram is below what the file needs")
    if experts >= FAR_LARGER * cache:
        return Residency(DIRECT, True, f"what streams is {experts / max(cache, 1):.1f} times what fits")
    return Residency(PAGE_CACHE, True, "what streams nearly fits, and the page cache keeps what it can")
