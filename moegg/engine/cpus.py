"""How many compute threads this process may use, and how much memory it may count on. Linux cgroups of all ancestors included."""
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def _ancestors() -> list[Path]:
    """cgroup v2 folders of this process, innermost first; empty where there are none."""
    try:
        line = next(x for x in Path("/proc/self/cgroup").read_text().splitlines() if x.startswith("0::"))
    except (OSError, StopIteration):
        return []
    group = _CGROUP / line[3:].lstrip("/")
    return [p for p in (group, *group.parents) if p.is_relative_to(_CGROUP)]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def cpu_quota() -> float:
    """Cores that the tightest cgroup CPU quota grants; infinite without one."""
    best = float("inf")
    for group in _ancestors():
        quota, _, period = _read(group / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit():
            best = min(best, int(quota) / int(period))
    quota, period = _read(_CGROUP / "cpu/cpu.cfs_quota_us"), _read(_CGROUP / "cpu/cpu.cfs_period_us")
    if quota.isdigit() and period.isdigit() and int(period):
        best = min(best, int(quota) / int(period))
    return best


def default_threads() -> int:
    """Cores of the affinity mask, or the CPU quota rounded up where that is less."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    return max(1, affinity if quota >= affinity else int(-(-quota // 1)))


def available_memory() -> int | None:
    """Bytes that can still be taken without swapping, the limits of all ancestor cgroups included; None if unknown."""
    found = []
    for line in _read(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) * 1024)
    for group in _ancestors():
        limit, used = _read(group / "memory.max"), _read(group / "memory.current")
        if limit.isdigit() and used.isdigit():
            reclaimable = sum(int(x.split()[1]) for x in _read(group / "memory.stat").splitlines() if x.startswith(("inactive_file", "active_file")))
            found.append(max(0, int(limit) - int(used) + reclaimable))
    limit, used = _read(_CGROUP / "memory/memory.limit_in_bytes"), _read(_CGROUP / "memory/memory.usage_in_bytes")
    if limit.isdigit() and used.isdigit() and int(limit) < 1 << 60:
        found.append(max(0, int(limit) - int(used)))
    if not found and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(found) if found else None
