"""Edits of the tail: nothing else changes, and whatever moment they are killed at, the file is the old one or the new one."""
import errno
import fcntl
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from moegg.errors import FormatError, IOFailure, NoRoom, UsageError
from moegg.formats import edit, reader
from moegg.formats.container import Container
from moegg.formats.edit import edit_tail

from .corrupt import tiny, write

TEXTS = {"shorter": b"# T", "longer": b"# Tiny\n" + b"x" * 9000, "same": b"# Tony"}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "tiny.moegg"
    write(path)
    return path


def card(path) -> bytes | None:
    c = Container.open(path)
    c.verify()
    return c.read_section("model_card") if "model_card" in c.sections else None


def left(path) -> list[str]:
    return sorted(p.name for p in path.parent.iterdir())


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_an_edit_changes_the_tail_and_no_other_byte(path, text):
    before, old = path.read_bytes(), Container.open(path)
    template = old.read_section("chat_template")
    c = edit_tail(path, {"model_card": text})
    assert path.read_bytes()[:c.tail_offset] == before[:c.tail_offset] and (c.root, c.content_id) == (old.root, old.content_id)
    assert card(path) == text and c.read_section("chat_template") == template and left(path) == ["tiny.moegg"]
    assert path.stat().st_ino == old.identity[1]


def test_edits_give_the_bytes_that_a_writer_would_have_written(path, tmp_path):
    spec = tiny()
    spec["sections"] |= {"generation_config": ("application/json", b"{}"), "model_card": ("text/markdown", b"new")}
    edit_tail(path, {"model_card": b"new"})
    edit_tail(path, {"generation_config": b"{}"})
    assert path.read_bytes() == write(tmp_path / "other.moegg", spec)


def test_a_section_is_removed_and_all_of_them(path):
    assert "chat_template" not in edit_tail(path, {"chat_template": None, "generation_config": None}).sections
    assert not any(s.mutable for s in edit_tail(path, {"model_card": None}).sections.values())
    assert card(path) is None


class Killed(BaseException):
    pass


def die_at(monkeypatch, step: int, torn: bool) -> None:
    """The step-th change of the disk does not happen any more, or (torn) half of it does, and nothing after it."""
    count = [0]

    def dying(name, real):
        def call(*args):
            count[0] += 1
            if count[0] < step:
                return real(*args)
            if count[0] == step and torn and name == "pwrite":
                real(args[0], args[1][:len(args[1]) // 2], args[2])
            raise Killed
        return call
    for name in ("pwrite", "ftruncate", "replace", "unlink", "fsync"):
        monkeypatch.setattr(os, name, dying(name, getattr(os, name)))


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_killed_at_any_step_it_is_the_old_file_or_the_new_one(path, text, torn):
    seen = []
    for step in range(1, 30):
        write(path, force=True)
        with pytest.MonkeyPatch.context() as m:
            die_at(m, step, torn)
            try:
                edit_tail(path, {"model_card": text})
            except Killed:
                pass
            else:
                break
        seen.append(card(path))
        assert seen[-1] in (b"# Tiny", text)
        edit_tail(path, {"generation_config": b'{"top_k":1}'})
        assert card(path) == seen[-1] and left(path) == ["tiny.moegg"]
        path.unlink()
    assert len(seen) >= 7 and seen[0] == b"# Tiny" and seen[-1] == text == card(path)
    assert seen == sorted(seen, key=lambda t: t == text), "once new, always new"


def test_sigkill_leaves_a_file_that_verifies(path):
    """In earnest: a process that edits again and again is killed at six moments."""
    code = ("import sys\nfrom moegg.formats.edit import edit_tail\n"
            "for i in range(10**6):\n edit_tail(sys.argv[1], {'model_card': (b'a', b'b' * 50000)[i % 2]})\n print(i, flush=True)")
    rng = random.Random(7)
    for _ in range(6):
        child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
        try:
            child.stdout.readline()
            time.sleep(rng.random() * 0.02)
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()
            child.stdout.close()
        assert card(path) in (b"a", b"b" * 50000)


@pytest.mark.parametrize("number, error", [(errno.ENOSPC, NoRoom), (errno.EIO, IOFailure)])
@pytest.mark.parametrize("step", [1, 3], ids=["journal", "file"])
def test_an_edit_that_the_disk_refuses_changes_nothing(path, monkeypatch, step, number, error):
    before, real, count = path.read_bytes(), os.fsync, [0]

    def failing(fd):
        count[0] += 1
        if count[0] == step:
            raise OSError(number, os.strerror(number))
        return real(fd)
    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(error):
        edit_tail(path, {"model_card": b"y" * 5000})
    monkeypatch.undo()
    assert path.read_bytes() == before and left(path) == ["tiny.moegg"]


def test_two_edits_at_once_are_refused(path):
    fd = os.open(path, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(UsageError, match="another moegg process is editing it.*target-busy"):
        edit_tail(path, {"model_card": b"x"})
    os.close(fd)


def test_a_journal_of_another_file_or_a_damaged_one_is_not_used(path):
    c = Container.open(path)
    good = reader.encode_journal(c.root, c.tail_offset, path.read_bytes()[c.tail_offset:])
    for bad in (reader.encode_journal(bytes(32), c.tail_offset, b"x" * 200), good[:-1], b"", b"x" * 3000, good[:64] + bytes(16) + good[80:]):
        reader.journal_path(path).write_bytes(bad)
        assert card(path) == b"# Tiny"
    reader.journal_path(path).unlink()
    os.mkfifo(reader.journal_path(path))
    assert card(path) == b"# Tiny"


def test_an_edit_through_a_link_edits_the_file_and_keeps_the_link(path, tmp_path):
    link = tmp_path / "link.moegg"
    link.symlink_to(path)
    edit_tail(link, {"model_card": b"x"})
    assert link.is_symlink() and card(path) == card(link) == b"x"


def test_weights_and_unknown_sections_cannot_be_edited(path):
    with pytest.raises(UsageError, match="section 'tokenizer': cannot be edited"):
        edit_tail(path, {"tokenizer": b"{}"})
    with pytest.raises(FormatError, match="R8|at most|damaged"):
        edit_tail(path, {"model_card": bytes(65 << 20)})
    assert card(path) == b"# Tiny" and left(path) == ["tiny.moegg"]


def test_a_file_that_may_not_be_written_is_named(path):
    if os.geteuid() == 0:
        pytest.skip("root may write everything")
    path.chmod(0o444)
    with pytest.raises(IOFailure, match="cannot be written"):
        edit.edit_tail(path, {"model_card": b"x"})
