"""moegg perplexity, end to end."""
import json
import math

import numpy as np
import pytest

from moegg.formats.container import Container

STORY = ("Once upon a time there was a little girl who lived in a village near the forest. Whenever she went out she wore a red riding "
         "cloak, so everyone in the village called her Little Red Riding Hood. ") * 3


@pytest.fixture
def story(tmp_path):
    (tmp_path / "story.txt").write_text(STORY)
    return tmp_path / "story.txt"


def test_the_demo_model_against_itself_and_its_perplexity_for_people_and_programs(call, story):
    code, out, err = call("perplexity", "demo", story, "--ctx", "64", "--reference", "demo", "--json")
    assert (code, err) == (0, "")
    quality = json.loads(out)["quality"]
    assert 1 < quality["perplexity"] < 60 and quality["windows"] == 1 + (quality["tokens"] - 31) // 31
    assert quality["reference"] | {"kl_mean": 0, "top1": 1} == quality["reference"]
    code, text, _ = call("perplexity", "demo", story, "--ctx", "64")
    assert code == 0 and text.startswith(f"perplexity      {quality['perplexity']:.4f} +- ") and text.count("\n") == 1
    assert math.isfinite(quality["perplexity_error"])


def test_a_text_that_fills_no_window_says_what_to_do(call, story):
    code, out, err = call("perplexity", "demo", story, "--ctx", "512")
    assert (code, out) == (2, "") and "smaller --ctx" in err and err.endswith("[text-short]\n")


def test_a_reference_with_other_tokens_is_refused(call, story, qwen3_moe_file):
    code, _, err = call("perplexity", "demo", story, "--ctx", "64", "--reference", qwen3_moe_file)
    assert code == 2 and "other tokens" in err and err.endswith("[reference-vocab]\n")


def test_missing_files_are_named(call, tmp_path):
    assert call("perplexity", "demo", tmp_path / "no")[0] == 3
    assert call("perplexity", tmp_path / "no", tmp_path / "no")[0] == 3


def test_calibrate_then_convert_with_what_it_measured(call, story, tmp_path, qwen3_moe_folder, qwen3_moe_file):
    out = tmp_path / "i.imatrix"
    code, text, err = call("calibrate", qwen3_moe_file, story, "--ctx", "32", "-o", out, "--json")
    assert (code, err) == (0, "")
    report = json.loads(text)
    assert report["tokens"] == 32 * report["windows"] and report["experts"] and report["text_bytes"] == len(STORY)
    for name, options in (("plain", []), ("seeing", ["--imatrix", out, "--override", "layers.*.attn.*=q8_0"])):
        code, _, err = call("convert", qwen3_moe_folder, "--quant", "q4", "-o", tmp_path / f"{name}.moegg", *options)
        assert code == 0 and "knows nothing" not in err
    recipe = json.loads(call("inspect", tmp_path / "seeing.moegg", "--json")[1])["meta"]["quant"]
    assert recipe["overrides"] == ["layers.*.attn.*=q8_0"] and recipe["imatrix"]["text_sha256"] == report["text_sha256"]
    assert call("run", tmp_path / "seeing.moegg", "Once", "--max-tokens", "3")[0] == 0
    assert call("calibrate", qwen3_moe_file, story, "--ctx", "32", "-o", out)[2].endswith("[target-exists]\n")


def test_a_window_too_short_to_predict_in_is_no_fault_of_the_text(call, story):
    code, _, err = call("perplexity", "demo", story, "--ctx", "1")
    assert code == 2 and "windows: too short: got 1 tokens, expected at least 4" in err


@pytest.mark.parametrize("value", [math.nan, math.inf, 3e38])
def test_weights_that_are_no_numbers_are_one_clear_line_and_leave_no_file(call, story, tmp_path, qwen3_moe_file, value):
    """There were warnings of numpy, and an importance file of infinite values that no conversion took."""
    path, out = tmp_path / "m.moegg", tmp_path / "importance"
    path.write_bytes(qwen3_moe_file.read_bytes())
    norm = next(t for t in Container.open(path).tensors.values() if t.role == "norm")
    with open(path, "r+b") as f:
        f.seek(norm.offset)
        f.write(np.full(norm.nbytes // 4, value, "<f4").tobytes())
    for command in (("perplexity", path, story, "--ctx", "32"), ("calibrate", path, story, "--ctx", "32", "-o", out)):
        code, text, err = call(*command)
        assert (code, text) == (2, "") and "[logits-nan]" in err and "Warning" not in err and err.count("\n") == 1 and not out.exists()
    code, text, err = call("run", path, "hi", "--no-usage")
    assert code == 2 and not text and "[sampler-nan]" in err and err.count("\n") == 1
