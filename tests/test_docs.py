"""The documents name everything a user can meet, and nothing that is not there."""
import ast
import importlib
import re
from pathlib import Path

import pytest

from moegg import cli, errors, registry
from moegg.commands import options
from moegg.formats.validate import RULES
from moegg.quants import QUANTS

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SOURCES = [p for folder in ("moegg", "formats", "converters") for p in sorted((ROOT / folder).rglob("*.py"))]
ERRORS = {n: c for n, c in vars(errors).items() if isinstance(c, type) and issubclass(c, errors.MoeggError)}
README_COMMANDS = re.findall(r"```sh\n(python3 -m venv .*)\n```", README)


def test_readme_commands_are_what_ci_runs():
    """An untested command in a README is a lie within a month."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert len(README_COMMANDS) == 2
    assert f"bash -c '{README_COMMANDS[0]}'\n" in script
    assert f'bash -c "{README_COMMANDS[1]}"\n' in script


def slugs() -> dict[str, set[str]]:
    """Slug -> names of error classes, or of helper functions with a parameter `slug`, that it is handed to."""
    found: dict[str, set[str]] = {slug: {"FormatError"} for slug in RULES.values()}
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        takes = {name: 1 for name in ERRORS}
        for f in ast.walk(tree):
            if isinstance(f, ast.FunctionDef) and (args := [a.arg for a in f.args.args if a.arg != "self"]) and "slug" in args:
                takes[f.name] = args.index("slug")
                at = len(f.args.args) - len(f.args.defaults)
                defaults = dict(zip([a.arg for a in f.args.args][at:], f.args.defaults, strict=True))
                if isinstance(d := defaults.get("slug"), ast.Constant):
                    found.setdefault(d.value, set())
        for call in ast.walk(tree):
            if not isinstance(call, ast.Call):
                continue
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if name not in takes:
                continue
            given = [k.value for k in call.keywords if k.arg == "slug"] or call.args[takes[name]:takes[name] + 1]
            for node in given:
                for c in (node.body, node.orelse) if isinstance(node, ast.IfExp) else (node,):
                    if isinstance(c, ast.Constant) and isinstance(c.value, str):
                        found.setdefault(c.value, set()).add(name)
    for path in (ROOT / "moegg").rglob("*.pyx"):
        for slug in re.findall(r",\s*\"([a-z]+(?:-[a-z]+)+)\"\)", path.read_text(encoding="utf-8")):
            found.setdefault(slug, set())
    for path in SOURCES:        # slugs that are written into a line, not handed to a class
        for slug in re.findall(r" \[([a-z]+(?:-[a-z]+)*)\]\"", path.read_text(encoding="utf-8")):
            found.setdefault(slug, set())
    return found


def documented() -> dict[str, int]:
    rows = re.findall(r"^\| (\d+) \| .* \| (.*) \|$", README, re.M)
    return {slug: int(code) for code, cell in rows for slug in re.findall(r"`([a-z0-9-]+)`", cell)}


def test_every_error_slug_is_in_the_readme_and_the_other_way_round():
    assert (slugs().keys() - documented().keys(), documented().keys() - slugs().keys()) == (set(), set())


def test_slugs_stand_at_the_exit_code_of_their_class():
    rows = documented()
    wrong = {slug: rows[slug] for slug, names in slugs().items() if slug in rows
             and (codes := {int(ERRORS[n].exit_status) for n in names if n in ERRORS}) and rows[slug] not in codes}
    assert not wrong


@pytest.mark.parametrize("status", errors.ExitStatus)
def test_every_exit_code_is_in_the_readme(status):
    assert f"\n| {int(status)} | " in README


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_and_option_is_in_the_readme(command):
    doc = importlib.import_module(f"moegg.commands.{command}").__doc__
    assert f"| `{command} " in README
    row = next(line for line in README.splitlines() if line.startswith(f"| `{command} "))
    named = set(re.findall(r"`(--[a-z-]+)`", row))
    assert named | {"--verbose", "--debug", "--help"} == {long for long, _ in options.declared(doc).values()}


def test_every_environment_variable_is_in_the_readme():
    code = [*SOURCES, ROOT / "setup.py", *(ROOT / "moegg").rglob("*.pyx"), *(ROOT / "moegg").rglob("*.c")]
    used = {v for p in code for v in re.findall(r"[\"'](MOEGG_[A-Z_]+)[\"']", p.read_text(encoding="utf-8"))}
    assert {v for v in re.findall(r"^\| `(MOEGG_[A-Z_]+)` \|", README, re.M)} == used


@pytest.mark.parametrize("arch", registry.names())
def test_every_architecture_is_in_the_readme(arch):
    row = next((line for line in README.splitlines() if line.startswith(f"| `{arch}` |")), "")
    names = registry.find(arch=arch).NAMES
    assert [n for n in (*names["hf"], *names.get("gguf", ())) if n not in row] == []


@pytest.mark.parametrize("quant", QUANTS)
def test_every_quant_is_in_the_readme(quant):
    assert f"`{quant}`" in README


@pytest.mark.parametrize("path", [ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda p: p.name)
def test_files_that_documents_name_exist(path):
    text = path.read_text(encoding="utf-8")
    names = set(re.findall(r"`((?:moegg|formats|converters|tests|bench|\.ci)/[\w./]*)`", text)) - {"moegg/models/your_arch.py"}
    assert [n for n in sorted(names) if not (ROOT / n).exists()] == []


def test_a_symptom_leads_to_functions_that_exist():
    table = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("| symptom | files |")[1].split("\n\n")[0]
    for row in table.splitlines()[2:]:
        paths = [p for name in re.findall(r"`(moegg/[\w./*]+)`", row) for p in ROOT.glob(name)]
        text = "".join(p.read_text(encoding="utf-8") for p in paths)
        names = re.findall(r"`(?:\w+\.)?([a-z_]+)`", row.split("|")[2])
        assert paths and [n for n in names if not re.search(rf"\b{n}\b", text)] == [], row


@pytest.mark.parametrize("words", [
    ". .venv/bin/activate", "hf download ", "GiB", "--temp 0.8 --top-k 40 --top-p 0.95 --min-p 0.05", "`run` does not verify", ".partial"])
def test_a_newcomer_does_not_have_to_guess(words):
    """moegg on the PATH, a model, the room it takes, sampling defaults, what is checked when, leftovers."""
    assert words in README


def test_adding_an_architecture_is_described_in_one_place():
    section = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Add an architecture")[1].split("##")[0]
    assert "`moegg/models/README.md`" in section and "\n1. " not in section
    assert "make_oracle.py" in (ROOT / "moegg" / "models" / "README.md").read_text(encoding="utf-8")


def test_contributing_names_real_make_targets():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    used = {t for line in re.findall(r"make ([a-z -]+)", text) for t in line.split() if "-" in t or t in ("dev", "build", "test", "lint")}
    assert used <= targets


def test_version_is_in_the_changelog_or_it_is_unreleased():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "## Unreleased" in text or f"## {cli.__version__}" in text
