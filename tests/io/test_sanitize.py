"""The store's stress program under ThreadSanitizer and AddressSanitizer: `make sanitize` as a test."""
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("store", "store_io", "store_open", "policy", "slots", "diskfile", "pool")


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc")
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_the_store_is_clean_under_load(tmp_path, sanitizer):
    """known_failures H2, H3: 8 threads read what is pinned while guesses, evictions, budget changes and faults go on."""
    program, csrc = tmp_path / "stress", ROOT / "moegg/kernels/csrc"
    subprocess.run(["gcc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-g", f"-fsanitize={sanitizer}", f"-I{csrc}", ROOT / "tests/io/store_stress.c",
                    *(csrc / f"{name}.c" for name in SOURCES), "-o", program, "-lm", "-lpthread"], check=True)
    done = subprocess.run([program, tmp_path / "file", "100"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
