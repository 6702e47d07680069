"""Sizes, rates and durations as text: the only place where units are spelled. G means GiB (2**30) everywhere."""
import re

from moegg.errors import UsageError

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_size(text: str, option: str = "size") -> int:
    """Bytes of '12G', '1.5GiB', '512M', '4096'. Raises UsageError naming `option` for anything else."""
    m = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if not m:
        raise UsageError(f"{option}: not a size: got {text!r}, expected a number with K, M, G or T such as 12G or 512M", "usage")
    return int(float(m[1]) * _UNITS[m[2].upper()])


def fmt_bytes(n: int | float) -> str:
    """'41.2 GiB', '3.0 MiB', '17 B'."""
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{int(n)} B"


def fmt_count(n: int) -> str:
    """'30.5 B', '21.2 M', '512': parameters and tokens."""
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return str(n)


def fmt_rate(bytes_per_s: float) -> str:
    """'1.52 GB/s' (10**9, as disks and memory are sold)."""
    return f"{bytes_per_s / 1e9:.2f} GB/s"
