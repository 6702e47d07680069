"""Who may import whom, read from the sources: one direction of calls, third parties only where they belong.

A module belongs to the longest prefix in LAYERS. `ours` lists the prefixes inside moegg it may import, `theirs` the third parties.
"""
import ast
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {"moegg": ROOT / "moegg", "moegg.formats": ROOT / "formats", "moegg.converters": ROOT / "converters"}


@dataclass(frozen=True)
class May:
    ours: str = ""
    theirs: str = ""


BASE = "errors units log files"
LAYERS = {
    "moegg.errors": May(),
    "moegg.units": May("errors"),
    "moegg.files": May(""),
    "moegg.log": May("errors"),
    "moegg.library": May(BASE),
    "moegg.quants": May(BASE, "numpy"),
    "moegg.arch": May(f"{BASE} arch", "numpy"),
    "moegg.kernels": May(f"{BASE} quants arch kernels", "numpy cython cpython libc"),
    "moegg.formats": May(f"{BASE} quants arch formats", "numpy blake3"),
    "moegg.models": May("arch errors models"),
    "moegg.registry": May(f"{BASE} quants arch models"),
    "moegg.io": May(f"{BASE} io kernels", "numpy"),
    "moegg.hub": May(f"{BASE} formats hub", "huggingface_hub blake3"),
    "moegg.planner": May(f"{BASE} quants arch"),
    "moegg.stream": May(BASE),
    "moegg.tokenizer": May(f"{BASE} arch stream", "numpy tokenizers sentencepiece"),
    "moegg.sandbox": May(BASE),
    "moegg.template": May(f"{BASE} sandbox", "jinja2"),
    "moegg.chat": May(f"{BASE} arch sandbox tokenizer"),
    "moegg.sampler": May(f"{BASE} arch kernels", "numpy"),
    "moegg.converters": May(f"{BASE} quants arch kernels formats models registry tokenizer sampler hub converters",
                            "numpy tokenizers sentencepiece safetensors"),
    "moegg.engine": May(f"{BASE} quants arch kernels registry io planner sampler formats engine", "numpy cython cpython libc posix"),
    "moegg.server": May(f"{BASE} arch stream tokenizer chat sampler engine server", "numpy bottle waitress llguidance blake3"),
    "moegg.commands": May("*", "docopt numpy tqdm"),
    "moegg.cli": May("*"),
    "moegg.__main__": May("*"),
    "moegg": May(),
}


def modules() -> dict[str, Path]:
    out = {}
    for package, folder in FOLDERS.items():
        for p in [*folder.rglob("*.py"), *folder.rglob("*.pyx"), *folder.rglob("*.pxd")]:
            parts = [] if p.stem == "__init__" else [p.stem]
            name = ".".join([package, *p.relative_to(folder).parent.parts, *parts])
            out[name if p.suffix == ".py" else f"{name} {p.suffix}"] = p
    return out


MODULES = modules()


def imports(path: Path) -> list[tuple[str, int]]:
    """(dotted name, line) of every import; 'from a import b' gives a.b. Cython is read by lines, its grammar being larger."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        found = []
        for i, line in enumerate(text.splitlines(), 1):
            if m := re.match(r"\s*from\s+([\w.]+)\s+c?import\s+\(?([\w, ]+)", line):
                found += [(f"{m[1]}.{name.split()[0]}", i) for name in m[2].split(",") if name.strip()]
            elif m := re.match(r"\s*c?import\s+([\w.]+)", line):
                found.append((m[1], i))
        return found
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [(a.name, node.lineno) for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found += [(f"{node.module}.{a.name}", node.lineno) for a in node.names]
    return found


def layer(name: str) -> May:
    parts = name.split(".")
    return next(LAYERS[key] for n in range(len(parts), 0, -1) if (key := ".".join(parts[:n])) in LAYERS)


def allowed(target: str, may: May) -> bool:
    top, _, rest = target.partition(".")
    if top != "moegg":
        return top in sys.stdlib_module_names or top in may.theirs.split()
    first = rest.split(".")[0]
    return may.ours == "*" or first == "__version__" or first in may.ours.split()


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_follow_the_table(name):
    bad = [f"{MODULES[name].name}:{line}: {target}" for target, line in imports(MODULES[name])
           if not allowed(target, layer(name.split()[0]))]
    assert not bad, f"{name} may not import {bad}"


def test_a_new_top_level_module_needs_a_row():
    """The fallback row 'moegg' is for moegg/__init__.py alone."""
    tops = {".".join(n.split()[0].split(".")[:2]) for n in MODULES if n != "moegg"}
    assert {t for t in tops if t not in LAYERS} == set()


def test_formats_and_converters_are_pure_python():
    """Cython cannot cimport from a remapped folder."""
    bad = [p for f in ("moegg.formats", "moegg.converters") for p in FOLDERS[f].rglob("*") if p.suffix in (".pyx", ".pxd", ".c")]
    assert not bad


@pytest.mark.parametrize("name", sorted(n for n, p in MODULES.items() if p.suffix == ".py"))
def test_only_commands_print_or_exit(name):
    if name.startswith(("moegg.commands", "moegg.cli", "moegg.__main__")):
        return
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    bad = [n.lineno for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id in ("print", "exit", "quit", "input")
           or isinstance(n, ast.Attribute) and n.attr in ("stdout", "exit", "_exit") and isinstance(n.value, ast.Name)
           and n.value.id in ("sys", "os")]
    assert not bad, f"{name}: stdout and the exit code belong to moegg/commands and moegg/cli.py: lines {bad}"


@pytest.mark.parametrize("name", sorted(n for n, p in MODULES.items() if p.suffix == ".py"))
def test_user_input_is_never_checked_by_assert(name):
    """`python -O` removes asserts."""
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    assert not [n.lineno for n in ast.walk(tree) if isinstance(n, ast.Assert)]


@pytest.mark.parametrize("name", sorted(n for n, p in MODULES.items() if p.suffix == ".py"))
def test_an_import_inside_a_function_says_why(name):
    """It is for what is optional or slow; anything else hides a cycle."""
    lines = MODULES[name].read_text(encoding="utf-8").splitlines()
    inner = [n.lineno for f in ast.walk(ast.parse("\n".join(lines))) if isinstance(f, ast.FunctionDef)
             for n in ast.walk(f) if isinstance(n, ast.Import | ast.ImportFrom)]
    assert not [i for i in inner if "#" not in lines[i - 1]]


def test_files_are_short():
    limits = {".py": 600, ".pyx": 600, ".pxd": 600, ".c": 900, ".h": 900}
    paths = [p for folder in {ROOT / "moegg", ROOT / "formats", ROOT / "converters"} for p in folder.rglob("*") if p.suffix in limits]
    long = {str(p.relative_to(ROOT)): n for p in paths if (n := len(p.read_bytes().splitlines())) > limits[p.suffix]}
    wide = [f"{p.relative_to(ROOT)}:{i}" for p in paths for i, line in enumerate(p.read_text(encoding="utf-8").splitlines(), 1) if len(line) > 150]
    assert not long and not wide


@pytest.mark.parametrize("name", sorted(n for n, p in MODULES.items() if p.suffix == ".py" and p.stat().st_size > 400))
def test_every_module_says_what_it_owns(name):
    assert ast.get_docstring(ast.parse(MODULES[name].read_text(encoding="utf-8")))
