"""Commands under a budget: the options of memory and reading, what they print, and that no answer depends on them."""
import json
from dataclasses import replace

import pytest

from moegg import kernels
from moegg.commands import bench, doctor, inspect, measure
from moegg.commands.opening import open_tokenizer
from moegg.commands.start import disk_profile
from moegg.engine import dense, engine
from moegg.formats.container import Container
from moegg.io import trace
from moegg.io.usage import UsageFile
from tests import tiny
from tests.loading import convert_to

QUICK = ["--prompt=12", "--warm=1", "--gen=4", "--runs=1", "--threads=1"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache folder of the test's own, and no measured disk."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def smallest(call, file) -> int:
    """MiB of the smallest workable budget, as the error names it."""
    code, _, err = call("inspect", file, "--ram", "1M")
    assert code == 5 and "[budget-small]" in err and "the smallest workable budget is " in err
    return int(err.split("the smallest workable budget is ")[1].split("M")[0])


def answer(call, file, *options) -> dict:
    code, out, err = call("run", file, "abc", "--raw", "--temp=0", "--max-tokens=12", "--json", *options)
    assert code == 0, err
    return json.loads(out)


def test_the_budget_the_error_names_works_and_the_answer_is_the_same(call, qwen3_moe_file):
    """H: with too little memory a model must stream or refuse, never answer differently."""
    free = answer(call, qwen3_moe_file, "--no-usage")
    for io in ("page-cache", "direct"):
        tight = answer(call, qwen3_moe_file, "--no-usage", "--ram", f"{smallest(call, qwen3_moe_file)}M", "--io", io)
        assert (tight["tokens"], tight["text"]) == (free["tokens"], free["text"])


def test_stats_tell_what_the_experts_cost(call, qwen3_moe_file):
    stats = answer(call, qwen3_moe_file, "--no-usage")["stats"]["experts"]
    assert stats["hits"] + stats["misses"] > 0 and stats["tokens"] > 0
    code, _, err = call("run", qwen3_moe_file, "abc", "--raw", "--temp=0", "--max-tokens=4", "--stats", "--no-usage")
    assert code == 0 and "; experts: " in err and " % hits" in err


def test_a_run_leaves_counts_for_the_next_and_no_usage_leaves_nothing(call, qwen3_moe_file, cache):
    c = Container.open(qwen3_moe_file)
    history = UsageFile(c.content_id, sum(x.n for x in c.layers))
    answer(call, qwen3_moe_file, "--no-usage")
    assert not history.path.exists()
    answer(call, qwen3_moe_file)
    once = history.load()
    answer(call, qwen3_moe_file)
    assert history.path.is_relative_to(cache) and history.load().tokens == 2 * once.tokens > 0 and once.counts.sum() > 0


@pytest.mark.parametrize("name", ["t.npz", "t.jsonl"])
def test_a_trace_has_every_token_that_was_evaluated(call, qwen3_moe_file, tmp_path, name):
    r = answer(call, qwen3_moe_file, "--no-usage", "--trace", tmp_path / name)
    t = trace.read(tmp_path / name)
    c = Container.open(qwen3_moe_file)
    assert len(t.ids) == r["stats"]["prompt_tokens"] + len(r["tokens"]) - 1
    assert t.layers.tolist() == [x.layer for x in c.layers] and t.record_bytes.tolist() == [x.record_bytes for x in c.layers]


def test_a_trace_that_cannot_be_written_is_refused_before_the_answer(call, qwen3_moe_file, tmp_path):
    """It was told after the answer, and the model's own name put a trace in its place."""
    model = tmp_path / "m.moegg"
    model.write_bytes(qwen3_moe_file.read_bytes())
    for name in (model, tmp_path, tmp_path / "none" / "t.npz"):
        code, out, err = call("run", model, "--no-usage", "--trace", name, "hi")
        assert code in (2, 3) and not out and ("expected" in err or "no such folder" in err)
    assert model.read_bytes() == qwen3_moe_file.read_bytes()


def test_inspect_shows_the_plan_without_reading_weights(call, qwen3_moe_file):
    code, out, _ = call("inspect", qwen3_moe_file, "--ram", "1G", "--ctx", "256")
    assert code == 0 and "KV state (256 tokens" in out and "expert cache" in out and "1.0 GiB" in out
    code, out, _ = call("inspect", qwen3_moe_file, "--ram", "1G", "--ctx", "256", "--json")
    plan = json.loads(out)["plan"]
    assert code == 0 and plan["budget"] == 1 << 30 and plan["total"] <= plan["budget"] and plan["ctx"] == 256
    assert "plan" not in json.loads(call("inspect", qwen3_moe_file, "--json")[1])


def test_a_sweep_measures_each_budget_and_says_which_do_not_fit(call, qwen3_moe_file):
    assert call("bench", qwen3_moe_file, "--ram=1M,1G", "--no-usage", *QUICK)[0] == 0
    code, out, _ = call("bench", qwen3_moe_file, "--ram=1M,1G", "--no-usage", "--json", *QUICK)
    small, large = json.loads(out)["sweep"]
    assert code == 0 and small == {"ram": 1 << 20, "fits": False}
    assert large["ram"] == 1 << 30 and large["decode_tps"] > 0 and 0 <= large["experts"]["hit_rate"] <= 1


def test_a_report_is_markdown_with_machine_figures_and_command(call, qwen3_moe_file):
    code, out, _ = call("bench", qwen3_moe_file, "--report", "--no-usage", *QUICK)
    assert code == 0 and out.startswith("**moegg ") and "- machine: " in out and "`moegg bench " in out and "\n```\n" in out


@pytest.mark.parametrize("size", ["nan", "0", "-1G", "1e3G", "8 GB of"])
def test_a_senseless_budget_is_an_error_not_everything(call, qwen3_moe_file, size):
    """known_failures H5: an invalid value must not fall back to loading everything."""
    code, out, err = call("run", qwen3_moe_file, "abc", "--raw", f"--ram={size}")
    assert code in (2, 5) and not out and "--ram" in err


def test_cold_measures_from_the_first_token_on(call, qwen3_moe_file):
    r = json.loads(call("bench", qwen3_moe_file, "--cold", "--json", "--no-usage", *QUICK)[1])
    assert r["resident_s"] is None and len(r["runs"]) == 1 and r["prefill_tps"] > 0


def test_run_takes_one_size(call, qwen3_moe_file):
    code, _, err = call("run", qwen3_moe_file, "abc", "--ram", "1G,2G")
    assert code == 2 and "--ram: got several sizes, expected one" in err


def test_a_small_file_is_not_worth_a_measurement(qwen3_moe_file, cache):
    assert disk_profile(Container.open(qwen3_moe_file)).readings == () and not cache.exists()


def test_the_demo_gives_the_known_answer_at_every_level(call):
    code, out, _ = call("doctor", "--json", "--threads=2")
    r = json.loads(out)
    assert code == 0 and [t["level"] for t in r["self_test"]] == kernels.levels() and all(t["ok"] for t in r["self_test"])
    assert r["read_bytes_per_s"] > 0 and r["disk"] is None


def test_a_wrong_answer_is_not_a_healthy_machine(call, monkeypatch):
    monkeypatch.setattr(doctor, "answer", lambda engine, prompt, n: ([0] * n, "00"))
    code, out, _ = call("doctor", "--threads=1")
    assert code == 70 and "WRONG from token 0 on" in out


# --- dense models -------------------------------------------------------------------------------------------------------

@pytest.fixture
def dense_file(tmp_path, monkeypatch):
    """A tiny dense model that is taken for one too large for any budget as a whole; plans do not depend on what the process uses."""
    path = convert_to(tiny.hf(tmp_path / "source", "llama", num_hidden_layers=9, intermediate_size=4096), tmp_path, "q8")
    real = dense.sizes
    monkeypatch.setattr("moegg.engine.engine.own_bytes", lambda: 0)
    monkeypatch.setattr(dense, "sizes", lambda c, m: replace(real(c, m), resident=1 << 50))
    return path


def test_a_dense_model_answers_the_same_when_its_layers_stream(call, dense_file, monkeypatch):
    tight = [answer(call, dense_file, "--ram", f"{smallest(call, dense_file)}M", "--io", io) for io in ("page-cache", "direct")]
    stats = tight[1]["stats"]["layers"]
    assert stats["misses"] > 0 and stats["demanded"] > 0 and stats["direct"] == 1 and "experts" not in tight[1]["stats"]
    code, _, err = call("run", dense_file, "abc", "--raw", "--temp=0", "--max-tokens=4", "--stats", "--ram", f"{smallest(call, dense_file)}M")
    assert code == 0 and "; layers: " in err and " % hits" in err
    monkeypatch.undo()
    free = answer(call, dense_file)
    assert "layers" not in free["stats"] and all((t["tokens"], t["text"]) == (free["tokens"], free["text"]) for t in tight)


def test_inspect_says_which_layers_stay_and_what_a_token_reads(call, dense_file):
    least = smallest(call, dense_file)
    code, out, _ = call("inspect", dense_file, "--ram", f"{least}M", "--ctx=64")
    assert code == 0 and " of 9 stay, " in out and "read for every token" in out and "expert" not in out.split("memory")[1]
    plan = json.loads(call("inspect", dense_file, "--ram", f"{least}M", "--ctx=64", "--json")[1])["plan"]
    assert plan["cycle"]["n"] == 9 and plan["total"] <= plan["budget"] and not plan["all_fits"]


def test_bench_shows_what_streaming_layers_costs(call, dense_file):
    options = [*QUICK, "--ram", f"{smallest(call, dense_file)}M", "--cold"]
    code, out, err = call("bench", dense_file, *options)
    assert code == 0 and "\nlayers " in out and "% hits" in out and "\nlayers in memory" in out, err
    r = json.loads(call("bench", dense_file, *options, "--json")[1])
    assert r["records"] == "layers" and r["cache_bytes"] < r["experts_bytes"] and 0 <= r["experts"]["hit_rate"] <= 1


def test_inspect_counts_what_the_tokenizer_of_run_takes(call, qwen3_moe_file, monkeypatch):
    """Else the smallest budget that it names is too small for `run`: Gemma 3's tokenizer takes 100 MiB."""
    memory = [100 << 20]

    def opened(container, vocab):
        memory.append(400 << 20)
        return open_tokenizer(container, vocab)
    monkeypatch.setattr(engine, "own_bytes", lambda: memory[-1])
    monkeypatch.setattr(inspect, "open_tokenizer", opened)
    assert smallest(call, qwen3_moe_file) > 400


def test_bench_reports_the_peak_of_the_model_and_not_of_measuring_the_machine(call, qwen3_moe_file, monkeypatch):
    """A table that shows 304 MiB under a budget of 160 looks like a broken promise."""
    order = []
    monkeypatch.setattr(measure, "peak_bytes", lambda: order.append("peak") or 1)
    monkeypatch.setattr(bench, "read_rate", lambda n: order.append("read") or 1e9)
    monkeypatch.setattr(bench, "int8_rate", lambda n: order.append("int8") or 1e9)
    assert call("bench", qwen3_moe_file, *QUICK)[0] == 0 and order == ["peak", "read", "int8"]


def test_a_trace_says_by_its_name_in_which_form_it_is(call, tmp_path):
    code, _, err = call("run", "demo", "a", "--trace", tmp_path / "t.txt")
    assert code == 2 and "expected a file name that ends in .npz or .jsonl" in err and not (tmp_path / "t.txt").exists()
