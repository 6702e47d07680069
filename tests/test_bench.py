"""`moegg bench` and bench/: which tokens are evaluated and in which order, what is counted, what is said. Nothing here is about speed."""
import importlib
import json
import random
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from moegg import kernels
from moegg.cli import main
from moegg.commands import measure
from moegg.commands.bench import table
from moegg.commands.measure import Run, Work
from moegg.errors import BadRequest
from moegg.formats.container import Container
from moegg.io import memory
from tests import tiny
from tests.loading import open_engine

BENCH = Path(__file__).resolve().parents[1] / "bench"
SMALL = ["--prompt", "20", "--gen", "6", "--warm", "2", "--runs", "2", "--threads", "1"]


@pytest.fixture
def script(monkeypatch):
    """Imports a script of bench/ and whatever it imports from there; all of it is forgotten afterwards."""
    monkeypatch.syspath_prepend(str(BENCH))
    names = [p.stem for p in BENCH.glob("*.py")]
    yield importlib.import_module
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(measure, "READ_BYTES", 1 << 16)
    monkeypatch.setattr(measure, "INT8_ITEMS", 1)
    monkeypatch.setattr(measure, "LIMIT_ROUNDS", 1)


# --- tokens -------------------------------------------------------------------------------------------------------------

def test_ids_are_one_stream_and_the_peer_draws_the_same(script):
    """Both engines must meet the same experts."""
    rnd = random.Random(7)
    stream = [rnd.randrange(1000) for _ in range(3 + 5 + 2 + 4)]
    t = Work(3, 5, 2, 4, seed=7).draw(1000)
    assert t.depth + t.prompt + t.warm + t.gen == stream and [len(x) for x in (t.depth, t.prompt, t.warm, t.gen)] == [3, 5, 2, 4]
    assert script("peer_llama_cpp").draw(7, 1000, [3, 5, 2, 4]) == [t.depth, t.prompt, t.warm, t.gen]


class Recorder:
    """An engine and its session that write down what they are fed. forgets: rewinding to anything but 0 is impossible."""

    def __init__(self, forgets=False, ubatch=4):
        self.fed, self.log, self.forgets, self.ubatch = [], [], forgets, ubatch
        self.plan = SimpleNamespace(experts=0)

    def session(self):
        return self

    def step(self, work):
        for _, tokens in work:
            self.log.append(list(tokens))
            self.fed += tokens
        return [np.zeros(3, np.float32)]

    def eval(self, token):
        self.log.append(token)
        self.fed.append(token)

    def rewind(self, n):
        kept = 0 if self.forgets else min(n, len(self.fed))
        del self.fed[kept:]
        return kept


@pytest.mark.parametrize("forgets", [False, True])
def test_every_run_evaluates_the_same_timeline(forgets):
    engine, t = Recorder(forgets), Work(3, 2, 1, 2, seed=1).draw(50)
    runs = measure.repeat(engine, t, 3)
    again = [t.depth, t.prompt, t.warm[0], *t.gen]
    warm_up = [(t.depth + t.prompt)[:4], t.warm[0]]
    assert engine.log == warm_up + again + 2 * (again if forgets else again[1:])
    assert engine.fed == t.depth + t.prompt + t.warm + t.gen and len(runs) == 3


def test_what_was_not_asked_is_absent_not_zero():
    only_decode = measure.repeat(Recorder(), Work(0, 0, 0, 2, 1).draw(9), 2)
    s = measure.summary(only_decode)
    assert s["prefill_tps"] is s["ttft_s"] is s["spread"]["prefill_tps"] is None and s["decode_tps"] > 0
    assert measure.summary([Run(1.0, 2.0, 3.0), Run(3.0, 1.0, 4.0), Run(2.0, 9.0, 5.0)]) == {
        "prefill_tps": 2.0, "ttft_s": 2.0, "decode_tps": 4.0, "experts": {},
        "spread": {"prefill_tps": [1.0, 3.0], "ttft_s": [1.0, 9.0], "decode_tps": [3.0, 5.0]}}


# --- what a token costs -------------------------------------------------------------------------------------------------

def test_bytes_and_operations_of_a_token_by_hand(qwen3_moe_file):
    """An f32 file: 4 bytes per weight; the embedding, untied, is only looked up."""
    c, engine = Container.open(qwen3_moe_file), open_engine(qwen3_moe_file, ctx=64, n_threads=1)
    m, moe = engine.model, [layer.ffn for layer in engine.model.layers]
    per_expert = sum(p.shape[0] * p.shape[1] for p in moe[0].experts.parts)
    expert_bytes = sum(f.top_k * c.layers[0].record_bytes for f in moe)
    resident = sum(t.nbytes for t in c.tensors.values()) - (c.tensors["embed"].nbytes if m.head else 0)
    a = m.layers[0].attn
    state = len(moe) * a.n_kv_head * a.head_dim * 2 * 4 * (11 + 12) // 2       # positions 10 and 11 see 11 and 12
    assert a.head_dim % 16 == 0 and not a.window
    assert measure.decode_bytes(c, m, "f32", 10, 2) == resident + expert_bytes + state
    assert measure.decode_bytes(c, m, "f16", 10, 2) == resident + expert_bytes + state // 2
    rows = a.head_dim * (2 * a.n_head + 2 * a.n_kv_head)
    assert measure.prefill_ops(c) == 2 * len(moe) * (rows * m.d + moe[0].experts.n * m.d + moe[0].top_k * per_expert)


def test_a_sliding_window_bounds_the_state_that_is_read():
    a = tiny.describe("llama").layers[0].attn
    attn = replace(a, n_kv_head=1, head_dim=8, window=4)            # a row is 8 keys and 16 values, padded
    c, m = SimpleNamespace(tensors={}, layers=[]), SimpleNamespace(layers=[SimpleNamespace(attn=attn)])
    assert measure.decode_bytes(c, m, "f16", 100, 3) == 4 * (8 + 16) * 2


# --- the machine --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("ahead", measure.READ_AHEAD)
def test_reading_meets_every_word_once(threads, ahead):
    data = np.random.default_rng(5).integers(0, 256, (3 << 20) + 64, np.uint8)
    assert kernels.Pool(threads).read(data, ahead) == np.bitwise_xor.reduce(data.view(np.uint64))


def test_reading_refuses_half_a_line():
    with pytest.raises(BadRequest, match="multiple of 64"):
        kernels.Pool(1).read(np.zeros(96, np.uint8))


@pytest.mark.parametrize("loop", ["int8", "fma"])
def test_the_loops_count_their_operations_at_every_level(loop):
    run, counts = getattr(kernels.Pool(2), loop), []
    try:
        for level in kernels.levels():
            kernels.select(level)
            counts.append(run(4))
            assert run(8) == 2 * counts[-1] > 0
    finally:
        kernels.select()
    assert counts == sorted(counts)


SMAPS = """7f0000000000-7f0000200000 r--s 00000000 fe:00 12 /x/my model.moegg
Size:               2048 kB
KernelPageSize:        4 kB
Rss:                1024 kB
AnonHugePages:         0 kB
ShmemPmdMapped:        0 kB
FilePmdMapped:       512 kB
VmFlags: rd sh mr mw me
7f0000200000-7f0000201000 r--s 00200000 fe:00 12 /x/my model.moegg
Size:                  4 kB
KernelPageSize:        4 kB
Rss:                   4 kB
7f1000000000-7f1000800000 rw-p 00000000 00:00 0
Size:               8192 kB
KernelPageSize:        4 kB
Rss:                8192 kB
AnonHugePages:      6144 kB
VmFlags: rd wr"""


def test_pages_of_a_mapping_are_added_up_and_a_copy_counts_if_there_is_none():
    lines = SMAPS.splitlines()
    mapped, copied = measure.pages(Path("/x/my model.moegg"), lines), measure.pages(Path("/x/other"), lines)
    assert (mapped["Size"], mapped["Rss"], mapped["FilePmdMapped"], mapped["KernelPageSize"]) == (2052 << 10, 1028 << 10, 512 << 10, 4096)
    assert (copied["Size"], copied["AnonHugePages"]) == (8 << 20, 6 << 20)
    assert measure.pages(Path("/x"), []) is None


def test_others_load_is_what_everyone_used_less_our_own(monkeypatch):
    moments = iter([(0.0, 100.0, 10.0), (10.0, 125.0, 25.0), (10.0, 101.0, 25.0)])
    monkeypatch.setattr(measure.Others, "_now", staticmethod(lambda: next(moments)))
    others = measure.Others()
    assert (others.load(), others.load()) == (1.0, 0.0)
    monkeypatch.setattr(measure.Others, "_now", staticmethod(lambda: None))
    assert measure.Others().load() is None


# --- the command --------------------------------------------------------------------------------------------------------

def test_json_has_the_promised_keys_and_they_agree(qwen3_moe_file, capsys, quick):
    assert main(["bench", str(qwen3_moe_file), "--json", "--ctx-depth", "9", *SMALL]) == 0
    r = json.loads(capsys.readouterr().out)
    assert {"prefill_tps", "decode_tps", "ttft_s", "decode_gbps", "read_gbps", "fraction_of_read_bandwidth", "int8_gops", "fraction_of_int8",
            "peak_memory_bytes", "pages", "threads", "level", "version", "file", "seed", "spread", "runs", "resident_s", "cpu"} <= r.keys()
    assert (r["prompt"], r["gen"], r["warm"], r["ctx_depth"], r["threads"], r["seed"], len(r["runs"])) == (20, 6, 2, 9, 1, 7, 2)
    assert r["level"] == kernels.level() and r["vocab"] == 512 and r["root"] == Container.open(qwen3_moe_file).root.hex()
    for key in ("prefill_tps", "decode_tps", "ttft_s"):
        values = [run[key] for run in r["runs"]]
        assert r["spread"][key] == [min(values), max(values)] and min(values) <= r[key] <= max(values)
    assert r["decode_gbps"] == pytest.approx(r["decode_tps"] * r["decode_bytes_per_token"] / 1e9, rel=1e-4)
    assert r["fraction_of_read_bandwidth"] == pytest.approx(r["decode_gbps"] / r["read_gbps"], rel=1e-4)
    if r["pages"]:
        assert r["pages"]["Size"] >= r["file_bytes"] and r["pages"]["Rss"] >= r["file_bytes"] and r["peak_memory_bytes"] > r["file_bytes"]


def test_the_table_is_for_people_and_leaves_out_what_was_not_measured(qwen3_moe_file, capsys, quick):
    assert main(["bench", str(qwen3_moe_file), *SMALL]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{qwen3_moe_file}: ") and "prompt, 20 tokens" in out and "answer, 6 tokens" in out and "first token" in out
    assert main(["bench", str(qwen3_moe_file), "--prompt=0", "--gen=2", "--runs=1", "--threads=1"]) == 0
    out = capsys.readouterr().out
    assert "prompt" not in out and "answer, 2 tokens" in out


def test_one_run_has_no_median_and_no_spread(qwen3_moe_file, capsys, quick):
    assert main(["bench", str(qwen3_moe_file), "--prompt=8", "--gen=2", "--runs=1", "--threads=1"]) == 0
    out = capsys.readouterr().out
    assert "one run" in out and "median" not in out and " to " not in out


def test_doubts_stand_below_the_result_where_they_are_read(qwen3_moe_file, capfd, quick, monkeypatch):
    monkeypatch.setattr("moegg.commands.bench.NOISE", -1.0)
    monkeypatch.setattr("sys.stderr", sys.stdout)
    assert main(["bench", str(qwen3_moe_file), *SMALL]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert "warning" not in lines[0] and lines[-1].startswith("moegg: warning: ")


def test_a_system_without_proc_still_gets_a_table(qwen3_moe_file, capsys, quick, monkeypatch):
    monkeypatch.setattr(measure, "_lines", lambda path: [])
    monkeypatch.setattr(memory, "_text", lambda path: "")
    assert main(["bench", str(qwen3_moe_file), "--json", *SMALL]) == 0
    r = json.loads(capsys.readouterr().out)
    assert r["pages"] is r["others_load"] is r["anonymous_bytes"] is None and r["cpu"] is not None
    assert len(table(r)) == 5 - (r["peak_memory_bytes"] is None)


@pytest.mark.parametrize("argv, message", [
    (["--prompt", "0", "--gen", "0"], "--prompt and --gen: got 0 for both"),
    (["--ram", "much"], "--ram: not a size: got 'much'"),
    (["--io", "tape"], "--io: bad value: got 'tape', expected one of auto, page-cache, direct"),
    (["--runs", "0"], "--runs: bad value"),
])
def test_a_measurement_of_nothing_is_a_usage_error(qwen3_moe_file, capsys, argv, message):
    assert main(["bench", str(qwen3_moe_file), *argv]) == 2
    assert message in capsys.readouterr().err


# --- scripts ------------------------------------------------------------------------------------------------------------

def engine_command(tmp_path, name, values):
    """A command that appends its name to a file and prints the next of `values` each time."""
    code = (f"import json,pathlib; p=pathlib.Path({str(tmp_path / 'order')!r}); t=p.read_text() if p.exists() else ''; "
            f"p.write_text(t+{name!r}); print('words'); print(json.dumps({values!r}[t.count({name!r})]))")
    return f'"{sys.executable}" -c "{code}"'


def test_compare_alternates_and_a_block_drops_its_first_run(script, tmp_path, capsys):
    compare = script("compare")
    commands = [engine_command(tmp_path, n, [{"decode_tps": v, "seed": 7} for v in range(1, 9)]) for n in "AB"]
    results, _ = compare.measure(commands, 3, 1)
    assert (tmp_path / "order").read_text() == "ABABAB" and [r["decode_tps"] for r in results[0]] == [1, 2, 3]
    (tmp_path / "order").unlink()
    results, _ = compare.measure(commands, 2, 2)
    assert (tmp_path / "order").read_text() == "AAABBBAAABBB" and [r["decode_tps"] for r in results[1]] == [2, 3, 5, 6]


def test_compare_gives_medians_ratios_and_doubts(script):
    compare = script("compare")
    a = [{"decode_tps": v, "ttft_s": 0.5, "vocab": 10, "prefill_tps": None} for v in (20.0, 21.0, 30.0)]
    b = [{"decode_tps": v, "ttft_s": 1.0, "vocab": 12, "prefill_tps": 3.0} for v in (10.0, 10.5, 10.6)]
    rows = compare.rows([a, b])
    assert rows.keys() == {"decode_tps", "ttft_s"} and rows["decode_tps"]["ratio"] == 2.0 and rows["ttft_s"]["ratio"] == 2.0
    notes = compare.warnings(rows, [a, b], ["new", "old"], 0.5)
    assert [n.split(":")[0] for n in notes] == ["not the same work", "decode, tok/s of new differs by 50 % between runs",
                                                "other programs kept 0.5 cores busy"]
    text = compare.markdown(rows, ["new", "old"], notes)
    assert "| decode, tok/s | 21 (20 to 30) | 10.5 (10 to 10.6) | 2.00 |" in text and text.endswith("busy.")
    same = compare.rows([b, b])
    assert same["decode_tps"]["overlap"] and "no difference" in compare.markdown(same, ["x", "y"], [])


def test_the_table_of_the_readme_is_replaced_between_its_marks(script, tmp_path):
    made, doc = tmp_path / "c.json", tmp_path / "R.md"
    commands = [engine_command(tmp_path, n, [{"decode_tps": v, "prefill_tps": 2 * v, "threads": 2}] * 2) for n, v in (("A", 30.0), ("B", 20.0))]
    for argv in (["compare.py", *commands, "--names", "moegg,peer", "--rounds", "2", "--title", "M Q4", "--out", str(made)],
                 ["table.py", str(made), "--into", str(doc)]):
        doc.write_text("before\n<!-- bench -->\nold\n<!-- /bench -->\nafter\n")
        done = subprocess.run([sys.executable, str(BENCH / argv[0]), *argv[1:]], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
    text = doc.read_text()
    assert text.startswith("before\n<!-- bench -->\n| model |") and text.endswith("<!-- /bench -->\nafter\n") and "old" not in text
    assert "| M Q4 | 60.0 | 40.0 | 1.50 | 30.0 | 20.0 | 1.50 |" in text
    with pytest.raises(ValueError, match="0 pairs"):
        script("table").insert("no marks", "x")


def test_the_plot_is_wellformed_and_its_fit_is_right(script):
    plot = script("plot")
    assert plot.line_fit([(0, 1), (1, 3), (2, 5)]) == pytest.approx((2, 1, 1))
    assert plot.ticks(0.9)[-1] >= 0.9 and plot.ticks(32768)[1] in (5000, 10000)
    root = ET.fromstring(plot.svg("a < b & c", "x", "y", {"decode": [(1024, 2.0), (32768, 9.0)], "flat": [(0, 1.0), (10, 1.0)]}))
    assert len(root.findall("{*}circle")) == 4


def test_a_growing_context_is_measured_at_its_lengths(script, qwen3_moe_file):
    context, engine = script("context"), open_engine(qwen3_moe_file, ctx=64, n_threads=1)
    points = list(context.grow(engine, [8, 20, 32], 2, seed=3))
    assert [(p["ctx_depth"], p["prefill_tokens"]) for p in points] == [(8, 8), (20, 10), (32, 10)]


def test_gemv_reads_whole_groups(script):
    gemv = script("gemv")
    data = np.full(100_000, 0x2e, np.uint8)
    assert all(len(gemv.rates(q, data, 256, kernels.Pool(2), 2)) == 2 for q in ("q4_0", "q6_k", "bf16"))


@pytest.mark.parametrize("name, changes, ops", [
    ("deltanet", {"hidden_size": 64, "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4},
     {"conv", "matrix"}),
    ("mla", {"hidden_size": 64, "q_lora_rank": 32, "qk_nope_head_dim": 32, "v_head_dim": 32, "num_attention_heads": 2, "num_key_value_heads": 2},
     {"latent", "heads", "attention"})])
@pytest.mark.parametrize("tokens", [1, 5])
def test_mixers_are_timed_op_by_op(script, monkeypatch, name, changes, ops, tokens):
    mixers = script("mixers")
    case = mixers.CASES[name]
    config = tiny.config(case.arch, **changes, intermediate_size=64, moe_intermediate_size=32, shared_expert_intermediate_size=32)
    monkeypatch.setattr(mixers, "CASES", mixers.CASES | {name: replace(case, config=config)})
    monkeypatch.setattr(mixers, "limits", lambda level, threads: (1e9, 1e9))
    got = list(mixers.records(name, kernels.level(), 1, 64, tokens, 1, mixers.Bytes(1), 1))
    assert {r["op"] for r in got} == ops | {"others"} and all(r["us"] > 0 and r["products_us"] > 0 for r in got)
    assert all(r["limit_us"] > 0 for r in got if r["op"] in ("matrix", "attention")) and {r["depth"] for r in got} == {64 if tokens == 1 else 0}


def test_what_a_mixer_does_at_least(script):
    mixers = script("mixers")
    layer = mixers.model_of(mixers.CASES["deltanet"], 1).layers[0]
    assert mixers.floor("matrix", layer, 0, 512) == (8 * 32 * 128 * 128, 4 * 32 * 128 * 128 * 512)
    layer = mixers.model_of(mixers.CASES["sinks-window"], 1).layers[0]
    assert mixers.floor("attention", layer, 4096, 1) == (2 * 8 * 128 * 128, 64 * 128 * 128)


def test_records_repeat_machine_and_work(script, capsys):
    common = script("common")
    common.emit("decode", {"runs": [{"decode_tps": 1.0, "ttft_s": None}, {"decode_tps": 2.0, "ttft_s": None}], "spread": {}, "decode_tps": 1.5,
                           "file": __file__, "root": "ab"})
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(x["repetition"], x["decode_tps"]) for x in lines] == [(0, 1.0), (1, 2.0)]
    assert all({"bench", "commit", "dirty", "time", "storage", "page_cache", "root"} <= x.keys() and "ttft_s" not in x for x in lines)


def test_a_failing_command_ends_a_comparison(script):
    with pytest.raises(SystemExit, match="ended with 3"):
        script("common").last_json([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(SystemExit, match="no JSON"):
        script("common").last_json([sys.executable, "-c", "print('hello')"])


@pytest.mark.parametrize("arch", ["qwen3-moe", "gemma4", "lfm2-moe", "gpt-oss", "deepseek"])
def test_a_synthetic_file_opens_verifies_and_routes_tokens_to_many_experts(script, tmp_path, arch, capsys):
    """bench/synthetic.py: other experts for other tokens, finite logits of a sane size, and the same bytes from the same seed."""
    synthetic = script("synthetic")
    synthetic.POOL = 32
    sizes = [synthetic.write(tiny.config(arch), tmp_path / f"{n}.moegg", "q4", "synthetic", seed) for n, seed in (("a", 3), ("b", 3), ("c", 4))]
    a, b, c = (tmp_path / f"{n}.moegg" for n in "abc")
    assert a.read_bytes() == b.read_bytes() != c.read_bytes() and a.stat().st_size == sizes[0]
    assert main(["verify", str(a)]) == 0
    logits, chosen, _, layers = open_engine(a, ctx=64).forward(list(range(3, 60)))
    assert np.isfinite(logits).all() and 0.1 < logits.std() < 10
    assert len(layers) == len(chosen) and all(len(np.unique(layer)) > layer.shape[1] for layer in chosen)
