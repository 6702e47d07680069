"""moegg list and rm, and names of the store as MODEL."""
import json
import re
import shutil

import pytest


@pytest.fixture
def store(tmp_path, monkeypatch, qwen3_moe_file):
    monkeypatch.setenv("MOEGG_HOME", str(tmp_path))
    folder = tmp_path / "models" / "ann" / "tiny"
    folder.mkdir(parents=True)
    shutil.copy(qwen3_moe_file, folder / "tiny-f32.moegg")
    (folder / "broken.moegg").write_bytes(b"\0" * 100)
    (folder / "half.moegg.partial").write_bytes(b"\0" * 5000)
    return folder


def test_list_shows_sound_incomplete_and_damaged_models(call, store):
    code, out, err = call("list")
    assert code == 0 and not err
    assert [line.split()[0] for line in out.splitlines()] == ["NAME", "ann/tiny/broken", "ann/tiny/half", "ann/tiny/tiny-f32"]
    assert "damaged (format-magic)" in out and "incomplete" in out and re.search(r"MiB  qwen3-moe +f32\n", out)
    got = json.loads(call("list", "--json")[1])
    assert got["folder"] == str(store.parents[1])
    assert [(m["state"], m["arch"], m["quant"]) for m in got["models"]] == [
        ("damaged (format-magic)", None, None), ("incomplete", None, None), ("ok", "qwen3-moe", "f32")]
    assert got["models"][2]["bytes"] == (store / "tiny-f32.moegg").stat().st_size


def test_a_name_of_the_store_is_a_model_from_any_folder(call, store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("tiny-f32", "tiny/tiny-f32.moegg", "ann/tiny/TINY-f32"):
        code, out, _ = call("verify", name)
        assert code == 0 and out.startswith(f"{store / 'tiny-f32.moegg'}: ok")
    code, _, err = call("verify", "tiny-f23")
    assert code == 3 and err == "moegg: tiny-f23: no such file; did you mean 'tiny-f32'? [file-missing]\n"


def test_a_path_that_exists_goes_before_a_name(call, store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny-f32").write_bytes(b"GGUF")
    assert "convert it" in call("verify", "tiny-f32")[2]


def test_rm_asks_and_without_a_terminal_needs_yes(call, store, monkeypatch):
    code, _, err = call("rm", "tiny-f32")
    assert code == 2 and "give --yes" in err and err.endswith("[confirm]\n") and (store / "tiny-f32.moegg").exists()
    code, out, _ = call("rm", "tiny-f32", "half", "broken", "--yes")
    assert code == 0 and out.count("deleted") == 3 and not store.exists()
    code, _, err = call("rm", "tiny-f32", "-y")
    assert code == 3 and "no model of that name" in err


@pytest.mark.parametrize("word, gone", [("y\n", True), ("yes\n", True), ("n\n", False), ("\n", False), ("", False)])
def test_only_yes_is_yes(call, store, monkeypatch, word, gone):
    import io
    import sys
    stdin = io.StringIO(word)
    stdin.isatty = lambda: True
    monkeypatch.setattr(sys, "stdin", stdin)
    code, _, err = call("rm", "tiny-f32")
    assert (code, (store / "tiny-f32.moegg").exists()) == ((0, False) if gone else (130, True)) and "delete ann/tiny/tiny-f32 (" in err


def test_rm_takes_what_an_interrupted_pull_left_along(call, store):
    shutil.copy(store / "half.moegg.partial", store / "tiny-f32.moegg.partial")
    assert call("rm", "tiny-f32", "-y")[1].count("deleted") == 2 and {p.name for p in store.iterdir()} == {"broken.moegg", "half.moegg.partial"}


def test_rm_of_a_path_outside_the_store_is_refused(call, store, tmp_path):
    outside = tmp_path / "x.moegg"
    outside.write_bytes(b"x")
    assert call("rm", outside, "-y")[0] == 3 and outside.exists()


def test_an_empty_store_says_how_to_fill_it(call, monkeypatch, tmp_path):
    monkeypatch.setenv("MOEGG_HOME", str(tmp_path / "none"))
    code, out, err = call("list")
    assert (code, out) == (0, "") and "no models in" in err


def test_rm_asks_about_the_size_that_list_shows(call, store):
    shown = [line.split()[1:3] for line in call("list")[1].splitlines() if "tiny-f32" in line][0]
    code, _, err = call("rm", "tiny-f32")
    assert code == 2 and f"delete ann/tiny/tiny-f32 ({' '.join(shown)})?" in err
