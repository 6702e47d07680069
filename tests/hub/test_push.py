"""Push: the file arrives whole, the card says what the file says of itself, nothing is uploaded unasked or unverified."""
import json
import shutil

import pytest

from moegg.formats.container import Container
from moegg.formats.edit import edit_tail
from moegg.hub import card
from moegg.hub.address import Address
from moegg.hub.push import push

# huggingface_hub uploads in a way that its own HTTP library warns of.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
QUALITY = {"perplexity": 12.3456, "perplexity_error": 0.1, "tokens": 5000, "divergence": {
    "perplexity": 12.1, "kl_mean": 0.0123, "kl_median": 0.001, "kl_p99": 0.2, "top1": 0.95}}


@pytest.fixture
def mine(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", hub.token)
    return hub


@pytest.fixture
def file(tmp_path, qwen3_moe_file):
    return shutil.copy(qwen3_moe_file, tmp_path / "tiny-f32.moegg")


def test_push_then_pull_gives_the_same_file(call, mine, file, tmp_path):
    code, out, err = call("push", file, "me/tiny", "--yes")
    assert code == 0 and out == f"{mine.url}/me/tiny/commit/1\n"
    asked = mine.created[0]
    assert (asked["name"], asked["organization"]) == ("tiny", "me")
    assert "private" not in (asked.get("visibility"), "private" * bool(asked.get("private")))
    assert mine.repos["me/tiny"].keys() == {"tiny-f32.moegg", "README.md"} and mine.repos["me/tiny"]["tiny-f32.moegg"] == file.read_bytes()
    assert call("pull", "me/tiny", "-o", tmp_path / "back.moegg")[0] == 0 and (tmp_path / "back.moegg").read_bytes() == file.read_bytes()
    assert call("push", file, "me/tiny", "--yes", "--private")[0] == 0 and len(mine.uploads) == 1, "what is there is not uploaded again"


def test_without_yes_and_terminal_nothing_is_sent(call, mine, file):
    code, _, err = call("push", file, "me/tiny")
    assert code == 2 and "to hf:me/tiny/tiny-f32.moegg?" in err and err.endswith("[confirm]\n") and mine.log == []


def test_a_damaged_file_is_never_uploaded(call, mine, file):
    data = bytearray(file.read_bytes())
    data[Container.open(file).record(1, 1)[0] + 5] ^= 1
    file.write_bytes(data)
    code, _, err = call("push", file, "me/tiny", "--yes")
    assert code == 3 and err.endswith("[format-checksum]\n") and mine.log == []


def test_a_wrong_token_is_one_line(call, mine, file, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    code, _, err = call("push", file, "me/tiny", "--yes")
    assert code in (3, 6) and err.count("\n") == 1 and "HF_TOKEN" in err and mine.repos == {}


def test_the_card_says_what_the_file_says(call, mine, file, tmp_path):
    (tmp_path / "q.json").write_text(json.dumps({"model": "/home/x/m.moegg", "reference": "/home/x/ref-f32.moegg", "quality": {
        **{k: v for k, v in QUALITY.items() if k != "divergence"}, "windows": 1,
        "ctx": 512, "reference": QUALITY["divergence"] | {"kl_error": 0.1, "kl_max": 1.0}}}))
    assert call("edit", file, "--quality", tmp_path / "q.json")[0] == 0
    assert b"/home" not in Container.open(file).read_section("quality")
    call("push", file, "me/tiny:sub/a.moegg", "--yes")
    text = mine.repos["me/tiny"]["README.md"].decode()
    c = Container.open(file)
    for words in ("library_name: moegg", card.MARK, "## sub/a.moegg", "| architecture | qwen3-moe |", "8 per layer", c.root.hex(), c.content_id.hex(),
                  "moegg run hf:me/tiny/sub/a.moegg", "12.3456", "KL divergence mean 0.01230", "95.00%", "f32 v"):
        assert words in text, words


def test_several_files_share_a_card_and_a_foreign_card_stays(mine, file):
    for name in ("b.moegg", "a.moegg", "b.moegg"):
        assert push(Container.open(file), Address("me/tiny", name)).card
    text = mine.repos["me/tiny"]["README.md"].decode()
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## a.moegg", "## b.moegg"]
    mine.repos["me/tiny"]["README.md"] = b"# My own words"
    assert not push(Container.open(file), Address("me/tiny", "c.moegg")).card
    assert mine.repos["me/tiny"]["README.md"] == b"# My own words" and "c.moegg" in mine.repos["me/tiny"]


def test_text_of_a_file_cannot_forge_a_card(file):
    c = Container.open(file)
    c.name, c.meta = "x\n# <script> | [a](b)", {"creator": "a | b\n## c", "quant": 5, "parameters": "x"}
    text = card.write_card(c, "me/tiny", "a.moegg", {"source": {"repo": "x: y\nz", "license": "a\nb", "revision": "<b>"}}, {"perplexity": "x"}, None)
    assert "<script>" not in text and "base_model" not in text and "license" not in text and text.count("\n## ") == 1 and "\n# " in text


def test_an_edit_that_was_not_finished_is_not_pushed_torn(call, mine, file, monkeypatch):
    import os
    with monkeypatch.context() as m:
        real = os.ftruncate
        m.setattr(os, "ftruncate", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            edit_tail(file, {"model_card": b"x" * 9000})
    assert os.ftruncate is real and Container.open(file).edited
    code, _, err = call("push", file, "me/tiny", "--yes")
    assert code == 2 and "moegg edit" in err and mine.log == []
    assert call("edit", file)[0] == 0 and call("push", file, "me/tiny", "--yes")[0] == 0
