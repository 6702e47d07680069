"""moegg edit: what it accepts for a template, a card and generation defaults, and what it leaves alone."""
import json
import shutil

import pytest

from moegg.formats.container import Container


@pytest.fixture
def file(tmp_path, qwen3_moe_file):
    return shutil.copy(qwen3_moe_file, tmp_path / "m.moegg")


def section(path, name):
    c = Container.open(path)
    return c.read_section(name) if name in c.sections else None


def test_a_new_template_is_used_and_the_file_verifies(call, file, tmp_path):
    (tmp_path / "t.jinja").write_text("{% for m in messages %}<{{ m.content }}>{% endfor %}")
    code, out, err = call("edit", file, "--chat-template", tmp_path / "t.jinja")
    assert (code, err) == (0, "") and out == f"{file}: chat_template {len(section(file, 'chat_template'))} B\n"
    assert json.loads(section(file, "chat_template"))["default"] == (tmp_path / "t.jinja").read_text()
    assert call("verify", file)[0] == 0
    got = json.loads(call("run", file, "hi", "--max-tokens", "1", "--json")[1])
    assert got["stats"]["prompt_tokens"] == len(json.loads(call("tokenize", file, "<hi>", "--json")[1])["tokens"])


def test_card_and_generation_config_together_and_empty_files_remove(call, file, tmp_path):
    (tmp_path / "card.md").write_text("# Tiny 空\n")
    (tmp_path / "g.json").write_text('{"top_k": 7,\n "temperature": 0.5}')
    (tmp_path / "empty").write_text("")
    assert call("edit", file, "--card", tmp_path / "card.md", "--generation-config", tmp_path / "g.json")[0] == 0
    assert section(file, "model_card").decode() == "# Tiny 空\n" and section(file, "generation_config") == b'{"temperature":0.5,"top_k":7}'
    code, out, _ = call("edit", file, "--card", tmp_path / "empty", "--generation-config", tmp_path / "empty", "--chat-template", tmp_path / "empty")
    assert code == 0 and out.count("removed") == 3 and not any(s.mutable for s in Container.open(file).sections.values())


@pytest.mark.parametrize("option, text, slug", [
    ("--chat-template", "{% for %}", "template-syntax"), ("--generation-config", "{", "section-json"), ("--generation-config", "[1]", "section-json"),
    ("--generation-config", '{"temperature": -1}', "config-value"), ("--generation-config", '{"top_k": "many"}', "config-type")])
def test_what_could_not_run_is_refused_and_nothing_changes(call, file, tmp_path, option, text, slug):
    before = file.read_bytes()
    (tmp_path / "x").write_text(text)
    code, out, err = call("edit", file, option, tmp_path / "x")
    assert code in (2, 3) and not out and err.endswith(f"[{slug}]\n") and err.count("\n") == 1 and file.read_bytes() == before


def test_a_template_that_dislikes_a_plain_question_is_a_warning(call, file, tmp_path):
    (tmp_path / "x").write_text("{{ raise_exception('needs a system message') }}")
    code, _, err = call("edit", file, "--chat-template", tmp_path / "x")
    assert code == 0 and "warning" in err and "needs a system message" in err


def test_without_options_there_is_nothing_to_do(call, file):
    code, _, err = call("edit", file)
    assert code == 2 and "nothing to do" in err and err.endswith("[usage]\n")


def test_the_demo_inside_the_package_is_not_edited(call, tmp_path):
    (tmp_path / "empty").write_text("")
    code, out, err = call("edit", "demo", "--card", tmp_path / "empty")
    assert (code, out) == (2, "") and "demo: belongs to moegg" in err and "demo.moegg my.moegg" in err
