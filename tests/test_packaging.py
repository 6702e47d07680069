"""What setup.py, pyproject.toml and MANIFEST.in put where. The quick half reads them; the slow half builds sdist and wheel."""
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUP = (ROOT / "setup.py").read_text(encoding="utf-8")
FOLDERS = {"moegg": ROOT / "moegg", "moegg.formats": ROOT / "formats", "moegg.converters": ROOT / "converters"}


def packages():
    found = set()
    for name, folder in FOLDERS.items():
        found |= {".".join([name, *p.parent.relative_to(folder).parts]) for p in folder.rglob("__init__.py")}
    return found


def test_every_package_is_listed_in_setup_py():
    """A forgotten one works in an editable install and is missing from the wheel."""
    listed = re.search(r"packages=\[(.*?)\]", SETUP, re.S)[1]
    assert set(re.findall(r'"([\w.]+)"', listed)) == packages()


def test_the_package_that_is_tested_is_the_one_that_was_installed():
    """`import moegg` from the source tree without an install has no compiled modules and no moegg.formats."""
    import moegg.formats.layout
    import moegg.kernels._core  # noqa: F401
    assert moegg.__version__ == re.search(r'__version__ = "(.*)"', (ROOT / "moegg" / "__init__.py").read_text())[1]


@pytest.mark.parametrize("name", ["formats", "converters"])
def test_mapped_folders_cannot_be_imported_under_their_bare_names(name):
    """From the repository's root `import formats` would make a second copy of every class."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {name}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode and f"write 'import moegg.{name}'" in done.stderr


def test_importing_the_package_is_light():
    """`moegg --help` must not wait for numpy, and an importer decides about BLAS threads."""
    code = "import sys, moegg, moegg.cli; print({'numpy', 'tokenizers', 'jinja2', 'huggingface_hub'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("set()\n", "")


def test_metadata():
    project = PROJECT["project"]
    assert project["license"] == "Apache-2.0" and (ROOT / "LICENSE").read_text().split()[:2] == ["Apache", "License"]
    assert project["requires-python"] == ">=3.11" and '"py_limited_api": "cp311"' in SETUP and "0x030B0000" in SETUP
    assert not {"argparse", "click"} & set(re.findall(r"[a-z_]+", " ".join(project["dependencies"])))
    assert all(len((ROOT / name).read_text().splitlines()) < 90 for name in ("setup.py", "pyproject.toml"))


def test_every_third_party_import_is_a_dependency():
    names = {"docopt": "docopt-ng"}
    project = PROJECT["project"]
    declared = {re.match(r"[\w-]+", d)[0] for d in [*project["dependencies"], *project["optional-dependencies"]["grammar"]]}
    imported = set()
    for folder in FOLDERS.values():
        for p in folder.rglob("*.py"):
            imported |= set(map("".join, re.findall(r"^\s*(?:from (\w+)\S* import|import (\w+))", p.read_text(encoding="utf-8"), re.M)))
    third = {names.get(m, m) for m in imported if m not in sys.stdlib_module_names and m not in ("moegg", "cython")}
    assert third <= declared


@pytest.mark.slow
def test_sdist_and_wheel_hold_sources_and_products_respectively(tmp_path):
    """Needs the package `build` and an index, as `make wheel` does."""
    pytest.importorskip("build")
    done = subprocess.run([sys.executable, "-m", "build", "--outdir", str(tmp_path), str(ROOT)], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    sdist, wheel = next(tmp_path.glob("*.tar.gz")), next(tmp_path.glob("*.whl"))
    with tarfile.open(sdist) as f:
        source = {n.partition("/")[2] for n in f.getnames()}
    with zipfile.ZipFile(wheel) as f:
        product = set(f.namelist())
    assert {"setup.py", "LICENSE", "CONTRIBUTING.md", "formats/layout.py", "converters/run.py", "moegg/kernels/_core.pyx",
            "moegg/kernels/csrc/exec.c", "tests/conftest.py", ".ci/run"} <= source
    assert not [n for n in source if n.endswith((".so", ".pyc")) or re.fullmatch(r"moegg/(kernels|engine)/\w+\.c", n)]
    assert {"moegg/formats/container.py", "moegg/converters/run.py", "moegg/kernels/csrc/quants.def", "moegg/formats/FORMAT.md",
            "moegg/models/README.md", "moegg/kernels/_core.abi3.so", "moegg/engine/forward.abi3.so"} <= product
    assert not [n for n in product if n.endswith((".c", ".pyx", ".pyc")) or n.startswith(("tests/", "formats/", "converters/"))]
    assert "-cp311-abi3-" in wheel.name and wheel.stat().st_size < 25_000_000
