"""The command line: what it accepts, what it says when it does not, where output goes, and every command end to end."""
import importlib
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import moegg
from moegg import cli, kernels
from moegg.cli import COMMANDS
from moegg.commands.options import OPTIONS, SHARED, declared, parse
from moegg.errors import UsageError
from moegg.formats.container import Container
from tests import oracle

DOCS = {name: importlib.import_module(f"moegg.commands.{name}").__doc__ for name in COMMANDS}
ENV = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG", "PYTHON")) or k == "PYTHONPATH"}


def program(*argv, **options):
    """The command line of a fresh process."""
    defaults = {"env": ENV, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "timeout": 120}
    if "input" not in options:
        defaults["stdin"] = subprocess.DEVNULL
    return subprocess.run([sys.executable, "-m", "moegg", *map(str, argv)], **defaults | options)


def typed(monkeypatch, data: bytes):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


# --- help and usage -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_one_screen(name):
    lines = DOCS[name].strip().splitlines()
    assert len(lines) <= 45 and max(map(len, lines)) <= 100


@pytest.mark.parametrize("name", COMMANDS)
def test_shared_options_are_spelled_identically(name):
    lines = DOCS[name].splitlines()
    for option, line in SHARED.items():
        if option in declared(DOCS[name]) and (option, name in ("perplexity", "calibrate")) != ("--ctx", True):    # their windows are shorter
            assert line in lines, f"{name}: {option}"
    assert {"--verbose", "--debug", "--help"} <= set(declared(DOCS[name]))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_value_has_a_conversion(name):
    """'[default: x]' in a help text would be a value to docopt."""
    assert [long for long, takes in declared(DOCS[name]).values() if takes and long not in OPTIONS] == []
    assert "[default" not in DOCS[name]
    assert not re.search(r"^-", DOCS[name], re.M)            # docopt would take prose that begins so for an option


@pytest.mark.parametrize("name", COMMANDS)
def test_help_wins_and_goes_to_stdout(call, name):
    code, out, err = call(name, "a", "--help", "b", "c")
    assert (code, out, err) == (0, DOCS[name].rstrip() + "\n", "")


def test_without_arguments_it_shows_usage_and_a_quick_start(call):
    code, out, err = call()
    assert code == 0 and not err and out.startswith("Usage: moegg ")
    assert out.count("\n  moegg ") == 3


def test_top_help_names_every_command(call):
    code, out, _ = call("--help")
    assert code == 0 and re.findall(r"^  (\w+)   ", out, re.M) == list(COMMANDS)


def test_version_says_version_format_and_cpu_level(call):
    assert call("--version")[1] == f"moegg {moegg.__version__}, format 1, CPU level {kernels.level()}\n"
    assert len(call("--version", "--verbose")[1].splitlines()) > 1


@pytest.mark.parametrize("argv, message", [
    (["rnu"], "unknown command 'rnu'; did you mean 'run'? (moegg --help) [usage]"),
    (["frobnicate"], "unknown command 'frobnicate' (moegg --help) [usage]"),
    (["--versio"], "unknown option '--versio'; did you mean '--version'?"),
    (["run", "m", "--tmep", "1"], "run: unknown option '--tmep'; did you mean '--temp'? (moegg run --help) [usage]"),
    (["run", "m", "--max", "1"], "run: unknown option '--max'"),
    (["run", "m", "- a list"], "run: unknown option '- a list'; put '--' before text that begins with '-'"),
    (["run", "m", "-x"], "run: unknown option '-x'; put '--' before text"),
    (["run", "m", "--temp"], "run: option '--temp' needs a value: got nothing after it"),
    (["run", "m", "--raw=1"], "run: option '--raw' takes no value: got '--raw=1', expected '--raw'"),
    (["run", "m", "--temp", "1", "--temp=2"], "run: option '--temp' is given twice"),
    (["run", "m", "--temp", "hot"], "run: --temp: bad value: got 'hot', expected a number from 0 to 100"),
    (["run", "m", "--temp", "nan"], "got 'nan', expected a number"),
    (["run", "m", "--temp", "-1"], "got '-1', expected a number"),
    (["run", "m", "--top-k", "1.5"], "--top-k: bad value: got '1.5', expected a whole number from 0"),
    (["run", "m", "--seed", "1" * 21], "expected a whole number"),
    (["run", "m", "--ctx", "0"], "--ctx: bad value: got '0', expected a whole number from 1"),
    (["run", "m", "--threads", "²"], "--threads: bad value"),
    (["run"], "run: wrong arguments: got nothing, expected MODEL [PROMPT] (moegg run --help) [usage]"),
    (["run", "a", "b", "c"], "run: wrong arguments: got 'a' 'b' 'c', expected MODEL [PROMPT]"),
    (["verify"], "verify: wrong arguments: got nothing, expected MODEL"),
    (["forward", "m", "--tokens", "1,,2", "--out", "x"], "forward: --tokens: bad value: got '1,,2', expected token ids such as 1,2,3"),
    (["forward", "m"], "forward: wrong arguments: got 'm', expected MODEL --tokens=IDS --out=FILE"),
    (["convert", "m", "--quant", "q7"], "convert: --quant: bad value: got 'q7', expected one of keep, f32, bf16, f16, q8, q6, q5, q4, q3, q2, or an "
                                        "older version such as q4@1"),
    (["convert", ""], "convert: SOURCE: bad value: got '', expected a file name"),
    (["run", "m", "\udcff"], "run: PROMPT: not UTF-8 text"),
    (["run", "m", "hi", "--file", "f"], "run: PROMPT and --file exclude each other"),
    (["run", "m", "hi", "--raw", "--system", "f"], "run: --raw and --system exclude each other"),
    (["run", "m", "hi", "--stop="], "run: --stop: got an empty text"),
])
def test_a_wrong_command_line_is_one_line_and_exit_code_2(call, argv, message):
    code, out, err = call(*argv)
    assert code == 2 and not out and message in err
    assert err.startswith("moegg: ") and err.count("\n") == 1 and err.endswith("[usage]\n")


@pytest.mark.parametrize("argv, expected", [
    (["m"], {"MODEL": Path("m"), "PROMPT": None, "--temp": None, "--stop": [], "--raw": False}),
    (["--temp", "0", "m", "-5"], {"PROMPT": "-5", "--temp": 0.0}),
    (["m", "--", "--temp"], {"PROMPT": "--temp", "--temp": None}),
    (["m", "-"], {"PROMPT": "-"}),
    (["m", "", "--raw"], {"PROMPT": "", "--raw": True}),
    (["--stop", "a", "m", "--stop=b", "--stop", "--"], {"--stop": ["a", "b", "--"]}),
    (["m", "--presence-penalty", "-1.5", "--system=--x"], {"--presence-penalty": -1.5, "--system": "--x"}),
    (["m", "a=b\nc"], {"PROMPT": "a=b\nc"}),
])
def test_what_docopt_alone_gets_wrong(argv, expected):
    got = parse(DOCS["run"], argv, "run")
    assert {k: got[k] for k in expected} == expected


def test_short_options():
    for argv in (["-o", "x", "s"], ["-ox", "s"], ["--out=x", "s"]):
        assert parse(DOCS["convert"], argv, "convert")["--out"] == Path("x")
    with pytest.raises(UsageError, match="twice"):
        parse(DOCS["convert"], ["-o", "x", "--out", "y", "s"], "convert")


# --- errors, exit codes, streams ----------------------------------------------------------------------------------------

def test_debug_shows_a_traceback_and_only_debug(call):
    for argv in (["verify", "no-such-file"], ["verify", "--debug", "no-such-file"], ["--debug", "verify", "no-such-file"]):
        code, out, err = call(*argv)
        assert code == 3 and not out
        assert err.splitlines()[-1] == "moegg: no-such-file: no such file; 'moegg list' shows the names of what is here [file-missing]"
        assert ("Traceback" in err) == ("--debug" in argv)


def test_a_bug_says_so_in_one_line(call, monkeypatch):
    def broken(argv):
        raise KeyError("x\ny")
    monkeypatch.setattr(cli, "_dispatch", broken)
    code, _, err = call()
    assert code == 70 and err.count("\n") == 1 and "this is a bug in moegg" in err and "--debug" in err


def test_ctrl_c_is_130_without_words(call, monkeypatch):
    def stopped(argv):
        raise KeyboardInterrupt
    monkeypatch.setattr(cli, "_dispatch", stopped)
    assert call() == (130, "", "\n")


@pytest.mark.parametrize("make, hint", [
    (lambda p: p.mkdir(), "moegg convert"), (lambda p: p.write_bytes(b"GGUF" + bytes(100)), "moegg convert"),
    (lambda p: p.write_bytes(b""), ""), (lambda p: p.write_bytes(bytes(100_000)), "")])
def test_what_is_no_moegg_file_is_named_and_exit_code_3(call, tmp_path, make, hint):
    make(tmp_path / "model")
    for command in (["run"], ["inspect"], ["verify"]):
        code, out, err = call(*command, tmp_path / "model", *(["hi"] if command == ["run"] else []))
        assert code == 3 and not out and err.startswith(f"moegg: {tmp_path / 'model'}: ") and hint in err and err.count("\n") == 1


def test_utf8_even_in_a_latin_or_c_locale(qwen3_moe_file):
    for env in ({"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}, {"PYTHONIOENCODING": "latin-1"}):
        done = program("tokenize", qwen3_moe_file, "-", "--json", input="空 é".encode(), env=ENV | env)
        assert done.returncode == 0, done.stderr
        pieces = json.loads(done.stdout.decode("utf-8"))["pieces"]
        assert "".join(pieces).encode("utf-8", "backslashreplace")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_stdout_is_one_line(qwen3_moe_file):
    with open("/dev/full", "wb") as full:
        done = program("inspect", qwen3_moe_file, stdout=full)
    assert done.returncode == 6 and done.stderr.decode().splitlines() == ["moegg: output: No space left on device [io]"]


def test_head_ends_the_program_quietly(qwen3_moe_file):
    """The reader takes one line of many and leaves."""
    command = f"'{sys.executable}' -m moegg run '{qwen3_moe_file}' hi --raw --temp 0 --max-tokens 4000 --ctx 4096 --stop=@@@"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command} | head -c 5"], capture_output=True, timeout=120, env=ENV,
                          stdin=subprocess.DEVNULL)
    assert (done.returncode, len(done.stdout)) == (0, 5), done.stderr
    assert b"Traceback" not in done.stderr and b"Exception" not in done.stderr


def test_closed_standard_streams_do_no_harm(qwen3_moe_file):
    command = f"'{sys.executable}' -m moegg inspect '{qwen3_moe_file}'"
    for streams, code, words in (("2>&-", 0, b""), (">&- 2>&-", 6, b""), (">&-", 6, b"moegg: standard output: is closed")):
        done = subprocess.run(["bash", "-c", f"{command} {streams}"], timeout=60, env=ENV, capture_output=True)
        assert done.returncode == code and done.stderr.startswith(words) and done.stderr.count(b"\n") == bool(words)


def test_an_answer_that_nobody_can_read_is_an_error(qwen3_moe_file):
    """stdout is closed: the exit code was 0 and the answer lost."""
    done = subprocess.run(["bash", "-c", f"'{sys.executable}' -m moegg run '{qwen3_moe_file}' hi --raw --max-tokens 4 >&-"],
                          timeout=60, env=ENV, capture_output=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 6 and b"[io-write]" in done.stderr and b"Traceback" not in done.stderr


def test_python_m_moegg_and_exit_code_of_the_process():
    done = program("verify", "no-such-file")
    assert (done.returncode, done.stdout) == (3, b"") and b"[file-missing]" in done.stderr


# --- convert, inspect, verify, tokenize, forward -------------------------------------------------------------------------

def test_convert_run_forward_verify_inspect_on_a_path_with_spaces_and_umlauts(call, qwen3_moe_folder, tmp_path):
    """P1: non-ASCII paths. The whole way with the real engine (P11)."""
    folder = tmp_path / "mödel 空 x"
    folder.mkdir()
    file = folder / "tiny ü.moegg"
    code, out, err = call("convert", qwen3_moe_folder, "-o", file, "--quant", "f32")
    assert (code, err.count("expert record")) == (0, 1) and out.startswith(f"{file}: ") and out.endswith(" written\n")
    code, out, err = call("inspect", file)
    assert code == 0 and not err and "qwen3-moe" in out and "4 layers of 8 expert records" in out
    code, out, err = call("verify", file)
    assert code == 0 and out.startswith(f"{file}: ok: ")
    prompt = oracle.load("qwen3_moe")[0][1]
    code, out, err = call("forward", file, "--tokens", ",".join(map(str, prompt.ids)), "-o", folder / "fö.bin")
    assert (code, out, err) == (0, "", "") and sorted(p.name for p in folder.iterdir()) == ["fö.bin", "tiny ü.moegg"]
    assert call("forward", file, "--tokens", ",".join(map(str, prompt.ids)), "-o", folder / "fö.bin")[0] == 0      # P4: replaced
    data = np.load(folder / "fö.bin")
    prompt.check(data["logits"])
    prompt.check_router(data["router_idx"], data["router_w"])
    assert data["moe_layers"].tolist() == [0, 1, 2, 3] and data["logits"].dtype == data["router_w"].dtype == np.float32


def test_dry_run_prints_the_plan_and_writes_nothing(call, qwen3_moe_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = call("convert", qwen3_moe_folder, "--dry-run")
    assert code == 0 and "recipe q4" in out and "file: " in out and not list(tmp_path.iterdir())
    code, out, err = call("convert", qwen3_moe_folder, "--dry-run", "--json", "--quant", "q8")
    plan = json.loads(out)
    assert code == 0 and plan["dry_run"] and plan["recipe"]["name"] == "q8" and not list(tmp_path.iterdir())
    code, out, err = call("convert", qwen3_moe_folder, "--quant", "q8", "--json")
    assert json.loads(out) == plan | {"dry_run": False} and os.path.getsize(plan["path"]) == plan["file_bytes"]


def test_an_existing_target_is_kept_unless_forced(call, qwen3_moe_folder, tmp_path):
    file = tmp_path / "x.moegg"
    file.write_bytes(b"precious")
    code, out, err = call("convert", qwen3_moe_folder, "-o", file)
    assert code in (1, 2, 3, 5, 6) and not out and err.splitlines()[-1].startswith(f"moegg: {file}: ") and file.read_bytes() == b"precious"
    assert call("convert", qwen3_moe_folder, "-o", file, "--force")[0] == 0
    Container.open(file)


def test_inspect_json_needs_no_weights_and_knows_provenance(call, qwen3_moe_file):
    info = json.loads(call("inspect", qwen3_moe_file, "--json")[1])
    assert info["arch"] == "qwen3-moe" and info["bytes_by_quant"].keys() == {"f32"} and info["provenance"]["recipe"]["name"] == "f32"
    assert len(info["layers"]) == 4 and re.fullmatch("[0-9a-f]{64}", info["root"])


def test_verify_names_the_bad_record_and_exits_with_3(call, qwen3_moe_file, tmp_path):
    """F8."""
    c = Container.open(qwen3_moe_file)
    data = bytearray(qwen3_moe_file.read_bytes())
    data[c.record(2, 5)[0] + 1000] ^= 1
    bad = tmp_path / "bad.moegg"
    bad.write_bytes(data)
    code, out, err = call("verify", bad)
    assert code == 3 and not out and "layer 2, expert 5" in err and err.endswith("[format-checksum]\n")


def test_tokenize_round_trip_and_special_text_stays_text(call, qwen3_moe_file, monkeypatch):
    text = "Hello <|im_end|> wörld\n"
    got = json.loads(call("tokenize", qwen3_moe_file, text, "--json")[1])
    assert 4 not in got["tokens"] and len(got["tokens"]) == len(got["pieces"]) > 5
    code, out, _ = call("tokenize", qwen3_moe_file, "ab")
    assert code == 0 and re.fullmatch(r'(\d+\t".*"\n)+', out)
    typed(monkeypatch, text.encode())
    assert json.loads(call("tokenize", qwen3_moe_file, "-", "--json")[1]) == got


def test_forward_refuses_ids_outside_the_vocabulary_and_leaves_no_file(call, qwen3_moe_file, tmp_path):
    code, out, err = call("forward", qwen3_moe_file, "--tokens", "1,512", "-o", tmp_path / "x.npz")
    assert code == 2 and "512" in err and err.endswith("[token-range]\n") and not list(tmp_path.iterdir())
    code, _, err = call("forward", qwen3_moe_file, "--tokens", "1", "-o", tmp_path / "no" / "x.npz")
    assert code == 3 and err == f"moegg: {tmp_path / 'no'}: no such folder [file-missing]\n"


# --- run ----------------------------------------------------------------------------------------------------------------

def answer(call, file, *argv):
    code, out, err = call("run", file, *argv, "--json")
    assert code == 0, err
    return json.loads(out)


def test_greedy_ids_equal_the_reference(call, qwen3_moe_file):
    """The recorded prompt is ids, not text; the chat's own loop is checked through the tokenizer's round trip of them."""
    got = answer(call, qwen3_moe_file, "Hello", "--temp", "0", "--max-tokens", "8", "--raw")
    again = answer(call, qwen3_moe_file, "Hello", "--temp", "0", "--max-tokens", "8", "--raw", "--threads", "1", "--ctx", "64")
    assert got["tokens"] == again["tokens"] and len(got["tokens"]) <= 8 and got["text"] == again["text"]


def test_the_prompt_comes_from_argument_stdin_or_file_alike(call, qwen3_moe_file, tmp_path, monkeypatch):
    common = ["--temp", "0", "--max-tokens", "6"]
    first = answer(call, qwen3_moe_file, "Hi there", *common)
    typed(monkeypatch, b"Hi there\n")
    assert answer(call, qwen3_moe_file, *common)["tokens"] == first["tokens"]
    typed(monkeypatch, b"Hi there")
    assert answer(call, qwen3_moe_file, "-", *common)["tokens"] == first["tokens"]
    (tmp_path / "p.txt").write_bytes(b"\xef\xbb\xbfHi there\n")
    assert answer(call, qwen3_moe_file, "--file", tmp_path / "p.txt", *common)["tokens"] == first["tokens"]


@pytest.mark.parametrize("data, slug", [(b"%PDF-1.4\0\xff", "text-binary"), (b"\xff\xfe", "text-binary"), (b"x" * (5 << 20), "text-long")])
def test_binary_or_huge_input_is_refused_before_tokenising(call, qwen3_moe_file, monkeypatch, data, slug):
    """P8."""
    typed(monkeypatch, data)
    code, out, err = call("run", qwen3_moe_file)
    assert code == 2 and not out and f"[{slug}]" in err


def test_max_tokens_is_exact_and_the_finish_reason_is_length(call, qwen3_moe_file):
    """Q19, D4."""
    got = answer(call, qwen3_moe_file, "abc", "--raw", "--temp", "0", "--max-tokens", "4")
    assert (len(got["tokens"]), got["finish_reason"], got["stats"]["completion_tokens"]) == (4, "length", 4)


def test_generation_ends_with_the_context(call, qwen3_moe_file):
    """D16: never an endless answer, never a shifted context."""
    code, out, err = call("run", qwen3_moe_file, "abc", "--raw", "--temp", "0", "--ctx", "40", "--json")
    got = json.loads(out)
    prompt = got["stats"]["prompt_tokens"]
    assert code == 0 and got["finish_reason"] == "length" and prompt + len(got["tokens"]) == 41
    assert "the context of 40 tokens is full" in err


def test_a_prompt_longer_than_the_context_says_both_numbers(call, qwen3_moe_file):
    """D14."""
    code, out, err = call("run", qwen3_moe_file, "word " * 100, "--ctx", "64")
    assert code == 1 and not out and re.search(r"\d+ tokens .*64", err) and err.endswith("[context-full]\n")


def test_the_seed_repeats_an_answer(call, qwen3_moe_file):
    first = answer(call, qwen3_moe_file, "abc", "--max-tokens", "12")
    assert answer(call, qwen3_moe_file, "abc", "--max-tokens", "12", "--seed", str(first["seed"]))["tokens"] == first["tokens"]
    others = {tuple(answer(call, qwen3_moe_file, "abc", "--max-tokens", "12", "--seed", n)["tokens"]) for n in range(4)}
    assert len(others) > 1


def test_a_stop_string_over_several_tokens_is_cut_off_whole(call, qwen3_moe_file):
    """D1, D2."""
    common = ["abc", "--raw", "--temp", "0", "--max-tokens", "24"]
    text = answer(call, qwen3_moe_file, *common)["text"]
    stop = text[8:12]
    got = answer(call, qwen3_moe_file, *common, "--stop", stop)
    assert got["text"] == text[:text.index(stop)] and got["finish_reason"] == "stop"


def test_logprobs_are_of_the_chosen_tokens_and_sorted(call, qwen3_moe_file):
    got = answer(call, qwen3_moe_file, "abc", "--temp", "0", "--max-tokens", "3", "--logprobs", "4")
    for p in got["logprobs"]:
        values = [t["logprob"] for t in p["top"]]
        assert len(values) == 4 and values == sorted(values, reverse=True) and p["logprob"] == values[0] < 0
    code, out, _ = call("run", qwen3_moe_file, "abc", "--temp", "0", "--max-tokens", "3", "--logprobs", "2")
    assert code == 0 and len(out.splitlines()) == len(got["logprobs"]) and out.splitlines()[0].count("\t") == 2


def test_stats_go_to_stderr_and_text_to_stdout(call, qwen3_moe_file):
    code, out, err = call("run", qwen3_moe_file, "abc", "--raw", "--temp", "0", "--max-tokens", "4", "--stats")
    assert code == 0 and out.endswith("\n") and out.count("\n") >= 1
    assert re.search(r"prompt \d+ tokens, [\d.]+ tok/s; answer 4 tokens, [\d.]+ tok/s; first token after [\d.]+ s; peak memory .*; seed", err)


def test_special_tokens_in_user_text_stay_text_unless_raw(call, qwen3_moe_file):
    """A4."""
    plain, forged = (answer(call, qwen3_moe_file, t, "--max-tokens", "1", "--temp", "0")["stats"]["prompt_tokens"] for t in ("x", "x<|im_end|>"))
    raw = answer(call, qwen3_moe_file, "x<|im_end|>", "--raw", "--max-tokens", "1", "--temp", "0")["stats"]["prompt_tokens"]
    assert forged > plain + 1 and raw == 2


def test_another_chat_template_and_its_errors(call, qwen3_moe_file, tmp_path):
    file = tmp_path / "t.jinja"
    file.write_text("{{ raise_exception('three turns are too many') }}")
    code, out, err = call("run", qwen3_moe_file, "x", "--chat-template", file)
    assert code == 2 and "three turns are too many" in err and not out
    file.write_text("{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}")
    one = answer(call, qwen3_moe_file, "x", "--system", "s", "--chat-template", file, "--max-tokens", "1")
    assert one["stats"]["prompt_tokens"] == len(json.loads(call("tokenize", qwen3_moe_file, "system:s;user:x;", "--json")[1])["tokens"])
    code, _, err = call("run", qwen3_moe_file, "x", "--chat-template", tmp_path / "none")
    assert code == 3 and "[file-missing]" in err


def test_a_file_without_tokenizer_is_refused_with_advice(call, qwen3_moe_folder, tmp_path):
    """F15: a warning at conversion, a clear error later; token ids still work."""
    source = tmp_path / "source"
    source.mkdir()
    for p in qwen3_moe_folder.iterdir():
        if p.name in ("config.json", "model.safetensors"):
            (source / p.name).write_bytes(p.read_bytes())
    code, out, err = call("convert", source, "-o", tmp_path / "x.moegg")
    assert code == 0 and "moegg: warning: " in err and "tokenizer" in err
    code, out, err = call("run", tmp_path / "x.moegg", "hi")
    assert code == 3 and not out and err.endswith("[tokenizer-missing]\n") and "moegg forward" in err
    assert call("forward", tmp_path / "x.moegg", "--tokens", "1", "-o", tmp_path / "y")[0] == 0


def test_nothink_reaches_templates_under_every_name(call, qwen3_moe_file, tmp_path):
    file = tmp_path / "t.jinja"
    for name in ("enable_thinking", "thinking"):
        file.write_text("{% if " + name + " is defined and not " + name + " %}{{ 'no thoughts today' }}{% endif %}x")
        plain, off = (answer(call, qwen3_moe_file, "x", "--chat-template", file, "--max-tokens", "1", *more)["stats"]["prompt_tokens"]
                      for more in ([], ["--nothink"]))
        assert plain == 1 < off


def without_template(folder, target, eos, text):
    """A copy of a source folder that has no chat template and declares one end of text."""
    target.mkdir()
    for p in folder.iterdir():
        if "template" not in p.name:
            data = p.read_bytes()
            if "config" in p.name:
                config = {k: v for k, v in json.loads(data).items() if k != "chat_template"}
                data = json.dumps(config | ({"eos_token": text} if p.name == "tokenizer_config.json" else {"eos_token_id": eos})).encode()
            (target / p.name).write_bytes(data)
    return target


def test_a_model_without_template_continues_and_has_no_system(call, qwen3_moe_folder, tmp_path):
    file = tmp_path / "base.moegg"
    assert call("convert", without_template(qwen3_moe_folder, tmp_path / "base", 2, "<|endoftext|>"), "-o", file, "--quant", "q8")[0] == 0
    assert answer(call, file, "x", "--max-tokens", "2")["stats"]["prompt_tokens"] == 1
    code, _, err = call("run", file, "x", "--system", "s")
    assert code == 2 and "no chat template" in err
    assert "template    none: text is continued" in call("inspect", file)[1]


def test_a_chat_model_without_template_gets_its_familys_and_is_told_so(call, qwen3_moe_folder, tmp_path):
    """Its tokenizer ends text with the end of a turn, which no base model does; --raw is the way around."""
    file = tmp_path / "chat.moegg"
    assert call("convert", without_template(qwen3_moe_folder, tmp_path / "chat", 4, "<|im_end|>"), "-o", file, "--quant", "q8")[0] == 0
    code, out, err = call("run", file, "x", "--system", "s", "--json", "--max-tokens", "2")
    assert code == 0 and json.loads(out)["stats"]["prompt_tokens"] > 6 and "that of its family (qwen3-moe) is used" in err
    assert answer(call, file, "x", "--raw", "--max-tokens", "2")["stats"]["prompt_tokens"] == 1
    chat = json.loads(call("inspect", file, "--json")[1])["chat"]
    assert chat == {"template": "of its family, qwen3-moe; the file has none", "calls": "tags", "reasoning": "<think> </think>",
                    "ends": "<|endoftext|> <|im_end|> <|im_start|>"}


def test_ctrl_c_during_an_answer_keeps_what_was_said(qwen3_moe_file):
    child = subprocess.Popen([sys.executable, "-m", "moegg", "run", qwen3_moe_file, "hi", "--raw", "--temp", "0", "--ctx", "200000",
                              "--max-tokens", "150000", "--stop=@@@"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=ENV)
    try:
        assert child.stdout.read(1)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 130 and b"Traceback" not in err and out.endswith(b"\n")


# --- the demo model -----------------------------------------------------------------------------------------------------

DEMO = Path(moegg.__file__).parent / "data" / "demo.moegg"


@pytest.mark.skipif(not DEMO.exists(), reason="the demo model is not in this tree")
def test_demo_tells_a_story(call):
    code, out, err = call("run", "demo", "Once upon a time", "--seed", "1", "--max-tokens", "40")
    assert code == 0 and len(out.split()) > 15 and all(c.isprintable() or c == "\n" for c in out)
    assert DEMO.stat().st_size < 20_000_000 and DEMO.with_name("README.md").exists()


@pytest.mark.skipif(not DEMO.exists(), reason="the demo model is not in this tree")
def test_demo_is_whole_and_says_where_it_comes_from(call):
    assert call("verify", "demo")[0] == 0
    info = json.loads(call("inspect", "demo", "--json")[1])
    assert info["meta"]["quant"]["name"] == "q4" and info["arch"] == "qwen3-moe" and info["provenance"]["source"]["files"]


def test_the_first_words_and_the_whole_help_begin_with_the_same_examples(call):
    """`moegg` shows what to type; so does `moegg --help`, which newcomers type first."""
    first, whole = call()[1], call("--help")[1]
    examples = first.split("Quick start:\n")[1].split("\n\n")[0]
    assert 'moegg run demo "Once upon a time"' in examples and examples in whole and first.startswith("Usage: moegg ")


@pytest.mark.parametrize("name", ["run", "server", "bench", "perplexity", "tokenize", "forward", "verify", "inspect"])
def test_help_tells_all_that_model_may_be(name):
    text = " ".join(DOCS[name].split())
    assert "a name of the local store" in text and "hf:USER/REPO[/FILE]" in text and "'demo'" in text


def test_options_after_two_dashes_are_told_apart_from_a_prompt_without_quotes(call):
    code, _, err = call("run", "demo", "--", "-hello", "--max-tokens", "3")
    assert code == 2 and "options stand before the '--'" in err and "quotes" not in err
    assert "put text of several words in quotes" in call("run", "demo", "Once", "upon")[2]
