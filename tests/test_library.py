"""The local store: which file a name means, what is listed, what is deleted."""
from pathlib import Path

import pytest

from moegg import library
from moegg.errors import NotFound, UsageError


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("MOEGG_HOME", str(tmp_path / "home"))
    for name in ("ann/big/big-q4", "ann/big/big-q8", "bob/big/big-q4", "bob/one/Only", "loose"):
        path = tmp_path / "home" / "models" / f"{name}.moegg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return tmp_path / "home" / "models"


@pytest.mark.parametrize("name, file", [
    ("loose", "loose"), ("loose.moegg", "loose"), ("LOOSE", "loose"), ("Only", "bob/one/Only"), ("one/only", "bob/one/Only"),
    ("bob/one", "bob/one/Only"), ("bob/one/Only.moegg", "bob/one/Only"), ("ann/big/big-q4", "ann/big/big-q4"), ("big-q8", "ann/big/big-q8"),
    ("bob/big", "bob/big/big-q4")])
def test_a_unique_end_of_the_name_is_enough(store, name, file):
    assert library.find(name) == store / f"{file}.moegg"


@pytest.mark.parametrize("name", ["", "q4", "ig-q8", "big", "big-q", "./loose", "/loose", "../models/loose", "~/loose", "ann", "x" * 5000, "a\0b"])
def test_other_words_mean_nothing(store, name):
    assert library.find(name) is None


@pytest.mark.parametrize("name", ["big-q4", "big/big-q4", "ann/big"])
def test_a_name_of_several_models_is_refused_with_their_names(store, name):
    with pytest.raises(UsageError, match="means 2 models: ann/big/big-q4, .*model-ambiguous"):
        library.find(name)


def test_a_store_that_does_not_exist_is_empty(tmp_path, monkeypatch):
    monkeypatch.setenv("MOEGG_HOME", str(tmp_path / "none"))
    assert library.entries() == [] and library.find("x") is None
    with pytest.raises(NotFound, match="model-unknown"):
        library.one("x", [])


def test_the_folder_follows_moegg_home_then_xdg(monkeypatch):
    monkeypatch.setenv("MOEGG_HOME", "/a")
    assert library.models_folder() == Path("/a/models")
    monkeypatch.delenv("MOEGG_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", "/b")
    assert library.home() == Path("/b/moegg")
    for relative in ("", "c"):
        monkeypatch.setenv("XDG_DATA_HOME", relative)
        assert library.home() == Path.home() / ".local/share/moegg"


def test_what_is_incomplete_is_listed_and_never_opened(store):
    (store / "bob/one/Only.moegg").rename(store / "bob/one/Only.moegg.partial")
    assert [e.partial for e in library.entries() if e.short == "Only"] == [True]
    assert library.find("Only") is None


def test_removing_takes_empty_folders_along_and_nothing_else(store):
    (store / "bob/note.txt").write_text("mine")
    library.remove(library.one("Only", library.matching("Only", library.entries())))
    assert not (store / "bob/one").exists() and (store / "bob/note.txt").exists() and (store / "bob/big/big-q4.moegg").exists()
