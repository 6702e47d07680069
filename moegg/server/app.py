"""Routes: from an HTTP request to a dialect, a run and a response. Holds no state but what it was given.

Owns: reading bodies, which dialect answers where, JSON errors for everything, the state-changing routes' extra checks.
Refuses: knowing fields (dialects), tokens (prompts) and passes (worker).
"""
from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import bottle

from moegg import __version__, log
from moegg.server import anthropic, llamacpp, ollama, openai, problem, responses, stream
from moegg.server.ask import Answer, Ask, Event, Meta
from moegg.server.fields import Fields, parse_object
from moegg.server.guard import Guard, Policy, error_body
from moegg.server.metrics import Metrics
from moegg.server.problem import Problem
from moegg.server.prompts import Prompter
from moegg.server.worker import Run, Worker

MAX_BODY = 32 << 20
MAX_LISTENERS = 8           # open /models/sse connections, each of which holds a thread
JSON, SSE, NDJSON = "application/json", "text/event-stream; charset=utf-8", "application/x-ndjson"


@dataclass(frozen=True)
class Dialect:
    """parse(body) -> Ask; respond(ask, meta, answers) -> JSON; flow(ask, meta, events) -> bytes of a stream of type `media`."""
    parse: Callable[[Mapping[str, Any]], Ask]
    respond: Callable[[Ask, Meta, list[Answer]], Any]
    flow: Callable[[Ask, Meta, Iterable[tuple[int, Event]]], Iterator[bytes]]
    media: str = SSE


@dataclass
class Service:
    """All that routes need. counters: more numbers for /metrics; shutdown: what POST /v1/shutdown calls."""
    worker: Worker
    prompter: Prompter
    metrics: Metrics
    alias: str
    info: Mapping[str, Any] = field(default_factory=dict)
    ping_s: float = 5.0
    log_prompts: bool = False
    counters: Callable[[], Mapping[str, float]] = dict
    shutdown: Callable[[], None] = lambda: None
    created: int = field(default_factory=lambda: int(time.time()))
    listeners: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(MAX_LISTENERS))

    def meta(self, run_id: str, prompt_tokens: int) -> Meta:
        return Meta(run_id, int(time.time()), self.alias, prompt_tokens, f"moegg-{__version__}", self.prompter.ctx)


class _Bottle(bottle.Bottle):
    """Bottle's own pages (404, 405, ...) as JSON."""

    def default_error_handler(self, res: bottle.HTTPError) -> bytes:
        if res.exception is not None:
            log.warn(f"server: {type(res.exception).__name__} in a response")
        messages = {404: "there is no such endpoint", 405: "this endpoint does not take that method"}
        res.content_type = JSON
        codes = {404: "not_found", 405: "method_not_allowed"}
        return error_body(bottle.request.path, Problem(res.status_code, messages.get(res.status_code, "the request failed"),
                                                       code=codes.get(res.status_code, "internal")))


def build(service: Service, policy: Policy) -> Guard:
    """The WSGI application."""
    return Routes(service).wsgi(policy)


class Routes:
    """The table of endpoints."""

    def __init__(self, service: Service):
        self.s = service
        decode = service.prompter.tokenizer.decode
        chat = Dialect(openai.chat, openai.chat_response, openai.chat_stream)
        text = Dialect(openai.completion, lambda a, m, r: openai.completion_response(a, m, r, decode),
                       lambda a, m, e: openai.completion_stream(a, m, e, decode))
        replies = Dialect(responses.request, responses.response, responses.flow)
        claude = Dialect(anthropic.request, anthropic.response, anthropic.flow)
        talk = Dialect(ollama.chat, ollama.chat_response, ollama.chat_flow, NDJSON)
        generate = Dialect(ollama.generate, ollama.generate_response, ollama.generate_flow, NDJSON)
        get: dict[str, Callable[..., Any]] = {
            "/": lambda: "moegg is running\n",
            "/health": self.health, "/healthz": self.health, "/v1/health": self.health, "/metrics": self.metrics,
            "/v1/models": self.models, "/v1/models/<id:path>": self.model, "/models": lambda: llamacpp.models(self._card()),
            "/models/sse": self.models_sse, "/slots": service.worker.state,
            "/props": lambda: llamacpp.props(self._card(), service.worker.parallel, service.prompter),
            "/api/tags": lambda: ollama.tags(self._card()), "/api/ps": lambda: ollama.running(self._card()),
            "/api/version": lambda: {"version": ollama.API, "moegg": __version__}}
        post: dict[str, Callable[[dict[str, Any]], Any]] = {
            "/v1/chat/completions": self._answering(chat), "/chat/completions": self._answering(chat),
            "/v1/completions": self._answering(text), "/completions": self._answering(text),
            "/v1/responses": self._answering(replies), "/v1/messages": self._answering(claude),
            "/api/chat": self._loading(talk, ollama.chat_loaded), "/api/generate": self._loading(generate, ollama.generate_loaded),
            "/v1/chat/completions/input_tokens": lambda b: {"input_tokens": self._count(openai.chat(b))},
            "/v1/responses/input_tokens": lambda b: responses.counted(self._count(responses.request(b))),
            "/v1/messages/count_tokens": lambda b: {"input_tokens": self._count(anthropic.request(b))},
            "/tokenize": lambda b: llamacpp.tokenize(b, service.prompter),
            "/detokenize": lambda b: llamacpp.detokenize(b, service.prompter),
            "/apply-template": lambda b: {"prompt": service.prompter.rendered(openai.chat(b))},
            "/api/show": lambda b: ollama.show(self._card(), service.prompter), "/props": self.set_props,
            "/v1/cancel": self.cancel, "/v1/shutdown": self.shutdown,
            **dict.fromkeys(("/v1/embeddings", "/embeddings", "/api/embed", "/api/embeddings"), self.embeddings)}
        self.paths = [*get, *post]
        self.bottle = _Bottle()
        for path, call in get.items():
            self.bottle.route(path, "GET", self._safe(call))
        for path, call in post.items():
            self.bottle.route(path, "POST", self._safe(self._with_body(call, bare=call in (self.cancel, self.shutdown))))

    def wsgi(self, policy: Policy) -> Guard:
        return Guard(self.bottle, policy, self.s.metrics, self.paths)

    # --- plumbing ----------------------------------------------------------------------------------------------------------

    def _safe(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Every outcome as a response: JSON, text, a stream, or a refusal in the dialect's form."""
        def handler(**args: str) -> Any:
            try:
                out = call(**args)
                if isinstance(out, str):
                    bottle.response.content_type = "text/plain; charset=utf-8"
                    return out
                if isinstance(out, (dict, list)):
                    bottle.response.content_type = JSON
                    bottle.response.set_header("Cache-Control", "no-store")
                    return stream.dumps(out)
                return out
            except bottle.HTTPResponse:
                raise
            except Exception as e:
                p = problem.of(e)
                if p.status >= 500 and p.code == "internal":
                    log.warn(f"server: {bottle.request.path}: {type(e).__name__}: {str(e)[:200]}")
                body = error_body(bottle.request.path, p)
                return bottle.HTTPResponse(body, p.status, {"Content-Type": JSON, **p.headers})
        return handler

    def _with_body(self, call: Callable[[dict[str, Any]], Any], bare: bool) -> Callable[[], Any]:
        return lambda: call(self._body(bare))

    def _body(self, bare: bool) -> dict[str, Any]:
        """The request's object. bare: no body at all is an empty one."""
        environ = bottle.request.environ
        coding = environ.get("HTTP_CONTENT_ENCODING", "").strip().lower()
        if coding not in ("", "identity"):
            raise Problem(415, f"Content-Encoding: got {coding!r:.40}, expected a body that is not compressed", code="content_encoding")
        length = environ.get("CONTENT_LENGTH") or "0"
        size = int(length) if length.isascii() and length.isdigit() and len(length) < 16 else 0
        if size > MAX_BODY:
            raise Problem(413, f"the body has {size} bytes, expected at most {MAX_BODY}", code="body_too_large")
        data = environ["wsgi.input"].read(size)
        if self.s.log_prompts:
            log.info(f"{bottle.request.path}: {data.decode('utf-8', 'replace')}")
        return {} if bare and not data else parse_object(data)

    def _answering(self, dialect: Dialect) -> Callable[[dict[str, Any]], Any]:
        return lambda body: self._answer(dialect, dialect.parse(body))

    def _loading(self, dialect: Dialect, loaded: Callable[[Mapping[str, Any], Meta], Any]) -> Callable[[dict[str, Any]], Any]:
        """A request that may ask for nothing but the model in memory, which is there."""
        return lambda body: loaded(body, self.s.meta("", 0)) or self._answer(dialect, dialect.parse(body))

    def _answer(self, dialect: Dialect, ask: Ask) -> Any:
        self.s.worker.check_room(max(1, len(ask.prompts)) * ask.n)
        prompts = self.s.prompter.prompts(ask)
        run = Run(self.s.prompter.jobs(ask, prompts))
        self.s.worker.submit(run)
        meta = self.s.meta(run.id, sum(len(p.ids) for p in prompts))
        events = stream.events(run, bottle.request.environ.get("waitress.client_disconnected", lambda: False), self.s.ping_s)
        if ask.stream:
            bottle.response.content_type = dialect.media
            for name, value in (("Cache-Control", "no-cache, no-store"), ("X-Accel-Buffering", "no"), ("X-Request-Id", run.id)):
                bottle.response.set_header(name, value)
            return self._flow(run, dialect.flow(ask, meta, events))
        answers = [Answer() for _ in run.jobs]
        try:
            for n, event in events:
                answers[n].add(event)
        finally:
            run.cancel()        # one answer failed: the others are of no use
        if any(a.done is None for a in answers):
            raise Problem(499, "the client has gone", code="client_closed")
        bottle.response.set_header("X-Request-Id", run.id)
        return dialect.respond(ask, meta, answers)

    @staticmethod
    def _flow(run: Run, flow: Iterator[bytes]) -> Iterator[bytes]:
        """The stream; closed at any point, by a write that fails, it ends the run. A bug ends it without its last event."""
        try:
            yield from flow
        except Exception as e:
            log.warn(f"server: {type(e).__name__} in a stream: {str(e)[:200]}")
        finally:
            run.cancel()

    def _count(self, ask: Ask) -> int:
        return sum(len(p.ids) for p in self.s.prompter.prompts(ask))

    def _card(self) -> Mapping[str, Any]:
        return {"id": self.s.alias, "ctx": self.s.prompter.ctx, "created": self.s.created, **self.s.info}

    # --- endpoints ------------------------------------------------------------------------------------------------------------

    def health(self) -> dict[str, Any]:
        running, waiting = self.s.worker.load()
        return {"status": "ok", "slots_idle": self.s.worker.parallel - running, "slots_processing": running, "queue": waiting}

    def models(self) -> dict[str, Any]:
        return openai.models(self.s.alias, self.s.created, self.s.prompter.ctx, self.s.info)

    def model(self, id: str) -> dict[str, Any]:
        if id != self.s.alias:
            raise Problem(404, f"there is no model {id[:80]!r}; this server has {self.s.alias!r}", param="model",
                          code="model_not_found")
        return openai.model(self.s.alias, self.s.created, self.s.prompter.ctx, self.s.info)

    def models_sse(self) -> Iterator[bytes]:
        """An event with the list, then pings until the client goes or the server stops: one model, nothing changes."""
        if not self.s.listeners.acquire(blocking=False):
            raise Problem(503, "too many listeners", code="too_many", headers={"Retry-After": "60"})
        gone = bottle.request.environ.get("waitress.client_disconnected", lambda: False)
        bottle.response.content_type = SSE
        bottle.response.set_header("Cache-Control", "no-cache, no-store")

        def flow() -> Iterator[bytes]:
            try:
                yield stream.sse(llamacpp.models(self._card()))
                ping_at = time.monotonic() + self.s.ping_s
                while not gone() and not self.s.worker.stopping:
                    time.sleep(stream.POLL_S)
                    if time.monotonic() >= ping_at:
                        ping_at = time.monotonic() + self.s.ping_s
                        yield stream.SSE_PING
            finally:
                self.s.listeners.release()
        return flow()

    def metrics(self) -> bytes:
        bottle.response.content_type = "text/plain; version=0.0.4; charset=utf-8"
        return self.s.metrics.text(self.s.counters()).encode()

    def embeddings(self, body: Mapping[str, Any]) -> Any:
        raise Problem(501, "this model writes text; it has no embeddings", code="unsupported")

    def set_props(self, body: Mapping[str, Any]) -> Any:
        raise Problem(501, "this server's properties are set when it starts", code="not_supported")

    def cancel(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self._deliberate()
        f = Fields(body)
        id = f.text("id")
        count = self.s.worker.cancel(None if id is None else id.rpartition("-")[2].rpartition("_")[2])
        return {"cancelled": count > 0 or id is None, "count": count}

    def shutdown(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self._deliberate()
        self.s.shutdown()
        return {"shutting_down": True}

    @staticmethod
    def _deliberate() -> None:
        """Browsers say that they are some, and a page cannot send this content type to another site without a preflight, which the
        guard refuses. Other programs need none: `curl -X POST` is enough."""
        environ = bottle.request.environ
        browser = "HTTP_ORIGIN" in environ or "HTTP_SEC_FETCH_SITE" in environ
        if browser and environ.get("CONTENT_TYPE", "").partition(";")[0].strip().lower() != JSON:
            raise Problem(415, f"this endpoint needs Content-Type: {JSON}", code="content_type")

