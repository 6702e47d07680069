"""How much memory this process may count on, and what it uses: the limits of all ancestor cgroups (v1 and v2), the system's own
view of what is available, and this process's anonymous pages. Sizes in bytes.

`root` is where the system's pseudo files lie, so that a test can fake them. None means that the system does not say.
"""
import ctypes
import os
import sys
from dataclasses import dataclass
from pathlib import Path

_NO_LIMIT = 1 << 60                 # cgroup v1 spells "no limit" as a number close to 2**63
RESERVE_SHARE, RESERVE_LEAST = 16, 256 << 20


@dataclass(frozen=True)
class Memory:
    """available: what can still be taken without swapping or being killed. limit: the tightest cgroup limit, by its folder."""
    available: int | None
    limit: int | None = None
    limited_by: str = ""


def read_memory(root: str | os.PathLike = "/") -> Memory:
    """What the system and every cgroup above this process leave."""
    root = Path(root)
    meminfo = _table(root / "proc/meminfo")
    found = [meminfo["MemAvailable:"] * 1024] if "MemAvailable:" in meminfo else []
    limits: list[tuple[int, str]] = []
    for group in _groups(root):
        limit, used, cached = _v2(group) if (group / "cgroup.controllers").exists() else _v1(group)
        if limit is not None:
            limits.append((limit, str(group)))
            found.append(max(0, limit - max(0, (used or 0) - cached)))
    if not found and root == Path("/") and "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    tightest = min(limits, default=(None, ""))
    return Memory(min(found, default=None), *tightest)


def auto_budget(memory: Memory) -> int | None:
    """What --ram auto takes: all that is available but a reserve for the system and for page tables; None if unknown."""
    if not memory.available:
        return None
    return memory.available - max(RESERVE_LEAST, memory.available // RESERVE_SHARE)


def own_bytes(root: str | os.PathLike = "/") -> int:
    """Anonymous memory of this process now; 0 where the system does not say."""
    return _table(Path(root) / "proc/self/status").get("RssAnon:", 0) * 1024


def give_back() -> None:
    """Returns freed memory of the C heap to the system; does nothing where the C library has no call for it (all but glibc)."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


def peak_bytes(root: str | os.PathLike = "/") -> int | None:
    """The most memory this process ever had resident, mapped weights included; None where the system does not say."""
    if "VmHWM:" in (status := _table(Path(root) / "proc/self/status")):
        return status["VmHWM:"] * 1024
    if sys.platform == "win32":
        return None
    import resource  # not on Windows
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def major_faults() -> int:
    """Pages of this process that had to be read when they were touched."""
    if sys.platform == "win32":
        return 0
    import resource  # not on Windows
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def _groups(root: Path) -> list[Path]:
    """The memory cgroup folders of this process, innermost first: v2's unified tree, or v1's memory controller."""
    out: list[Path] = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" or "memory" in controllers.split(","):
            top = root / "sys/fs/cgroup" / ("" if controllers == "" else "memory")
            group = top / path.lstrip("/")
            out += [p for p in (group, *group.parents) if p.is_relative_to(top)]
    return out


def _v2(group: Path) -> tuple[int | None, int | None, int]:
    """(limit, used, of which clean file pages). memory.high throttles long before memory.max kills, so it counts as a limit."""
    limits = [n for name in ("memory.max", "memory.high") if (n := _number(group / name)) is not None]
    stat = _table(group / "memory.stat")
    return min(limits, default=None), _number(group / "memory.current"), stat.get("inactive_file", 0) + stat.get("active_file", 0)


def _v1(group: Path) -> tuple[int | None, int | None, int]:
    limit = _number(group / "memory.limit_in_bytes")
    stat = _table(group / "memory.stat")
    cached = stat.get("total_inactive_file", 0) + stat.get("total_active_file", 0)
    return (None if limit is None or limit >= _NO_LIMIT else limit), _number(group / "memory.usage_in_bytes"), cached


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _table(path: Path) -> dict[str, int]:
    """'name number ...' lines."""
    rows = (line.split() for line in _text(path).splitlines())
    return {r[0]: int(r[1]) for r in rows if len(r) >= 2 and r[1].isdigit()}
