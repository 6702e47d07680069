"""Pull against a hub that redirects, cuts, lies and dies: whole and right in the end, and nothing fetched twice."""
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from moegg.errors import FormatError, IOFailure, MoeggError, NoRoom, NotFound, UsageError
from moegg.formats.container import Container
from moegg.formats.edit import edit_tail
from moegg.formats.writer import ContainerWriter, ExpertSpec, PartSpec, TensorSpec
from moegg.hub import pull as pulling
from moegg.hub import remote
from moegg.hub.address import Address, parse_address

REPO, FILE = "ann/tiny", "tiny.moegg"
ADDRESS = Address(REPO, FILE)


def make(path, seed=0, experts=24, changed=()):
    """A container of 2 MB: 24 records of 64 KiB, a gather table, sections in body and tail."""
    rng = np.random.default_rng(seed)
    parts = (PartSpec("gate", (64, 256), "f16", "interleaved"), PartSpec("down", (64, 256), "f16", "interleaved"))
    spec = {"arch": "qwen3-moe", "name": "Tiny", "config": {"hidden_size": 64}, "meta": {"quant": {"name": "f16", "version": 1}},
            "tensors": [TensorSpec("norm", (64,), "f32", "row-major", "norm"),
                        TensorSpec("embed", (300, 256), "f32", "row-major", "embed", gather=True)],
            "experts": [ExpertSpec(0, experts, 2, parts)],
            "sections": {"license": ("text/plain", b"x" * 5000), "chat_template": ("application/json", b'{"default":"t"}'),
                         "model_card": ("text/markdown", b"# T")}}
    with ContainerWriter(path, force=True, **spec) as w:
        for t in spec["tensors"]:
            w.put_tensor(t.name, rng.integers(1, 255, t.nbytes, np.uint8))
        for e in range(experts):
            data = rng.integers(1, 255, (2, parts[0].nbytes), np.uint8)
            w.put_record(0, e, list(data ^ 1 if e in changed else data))
        w.finish()
    return path


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return make(tmp_path_factory.mktemp("original") / FILE)


@pytest.fixture
def there(hub, original):
    hub.repos[REPO] = {FILE: original.read_bytes(), "README.md": b"# T", ".gitattributes": b""}
    return hub


@pytest.fixture
def target(tmp_path):
    return tmp_path / "here" / FILE


def record(path, expert):
    return Container.open(path).record(0, expert)


def whole(target, original) -> bool:
    Container.open(target).verify()
    return target.read_bytes() == original.read_bytes() and os.listdir(target.parent) == [FILE]


def test_a_pull_is_the_file_byte_for_byte(there, target, original):
    shown = []
    done = pulling.pull(ADDRESS, target, lambda n, total: shown.append((n, total)))
    assert whole(target, original) and done.fetched <= original.stat().st_size + remote.HEAD_BYTES and shown == sorted(shown)
    assert shown[-1][0] <= shown[-1][1] == original.stat().st_size and there.leaked == []


def test_requests_are_few_and_none_is_for_the_whole_file(there, target, original, monkeypatch):
    monkeypatch.setattr(remote, "HEAD_BYTES", 100_000)
    monkeypatch.setattr(pulling, "SPAN_BYTES", 1 << 20)
    pulling.pull(ADDRESS, target)
    asked = there.fetched()
    assert whole(target, original) and 5 <= len(asked) <= 12 and max(b - a for a, b in asked) < 1 << 20


def test_pulling_again_compares_and_fetches_nothing_but_the_head(there, target, original):
    pulling.pull(ADDRESS, target)
    before, n = target.stat(), len(there.log)
    done = pulling.pull(ADDRESS, target)
    assert done.repaired == () and target.stat().st_mtime_ns == before.st_mtime_ns
    assert sum(b - a + 1 for a, b in there.fetched(n)) <= remote.HEAD_BYTES + 70_000


@pytest.mark.parametrize("cut", [0, 1, 1000, 100_000])
def test_cut_connections_are_taken_up_where_they_broke(there, target, original, cut):
    there.cut, there.cuts = cut, 4
    pulling.pull(ADDRESS, target)
    assert whole(target, original) and there.cuts == 0


def test_a_network_that_stays_cut_is_one_error_and_what_came_is_kept(there, target, original, monkeypatch):
    monkeypatch.setattr(remote, "HEAD_BYTES", 70_000)
    monkeypatch.setattr(pulling, "SPAN_BYTES", 200_000)
    monkeypatch.setattr(pulling, "THREADS", 1)
    real, count = remote.RemoteFile.pieces, [0]

    def dying(self, offset, n):
        count[0] += 1
        if count[0] > 9:
            there.cut, there.cuts = 0, 100
        return real(self, offset, n)
    monkeypatch.setattr(remote.RemoteFile, "pieces", dying)
    with pytest.raises(IOFailure, match=r"hf:ann/tiny/tiny.moegg: 5 attempts at byte \d+ failed.*hub-network"):
        pulling.pull(ADDRESS, target)
    monkeypatch.setattr(remote.RemoteFile, "pieces", real)
    there.cuts, n = 0, len(there.log)
    assert os.listdir(target.parent) == [f"{FILE}.partial"]
    with pytest.raises(FormatError):
        Container.open(target.with_name(f"{FILE}.partial"))
    done = pulling.pull(ADDRESS, target)
    assert whole(target, original) and done.fetched < original.stat().st_size - 600_000 and len(there.fetched(n)) > 2


def test_a_killed_download_resumes(there, target, original, monkeypatch):
    """SIGKILL of a real process in the middle; then only what was not there is fetched."""
    monkeypatch.setattr(remote, "HEAD_BYTES", 70_000)
    there.pause, there.pause_at = threading.Event(), 10**9
    code = ("import sys\nfrom pathlib import Path\nfrom moegg.hub import pull, remote\nfrom moegg.hub.address import parse_address\n"
            "remote.HEAD_BYTES, pull.SPAN_BYTES, pull.THREADS = 70_000, 100_000, 1\n"
            "pull.pull(parse_address(sys.argv[1]), Path(sys.argv[2]))")
    child = subprocess.Popen([sys.executable, "-c", code, str(ADDRESS), str(target)], env={**os.environ, "HF_HUB_DISABLE_XET": "1"})
    try:
        deadline = time.monotonic() + 60
        while len(there.fetched()) < 12 and time.monotonic() < deadline:
            time.sleep(0.002)
        there.pause_at = 10
        time.sleep(0.05)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        there.pause.set()
        there.pause = None
    assert os.listdir(target.parent) == [f"{FILE}.partial"]
    done = pulling.pull(ADDRESS, target)
    assert whole(target, original) and done.fetched < original.stat().st_size - 500_000


class Gone(Exception):
    """The process ended here."""


def test_of_an_interrupted_request_the_records_that_came_are_kept(there, target, original, monkeypatch):
    """A request brings up to 16 MiB; Ctrl-C lost all of it."""
    monkeypatch.setattr(remote, "HEAD_BYTES", 70_000)
    real = remote.RemoteFile.pieces

    def pieces(self, offset, n):
        for at in range(0, n, 10_000):
            if at >= 1_000_000:
                raise Gone
            yield from real(self, offset + at, min(10_000, n - at))
    with monkeypatch.context() as m:
        m.setattr(remote.RemoteFile, "pieces", pieces)
        with pytest.raises(Gone):
            pulling.pull(ADDRESS, target)
    done = pulling.pull(ADDRESS, target)
    assert whole(target, original) and done.fetched < original.stat().st_size - 900_000


@pytest.mark.parametrize("damage", [False, True])
def test_of_an_interrupted_tensor_the_spans_that_came_are_kept_if_they_are_right(there, target, original, monkeypatch, damage):
    """An embedding of 600 MB began anew; a span that was damaged meanwhile costs no more than that."""
    embed = Container.open(original).tensors["embed"]
    monkeypatch.setattr(pulling, "SPAN_BYTES", 64 << 10)
    monkeypatch.setattr(remote, "HEAD_BYTES", 70_000)
    real, asked = remote.RemoteFile.pieces, []

    def pieces(self, offset, n):
        if embed.offset <= offset < embed.offset + embed.nbytes:
            asked.append(offset)
            if len(asked) == 4:
                raise Gone
        return real(self, offset, n)
    monkeypatch.setattr(remote.RemoteFile, "pieces", pieces)
    with pytest.raises(Gone):
        pulling.pull(ADDRESS, target)
    if damage:
        with open(target.with_name(f"{FILE}.partial"), "r+b") as f:
            f.seek(embed.offset + 70_000)
            f.write(b"damage")
    shown = []
    pulling.pull(ADDRESS, target, lambda n, total: shown.append(n))
    assert whole(target, original) and shown[-1] <= original.stat().st_size
    spans = list(range(embed.offset, embed.offset + embed.nbytes, 64 << 10))
    assert asked == spans[:4] + spans[3:] + spans * damage


@pytest.mark.parametrize("bad", [(3,), (0, 7, 8, 23)])
def test_a_damaged_file_has_only_its_bad_records_fetched_again(there, target, original, bad, monkeypatch):
    monkeypatch.setattr(remote, "HEAD_BYTES", 70_000)
    pulling.pull(ADDRESS, target)
    data = bytearray(target.read_bytes())
    for e in bad:
        data[record(original, e)[0] + 100 * e] ^= 4
    target.write_bytes(data)
    n = len(there.log)
    done = pulling.pull(ADDRESS, target)
    assert whole(target, original) and done.repaired == tuple(f"record of layer 0, expert {e}" for e in bad)
    ranges = [(a, b) for a, b in there.fetched(n) if a >= record(original, 0)[0] and b < Container.open(original).tail_offset]
    want = [record(original, e) for e in bad]
    assert all(any(a <= at and at + size - 1 <= b for a, b in ranges) for at, size in want)
    assert sum(b - a + 1 for a, b in ranges) == len({e for e in bad}) * want[0][1]


def test_a_file_whose_header_is_damaged_keeps_its_records(there, target, original, monkeypatch):
    monkeypatch.setattr(remote, "HEAD_BYTES", 70_000)
    pulling.pull(ADDRESS, target)
    data = bytearray(target.read_bytes())
    data[50:60] = b"x" * 10
    target.write_bytes(data)
    assert pulling.pull(ADDRESS, target).fetched < 150_000 and whole(target, original)


@pytest.mark.parametrize("how", [lambda d: d[:1_200_000], lambda d: d + b"x" * 100, lambda d: d[:1_000_000] + bytes(len(d) - 1_000_000)])
def test_a_copy_that_was_cut_or_appended_to_is_repaired(there, target, original, how):
    pulling.pull(ADDRESS, target)
    target.write_bytes(how(target.read_bytes()))
    pulling.pull(ADDRESS, target)
    assert whole(target, original)


def test_a_wrong_byte_on_the_way_is_asked_for_again(there, target, original, monkeypatch):
    monkeypatch.setattr(remote, "HEAD_BYTES", 70_000)
    at, size = record(original, 5)
    there.wrong = {(FILE, at + 7): 2}
    n = len(there.log)
    pulling.pull(ADDRESS, target)
    assert whole(target, original) and there.fetched(n).count((at, at + size - 1)) == 2


def test_a_file_that_is_damaged_on_the_hub_is_named_and_has_no_name_here(there, target, original):
    there.wrong = {(FILE, record(original, 5)[0] + 7): 100}
    with pytest.raises(FormatError, match="record of layer 0, expert 5: checksum differs, 3 times; the hub's file is damaged"):
        pulling.pull(ADDRESS, target)
    assert os.listdir(target.parent) == [f"{FILE}.partial"]


def test_damage_in_header_or_index_is_refused_before_anything_is_written(there, target):
    for at in (100, 65_600):
        there.wrong = {(FILE, at): 100}
        with pytest.raises(FormatError):
            pulling.pull(ADDRESS, target)
    assert not target.parent.exists()


def test_a_new_version_takes_over_what_is_the_same(there, target, tmp_path, monkeypatch):
    """The wrong etag: the hub's file is another one than the file here."""
    monkeypatch.setattr(remote, "HEAD_BYTES", 70_000)
    pulling.pull(ADDRESS, target)
    new = make(tmp_path / "new.moegg", changed=(3, 4))
    there.repos[REPO][FILE] = new.read_bytes()
    done = pulling.pull(ADDRESS, target)
    assert whole(target, new) and done.fetched < 350_000


def test_a_version_that_changes_during_an_interrupted_pull_is_never_mixed(there, target, original, tmp_path):
    target.parent.mkdir()
    target.with_name(f"{FILE}.partial").write_bytes(make(tmp_path / "old.moegg", seed=9).read_bytes())
    pulling.pull(ADDRESS, target)
    assert whole(target, original)


def test_another_tail_on_the_hub_is_an_edit_here(there, target, original, tmp_path):
    pulling.pull(ADDRESS, target)
    new = shutil.copy(original, tmp_path / "new.moegg")
    edit_tail(new, {"model_card": b"# New" * 50, "chat_template": None})
    there.repos[REPO][FILE] = new.read_bytes()
    inode = target.stat().st_ino
    pulling.pull(ADDRESS, target)
    assert whole(target, new) and target.stat().st_ino == inode


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_asked_again(there, target, original, status):
    there.fail = [status] * 3
    pulling.pull(ADDRESS, target)
    assert whole(target, original)


@pytest.mark.parametrize("change, message", [
    (lambda h: setattr(h, "ranges", False), "the server ignores ranges.*hub-range"),
    (lambda h: setattr(h, "shift", 1), "the server sent another range.*hub-range"),
    (lambda h: setattr(h, "fail", [503] * 50), "5 attempts at byte 0 failed: status 503.*hub-network"),
    (lambda h: setattr(h, "fail", [410]), "status 410.*hub-refused")])
def test_servers_that_lie_or_refuse_are_one_line(there, target, monkeypatch, change, message):
    monkeypatch.setattr(remote, "HEAD_BYTES", 70_000)
    change(there)
    with pytest.raises(IOFailure, match=message):
        pulling.pull(ADDRESS, target)


def test_missing_gated_and_private_repositories(hub, original, target, monkeypatch):
    hub.repos |= {"ann/gated": {FILE: original.read_bytes()}, "ann/private": {FILE: original.read_bytes()}}
    hub.gated.add("ann/gated")
    hub.private.add("ann/private")
    for text, message in [("ann/none:x.moegg", "no such repository, or a private one.*HF_TOKEN.*hub-missing"),
                          ("ann/private:tiny.moegg", "no such repository, or a private one.*hub-missing"),
                          ("ann/gated:tiny.moegg", "accept their terms.*HF_TOKEN.*hub-gated")]:
        with pytest.raises(NotFound, match=message) as e:
            pulling.pull(parse_address(text), target)
        assert str(e.value).count("\n") == 0 and str(e.value).startswith("hf:ann/")
    monkeypatch.setenv("HF_TOKEN", hub.token)
    for text, message in [("ann/private:none.moegg", "no such file in the repository"), ("ann/private@v9:tiny.moegg", "no such revision")]:
        with pytest.raises(NotFound, match=message):
            pulling.pull(parse_address(text), target)
    pulling.pull(parse_address("ann/gated:tiny.moegg"), target)
    assert whole(target, original) and hub.leaked == []


def test_offline_mode_asks_nobody(there, target, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(IOFailure, match="offline mode is on.*hub-offline"):
        pulling.pull(ADDRESS, target)
    assert there.log == []


def test_a_hub_that_is_not_there(there, target, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(IOFailure, match="hf:ann/tiny/tiny.moegg: the hub cannot be reached.*hub-network"):
        pulling.pull(ADDRESS, target)


def test_the_disk_is_checked_before_a_byte_is_written(there, target, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda p: shutil._ntuple_diskusage(10**7, 10**7 - 5000, 5000))
    with pytest.raises(NoRoom, match="MiB needed, 4.9 KiB free.*disk-full"):
        pulling.pull(ADDRESS, target)
    assert os.listdir(target.parent) == []


def test_two_pulls_of_one_file_are_refused(there, target):
    import fcntl
    target.parent.mkdir()
    with open(target.with_name(f"{FILE}.partial"), "wb") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="target-busy"):
            pulling.pull(ADDRESS, target)


def test_what_is_no_container_is_never_replaced(there, target):
    """`-o notes.txt`, `-o folder`."""
    target.parent.mkdir()
    target.write_text("my notes")
    (target.parent / "folder").mkdir()
    for path in (target, target.parent / "folder"):
        with pytest.raises(UsageError, match="exists and is no .moegg file.*target-exists"):
            pulling.pull(ADDRESS, path)
    assert target.read_text() == "my notes" and sorted(os.listdir(target.parent)) == ["folder", FILE]


def test_the_only_model_of_a_repository_needs_no_name(there, original):
    assert remote.choose_file(Address(REPO)) == ADDRESS
    there.repos[REPO]["b/other.moegg"] = b""
    with pytest.raises(UsageError, match="holds 2 models, give one, such as hf:ann/tiny/b/other.moegg: b/other.moegg, tiny.moegg"):
        remote.choose_file(Address(REPO))
    there.repos["ann/st"] = {"model.safetensors": b"x"}
    with pytest.raises(NotFound, match="holds no .moegg file; convert it: moegg convert hf:ann/st"):
        remote.choose_file(Address("ann/st"))
    there.repos["ann/evil"] = {"../../x.moegg": b""}
    with pytest.raises(UsageError, match="expected a plain name"):
        remote.choose_file(Address("ann/evil"))


def test_other_kinds_of_files_are_refused_with_advice(there, target):
    there.repos[REPO] |= {"m.gguf": b"GGUF" + bytes(200_000), "small.moegg": b"x"}
    with pytest.raises(FormatError, match="no .moegg file; convert it: moegg convert hf:ann/tiny/m.gguf"):
        pulling.pull(Address(REPO, "m.gguf"), target)
    with pytest.raises(MoeggError):
        pulling.pull(Address(REPO, "small.moegg"), target)


def test_ctrl_c_does_not_wait_for_a_silent_server(there, target, monkeypatch):
    monkeypatch.setattr(remote, "HEAD_BYTES", 60_000)
    before, ended = signal.signal(signal.SIGINT, signal.default_int_handler), []        # it is ignored in shells' background jobs

    class Pause(threading.Event):
        def wait(self, timeout=None):
            ended.append(super().wait(timeout))
    there.pause, there.pause_at = Pause(), 100_000

    def interrupt():
        while not any(b - a > 100_000 for a, b in there.fetched()):
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            pulling.pull(ADDRESS, target)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not ended and os.listdir(target.parent) == [f"{FILE}.partial"]
    there.pause.set()
    there.pause = None
    pulling.pull(ADDRESS, target)
    assert target.read_bytes() == there.repos[REPO][FILE]


def test_a_damaged_file_in_a_folder_that_cannot_be_written_is_named(there, target, monkeypatch):
    pulling.pull(ADDRESS, target)
    data = bytearray(target.read_bytes())
    data[len(data) // 2] ^= 1
    target.write_bytes(data)

    def refused(*_):
        raise OSError(30, "Read-only file system")
    monkeypatch.setattr(os, "replace", refused)
    with pytest.raises(IOFailure, match=f"{FILE}: is damaged .record of layer 0.* cannot be written: Read-only file system.*io-write"):
        pulling.pull(ADDRESS, target)
