"""CPU levels: chosen once at import, lowered by MOEGG_CPU, never raised; a level that is not there is an error, not a guess."""
import os
import subprocess
import sys

import pytest

from moegg import kernels
from moegg.errors import BadRequest


def run(code: str, level: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "MOEGG_CPU": level})


def test_levels_are_ordered_and_reported():
    assert kernels.levels()[0] == "generic" and kernels.levels()[-1] == kernels.host_level()
    assert kernels.info() == {"level": kernels.level(), "host": kernels.host_level(), "levels": kernels.levels()}


def test_select_lowers_and_restores():
    before = kernels.level()
    try:
        for level in kernels.levels():
            kernels.select(level)
            assert kernels.level() == level
        kernels.select(None)
        assert kernels.level() == kernels.host_level()
        with pytest.raises(BadRequest, match=r"CPU level: got 'sse9', expected one of generic.*\[cpu-level\]"):
            kernels.select("sse9")
        assert kernels.level() == kernels.host_level()
    finally:
        kernels.select(before)


def test_environment_lowers_the_level():
    show = "from moegg import kernels; print(kernels.level())"
    assert run(show, "generic").stdout.strip() == "generic"
    assert run(show, "").stdout.strip() == kernels.host_level()


def test_unknown_level_in_the_environment_is_a_usage_error():
    p = run("import moegg.kernels", "avx1024")
    assert p.returncode and "UsageError: MOEGG_CPU: got 'avx1024', expected one of generic" in p.stderr
