"""ContainerWriter against a hostile world: full disks, crashes, other writers, wrong callers. Never a half file that opens."""
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

from moegg.errors import FormatError, InternalError, IOFailure, NoRoom, NotFound, UsageError
from moegg.formats.container import Container
from moegg.formats.gguf_write import GGUFWriter
from moegg.formats.writer import ContainerWriter

from .corrupt import GATE, fill, pattern, tiny, write


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "tiny.moegg"


def left(path: Path) -> list[str]:
    return sorted(p.name for p in path.parent.iterdir())


def test_existing_file_is_refused_before_anything_is_written(path):
    path.write_text("precious")
    with pytest.raises(UsageError, match="exists already; use --force"):
        ContainerWriter(path, **tiny())
    assert path.read_text() == "precious" and left(path) == ["tiny.moegg"]
    data = write(path, force=True)
    assert path.read_bytes() == data and left(path) == ["tiny.moegg"]


def test_existing_file_survives_a_forced_write_that_fails(path, monkeypatch):
    data = write(path)
    monkeypatch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error")))
    with pytest.raises(IOFailure, match="cannot be written: Input/output error"):
        write(path, force=True)
    assert path.read_bytes() == data and left(path) == ["tiny.moegg"]


def test_a_file_that_appears_meanwhile_is_not_replaced(path):
    spec = tiny()
    with pytest.raises(UsageError, match="exists already"), ContainerWriter(path, **spec) as w:
        fill(w, spec)
        path.write_text("precious")
        w.finish()
    assert path.read_text() == "precious" and left(path) == ["tiny.moegg"]


def test_file_systems_without_hard_links_and_locks(path, monkeypatch):
    def refused(*_):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")
    monkeypatch.setattr(os, "link", refused)
    monkeypatch.setattr("fcntl.flock", refused)
    write(path)
    Container.open(path).verify()
    assert left(path) == ["tiny.moegg"]


def test_target_folder_missing_target_a_folder_or_not_writable(path, monkeypatch):
    with pytest.raises(NotFound, match="no such folder"):
        write(path.parent / "none" / "x.moegg")
    path.mkdir()
    for force in (False, True):
        with pytest.raises(UsageError, match="is a folder"):
            write(path, force=force)
    path.rmdir()

    def denied(*_):
        raise PermissionError(errno.EACCES, "Permission denied")
    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(IOFailure, match="cannot be written: Permission denied"):
        write(path)


def test_too_little_disk_is_told_before_anything_is_written(path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda p: namedtuple("Usage", "total used free")(1 << 30, 1 << 30, 100 << 10))
    with pytest.raises(NoRoom, match=r"192\.4 KiB needed, 100\.0 KiB free"):
        write(path)
    assert left(path) == []


@pytest.mark.parametrize(("code", "kind"), [(errno.ENOSPC, NoRoom), (errno.EDQUOT, NoRoom), (errno.EIO, IOFailure)])
@pytest.mark.parametrize("call", ["pwrite", "fsync", "ftruncate"])
def test_disk_full_or_broken_at_every_call_leaves_nothing(path, monkeypatch, call, code, kind):
    real, failed = getattr(os, call), True
    for at in range(30):
        left_to_go = [at]

        def patched(*args, n=left_to_go):
            n[0] -= 1
            if n[0] == -1:
                raise OSError(code, os.strerror(code))
            return real(*args)
        monkeypatch.setattr(os, call, patched)
        try:
            write(path)
        except kind as e:
            assert path.name in str(e)
            renamed = call == "fsync" and at == 2       # of the folder: the file is complete and has its name
            assert left(path) == (["tiny.moegg"] if renamed else [])
            path.unlink(missing_ok=True)
        else:
            failed = False
            break
    assert not failed and at >= {"pwrite": 12, "fsync": 3, "ftruncate": 1}[call]


def test_short_writes_are_continued(path, monkeypatch):
    whole, real = write(path), os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, data[:max(1, len(data) // 3)], at))
    assert write(path, force=True) == whole


def test_leaving_without_finish_or_by_an_exception_removes_the_partial(path):
    spec = tiny()
    with ContainerWriter(path, **spec) as w:
        fill(w, spec)
        assert left(path) == ["tiny.moegg.partial"]
        with pytest.raises(FormatError, match="an unfinished conversion or download"):
            Container.open(w.partial)
    assert left(path) == []
    with pytest.raises(KeyboardInterrupt), ContainerWriter(path, **spec) as w:
        raise KeyboardInterrupt
    assert left(path) == []


def test_two_writers_of_one_file_do_not_mix(path):
    spec = tiny()
    with ContainerWriter(path, **spec) as first:
        with pytest.raises(UsageError, match="another moegg process is writing it"), ContainerWriter(path, **spec):
            pass
        fill(first, spec)
        first.finish()
    Container.open(path).verify()
    assert left(path) == ["tiny.moegg"]


def test_a_stale_partial_is_replaced_even_if_it_is_the_finished_file(path):
    """A crash between link and unlink leaves two names of one file; the next run must not cut the good one."""
    write(path)
    partial = path.with_name(path.name + ".partial")
    os.link(path, partial)
    write(path, force=True)
    os.link(path, partial)
    with pytest.raises(InternalError), ContainerWriter(path, **tiny(), force=True) as w:
        w.finish()
    Container.open(path).verify()
    assert left(path) == ["tiny.moegg"]


def test_tensor_in_pieces_arrays_and_memoryviews(path):
    spec, whole = tiny(), write(path)
    with ContainerWriter(path, **spec, force=True) as w:
        for i, t in enumerate(spec["tensors"]):
            data = pattern(i, t.nbytes)
            w.put_tensor(t.name, [np.frombuffer(data[:64], "<f4").reshape(2, 8), memoryview(data)[64:65], bytearray(data[65:])])
        for e in spec["experts"]:
            for x in range(e.n):
                w.put_record(e.layer, x, [np.frombuffer(pattern(50 + 20 * e.layer + 5 * x + i, p.nbytes), "<u2")
                                          for i, p in enumerate(e.parts)])
        w.finish()
    assert path.read_bytes() == whole


def put_tensors_only(w, spec):
    for t in spec["tensors"]:
        w.put_tensor(t.name, pattern(0, t.nbytes))
    w.finish()


def put_a_record_twice(w, spec):
    fill(w, spec)
    w.put_record(2, 1, [pattern(0, 1024)])


@pytest.mark.parametrize(("use", "says"), [
    (lambda w, s: w.finish(), "finish with 8 of 8 tensors and records missing; first: tensor 'layers.0.attn_norm'"),
    (put_tensors_only, "finish with 4 of 8 tensors and records missing; first: record of layer 0, expert 0"),
    (put_a_record_twice, "record of layer 2, expert 1 was put twice"),
    (lambda w, s: w.put_tensor("head", b""), "tensor 'head' is not in the plan"),
    (lambda w, s: w.put_tensor("embed", b"abc"), "tensor 'embed': got 3 B, expected 680 B"),
    (lambda w, s: w.put_tensor("embed", [bytes(680), b"x"]), "got more than the planned 680 B"),
    (lambda w, s: w.put_tensor("embed", np.zeros((680, 2), np.uint8)[:, 0]), "contiguous"),
    (lambda w, s: w.put_record(1, 0, [b""]), "record of layer 1, expert 0 with 1 parts is not in the plan"),
    (lambda w, s: w.put_record(0, 2, [b""] * 3), "expert 2 with 3 parts"),
    (lambda w, s: w.put_record(0, 0, [b""] * 2), "with 2 parts"),
    (lambda w, s: w.put_record(0, 0, [bytes(GATE.nbytes), b"x", b"y"]), "part 'up': got 1 B, expected 288 B")])
def test_wrong_use_is_an_internal_error_and_leaves_nothing(path, use, says):
    spec = tiny()
    with pytest.raises(InternalError, match=says), ContainerWriter(path, **spec) as w:
        use(w, spec)
    assert left(path) == []


def test_use_outside_the_with_block(path):
    w = ContainerWriter(path, **tiny())
    assert w.total_bytes == len(write(path))
    with pytest.raises(InternalError, match="before the writer was entered, or after it ended"):
        w.put_tensor("embed", bytes(680))


CRASHES = """
import os, signal, sys
sys.path.insert(0, {tests!r})
import corrupt
from pathlib import Path
from moegg.errors import MoeggError
from moegg.formats.container import Container

path, calls = Path({path!r}), ("open", "ftruncate", "pwrite", "fsync", "link", "unlink", "close")
partial, real = path.with_name(path.name + ".partial"), {{name: getattr(os, name) for name in calls}}

def crash_at(n):
    def patch(name):
        def call(*args, **kwargs):
            nonlocal n
            n -= 1
            if n == 0:
                if name == "pwrite":        # half of it reaches the file
                    real[name](args[0], memoryview(args[1])[:len(args[1]) // 2], args[2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real[name](*args, **kwargs)
        setattr(os, name, call)
    for name in calls:
        patch(name)

def sound(p):
    try:
        Container.open(p).verify()
    except MoeggError:
        return False
    return True

whole = corrupt.write(path)
path.unlink()
for at in range(1, 200):
    child = os.fork()
    if child == 0:
        crash_at(at)
        corrupt.write(path)
        os._exit(0)
    died = os.WIFSIGNALED(os.waitpid(child, 0)[1])
    for p in (path, partial):       # only a whole file opens: the partial one is whole when its header has been written
        assert not p.exists() or p.read_bytes() == whole or (p == partial and not sound(p)), at
    if not died:
        break
    path.unlink(missing_ok=True)
print(at, "moments")
assert not partial.exists() and sound(path) and path.read_bytes() == whole
"""


def test_killed_before_any_system_call_it_leaves_no_half_file_that_opens_and_the_next_run_succeeds(path):
    """kill -9 at every moment that the file system can tell apart; each run starts on what the one before left."""
    code = CRASHES.format(tests=str(Path(__file__).parent), path=str(path))
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60,
                         cwd=path.parent)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout.split()[0]) > 20


def test_killed_at_random_moments(path):
    """The same by the clock: children write in a loop until they are killed."""
    code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
import corrupt; from pathlib import Path
print("ready", flush=True)
while True: corrupt.write(Path({str(path)!r}), force=True)
"""
    for wait_ms in random.Random(1).sample(range(1, 40), 3):
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=path.parent) as child:
            assert child.stdout.readline() == b"ready\n"
            time.sleep(wait_ms / 1000)
            child.send_signal(signal.SIGKILL)
        if path.exists():
            Container.open(path).verify()
    write(path, force=True)
    assert left(path) == ["tiny.moegg"]


def test_a_signal_between_the_file_and_its_number_leaves_nothing(path, monkeypatch):
    """Python runs the handler of SIGTERM after the call that made the file and before its result is kept."""
    real = os.open

    def interrupted(name, flags, *rest, **more):
        fd = real(name, flags, *rest, **more)
        if flags & os.O_EXCL:
            os.close(fd)
            raise KeyboardInterrupt
        return fd
    monkeypatch.setattr(os, "open", interrupted)
    with pytest.raises(KeyboardInterrupt), ContainerWriter(path, **tiny()):
        pass
    assert left(path) == []


def test_a_gguf_whose_header_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(IOFailure, match="write at byte 0 failed: No space left"), GGUFWriter(tmp_path / "m.gguf", [], [("a", (32,), "f32")]):
        pass
    assert list(tmp_path.iterdir()) == []
