"""Kernels for quantised matrices: numpy in, numpy out; the CPU level is chosen once, here, at import.

MOEGG_CPU=<level> lowers the level below the host's highest and never raises it; a level that this host does not have is an error.
"""
import os

from moegg.errors import UsageError
from moegg.kernels._core import (
    Pool,
    activations,
    deinterleave,
    dequantize,
    dequantize_row,
    host_level,
    info,
    interleave,
    level,
    levels,
    matmul,
    quantize,
    select,
)

__all__ = ["Pool", "activations", "deinterleave", "dequantize", "dequantize_row", "host_level", "info", "interleave", "level",
           "levels", "matmul", "quantize", "select"]

_asked = os.environ.get("MOEGG_CPU") or None
if _asked not in (None, *levels()):
    raise UsageError(f"MOEGG_CPU: got {_asked!r}, expected one of {', '.join(levels())} (what this CPU has)", "usage")
select(_asked)
