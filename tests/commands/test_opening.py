"""Text from standard input and JSON from sections, when there is none or it is not what it should be."""
import io
import subprocess
import sys
from types import SimpleNamespace

import pytest

from moegg.commands import opening
from moegg.errors import FormatError, IOFailure
from moegg.formats.sections import section_json


@pytest.mark.parametrize("argv", [["run", "demo"], ["run", "demo", "-"], ["tokenize", "demo", "-"]], ids=" ".join)
def test_closed_standard_input_is_one_line_and_exit_code_6(argv):
    """`moegg run demo <&-`"""
    command = ["sh", "-c", 'exec "$0" -m moegg "$@" <&-', sys.executable, *argv]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (6, "")
    assert done.stderr == "moegg: standard input: is closed, expected text to read from it [io-read]\n"


def test_standard_input_that_cannot_be_read_is_named(monkeypatch):
    class Folder(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, buffer):
            raise IsADirectoryError(21, "Is a directory")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BufferedReader(Folder())))
    with pytest.raises(IOFailure, match="standard input: cannot be read: Is a directory.*io-read"):
        opening.read_stdin()


@pytest.mark.parametrize("data", [b"[" * 100000, b"{", b"\xff", b'{"a":' + b"9" * 5000 + b"}", b"[1]", b"3", b""], ids=lambda d: repr(d[:9]))
def test_section_that_is_no_json_object_is_a_named_error(data):
    container = SimpleNamespace(path="x.moegg", sections={"tokenizer_config"}, read_section=lambda name: data)
    with pytest.raises(FormatError, match="x.moegg: section 'tokenizer_config'.*section-json"):
        section_json(container, "tokenizer_config")
