"""Finding architectures: built-ins, entry points, and what happens when they disagree."""
import sys

import pytest

from moegg import registry
from moegg.errors import FormatError, UnsupportedModel

MODULE = '''
NAMES = {"arch": "%s", "hf": ("FooForCausalLM",), "model_type": ("foo",), "gguf": ("foo",)}
def describe(cfg): ...
def tiny(): return {}
'''


@pytest.fixture
def install(tmp_path, monkeypatch):
    """install(distribution, arch, source): an installed-looking distribution with one entry point."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("MOEGG_PLUGINS", raising=False)
    loaded = []

    def install(distribution, arch, source=None, module=None):
        module = module or f"plugin_{distribution}"
        (tmp_path / f"{module}.py").write_text(MODULE % arch if source is None else source)
        info = tmp_path / f"{distribution}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[moegg.models]\n{arch} = {module}\n")
        loaded.append(module)
        return module
    yield install
    for module in loaded:
        sys.modules.pop(module, None)


@pytest.mark.parametrize("kind, name, arch", [
    ("hf", "Qwen3MoeForCausalLM", "qwen3-moe"), ("model_type", "qwen3_moe", "qwen3-moe"), ("gguf", "qwen3moe", "qwen3-moe"),
    ("arch", "qwen3-moe", "qwen3-moe"), ("hf", "MistralForCausalLM", "llama"), ("model_type", "mistral", "llama"),
    ("hf", "InternLM3ForCausalLM", "llama"), ("gguf", "llama", "llama"), ("hf", "Gemma3ForConditionalGeneration", "gemma3"),
    ("model_type", "gemma3_text", "gemma3"), ("gguf", "qwen2", "qwen2"), ("hf", "Qwen3ForCausalLM", "qwen3")])
def test_every_spelling_finds_its_module(kind, name, arch):
    assert registry.find(**{kind: name}).NAMES["arch"] == arch


def test_names_are_sorted_and_files_are_named_after_them(monkeypatch):
    monkeypatch.setenv("MOEGG_PLUGINS", "0")
    names = registry.names()
    assert names == sorted(names) and {"gemma3", "llama", "qwen2", "qwen3", "qwen3-moe"} <= set(names)
    for name in names:
        assert registry.find(arch=name).__name__ == f"moegg.models.{name.replace('-', '_')}"


def test_no_name_has_two_owners(monkeypatch):
    monkeypatch.setenv("MOEGG_PLUGINS", "0")
    modules = [registry.find(arch=arch) for arch in registry.names()]
    for kind in ("hf", "model_type", "gguf"):       # gguf: of those that do not ask which files are theirs
        names = [n for m in modules if kind != "gguf" or not hasattr(m, "gguf_own") for n in m.NAMES.get(kind, ())]
        assert len(names) == len(set(names))
    assert {n for m in modules for n in m.NAMES.get("gguf", ())} == set(names)


def test_an_unknown_class_names_the_closest_and_where_all_of_them_are_listed():
    """Not all sixty in one line, and none that is alike only in 'ForCausalLM'."""
    with pytest.raises(UnsupportedModel, match=r"got 'Qwen3MoEForCausalLM', expected one of \d+ that 'moegg archs' lists; "
                                               r"did you mean 'Qwen3MoeForCausalLM' or .*\? \[arch-unknown\]"):
        registry.find(hf="Qwen3MoEForCausalLM")
    for names in ({"hf": "FooBarForCausalLM"}, {"arch": "zzz"}):
        with pytest.raises(UnsupportedModel, match=r"expected one of \d+ that 'moegg archs' lists \[arch-unknown\]"):
            registry.find(**names)
    with pytest.raises(UnsupportedModel):
        registry.find()


def test_a_class_that_is_not_a_language_model_is_not_found_by_its_model_type():
    """The class name decides: a classifier of a known model_type has no head to generate with."""
    with pytest.raises(UnsupportedModel, match="Qwen3ForSequenceClassification"):
        registry.find(hf="Qwen3ForSequenceClassification", model_type="qwen3")


def test_plugin_is_listed_without_being_imported_and_found_by_every_name(install):
    module = install("foo_dist", "foo-arch")
    assert "foo-arch" in registry.names() and module not in sys.modules
    assert registry.find(hf="LlamaForCausalLM").NAMES["arch"] == "llama" and module not in sys.modules
    for query in ({"arch": "foo-arch"}, {"hf": "FooForCausalLM"}, {"model_type": "foo"}, {"gguf": "foo"}):
        assert registry.find(**query).__name__ == module


def test_plugins_can_be_switched_off(install, monkeypatch):
    install("foo_dist", "foo-arch")
    monkeypatch.setenv("MOEGG_PLUGINS", "0")
    assert "foo-arch" not in registry.names()
    with pytest.raises(UnsupportedModel):
        registry.find(arch="foo-arch")
    assert registry.chats("foo-arch") == ()


def test_a_plugin_says_how_its_models_talk(install):
    install("foo_dist", "foo-arch", "from moegg.arch import Chat\n" + MODULE % "foo-arch" + "CHAT = Chat(('</s>',), 'lfm')")
    install("bar_dist", "bar-arch", MODULE % "bar-arch")
    assert [chat.calls for chat in registry.chats("foo-arch")] == ["lfm"] and registry.chats("bar-arch") == ()


def test_duplicates_name_both_distributions(install):
    install("first", "foo-arch")
    install("second", "foo-arch")
    with pytest.raises(FormatError, match=r"'foo-arch': provided twice: got distribution '(first|second)' and distribution "
                                          r"'(first|second)'.*\[arch-duplicate\]"):
        registry.names()


def test_a_plugin_cannot_replace_a_built_in(install):
    install("impostor", "llama")
    with pytest.raises(FormatError, match="'llama': provided twice: got distribution 'impostor' and moegg itself"):
        registry.find(arch="llama")


@pytest.mark.parametrize("source, why", [
    ("import does_not_exist_at_all", "ModuleNotFoundError"), ("x = 1 / 0", "ZeroDivisionError"), ("NAMES = {}", "KeyError"),
    (MODULE % "other-arch", "got the names of 'other-arch'"), ("NAMES = {'arch': 'foo-arch'}", "AttributeError"),
    (MODULE % "foo-arch" + "CHAT = {'ends': ['</s>']}", "a Chat or several")])
def test_a_broken_plugin_is_named(install, source, why):
    install("foo_dist", "foo-arch", source)
    with pytest.raises(FormatError, match=rf"'foo-arch': distribution 'foo_dist'.*{why}.*\[arch-plugin\]"):
        registry.find(arch="foo-arch")
