"""Small files appear whole or not at all: what is cut off leaves the old file and nothing beside it."""
import os
import stat

import numpy as np
import pytest

from moegg.errors import IOFailure
from moegg.files import whole_file
from moegg.io import profile, trace


def test_what_is_written_replaces_the_old_file_with_the_wanted_permissions(tmp_path):
    """P4."""
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with whole_file(path, 0o600) as f:
        f.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new" and list(tmp_path.iterdir()) == [path]
    assert os.name != "posix" or stat.S_IMODE(path.stat().st_mode) == 0o600


def test_devices_and_links_stay_what_they_are(tmp_path):
    """As root `--trace /dev/null` replaced the device for everybody."""
    pipe, real, link = tmp_path / "pipe", tmp_path / "real", tmp_path / "link"
    os.mkfifo(pipe)
    real.write_bytes(b"old")
    link.symlink_to(real)
    for path in (pipe, tmp_path):
        with pytest.raises(OSError, match="a device or a pipe"), whole_file(path):
            pass
    with whole_file(link) as f:
        f.write(b"new")
    assert pipe.is_fifo() and link.is_symlink() and real.read_bytes() == b"new" and len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_interrupted_write_keeps_the_old_file_and_leaves_nothing(tmp_path, error):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(type(error)), whole_file(path) as f:
        f.write(b"half")
        raise error
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_a_trace_or_profile_that_cannot_be_written_leaves_no_rest(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(IOFailure, match="No space left"):
        trace.write(trace.Trace(np.zeros((1, 1, 1), np.int16), *(np.array([n]) for n in (0, 0, 1, 1))), tmp_path / "t.npz")
    profile.save(profile.Profile("key", 2), tmp_path / "p.json")
    assert list(tmp_path.iterdir()) == []
