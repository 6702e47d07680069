"""moegg convert of what is on a hub: the same bytes as from a folder, one shard on the disk, damage refused."""
import json
import os
import shutil
import struct
from pathlib import Path

import pytest

from moegg.converters import convert, hub
from moegg.errors import FormatError, IOFailure, MoeggError, NoRoom, NotFound, UnsupportedModel, UsageError
from moegg.hub import remote
from moegg.hub.address import parse_address
from tests import tiny

REPO = "ann/tiny"


def shards(data: bytes, n: int) -> dict[str, bytes]:
    """A safetensors file cut into n by its tensors in alphabetical order, with an index, as hubs have them."""
    head = struct.unpack("<Q", data[:8])[0]
    entries = json.loads(data[8:8 + head])
    entries.pop("__metadata__", None)
    names, files, where = sorted(entries), {}, {}
    for i in range(n):
        name, header, body = f"model-{i + 1:05d}-of-{n:05d}.safetensors", {}, b""
        for t in names[i * len(names) // n:(i + 1) * len(names) // n]:
            a, b = entries[t]["data_offsets"]
            header[t] = entries[t] | {"data_offsets": [len(body), len(body) + b - a]}
            body += data[8 + head + a:8 + head + b]
            where[t] = name
        text = json.dumps(header).encode()
        files[name] = struct.pack("<Q", len(text)) + text + body
    return files | {"model.safetensors.index.json": json.dumps({"metadata": {}, "weight_map": where}).encode()}


@pytest.fixture
def there(hub, qwen3_moe_folder, monkeypatch):
    files = {p.name: p.read_bytes() for p in qwen3_moe_folder.iterdir() if p.is_file()}
    hub.repos[REPO] = shards(files.pop("model.safetensors"), 3) | files
    monkeypatch.setattr(remote, "HEAD_BYTES", 60_000)
    return hub


@pytest.fixture
def local(there, tmp_path):
    """The same as a snapshot in a hub cache."""
    folder = tmp_path / "cache" / "models--ann--tiny" / "snapshots" / there.revision(REPO)
    folder.mkdir(parents=True)
    for name, data in there.repos[REPO].items():
        (folder / name).write_bytes(data)
    return folder


def test_a_repository_gives_the_bytes_that_its_folder_gives(there, local, tmp_path):
    convert(local, tmp_path / "a.moegg", "q8")
    out = tmp_path / "out" / "b.moegg"
    out.parent.mkdir()
    convert(f"hf:{REPO}", out, "q8")
    assert out.read_bytes() == (tmp_path / "a.moegg").read_bytes() and os.listdir(out.parent) == ["b.moegg"] and there.leaked == []


def test_never_more_than_one_shard_is_on_the_disk(there, tmp_path, monkeypatch):
    sizes = {n: len(d) for n, d in there.repos[REPO].items() if n.endswith(".safetensors")}
    held, fetched, real = [], [], hub._fetch

    def measured(source, path):
        real(source, path)
        fetched.append(path.name)
        held.append(sum(p.stat().st_blocks * 512 for p in path.parent.glob("*.safetensors")))
    monkeypatch.setattr(hub, "_fetch", measured)
    convert(f"hf:{REPO}", tmp_path / "b.moegg", "q4")
    heads = sum(8192 + struct.unpack("<Q", there.repos[REPO][n][:8])[0] for n in sizes)
    assert set(fetched) == set(sizes) and len(fetched) <= 2 * len(sizes) and max(held) <= max(sizes.values()) + heads


def test_a_dry_run_fetches_headers_and_leaves_nothing(there, tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    code, out, _ = call("convert", f"hf:{REPO}", "--dry-run")
    assert code == 0 and "recipe q4" in out and not [p for p in tmp_path.iterdir() if p.name not in ("home", "hf")]
    assert sum(b - a + 1 for a, b in there.fetched()) < sum(map(len, there.repos[REPO].values())) / 2


def test_the_default_name_is_the_repository_s(there, tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    assert call("convert", f"hf:{REPO}")[0] == 0 and (tmp_path / "tiny-q4.moegg").exists()
    assert json.loads(call("inspect", "tiny-q4.moegg", "--json")[1])["provenance"]["source"]["repo"] == REPO


def test_cut_connections_and_a_damaged_shard(there, tmp_path):
    there.cut, there.cuts = 50_000, 6
    name = "model-00002-of-00003.safetensors"
    at = len(there.repos[REPO][name]) - 3
    convert(f"hf:{REPO}", tmp_path / "a.moegg", "f32")
    there.wrong = {(name, at): 1000}
    with pytest.raises(FormatError, match=f"hf:{REPO}.*/{name}: arrived damaged 2 times.*hub-checksum"):
        convert(f"hf:{REPO}", tmp_path / "b.moegg", "f32")
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.endswith("partial") or ".moegg" in p.name) == ["a.moegg"]


def test_a_gguf_of_a_repository_is_found_and_says_where_it_comes_from(hub, tmp_path, call):
    file = tiny.gguf(tmp_path / "m.gguf", "llama")
    hub.repos["ann/g"] = {"m.gguf": Path(file).read_bytes(), "README.md": b""}
    convert(file, tmp_path / "a.moegg")
    for i, name in enumerate(("hf:ann/g", "hf:ann/g/m.gguf")):
        convert(name, tmp_path / f"b{i}.moegg")
        a, b = (json.loads(call("inspect", tmp_path / n, "--json")[1]) for n in ("a.moegg", f"b{i}.moegg"))
        assert a["content_id"] == b["content_id"] and b["provenance"]["source"]["repo"] == "ann/g"
    assert not [p for p in tmp_path.iterdir() if "partial" in p.name]


@pytest.mark.parametrize("change, error, message", [
    (lambda f: f.pop("config.json"), NotFound, "hf:ann/tiny: no config.json"),
    (lambda f: f.update({"config.json": b"{"}), FormatError, "hf:ann/tiny/config.json: not valid JSON"),
    (lambda f: f.pop("model-00002-of-00003.safetensors"), MoeggError, "model-00002-of-00003.safetensors"),
    (lambda f: [f.pop(n) for n in list(f) if "safetensors" in n] and f.update({"pytorch_model.bin": b"x"}), UnsupportedModel, "pickle"),
    (lambda f: f.update({"model-00001-of-00003.safetensors": b"\x10"}), FormatError, "model-00001-of-00003.safetensors")])
def test_what_is_wrong_with_a_repository_is_named(there, tmp_path, change, error, message):
    change(there.repos[REPO])
    with pytest.raises(error, match=message):
        convert(f"hf:{REPO}", tmp_path / "a.moegg")
    assert not [p for p in tmp_path.iterdir() if "partial" in p.name or "moegg" in p.name]


def test_two_conversions_of_one_repository_do_not_destroy_each_other_s_work(there, tmp_path):
    first = hub.hub_source(parse_address(f"hf:{REPO}"), tmp_path)
    with pytest.raises(UsageError, match="another moegg process converts hf:ann/tiny.*target-busy"):
        convert(f"hf:{REPO}", tmp_path / "b.moegg")
    assert len(first.rows("model.embed_tokens.weight", 0, 3)) == 3
    first.close()
    left = tmp_path / ".ann--tiny.convert.partial" / "x"
    left.mkdir(parents=True)
    convert(f"hf:{REPO}", tmp_path / "b.moegg")
    assert not left.parent.exists()


def test_the_disk_must_hold_the_output_and_one_shard(there, tmp_path, monkeypatch):
    largest = max(len(d) for n, d in there.repos[REPO].items() if n.endswith(".safetensors"))
    out = convert(f"hf:{REPO}", tmp_path / "x.moegg", "f32", dry_run=True).file_bytes
    monkeypatch.setattr(shutil, "disk_usage", lambda p: shutil._ntuple_diskusage(10**9, 10**9, out + largest - 1))
    with pytest.raises(NoRoom):
        convert(f"hf:{REPO}", tmp_path / "x.moegg", "f32")


def test_missing_repositories_and_wrong_files(there, tmp_path, call):
    assert call("convert", "hf:ann/none")[0] == 3
    code, _, err = call("convert", f"hf:{REPO}/config.json")
    assert code == 3 and "expected a repository or a GGUF file" in err
    assert "moegg convert hf:ann/tiny" in call("convert", REPO)[2]
    there.fail = [500] * 100
    with pytest.raises(IOFailure, match="hub-network"):
        convert(f"hf:{REPO}", Path(tmp_path / "x.moegg"))


@pytest.mark.parametrize("more", [{}, {"config.json": b"{}", "pytorch_model.bin": b"x"}])
def test_a_repository_of_several_ggufs_names_them_all(hub, tmp_path, more):
    names = [f"m-{q}.gguf" for q in ("Q2_K", "Q3_K_M", "Q4_0", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0")] + ["BF16/m-00001-of-00002.gguf"]
    hub.repos["ann/g"] = dict.fromkeys([*names, "BF16/m-00002-of-00002.gguf", "mmproj-F16.gguf"], b"x") | more
    with pytest.raises(UsageError, match=f"holds 8 models, give one, such as hf:ann/g/BF16.*: {', '.join(sorted(names))}.*hub-several"):
        convert("hf:ann/g", tmp_path / "a.moegg")
    for wrong in ("hf:ann/g:Q4_K_M", "hf:ann/g/m-q4_0.gguf"):
        with pytest.raises(NotFound, match="no such file in the repository; it holds .*m-Q4_K_M.gguf.*hub-missing"):
            convert(wrong, tmp_path / "a.moegg")


@pytest.mark.parametrize("more", ["mmproj-F16.gguf", "config.json", "m.moegg"])
def test_the_only_gguf_is_taken_whatever_lies_beside_it(hub, tmp_path, more):
    hub.repos["ann/g"] = {"ü b.gguf": Path(tiny.gguf(tmp_path / "m.gguf", "llama")).read_bytes(), more: b"{}"}
    convert("hf:ann/g", tmp_path / "a.moegg")
    assert (tmp_path / "a.moegg").exists()


def test_a_repository_of_moegg_files_is_to_be_pulled(hub, tmp_path):
    hub.repos["ann/g"] = {"a.moegg": b"x"}
    with pytest.raises(FormatError, match="hf:ann/g: holds .moegg files already.*moegg pull hf:ann/g"):
        convert("hf:ann/g", tmp_path / "a.moegg")


def test_a_gguf_is_planned_with_its_header_and_refused_before_it_is_fetched(hub, tmp_path, call, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(remote, "HEAD_BYTES", 4096)
    data = Path(tiny.gguf(tmp_path / "m.gguf", "llama", hidden_size=256, num_hidden_layers=8)).read_bytes()
    hub.repos["ann/g"] = {"m.gguf": data, "n.gguf": data.replace(b"llama", b"lxama")}
    os.remove("m.gguf")
    code, out, _ = call("convert", "hf:ann/g/m.gguf", "--dry-run")
    assert code == 0 and "recipe keep" in out
    with pytest.raises(UnsupportedModel, match="lxama.*arch-unknown"):
        convert("hf:ann/g/n.gguf", tmp_path / "a.moegg")
    assert sum(b - a + 1 for a, b in hub.fetched()) < len(data) / 2 and not [p for p in os.listdir() if "moegg" in p or "partial" in p]


def test_the_disk_must_hold_the_output_and_the_whole_gguf(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "HEAD_BYTES", 4096)
    data = Path(tiny.gguf(tmp_path / "m.gguf", "llama")).read_bytes()
    hub.repos["ann/g"] = {"m.gguf": data}
    out = convert("hf:ann/g", tmp_path / "x.moegg", dry_run=True).file_bytes
    monkeypatch.setattr(shutil, "disk_usage", lambda p: shutil._ntuple_diskusage(10**9, 10**9, out + len(data) - 1))
    n = len(hub.log)
    with pytest.raises(NoRoom):
        convert("hf:ann/g", tmp_path / "x.moegg")
    assert (0, len(data) - 1) not in hub.fetched(n)
