"""What newcomers type, pipe and overwrite in their first hour: nothing is lost, and every mistake is told with the way out."""
import importlib
import io
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from moegg import log
from moegg.cli import main
from moegg.commands import measure, opening, run
from moegg.commands.progress import bar
from moegg.formats import writer


class Terminal(io.StringIO):
    def isatty(self):
        return True


def tokens_of(call, *argv):
    code, out, err = call("run", *argv, "--max-tokens", "1", "--temp", "0", "--json")
    assert code == 0, err
    return json.loads(out)["stats"]["prompt_tokens"]


# --- nothing is overwritten that matters ----------------------------------------------------------------------------------

def test_forward_does_not_replace_the_model_with_its_output(call, qwen3_moe_file, tmp_path):
    model = tmp_path / "c.moegg"
    shutil.copy(qwen3_moe_file, model)
    (tmp_path / "link").symlink_to(model)
    for out in (model, tmp_path / "link"):
        code, _, err = call("forward", model, "--tokens=1,2", "-o", out)
        assert code == 2 and "is the model itself" in err
    assert model.read_bytes() == qwen3_moe_file.read_bytes()


@pytest.mark.parametrize("command", ["forward", "convert"])
def test_a_pipe_or_device_is_not_replaced_by_a_regular_file(call, qwen3_moe_file, qwen3_moe_folder, tmp_path, command):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    argv = ["forward", qwen3_moe_file, "--tokens=1"] if command == "forward" else ["convert", qwen3_moe_folder, "--force"]
    code, _, err = call(*argv, "-o", pipe)
    assert code == 2 and "is a device or a pipe" in err and err.endswith("[target-exists]\n")
    assert stat.S_ISFIFO(pipe.stat().st_mode) and list(tmp_path.iterdir()) == [pipe]


def test_an_impossible_target_is_told_before_the_source_is_planned(call, tmp_path, monkeypatch, qwen3_moe_folder):
    monkeypatch.setattr("moegg.converters.run.make_plan", lambda *a: pytest.fail("planned"))
    (tmp_path / "there").write_bytes(b"x")
    for out, words in ((tmp_path / "there", "exists already"), (tmp_path, "is a folder"), (tmp_path / "no" / "x", "no such folder")):
        code, _, err = call("convert", qwen3_moe_folder, "-o", out)
        assert code in (2, 3) and words in err and err.count("\n") == 1
    monkeypatch.setattr(writer.os, "access", lambda *a: False)
    assert "Permission denied [io-write]" in call("convert", qwen3_moe_folder, "-o", tmp_path / "new")[2]


def test_a_dry_run_tells_what_the_conversion_would_stumble_over(call, tmp_path, monkeypatch, qwen3_moe_folder):
    (tmp_path / "there").write_bytes(b"x")
    code, out, err = call("convert", qwen3_moe_folder, "--dry-run", "-o", tmp_path / "there")
    assert code == 0 and "recipe q4" in out and re.fullmatch("moegg: warning: .*exists already; use --force.*\n", err)
    code, out, err = call("convert", qwen3_moe_folder, "--dry-run", "-o", tmp_path / "no" / "x")
    assert code == 0 and re.fullmatch("moegg: warning: .*no such folder\n", err)
    monkeypatch.setattr(writer.shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10, 9, 1))
    code, out, err = call("convert", qwen3_moe_folder, "--dry-run", "-o", tmp_path / "x")
    assert code == 0 and "warning: " in err and "not enough disk space" in err


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_convert_leaves_no_partial_file_when_it_is_told_to_end(qwen3_moe_folder, tmp_path, name):
    slow = ("import signal, sys, time; signal.signal(signal.SIGHUP, signal.SIG_DFL); from moegg.cli import main; from moegg.converters import run; "
            "encoded = run._encoded\n"
            "def wait(*a):\n    time.sleep(0.2)\n    return encoded(*a)\n"
            "run._encoded = wait; sys.exit(main(sys.argv[1:]))")
    child = subprocess.Popen([sys.executable, "-c", slow, "convert", qwen3_moe_folder, "-o", tmp_path / "x"], stderr=subprocess.PIPE)
    try:
        end = time.monotonic() + 60
        while not (tmp_path / "x.partial").exists():
            assert time.monotonic() < end and child.poll() is None
            time.sleep(0.02)
        child.send_signal(getattr(signal, name))
        err = child.communicate(timeout=60)[1]
    finally:
        child.kill()
    assert child.returncode == 130 and b"Traceback" not in err and not list(tmp_path.iterdir())


def test_the_bar_does_not_stand_in_the_plan(monkeypatch, qwen3_moe_folder, tmp_path):
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert main(["convert", str(qwen3_moe_folder), "-o", str(tmp_path / "x")]) == 0
    text = sys.stderr.getvalue()
    assert text.startswith("moegg: ") and "convert:" in text and "\r" not in text[:text.index("  file: ")]


def test_a_bar_that_never_moves_is_never_drawn(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with bar("x"):
        pass
    assert sys.stderr.getvalue() == ""


# --- prompts --------------------------------------------------------------------------------------------------------------

def test_text_piped_in_beside_a_prompt_is_not_dropped(call, qwen3_moe_file, monkeypatch, tmp_path):
    both = tokens_of(call, qwen3_moe_file, "Say:\n\nwörd word", "--raw")
    (tmp_path / "text").write_bytes("wörd word\n".encode())
    (tmp_path / "prompt").write_text("Say:\n")
    with open(tmp_path / "text") as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert tokens_of(call, qwen3_moe_file, "Say:", "--raw") == both
    with open(tmp_path / "text") as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert tokens_of(call, qwen3_moe_file, "--file", tmp_path / "prompt", "--raw") == both
    read, write = os.pipe()
    os.write(write, "wörd word".encode())
    os.close(write)
    with open(read) as pipe:
        monkeypatch.setattr(sys, "stdin", pipe)
        assert tokens_of(call, qwen3_moe_file, "Say:", "--raw") == both


def test_a_dash_after_file_is_standard_input_as_in_other_commands(call, qwen3_moe_file, monkeypatch, tmp_path):
    (tmp_path / "text").write_bytes("wörd word\n".encode())
    with open(tmp_path / "text") as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert tokens_of(call, qwen3_moe_file, "--file", "-", "--raw") == tokens_of(call, qwen3_moe_file, "wörd word", "--raw")


def test_an_open_pipe_with_nothing_in_it_does_not_hang_a_prompt(capsys, monkeypatch):
    log.configure(False)
    read, write = os.pipe()
    with open(read) as pipe:
        monkeypatch.setattr(sys, "stdin", pipe)
        assert opening.read_piped(0.01) == ""
    os.close(write)
    assert "nothing came within 0.01 s" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", None)
    assert opening.read_piped(0.01) == ""
    with open(os.devnull) as null:
        monkeypatch.setattr(sys, "stdin", null)
        assert opening.read_piped(0.01) == "" and capsys.readouterr().err == ""


def test_an_empty_prompt_is_not_answered(call, qwen3_moe_file):
    for argv in ([""], [" \n"], ["", "--raw"]):
        code, out, err = call("run", qwen3_moe_file, *argv)
        assert (code, out) == (2, "") and "the prompt is empty" in err and err.endswith("[usage]\n")


def test_a_model_without_template_does_not_always_fill_the_context(call, qwen3_moe_file, monkeypatch):
    monkeypatch.setattr(run, "CONTINUATION_TOKENS", 5)
    code, out, err = call("run", qwen3_moe_file, "abc", "--raw", "--temp", "0", "--json")
    assert code == 0 and len(json.loads(out)["tokens"]) == 5 and "stops after 5 tokens" in err and "--max-tokens" in err
    code, out, err = call("run", qwen3_moe_file, "abc", "--raw", "--temp", "0", "--json", "--max-tokens", "7")
    assert len(json.loads(out)["tokens"]) == 7 and not err


def test_an_answer_that_ends_at_once_says_so(call, qwen3_moe_file):
    text = json.loads(call("run", qwen3_moe_file, "abc", "--raw", "--temp", "0", "--max-tokens", "9", "--json")[1])["text"]
    code, out, err = call("run", qwen3_moe_file, "abc", "--raw", "--temp", "0", "--stop", text[:1])
    assert (code, out, err) == (0, "", "moegg: (the model ended without an answer)\n")


# --- names and messages ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("typed, meant", [
    ("dmeo", "did you mean 'demo'?"), ("smollm2", "did you mean 'smollm2.moegg'?"), ("smolm2.moegg", "did you mean 'smollm2.moegg'?")])
def test_a_misspelt_model_is_told_the_one_that_exists(call, tmp_path, monkeypatch, typed, meant):
    (tmp_path / "smollm2.moegg").write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    code, _, err = call("run", typed, "hi")
    assert code == 3 and err == f"moegg: {typed}: no such file; {meant} [file-missing]\n"


def test_a_gguf_file_or_folder_is_told_how_to_convert_it(call, tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + bytes(100))
    for path, kind in ((tmp_path / "x.gguf", "GGUF file"), (tmp_path, "folder")):
        code, _, err = call("run", path, "hi")
        assert code == 3 and err.startswith(f"moegg: {path}: is a {kind}; convert it: moegg convert {path} [")


@pytest.mark.parametrize("make, message", [
    (lambda p: (p / "m.moegg").write_bytes(b"\x8dmoegg\r\n\x1a\n" + bytes(99)), "m.moegg: is a .moegg file already; run it: moegg run"),
    (lambda p: (p / "m.moegg").write_bytes(b""), "m.moegg: is empty, expected a GGUF file"),
    (lambda p: ((p / "m.moegg").mkdir(), (p / "m.moegg" / "a-Q4.gguf").touch()), "convert one of them: a-Q4.gguf"),
])
def test_convert_says_what_a_wrong_source_is(call, tmp_path, make, message):
    make(tmp_path)
    code, _, err = call("convert", tmp_path / "m.moegg", "-o", tmp_path / "x")
    assert code == 3 and message in err and err.count("\n") == 1


def test_the_name_of_a_repository_is_told_how_to_download_it(call):
    code, _, err = call("convert", "Qwen/Qwen3-30B-A3B")
    assert code == 3 and "moegg convert hf:Qwen/Qwen3-30B-A3B" in err


@pytest.mark.parametrize("argv, message", [
    (["run", "demo", "-hello"], "put '--' before text that begins with '-', and options before the '--'"),
    (["run", "demo", "Once", "upon", "a", "time"], "expected MODEL [PROMPT]; put text of several words in quotes"),
    (["tokenize", "demo", "a", "b"], "put text of several words in quotes"),
    (["-v"], "unknown option '-v'; did you mean '--version' or '--verbose'? (moegg --help)"),
    (["-x"], "moegg: unknown option '-x' (moegg --help)"),
    (["run", "demo", "--maß", "1"], "unknown option '--maß' (moegg run --help)"),
])
def test_a_usage_error_names_the_likely_cause_and_no_other(call, argv, message):
    code, _, err = call(*argv)
    assert code == 2 and message in err


def test_help_as_a_word_is_help(call):
    assert call("help") == call("--help") and call("help", "run") == call("run", "--help") and call("help", "rnu")[0] == 2


def test_a_name_that_is_not_utf8_shows_its_byte(call):
    for argv in (["verify", "a\udcff"], ["a\udcff"], ["inspect", "--b\udcff", "x"]):
        err = call(*argv)[2]
        assert "\\xff" in err and "udc" not in err


def test_torn_characters_are_not_shown_as_the_text_of_their_escapes(call, qwen3_moe_file):
    out = call("tokenize", qwen3_moe_file, "空\\xe7")[1]
    assert "b'\\x" in out and '"\\\\' in out
    got = json.loads(call("tokenize", qwen3_moe_file, "空\\xe7", "--json")[1])
    assert bytes.fromhex("".join(got["bytes"])).decode() == "空\\xe7" and len(got["bytes"]) == len(got["tokens"])


def test_beyond_the_trained_context_every_command_warns_once(call, qwen3_moe_file, tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "READ_BYTES", 1 << 16)
    monkeypatch.setattr(measure, "INT8_ITEMS", 1)
    for argv in (["forward", qwen3_moe_file, "--tokens=1,2,3,4,5,6,7,8,9", "-o", tmp_path / "x"],
                 ["run", qwen3_moe_file, "a", "--ctx", 64, "--max-tokens", "1"],
                 ["bench", qwen3_moe_file, "--prompt=7", "--gen=2", "--warm=0", "--runs=2"]):
        module = importlib.import_module(f"moegg.commands.{argv[0]}")
        monkeypatch.setattr(module, "describe", lambda c: replace(opening.describe(c), ctx_train=8))
        code, _, err = call(*argv)
        assert code == 0 and err.count("the model was trained for 8 tokens") == 1


def test_verbose_prints_no_python_objects(call, qwen3_moe_file):
    err = call("run", qwen3_moe_file, "a", "--max-tokens", "1", "--temp", "0.5", "--verbose")[2]
    assert "temperature 0.5, " in err and "SamplingParams" not in err


@pytest.mark.parametrize("command", [["run", "MODEL", "hi"], ["convert", "MODEL"]])
@pytest.mark.parametrize("typed", ["Qwen/Qwen3-30B-A3B", "https://huggingface.co/Qwen/Qwen3-30B-A3B"])
def test_a_repository_written_as_elsewhere_is_told_how_to_write_it(call, tmp_path, monkeypatch, command, typed):
    monkeypatch.chdir(tmp_path)
    code, _, err = call(*[typed if word == "MODEL" else word for word in command])
    assert code == 3 and "no such file" in err and "hf:Qwen/Qwen3-30B-A3B [file-missing]" in err
