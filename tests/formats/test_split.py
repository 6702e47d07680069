"""Byte splits: parts read as the file they are cut from, exactly across their borders; missing and wrong parts are named."""
import os

import pytest

from moegg.errors import FormatError, IOFailure, NotFound, UsageError
from moegg.formats import reader, split
from moegg.formats.container import Container
from moegg.formats.edit import edit_tail

from .corrupt import write

STEP = 64 << 10


@pytest.fixture
def small(monkeypatch):
    """Parts of 64 KiB, so that a tiny file has some."""
    monkeypatch.setattr(reader, "SPLIT_ALIGN", 4096)
    monkeypatch.setattr(split, "SPLIT_ALIGN", 4096)


@pytest.fixture
def parts(tmp_path, small):
    write(tmp_path / "m.moegg")
    return split.split(Container.open(tmp_path / "m.moegg"), tmp_path / "out.moegg", STEP)


def test_parts_joined_are_the_file_and_the_names_sort(parts, tmp_path):
    assert [p.name for p in parts] == sorted(p.name for p in parts) and parts[0].name == f"out.moegg.00001-of-{len(parts):05d}" and len(parts) >= 2
    assert b"".join(p.read_bytes() for p in parts) == (tmp_path / "m.moegg").read_bytes()
    assert {p.stat().st_size for p in parts[:-1]} == {STEP}


@pytest.mark.parametrize("which", ["first", "last", "stem"])
def test_any_part_or_the_stem_opens_the_whole(parts, tmp_path, which):
    whole = Container.open(tmp_path / "m.moegg")
    c = Container.open({"first": parts[0], "last": parts[-1], "stem": tmp_path / "out.moegg"}[which])
    c.verify()
    assert (c.root, c.file_bytes, c.path) == (whole.root, whole.file_bytes, parts[0]) and [p for p, _ in c.parts] == parts
    assert all(c.read_section(s) == whole.read_section(s) for s in ("tokenizer", "model_card"))


def test_reads_across_borders_are_exact(parts, tmp_path):
    data = (tmp_path / "m.moegg").read_bytes()
    with reader.open_file(parts[0]) as f:
        for at in (0, STEP - 1, STEP, STEP + 1, 2 * STEP - 3):
            for n in (0, 1, 2, 5, STEP, STEP + 7, len(data) - at):
                n = min(n, len(data) - at)
                assert f.read(at, n) == data[at:at + n]
        with pytest.raises(FormatError, match="R5|ends here"):
            f.read(len(data) - 1, 2)


def test_a_missing_part_is_named(parts):
    parts[1].unlink()
    with pytest.raises(NotFound, match=rf"{parts[1].name}: no such file: this part of {len(parts)} is missing"):
        Container.open(parts[0])


@pytest.mark.parametrize("i, how", [(0, lambda d: d[:-1]), (0, lambda d: d[:4096]),
                                    (1, lambda d: d[:-4096]), (1, lambda d: d + bytes(4096)), (-1, lambda d: d[:-1]), (-1, lambda d: b"")])
def test_a_part_that_is_too_short_or_too_long_is_refused(parts, i, how):
    parts[i].write_bytes(how(parts[i].read_bytes()))
    with pytest.raises(FormatError):
        Container.open(parts[0])


def test_a_part_of_another_file_is_found_by_verify(parts, tmp_path):
    data = bytearray(parts[-1].read_bytes())
    data[5] ^= 1
    parts[-1].write_bytes(data)
    with pytest.raises(FormatError):
        Container.open(parts[0]).verify()


def test_a_part_replaced_after_opening_is_noticed(parts):
    c = Container.open(parts[0])
    os.utime(parts[-1], ns=(1, 1))
    with pytest.raises(IOFailure, match="file-changed"):
        c.verify()


def test_a_whole_file_goes_before_parts_of_its_name(parts, tmp_path):
    write(tmp_path / "out.moegg")
    assert Container.open(tmp_path / "out.moegg").parts == ()


def test_sizes_that_make_no_sense_and_targets_that_exist(parts, tmp_path):
    c = Container.open(tmp_path / "m.moegg")
    for size in (0, 100, c.file_bytes + 4096, 1 << 40):
        with pytest.raises(UsageError, match="split-size"):
            split.split(c, tmp_path / "x.moegg", size)
    with pytest.raises(UsageError, match="exists already"):
        split.split(c, tmp_path / "out.moegg", STEP)
    assert split.split(c, tmp_path / "out.moegg", STEP, force=True) == parts


def test_an_interrupted_split_leaves_no_parts(tmp_path, small, monkeypatch):
    write(tmp_path / "m.moegg")
    real, count = os.replace, [0]

    def dying(a, b):
        count[0] += 1
        if count[0] == 2:
            raise KeyboardInterrupt
        real(a, b)
    monkeypatch.setattr(os, "replace", dying)
    with pytest.raises(KeyboardInterrupt):
        split.split(Container.open(tmp_path / "m.moegg"), tmp_path / "out.moegg", STEP)
    assert [p.name for p in tmp_path.iterdir()] == ["m.moegg"]


def test_a_split_file_is_not_edited(parts, tmp_path):
    for path in (parts[0], tmp_path / "out.moegg"):
        with pytest.raises(UsageError, match="edit-parts"):
            edit_tail(path, {"model_card": b"x"})


def test_a_folder_that_cannot_be_written_is_named(tmp_path, small, monkeypatch):
    write(tmp_path / "m.moegg")
    real = os.open

    def refused(name, *more):
        if str(name).endswith(".partial"):
            raise OSError(30, "Read-only file system")
        return real(name, *more)
    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(IOFailure, match=r"x.moegg.000.*partial: cannot be written: Read-only file system .io-write"):
        split.split(Container.open(tmp_path / "m.moegg"), tmp_path / "x.moegg", STEP)
