"""`moegg server` itself: plans, keys, the ready line, signals."""
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request

import pytest

from moegg.commands.server import _keys
from moegg.errors import IOFailure, UsageError
from moegg.formats.container import Container
from moegg.server.serve import Server
from moegg.units import fmt_count


def test_keys_come_from_options_and_files(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# mine\none\n\n two \n")
    assert _keys({"--api-key": ["zero"], "--api-key-file": file}) == ("zero", "one", "two")
    file.write_text("# none\n")
    for args in ({"--api-key": [], "--api-key-file": file}, {"--api-key": [""], "--api-key-file": None},
                 {"--api-key": ["é"], "--api-key-file": None}):
        with pytest.raises(UsageError):
            _keys(args)


def test_a_port_in_use_is_an_io_error():
    one = Server(lambda e, s: [], "127.0.0.1", 0, answers=1, max_body=1000, on_stop=lambda: None)
    try:
        with pytest.raises(IOFailure, match="cannot listen.*io-listen"):
            Server(lambda e, s: [], "127.0.0.1", one.port, answers=1, max_body=1000, on_stop=lambda: None)
    finally:
        one.stop()
        one.run()


@pytest.mark.parametrize("number, options",
                         [(signal.SIGTERM, []), (signal.SIGINT, ["--ram=1G", "--io=direct", "--pin=1", "--no-usage", "--idle-release=1"])])
def test_it_says_when_it_is_ready_serves_saves_and_stops_at_a_signal(qwen3_moe_file, tmp_path, number, options):
    command = [sys.executable, "-m", "moegg", "server", str(qwen3_moe_file), "--port=0", "--ctx=128", "--threads=1",
               "--parallel=2", "--alias=tiny", f"--cache-dir={tmp_path / 'cache'}", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True, env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)}) as process:
        try:
            ready = process.stderr.readline()
            url = re.fullmatch(r"moegg: tiny is ready at (http://127.0.0.1:\d+) \(2 at once, context 128\)\n", ready)[1]
            request = urllib.request.Request(f"{url}/v1/completions", json.dumps({"prompt": list(range(5, 95)), "max_tokens": 3}).encode())
            with urllib.request.urlopen(request, timeout=60) as r:
                assert json.load(r)["usage"]["completion_tokens"] <= 3
            with urllib.request.urlopen(f"{url}/metrics", timeout=60) as r:
                assert b"moegg_engine_cache_bytes" in r.read()
            with urllib.request.urlopen(f"{url}/api/tags", timeout=60) as r:
                details = json.load(r)["models"][0]["details"]
                about = Container.open(qwen3_moe_file).about
            assert details["quantization_level"] == about.recipe and details["parameter_size"] == fmt_count(about.parameters).replace(" ", "")
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (0, "", "moegg: stopped\n")
    assert len(list((tmp_path / "cache").glob("*.session"))) == 1
