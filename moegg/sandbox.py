"""Keeps a chat template in a process of its own, where the operating system limits what it may use.

Templates come with models, so from strangers, and are programs. What one expression of theirs can cost is not to be foreseen
(lists that hold themselves many times over, sorting, formatting, comparing), so nothing here tries: a child process runs them,
with a limit on its memory, and dies if it does not answer in time. It is started for the first template and kept for the next.
Owns: that process, the limits, the protocol: a JSON line [template, values, seconds], answered by {"text"} or {"error", "slug"}.
Refuses: values that are not JSON. The limits keep a mistake or a trap from eating the machine; what a template may reach is
jinja2's sandbox's business (moegg/template.py). Where the system has no limit on memory (macOS, Windows), time alone ends it.
"""
from __future__ import annotations

import atexit
import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

from moegg.errors import BadRequest, IOFailure
from moegg.units import fmt_bytes

MAX_TEMPLATE = 1 << 20      # characters of a template
MAX_TEXT = 16 << 20         # characters of the prompt
MAX_MEMORY = 1 << 30        # bytes of the child's address space
MAX_SECONDS = 10.0

# The child finds modules where this process does, and nowhere else: not in the current folder, not where PYTHON* variables point.
_PROGRAM = "import sys; sys.path[:] = sys.argv[1:]; from moegg.template import serve; serve()"


def run(template: str, values: Mapping[str, Any]) -> str:
    """The text that `template` makes of `values`. Raises BadRequest for its faults, its own refusal and exceeded limits."""
    if len(template) > MAX_TEMPLATE:
        raise BadRequest(f"chat template: too long: got {fmt_bytes(len(template))}, expected at most {fmt_bytes(MAX_TEMPLATE)}",
                         "template-limit")
    try:
        request = json.dumps([template, values, MAX_SECONDS]).encode()
    except (TypeError, ValueError, RecursionError) as e:
        raise BadRequest(f"chat template: messages, tools and variables: not JSON: {e}", "message") from None
    reply = _ask(request + b"\n")
    if not reply:
        raise BadRequest(f"chat template: takes too long or too much memory: expected at most {MAX_SECONDS:g} s and "
                         f"{fmt_bytes(MAX_MEMORY)}", "template-limit")
    if "error" in reply:
        raise BadRequest(f"chat template: {reply['error']}", reply["slug"])
    return reply["text"]


class _Child:
    def __init__(self) -> None:
        try:
            self._process = subprocess.Popen([sys.executable, "-I", "-c", _PROGRAM, *sys.path], stdin=subprocess.PIPE,
                                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                             start_new_session=True)      # the terminal's Ctrl-C is not for it
        except OSError as e:
            raise IOFailure(f"chat template: the process that runs it cannot be started: {e.strerror}", "io") from e
        if not self._process.stdout.readline():
            self.stop()
            raise IOFailure(f"chat template: the process that runs it ended at once: exit code {self._process.returncode}", "io")

    def ask(self, request: bytes) -> bytes:
        """The answer; empty if the child died over it, be it of the time limit."""
        clock = threading.Timer(MAX_SECONDS, self._process.kill)
        clock.daemon = True
        clock.start()
        try:
            self._process.stdin.write(request)
            self._process.stdin.flush()
            return self._process.stdout.readline()
        except BrokenPipeError:
            return b""
        finally:
            clock.cancel()

    def dead(self) -> bool:
        return self._process.poll() is not None

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            try:
                pipe.close()
            except BrokenPipeError:     # part of a request was still to be written
                pass


_lock = threading.Lock()
_child: _Child | None = None


def _ask(request: bytes) -> dict[str, str]:
    """The child's reply, {} if there is none. A child that met a limit, or was left before it replied, is not used again."""
    global _child
    with _lock:
        if _child is None or _child.dead():
            _drop()
            _child = _Child()
        sound = False
        try:
            line = _child.ask(request)
            reply = json.loads(line) if line.endswith(b"\n") else {}
            sound = bool(reply) and reply.get("slug") != "template-limit"
            return reply
        finally:
            if not sound:
                _drop()


def _drop() -> None:
    global _child
    if _child is not None:
        _child.stop()
        _child = None


atexit.register(_drop)
