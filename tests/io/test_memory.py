"""What memory there is, from faked system files: cgroup v1 and v2, all ancestors."""
import pytest

from moegg.io.memory import Memory, auto_budget, own_bytes, read_memory

GIB = 1 << 30


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def v2(root, own="/user/app", **limits):
    """limits: folder -> (max, current, cached)."""
    write(root, {"proc/meminfo": "MemTotal: 67108864 kB\nMemAvailable: 33554432 kB\n", "proc/self/cgroup": f"0::{own}\n"})
    for folder in ("", "/user", "/user/app"):
        write(root, {f"sys/fs/cgroup{folder}/cgroup.controllers": "memory"})
    for folder, (limit, used, cached) in limits.items():
        base = f"sys/fs/cgroup/{folder}"
        write(root, {f"{base}/memory.max": f"{limit}\n", f"{base}/memory.current": f"{used}\n",
                     f"{base}/memory.stat": f"anon 1\ninactive_file {cached // 2}\nactive_file {cached - cached // 2}\n"})
    return root


def test_the_available_memory_of_the_system_counts_without_cgroups(tmp_path):
    m = read_memory(write(tmp_path, {"proc/meminfo": "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n"}))
    assert m == Memory(8 * GIB)


def test_a_limit_of_any_ancestor_counts(tmp_path):
    """known_failures H9: respects cgroup v2 memory.max."""
    m = read_memory(v2(tmp_path, **{"user/app": ("max", 3 * GIB, 0), "user": (6 * GIB, 3 * GIB, GIB)}))
    assert m.available == 4 * GIB and m.limit == 6 * GIB and m.limited_by.endswith("/user")      # page cache can be taken back
    m = read_memory(v2(tmp_path, **{"user/app": (2 * GIB, GIB, 0)}))
    assert m.available == GIB and m.limited_by.endswith("/app")


def test_memory_high_is_a_limit(tmp_path):
    root = v2(tmp_path, **{"user": ("max", GIB, 0)})
    write(root, {"sys/fs/cgroup/user/memory.high": f"{3 * GIB}\n"})
    assert read_memory(root).available == 2 * GIB


def test_version_1_counts_too(tmp_path):
    base = "sys/fs/cgroup/memory"
    root = write(tmp_path, {
        "proc/meminfo": "MemAvailable: 33554432 kB\n", "proc/self/cgroup": "4:memory:/a/b\n3:cpu,cpuacct:/a\n1:name=systemd:/x\n",
        f"{base}/memory.limit_in_bytes": "9223372036854771712\n", f"{base}/memory.usage_in_bytes": f"{9 * GIB}\n",
        f"{base}/a/memory.limit_in_bytes": f"{4 * GIB}\n", f"{base}/a/memory.usage_in_bytes": f"{2 * GIB}\n",
        f"{base}/a/memory.stat": f"cache 5\ntotal_inactive_file {GIB}\ntotal_active_file 0\n"})
    m = read_memory(root)
    assert m.available == 3 * GIB and m.limit == 4 * GIB and m.limited_by.endswith("/memory/a")


@pytest.mark.parametrize("cgroup", ["", "0::/gone/away\n", "0::/../outside\n"])
def test_odd_cgroup_lines_are_no_limit(tmp_path, cgroup):
    assert read_memory(write(tmp_path, {"proc/meminfo": "MemAvailable: 1024 kB\n", "proc/self/cgroup": cgroup})).available == 1 << 20


def test_an_unknown_amount_is_none_not_zero(tmp_path):
    """known_failures H9: detection that fails must not become a tiny cache."""
    assert read_memory(tmp_path).available is None
    assert auto_budget(read_memory(tmp_path)) is None
    assert auto_budget(read_memory(write(tmp_path, {"proc/meminfo": "MemAvailable: 0 kB\n"}))) is None


def test_auto_leaves_a_reserve():
    assert auto_budget(Memory(16 * GIB)) == 15 * GIB
    assert auto_budget(Memory(2 * GIB)) == 2 * GIB - (256 << 20)


def test_this_process_uses_memory():
    assert own_bytes() == 0 or own_bytes() > 1 << 20
