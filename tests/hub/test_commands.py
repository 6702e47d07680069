"""moegg pull, hf: as MODEL, and inspect of what is not here, as a person types them."""
import json
import re

import pytest


@pytest.fixture
def there(hub, qwen3_moe_file):
    hub.repos["ann/tiny"] = {"tiny-f32.moegg": qwen3_moe_file.read_bytes(), "README.md": b"# Tiny"}
    return hub


def test_pull_list_run_rm(call, there, tmp_path):
    code, out, err = call("pull", "ann/tiny")
    path = tmp_path / "home" / "models" / "ann" / "tiny" / "tiny-f32.moegg"
    assert code == 0 and out == f"{path}\n" and re.search(r"every checksum right, \S+ MiB fetched", err)
    assert "ann/tiny/tiny-f32" in call("list")[1]
    n = len(there.log)
    for model in ("tiny-f32", "ann/tiny", "hf:ann/tiny", "hf:ann/tiny/tiny-f32.moegg"):
        assert call("tokenize", model, "Hi")[0] == 0
    assert len(there.log) == n, "what is here is not asked for"
    assert call("rm", "tiny-f32", "-y")[0] == 0 and not path.exists()


def test_a_model_on_a_hub_is_fetched_by_the_command_that_needs_it(call, there, tmp_path):
    code, out, err = call("run", "hf:ann/tiny", "Hi", "--max-tokens", "2", "--temp", "0")
    assert code == 0 and "fetched" in err and (tmp_path / "home/models/ann/tiny/tiny-f32.moegg").exists()


def test_inspect_of_a_model_on_a_hub_reads_little_and_writes_nothing(call, there, tmp_path, qwen3_moe_file):
    from moegg.hub import remote
    code, out, err = call("inspect", "hf:ann/tiny/tiny-f32.moegg")
    assert code == 0 and out.startswith("hf:ann/tiny/tiny-f32.moegg: ") and "4 layers of 8 expert records" in out
    assert sum(b - a + 1 for a, b in there.fetched()) < 2 * remote.HEAD_BYTES and not (tmp_path / "home").exists()
    there.repos["ann/tiny"]["other.moegg"] = b""
    info = json.loads(call("inspect", "hf:ann/tiny/tiny-f32.moegg", "--json")[1])
    here = json.loads(call("inspect", qwen3_moe_file, "--json")[1])
    assert {k: v for k, v in info.items() if k not in ("path", "disk", "chat")} == {k: v for k, v in here.items() if k not in ("path", "chat")}
    assert info["chat"] == {"template": "in the file"}      # which is not fetched for this, nor the tokenizer that knows its ends
    assert info["provenance"]["recipe"]["name"] == "f32"


def test_out_puts_it_elsewhere(call, there, tmp_path):
    assert call("pull", "hf:ann/tiny/tiny-f32.moegg", "-o", tmp_path / "x.moegg")[:2] == (0, f"{tmp_path / 'x.moegg'}\n")
    assert call("verify", tmp_path / "x.moegg")[0] == 0 and not (tmp_path / "home").exists()


@pytest.mark.parametrize("argv, code, slug", [
    (["pull", "tiny"], 2, "hub-address"), (["pull", "ann/none"], 3, "hub-missing"), (["run", "hf:ann/none", "x"], 3, "hub-missing"),
    (["inspect", "hf:ann/tiny/README.md"], 3, "format-magic"), (["pull", "ann/tiny:../x"], 2, "hub-address")])
def test_what_is_wrong_with_an_address_is_one_line(call, there, argv, code, slug):
    got, out, err = call(*argv)
    assert (got, out) == (code, "") and err.count("\n") == 1 and err.endswith(f"[{slug}]\n")


def test_offline_finds_what_is_here_and_names_what_is_not(call, there, monkeypatch):
    assert call("pull", "ann/tiny")[0] == 0
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert call("tokenize", "hf:ann/tiny", "x")[0] == 0
    code, _, err = call("tokenize", "hf:ann/other", "x")
    assert code == 6 and "offline" in err and err.endswith("[hub-offline]\n")


def test_inspect_says_whether_it_runs_here_how_fast_and_how_much_disk_it_takes(call, there, tmp_path, monkeypatch):
    import shutil

    from moegg.io import profile as profiles
    reading = profiles.Reading("direct", "", 1 << 20, 4, 2e9, 0.1)
    monkeypatch.setattr(profiles, "load", lambda path: profiles.Profile("x", 2, (reading,), 20e9))
    code, out, _ = call("inspect", "hf:ann/tiny", "--ram", "2G")
    assert code == 0 and "KV state" in out and re.search(r"at most about [\d.]+ tok/s", out)
    assert re.search(r"MiB to fetch, \S+ \w+ free in '.*home/models'\n", out)
    info = json.loads(call("inspect", "hf:ann/tiny", "--ctx", "256", "--json")[1])
    assert info["plan"]["ctx"] == 256 and 0 < info["speed"]["least"] <= info["speed"]["most"] and info["disk"]["needed"] == info["file_bytes"]
    monkeypatch.setattr(profiles, "load", lambda path: None)
    monkeypatch.setattr(shutil, "disk_usage", lambda p: shutil._ntuple_diskusage(10, 5, 5))
    code, out, _ = call("inspect", "hf:ann/tiny", "--ram", "2G")
    assert code == 0 and "unknown: 'moegg doctor MODEL'" in out and ": not enough\n" in out
    code, out, err = call("inspect", "hf:ann/tiny", "--ram", "1M")
    assert code == 5 and "smallest workable budget" in err


@pytest.fixture
def text(tmp_path):
    """Long enough for a window of 8 tokens."""
    path = tmp_path / "text.txt"
    path.write_text("Once upon a time there was a tiny model. " * 4)
    return path


NEEDS_MEMORY = {
    "run": ["hf:ann/tiny", "Hi"], "server": ["hf:ann/tiny"], "bench": ["hf:ann/tiny", "--prompt=4"],
    "perplexity": ["hf:ann/tiny", "TEXT", "--ctx=8"], "calibrate": ["hf:ann/tiny", "TEXT", "--ctx=8", "-o", "OUT"],
    "reference": ["demo", "TEXT", "--ctx=8", "--reference=hf:ann/tiny"], "forward": ["hf:ann/tiny", "--tokens=1,2", "-o", "OUT"]}


def typed(name: str, text, tmp_path) -> list:
    return ["perplexity" if name == "reference" else name, *({"TEXT": text, "OUT": tmp_path / "out"}.get(x, x) for x in NEEDS_MEMORY[name])]


@pytest.mark.parametrize("name", NEEDS_MEMORY)
def test_nothing_is_fetched_that_does_not_fit_the_budget(call, there, text, tmp_path, monkeypatch, qwen3_moe_file, name):
    if name == "reference":                                 # MODEL is here, and of the same tokens
        monkeypatch.setitem(NEEDS_MEMORY, name, [str(qwen3_moe_file), *NEEDS_MEMORY[name][1:]])
    if name == "forward":                                   # takes what there is
        monkeypatch.setattr("moegg.engine.engine.auto_budget", lambda memory: 1 << 20)
        monkeypatch.setattr("moegg.engine.engine.own_bytes", lambda: 0)
    code, out, err = call(*typed(name, text, tmp_path), *(() if name == "forward" else ("--ram", "1M")))
    assert (code, out) == (5, "") and err.count("\n") == 1 and err.endswith("[budget-small]\n")
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("name", sorted(NEEDS_MEMORY.keys() - {"run", "server", "reference"}))
def test_what_fits_is_fetched_and_used(call, there, text, tmp_path, name):
    options = ["--gen=2", "--warm=0", "--runs=1"] if name == "bench" else []
    code, out, err = call(*typed(name, text, tmp_path), *options)
    assert code == 0 and "every checksum right" in err and (tmp_path / "home/models/ann/tiny/tiny-f32.moegg").exists()


def test_a_budget_is_held_against_what_the_command_wants(call, there, tmp_path):
    """The context of bench is its tokens, a server has sessions: what fits one answer of `run` may not fit them."""
    err = call("run", "hf:ann/tiny", "Hi", "--ram=1M", "--ctx=64")[2]
    least = int(re.search(r"smallest workable budget is (\d+)M", err)[1])
    for command in (["bench", "hf:ann/tiny", "--prompt=200000"], ["server", "hf:ann/tiny", "--parallel=8", "--ctx=20000"]):
        assert call(*command, f"--ram={least}M")[0] == 5
    assert not (tmp_path / "home").exists()


def test_what_perplexity_cannot_compare_is_not_fetched(call, there, text, tmp_path):
    code, _, err = call("perplexity", "demo", text, "--ctx=8", "--reference=hf:ann/tiny")
    assert code == 2 and err.endswith("[reference-vocab]\n") and not (tmp_path / "home").exists()
    code, _, err = call("perplexity", "hf:ann/tiny", text, "--ctx=400")
    assert code == 2 and err.endswith("[text-short]\n") and not (tmp_path / "home").exists()


def test_tokenize_of_a_model_on_a_hub_fetches_its_tokenizer_alone(call, there, tmp_path, qwen3_moe_file):
    assert call("tokenize", "hf:ann/tiny", "Hi there")[:2] == call("tokenize", qwen3_moe_file, "Hi there")[:2]
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("command",
                         [["pull", "ann/tiny"], ["pull", "ann/tiny:tiny-f32.moegg"], ["convert", "hf:ann/tiny"], ["inspect", "hf:ann/tiny"]])
def test_without_a_network_the_error_is_one_line_at_once(call, there, monkeypatch, command):
    monkeypatch.setattr("time.sleep", lambda s: pytest.fail("waits"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    code, out, err = call(*command)
    assert (code, out) == (6, "") and err.count("\n") == 1 and err.endswith("[hub-network]\n")


def test_a_token_with_letters_that_no_token_has_is_named(call, there, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_\u00fc")
    code, _, err = call("pull", "ann/tiny")
    assert code == 6 and "HF_TOKEN" in err and err.endswith("[hub-token]\n")


def test_push_without_a_token_is_refused_before_the_file_is_read(call, there, qwen3_moe_file, monkeypatch):
    from moegg.formats.container import Container
    monkeypatch.setattr(Container, "verify", lambda *_: pytest.fail("reads"))
    code, out, err = call("push", qwen3_moe_file, "me/new", "-y")
    assert (code, out) == (6, "") and "no token" in err and err.endswith("[hub-token]\n") and not there.created


def test_a_wrong_file_of_a_repository_names_the_right_ones(call, there):
    code, _, err = call("pull", "ann/tiny:tiny-f32")
    assert code == 3 and err.endswith("no such file in the repository; it holds tiny-f32.moegg [hub-missing]\n")
