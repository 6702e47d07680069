"""How many compute threads this process may use. Linux cgroups of all ancestors included; memory is moegg/io/memory.py's."""
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
