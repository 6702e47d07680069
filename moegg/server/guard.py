"""What stands before every route: Host check, Origin and CORS rules, the API key, preflights; and the count of responses.

Host: a page of a foreign site can make a browser call a local server under its own name (DNS rebinding), so names must be known.
IP addresses cannot be rebound: any is fine unless the server listens on loopback only. Origin: browsers always send it with what
a page posts, other programs do not; so a foreign one is refused unless it was allowed at the start or the request holds the key.
"""
from __future__ import annotations

import hmac
import ipaddress
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from moegg import log
from moegg.server.metrics import Metrics
from moegg.server.problem import Problem, anthropic_error, ollama_error, openai_error
from moegg.server.stream import dumps

PUBLIC = ("/health", "/healthz", "/v1/health")
METHODS = "GET, POST, OPTIONS"


@dataclass(frozen=True)
class Policy:
    """host: the address that the server listens on. hosts: more names it goes by. origins: pages that may use it. '*': any."""
    host: str = "127.0.0.1"
    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    keys: tuple[str, ...] = ()

    def host_allowed(self, header: str | None) -> bool:
        """Whether the Host header names this server. Programs without one (HTTP/1.0) are no browsers."""
        if header is None or "*" in self.hosts:
            return True
        name = host_name(header)
        if name in {"localhost", self.host.lower()} | self.hosts or header.strip().lower() in self.hosts:
            return True
        address = _address(name)
        return address is not None and (address.is_loopback or not self.loopback)

    @property
    def loopback(self) -> bool:
        address = _address(self.host)
        return self.host.lower() == "localhost" or address is not None and address.is_loopback

    def origin_listed(self, origin: str) -> bool:
        return "*" in self.origins or origin.lower() in self.origins

    def key_given(self, environ: dict[str, Any]) -> bool:
        """Whether the request holds one of the keys, as OpenAI's or Anthropic's clients send it."""
        scheme, _, token = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
        given = [environ.get("HTTP_X_API_KEY", ""), token.strip() if scheme.lower() == "bearer" else ""]
        return any([hmac.compare_digest(g.encode("latin-1", "replace"), k.encode()) for g in given for k in self.keys if g])


def host_name(header: str) -> str:
    """The name in a Host header, without port and brackets, lower case."""
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.rpartition(":")[0] if text.rpartition(":")[2].isdigit() and text.count(":") == 1 else text.rstrip(".")


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def error_body(path: str, p: Problem) -> bytes:
    """A refusal in the form of the dialect that `path` belongs to."""
    shape = anthropic_error if path.startswith("/v1/messages") else ollama_error if path.startswith("/api/") else openai_error
    return dumps(shape(p))


class Guard:
    """WSGI around WSGI. routes: paths that metrics may name; others are counted together."""

    def __init__(self, app: Callable[..., Iterable[bytes]], policy: Policy, metrics: Metrics, routes: Iterable[str]):
        self._app, self._policy, self._metrics, self._routes = app, policy, metrics, frozenset(routes)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path, origin, begun = environ.get("PATH_INFO", ""), environ.get("HTTP_ORIGIN"), time.monotonic()
        headers = [("X-Content-Type-Options", "nosniff")]
        if origin is not None and self._policy.origin_listed(origin):
            headers += [("Access-Control-Allow-Origin", origin), ("Vary", "Origin")]

        def started(status: str, given: list[tuple[str, str]], exc_info: Any = None) -> Any:
            self._metrics.add("http_requests_total", route=path if path in self._routes else "other", status=status[:3])
            spent = (time.monotonic() - begun) * 1e3
            log.detail(f"server: {environ.get('REQUEST_METHOD', '')[:8]} {path[:80]!r} {status[:3]} {spent:.0f} ms")
            return start_response(status, given + headers, exc_info) if exc_info else start_response(status, given + headers)
        try:
            self._check(environ, path, origin)
        except Problem as p:
            body = error_body(path, p)
            started(f"{p.status} {_REASONS.get(p.status, 'Refused')}",
                    [("Content-Type", "application/json"), ("Content-Length", str(len(body))),
                                                                        *p.headers.items()])
            return [body]
        if environ.get("REQUEST_METHOD") == "OPTIONS":
            asked = environ.get("HTTP_ACCESS_CONTROL_REQUEST_HEADERS", "")
            given = [("Content-Length", "0"), ("Allow", METHODS)]
            if origin is not None:
                given += [("Access-Control-Allow-Methods", METHODS), ("Access-Control-Max-Age", "600"),
                          ("Access-Control-Allow-Headers", asked if asked.isprintable() else ""),
                          ("Access-Control-Allow-Private-Network", "true")]
            started("204 No Content", given[1:])
            return []
        return self._app(environ, started)

    def _check(self, environ: dict[str, Any], path: str, origin: str | None) -> None:
        policy = self._policy
        if not policy.host_allowed(environ.get("HTTP_HOST")):
            raise Problem(403, f"the host name {environ['HTTP_HOST'][:80]!r} is not this server's; --allow-host adds one",
                          code="host_not_allowed")
        if path in PUBLIC:
            return
        keyed = policy.key_given(environ)
        if origin is not None and not policy.origin_listed(origin) and not keyed and not _same(origin, environ):
            raise Problem(403, f"pages from {origin[:80]!r} may not use this server; start it with --cors-origin to allow them",
                          code="origin_not_allowed")
        if policy.keys and not keyed and environ.get("REQUEST_METHOD") != "OPTIONS":
            raise Problem(401, "the API key is missing or wrong", code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


_REASONS = {401: "Unauthorized", 403: "Forbidden"}


def _same(origin: str, environ: dict[str, Any]) -> bool:
    """Whether a page came from this server itself."""
    try:
        return bool(origin) and urlsplit(origin).netloc.lower() == environ.get("HTTP_HOST", "").strip().lower() != ""
    except ValueError:
        return False
