"""An engine that writes what it is told, so that tests of the server decide about text; and a client over real sockets.

ScriptedEngine has the face of moegg.engine.Engine that the server uses. What follows a prompt is `reply`, as tokens, then the end token.
"""
import http.client
import json
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np

from moegg.errors import BadRequest, ContextFull
from moegg.server.app import MAX_BODY, Service, build
from moegg.server.grammar import Grammars
from moegg.server.guard import Policy
from moegg.server.metrics import Metrics
from moegg.server.prompts import Prompter
from moegg.server.serve import Server
from moegg.server.talk import Talk
from moegg.server.worker import Worker
from moegg.tokenizer import JSON_MEDIA, Tokenizer
from tests import oracle

VOCAB, END = 512, 4
TEMPLATE = (oracle.TOKENIZER / "chat_template.jinja").read_text()


def tiny_tokenizer(vocab=VOCAB):
    config = json.loads((oracle.TOKENIZER / "tokenizer_config.json").read_text())
    return Tokenizer.from_sections((oracle.TOKENIZER / "tokenizer.json").read_bytes(), JSON_MEDIA, config, vocab, {2, END})


class ScriptedSession:
    rewinds = True

    def __init__(self):
        self.tokens, self.logits, self.said, self.wrote = [], None, None, 0

    def __len__(self):
        return len(self.tokens)

    def reach(self, n):
        return min(n, len(self.tokens))

    def rewind(self, n):
        if n < len(self.tokens):
            del self.tokens[n:]
            self.logits = None
        return len(self.tokens)

    def saved_bytes(self, n):
        return 4 * n

    def copy_from(self, other, n):
        self.tokens, self.logits = other.tokens[:n], None


class ScriptedEngine:
    """reply: text, or ids. gate: if set, a threading.Event that every pass waits for. faults: exceptions to raise, one per pass."""

    def __init__(self, tokenizer, reply="", *, ctx=256, ubatch=32, step_s=0.0):
        self.ctx, self.ubatch, self.vocab, self.step_s = ctx, ubatch, VOCAB, step_s
        self.tokenizer = tokenizer
        self.reply = tokenizer.encode(reply, special=True) if isinstance(reply, str) else list(reply)
        self.gate, self.faults, self.passes = None, [], []
        self.span, self.plan, self.released, self.waited_s = ubatch, SimpleNamespace(all_fits=True), None, 0.0

    def session(self):
        return ScriptedSession()

    def regime(self, n):
        return 0

    def check(self, tokens, before):
        if not tokens:
            raise BadRequest("tokens: got none", "tokens-empty")
        if before + len(tokens) > self.ctx:
            raise ContextFull("context", "context-full")

    def cancel(self):
        pass

    def release(self):
        self.released = True

    def restore(self):
        self.released = False

    def step(self, work, *, progress=None, cancel=None):
        self.passes.append([len(tokens) for _, tokens in work])
        if self.gate is not None:
            self.gate.wait(60)
        if self.step_s:
            time.sleep(self.step_s)
        if self.faults:
            raise self.faults.pop(0)
        for session, tokens in work:
            session.wrote = session.wrote + 1 if list(tokens) == [session.said] else 0
            session.tokens += tokens
            script = [*self.reply, END]
            session.said = script[min(session.wrote, len(script) - 1)]
            session.logits = np.zeros(VOCAB, np.float32)
            session.logits[session.said] = 20.0
        return [s.logits for s, _ in work]


def prompter_for(tokenizer, engine, template=TEMPLATE, generation=None, **changes):
    return Prompter(Talk(tokenizer, {"default": template} if template else {}), {"do_sample": False}
                    if generation is None else generation, VOCAB, engine.ctx, Grammars(tokenizer, VOCAB), **changes)


@contextmanager
def serving(engine, tokenizer, *, policy=None, parallel=4, queue=8, template=TEMPLATE, idle_s=None, ping_s=5.0, shelf=None,
            **more):
    """A real server on a free port of 127.0.0.1; gives a namespace with client, worker, metrics, service, server."""
    metrics = Metrics()
    worker = Worker(engine, tokenizer, parallel=parallel, waiting=queue, metrics=metrics, idle_s=idle_s, shelf=shelf)
    service = Service(worker, prompter_for(tokenizer, engine, template), metrics, "tiny", ping_s=ping_s, **more)
    server = Server(build(service, policy or Policy()), "127.0.0.1", 0, answers=parallel + queue, max_body=MAX_BODY,
                    on_stop=worker.close)
    service.shutdown = lambda: threading.Thread(target=server.stop).start()
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield SimpleNamespace(client=Client(server.port), worker=worker, metrics=metrics, service=service, server=server,
                              thread=thread, engine=engine)
    finally:
        if engine_gate := getattr(engine, "gate", None):
            engine_gate.set()
        server.stop()
        thread.join(60)
        assert not thread.is_alive(), "the server did not stop"


class Client:
    """One connection per request; nothing is retried."""

    def __init__(self, port):
        self.port = port

    def open(self, method, path, body=None, headers=None, raw=None):
        conn = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = raw if raw is not None else json.dumps(body) if body is not None else None
        conn.request(method, path, data, {**({"Content-Type": "application/json"} if data is not None else {}),
                                          **(headers or {})})
        return conn, conn.getresponse()

    def call(self, method, path, body=None, **options):
        """(status, JSON or text, headers)."""
        conn, r = self.open(method, path, body, **options)
        data = r.read()
        conn.close()
        is_json = (r.getheader("Content-Type") or "").startswith("application/json")
        return r.status, json.loads(data) if is_json else data.decode(), dict(r.getheaders())

    def get(self, path, **options):
        return self.call("GET", path, **options)[:2]

    def post(self, path, body, **options):
        return self.call("POST", path, body, **options)[:2]

    def sse(self, path, body, **options):
        """The events of a stream: [(event name or None, data)], data parsed; comments as (':', text)."""
        conn, r = self.open("POST", path, {**body, "stream": True}, **options)
        text = r.read().decode()
        conn.close()
        assert r.status == 200 and r.getheader("Content-Type") == "text/event-stream; charset=utf-8", (r.status, text)
        return parse_sse(text)

    def released(self, path, body, gate, sign):
        """The whole stream of an answer whose engine waits at `gate`, which opens once a line that `sign` accepts has come."""
        conn, r = self.open("POST", path, {**body, "stream": True})
        lines = [r.readline()]
        while not sign(lines[-1]):
            assert lines[-1], lines
            lines.append(r.readline())
        gate.set()
        text = b"".join(lines) + r.read()
        conn.close()
        return text.decode()

    def chat(self, text="hi", **fields):
        return self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **fields})

    def chat_stream(self, text="hi", **fields):
        events = self.sse("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **fields})
        assert events[-1] == (None, "[DONE]")
        return [data for name, data in events[:-1] if name != ":"]


def parse_sse(text):
    out = []
    assert "\r" not in text and text.endswith("\n\n")
    for block in text.split("\n\n")[:-1]:
        name = None
        for line in block.split("\n"):
            if line.startswith(":"):
                out.append((":", line[1:].strip()))
            elif line.startswith("event: "):
                name = line[7:]
            else:
                assert line.startswith("data: "), line
                data = line[6:]
                out.append((name, data if data == "[DONE]" else json.loads(data)))
    return out


def joined(chunks, key="content", index=0):
    """A field of all deltas of one choice, joined."""
    return "".join(c["delta"].get(key) or "" for chunk in chunks for c in chunk["choices"] if c["index"] == index)


def until(condition, seconds=60.0):
    """Waits for a condition, by short naps, at most so long."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "this did not happen"
        time.sleep(0.005)
