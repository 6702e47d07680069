"""moegg inspect and hostile files: values of any type, text that would drive a terminal."""
import json
from types import SimpleNamespace

import pytest

from moegg.cli import explain
from moegg.commands import inspect
from moegg.commands.opening import open_container
from moegg.errors import ExitStatus, MoeggError
from moegg.formats.about import About

PARTS = ("path", "name", "arch", "file_bytes", "root", "content_id", "tensors",
         "layers", "resident", "gather", "experts", "sections", "summary", "read_section")


def with_meta(meta: dict) -> SimpleNamespace:
    container = open_container("demo")
    return SimpleNamespace(meta=meta, about=About.of(meta), **{name: getattr(container, name) for name in PARTS})


@pytest.mark.parametrize("value", [None, True, 1, -1e300, float("nan"), 10**30, "x", [1], {}, {"name": 5}, {"version": "x"}], ids=repr)
@pytest.mark.parametrize("key", ["quant", "parameters", "active_parameters", "source", "creator"])
def test_meta_of_any_type_is_shown_or_a_named_error_never_exit_code_70(key, value):
    try:
        assert inspect.report(with_meta({"parameters": 5, key: value}), {})
    except MoeggError as e:
        assert explain(e)[1] == ExitStatus.BAD_FILE


def test_text_in_a_file_cannot_drive_the_terminal_or_forge_a_line(monkeypatch, capsys):
    container = with_meta({"quant": {"name": "\x1b]0;pwned\x07"}})
    provenance = {"a\x1b[31m": "x\nmoegg: fake", "b\x9b": "\u202e"}
    monkeypatch.setattr(inspect, "open_container", lambda model, here: container)
    monkeypatch.setattr(inspect, "section_json", lambda container, name: provenance)
    inspect.main({"MODEL": "demo", "--json": False, "--ram": None, "--ctx": None})
    out = capsys.readouterr().out
    assert r"\x1b]0;pwned\x07" in out and r"  a\x1b[31m: x\nmoegg: fake" in out
    assert all(ch == "\n" or ch.isprintable() for ch in out)
    inspect.main({"MODEL": "demo", "--json": True, "--ram": None, "--ctx": None})
    out = capsys.readouterr().out
    assert out.isascii() and out.count("\n") == 1 and json.loads(out)["provenance"] == provenance


def plan(all_fits, cycle=None):
    return SimpleNamespace(all_fits=all_fits, cycle=cycle)


@pytest.mark.parametrize("memory, said", [
    (plan(True), "at most about 930 tok/s, which is how fast memory is read"),
    (plan(False), "about 7.2 tok/s if all experts are used alike, at most 930 if those wanted are always in memory"),
    (plan(False, "layers"), "about 7.2 tok/s if reading and computing take turns, 930 if neither waits for the other")])
def test_the_expected_speed_has_no_more_digits_than_it_knows_and_no_experts_where_there_are_none(memory, said):
    assert inspect.pace_text(memory, {"least": 7.1789, "most": 925.1}) == said


def test_a_context_beyond_the_trained_one_is_told_as_run_tells_it(call):
    code, out, err = call("inspect", "demo", "--ctx", "600")
    assert code == 0 and "KV state (600 tokens" in out and "trained for 512 tokens" in err
