"""Waitress around the application: sockets, threads, limits, and a stop that lets answers end.

Owns the two settings that cancellation needs: channel_request_lookahead=1, without which waitress does not see that a client has
gone, and a thread for every request that may run or wait. What waitress refuses itself is JSON too.
"""
from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from waitress import wasyncore
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser, ParsingError
from waitress.server import create_server
from waitress.task import ErrorTask

from moegg.errors import IOFailure
from moegg.server.guard import error_body
from moegg.server.problem import Problem

try:
    import resource
except ImportError:         # Windows
    resource = None

SPARE_THREADS = 16          # for requests that do not wait for the engine
MAX_CONNECTIONS = 512
SPARE_CONNECTIONS = 16
OTHER_FILES = 64            # that the process may have open besides: the model, conversations, pipes
BACKLOG = 128
DRAIN_S = 3.0


class _Refusal(ErrorTask):
    """A request that waitress could not read."""

    def execute(self) -> None:
        e = self.request.error
        body = error_body(getattr(self.request, "path", ""),
                          Problem(e.code, f"{e.reason.lower()}: {' '.join(e.body.split())[:200]}",
                                                                     code="invalid_http_request"))
        self.status = f"{e.code} {e.reason}"
        self.response_headers.append(("Content-Type", "application/json"))
        self.set_close_on_finish()
        self.content_length = len(body)
        self.write(body)


class _Parser(HTTPRequestParser):
    def parse_header(self, header_plus: bytes) -> None:
        """Headers that Python cannot take, such as a length of 5,000 digits, are a 400 like others that make no sense."""
        try:
            super().parse_header(header_plus)
        except ValueError as e:
            raise ParsingError("a header is invalid") from e


class _Channel(HTTPChannel):
    error_task_class = _Refusal
    parser_class = _Parser

    def __init__(self, server: Any, *args: Any, **options: Any):
        """Where nearly all connections are in use, the one that has been silent longest, and asked for nothing, makes room."""
        super().__init__(server, *args, **options)
        held = list(server.active_channels.values())
        limit = server.adj.connection_limit
        if len(held) > limit - min(SPARE_CONNECTIONS, limit // 4):
            silent = [c for c in held if c is not self and not (c.requests or c.total_outbufs_len or c.will_close)]
            if silent:
                min(silent, key=lambda c: c.last_activity).will_close = True


def connections() -> int:
    """MAX_CONNECTIONS, or fewer where the system allows fewer open files; that limit is raised first: macOS begins with 256."""
    if resource is None:
        return MAX_CONNECTIONS
    wanted = MAX_CONNECTIONS + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(SPARE_CONNECTIONS, min(MAX_CONNECTIONS, soft - OTHER_FILES))


class Server:
    """Listens as soon as it exists; `run` serves until `stop`. on_stop: called first by stop, ends the answers."""

    def __init__(self, app: Callable[..., Any], host: str, port: int, *, answers: int, max_body: int,
                 on_stop: Callable[[], None]):
        """answers: requests that may run or wait at once. port 0: any free one. Raises IOFailure."""
        for name in ("waitress", "waitress.queue"):     # they warn of what is normal here: queues, and clients that go
            logging.getLogger(name).setLevel(logging.ERROR)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            sock = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except (OSError, OverflowError) as e:
            # create_server's own text repeats the address
            reason = os.strerror(e.errno) if isinstance(e, OSError) and e.errno and e.errno > 0 else e
            raise IOFailure(f"{host}:{port}: cannot listen: {reason}; choose another --host or --port", "io-listen") from e
        self._http = create_server(app, map={}, sockets=[sock], threads=answers + SPARE_THREADS, backlog=BACKLOG,
                                   channel_request_lookahead=1, connection_limit=connections(), asyncore_use_poll=True,
                                   max_request_body_size=max_body, ident="moegg", clear_untrusted_proxy_headers=True,
                                   asyncore_loop_timeout=1, cleanup_interval=10)
        self._http.channel_class = _Channel
        self.host, self.port = host, int(self._http.effective_port)
        self._on_stop = on_stop
        self._stopped = threading.Event()
        self._waking, self._ended = threading.Lock(), False

    @property
    def url(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def run(self) -> None:
        """Serves in this thread until another one, or a signal handler's, has called stop."""
        try:
            self._http.run()
        finally:
            threads = self._http.task_dispatcher
            threads.shutdown(timeout=DRAIN_S)
            with self._waking:
                self._ended = True
                if not threads.threads:
                    self._http.trigger.close()

    def stop(self) -> None:
        """Ends all answers, lets their responses out, closes everything; returns when that is asked for. Any thread but run's."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._on_stop()
        end = time.monotonic() + DRAIN_S
        while time.monotonic() < end and any(c.requests or c.total_outbufs_len
                                             for c in list(self._http.active_channels.values())):
            time.sleep(0.02)
        with self._waking:
            if not self._ended:         # by an interrupt
                self._http.trigger.pull_trigger(self._close)

    def _close(self) -> None:
        """Runs in the thread of `run`, whose loop ends when nothing is left to watch.

        The pipe that wakes the loop stays open: threads that end a response, and `stop`, still write to it, and its number could
        by then be that of another file.
        """
        for channel in list(self._http.active_channels.values()):
            channel.handle_close()
        self._http.trigger.del_channel()
        wasyncore.dispatcher.close(self._http)
