"""From a run's events to bytes on the wire: SSE and NDJSON framing, keep-alive pings, and cancellation when the client has gone.

JSON is ASCII, so no U+0085 or U+2028 can break a line, and no character can be cut. Refuses: knowing any dialect.
"""
from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from queue import Empty
from typing import Any

from moegg.server.ask import Done, Event, Failed, Ping, Progress
from moegg.server.worker import Run

POLL_S = 0.1            # how often a silent run is checked for a client that has gone
FIRST_PING_S = 0.5      # clients and proxies should see a byte within a second

SSE_PING = b": ping\n\n"
SSE_DONE = b"data: [DONE]\n\n"


def sse(data: Any, event: str | None = None) -> bytes:
    """One server-sent event."""
    return (f"event: {event}\n" if event else "").encode() + b"data: " + dumps(data) + b"\n\n"


def ndjson(data: Any) -> bytes:
    return dumps(data) + b"\n"


def dumps(data: Any) -> bytes:
    return json.dumps(data, separators=(",", ":"), allow_nan=False).encode("ascii")


def events(run: Run, gone: Callable[[], bool], ping_s: float = 5.0) -> Iterator[tuple[int, Event]]:
    """All events of a run until each of its answers has ended, with a Ping where no text comes; Progress may be no bytes at all.

    Leaving early, and a client that is gone, cancel the run. Then nothing more comes.
    """
    left = len(run.jobs)
    ping_at = time.monotonic() + FIRST_PING_S
    try:
        while left:
            if gone():
                return
            try:
                index, event = run.events.get(timeout=POLL_S)
            except Empty:
                index, event = 0, None
            now = time.monotonic()
            if event is not None and not isinstance(event, Progress):
                ping_at = now + ping_s
            elif now >= ping_at:
                ping_at = now + ping_s
                yield 0, Ping()
            if event is not None:
                left -= isinstance(event, (Done, Failed))
                yield index, event
    finally:
        run.cancel()
