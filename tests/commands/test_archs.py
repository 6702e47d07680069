"""moegg archs: what it says comes from the modules, so that nothing is listed that does not run."""
import json

from moegg import registry
from moegg.cli import main
from moegg.commands import archs


def listed(capsys, *argv):
    assert main(["archs", *argv]) == 0
    return capsys.readouterr().out


def test_every_architecture_is_listed_with_what_it_is_made_of(capsys):
    rows = {r["name"]: r for r in json.loads(listed(capsys, "--json"))["architectures"]}
    assert list(rows) == registry.names()
    assert all(r["classes"] and r["kinds"] and r["sources"] and r["not_supported"] and r["about"] for r in rows.values())
    assert {"sinks", "sliding windows", "expert biases", "experts (softmax router)"} <= set(rows["gpt-oss"]["kinds"])
    assert rows["gpt-oss"]["sources"] == ["safetensors (experts stacked or stacked, transposed)", "GGUF gpt-oss"]
    assert {"keys as values", "dense MLP beside experts"} <= set(rows["gemma4"]["kinds"]) and rows["gemma4"]["gguf"] == ["gemma4"]
    assert rows["minimax"]["gguf"] == [] and rows["minimax"]["sources"] == ["safetensors (experts one by one or stacked)"]
    assert rows["gpt-oss"]["chat"][0]["calls"] == "harmony" and [c["calls"] for c in rows["deepseek"]["chat"]] == ["kimi", "tags", "deepseek"]
    assert rows["apertus"]["kinds"][-2:] == ["MLP", "activations with learned values"] and rows["apertus"]["chat"][0]["calls"] == "apertus"
    assert "parallel residual" in rows["cohere2"]["kinds"] and "partial rope" in rows["glm"]["kinds"]


def test_the_list_is_readable_on_a_terminal(capsys):
    out = listed(capsys)
    assert all(len(line) <= 100 for line in out.splitlines() if line.startswith(" "))
    assert "gpt-oss: GptOssForCausalLM\n  made of: attention, sliding windows, sinks" in out and "  not supported: " in out
    assert "  chat: calls harmony, ends <|return|> or <|call|>" in out


def test_a_part_of_a_name_finds_the_architecture_by_any_of_its_names(call):
    """Three hundred lines are no answer to "does it run mine?"."""
    for part, name in (("mixtral", "mixtral"), ("PhimoeForCausalLM", "phimoe"), ("bailingmoe3", "bailing-hybrid")):
        assert [r["name"] for r in json.loads(call("archs", part, "--json")[1])["architectures"]] == [name]
    code, out, err = call("archs", "mamba9")
    assert (code, out) == (4, "") and err == "moegg: mamba9: no architecture of that name; 'moegg archs' lists all [arch-unknown]\n"


def test_a_module_may_spell_one_gguf_name_as_a_string(monkeypatch):
    module = registry.find(arch="qwen3")
    monkeypatch.setitem(module.NAMES, "gguf", "qwen3")
    r = archs.row(module)
    assert r["gguf"] == ["qwen3"] and [s for s in r["sources"] if s.startswith("GGUF")] == ["GGUF qwen3"]
