"""Malformed requests, seeded: no route may answer 500, whatever JSON or bytes it is given."""
import copy
import io
import json
import random
import socket
from importlib.util import find_spec

import pytest

from moegg.server.app import Service, build
from moegg.server.guard import Policy
from moegg.server.metrics import Metrics
from moegg.server.worker import Worker
from tests.server.scripted import ScriptedEngine, prompter_for, until

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
SEEDS = {
    "/v1/chat/completions": {"model": "m", "messages": [{"role": "system", "content": "s"},
                                                        {"role": "user", "content": [{"type": "text", "text": "x"}]},
                                                        {"role": "assistant", "content": None,
                                                         "tool_calls": [{"id": "1", "type": "function",
                                                                         "function": {"name": "f", "arguments": "{}"}}]},
                                                        {"role": "tool", "tool_call_id": "1", "content": "r"}],
                             "tools": [TOOL], "tool_choice": "auto", "temperature": 1,
                             "top_p": 0.9, "top_k": 5, "min_p": 0.1, "n": 1, "stop": ["a"], "seed": 1,
                             "logit_bias": {"1": 2}, "logprobs": True, "top_logprobs": 2, "max_tokens": 4, "stream": True,
                             "stream_options": {"include_usage": True},
                             "response_format": {"type": "text"},
                             "reasoning_effort": "low",
                             "chat_template_kwargs": {"a": True}, "presence_penalty": 0, "frequency_penalty": 0,
                             "repeat_penalty": 1.1, "modalities": ["text"]},
    "/v1/completions": {"prompt": ["a", [5, 6]], "suffix": "s", "max_tokens": 2, "n": 1, "logprobs": 1, "echo": False,
                        "stop": "x", "stream": False, "best_of": 1},
    "/v1/responses": {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]},
                                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                                {"type": "function_call_output", "call_id": "c", "output": "o"},
                                {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "t"}]}],
                      "instructions": "i", "tools": [{"type": "function", "name": "f", "parameters": {}}],
                      "text": {"format": {"type": "text"}}, "reasoning": {"effort": "low"},
                      "max_output_tokens": 2, "stream": True, "include": [], "tool_choice": "auto"},
    "/v1/messages": {"max_tokens": 2, "system": [{"type": "text", "text": "s"}], "stop_sequences": ["x"], "stream": True,
                     "thinking": {"type": "enabled"},
                     "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]},
                                  {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
                                  {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t",
                                                                "content": [{"type": "text", "text": "r"}]}]}],
                     "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
                     "tool_choice": {"type": "auto"}, "temperature": 0.5, "top_k": 3},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "x"}], "system": "s"},
    "/api/chat": {"messages": [{"role": "user", "content": "x", "images": []},
                               {"role": "assistant", "content": "",
                                "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}],
                  "options": {"num_predict": 2, "temperature": 1, "stop": ["x"]}, "format": "", "think": True, "tools": [TOOL],
                  "stream": False},
    "/api/generate": {"prompt": "x", "suffix": "", "system": "s", "raw": False, "options": {"num_predict": 2}, "images": []},
    "/tokenize": {"content": "x", "add_special": True, "with_pieces": True}, "/detokenize": {"tokens": [1, 2]},
    "/apply-template": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/cancel": {"id": "x"}, "/v1/embeddings": {"input": "x"}}
FORCED = {"tool_choice": {"type": "function", "function": {"name": "f"}},
          "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}}
CASES = [pytest.param(path, body, 200, id=path) for path, body in SEEDS.items()]
CASES.append(pytest.param("/v1/chat/completions", {**SEEDS["/v1/chat/completions"], **FORCED},
                          200 if find_spec("llguidance") else 501, id="/v1/chat/completions, forced"))
JUNK = [None, True, False, 0, -1, 1, 2**70, -2**70, 1.5, 1e308, "", "x", "\ud800", "\x00", "<|im_end|>", "a" * 3000, [], {}, [[]],
        [None], [{}], {"": None}, {"type": None}, {"type": "text"},
        {"type": "function"}, {"a": {"b": []}}, [1, "a", None], ["x", "y"], [0, -5], 512, "auto", "required", "json",
        {"type": "json_schema"}]


def spots(value, path=()):
    yield path
    for key, inner in (value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()):
        yield from spots(inner, (*path, key))


def mutated(rng, seed):
    body = copy.deepcopy(seed)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        path = rng.choice(list(spots(body))[1:] or [()])
        at = body
        for key in path[:-1]:
            at = at[key]
        if not path:
            continue
        if rng.random() < 0.2:
            del at[path[-1]]
        else:
            at[path[-1]] = copy.deepcopy(rng.choice(JUNK))
    return body


@pytest.mark.parametrize("path, seed, expected", CASES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_no_request_is_a_500(tokenizer, path, seed, expected):
    metrics = Metrics()
    worker = Worker(ScriptedEngine(tokenizer, "hello", ctx=400), tokenizer, parallel=2, waiting=100, metrics=metrics)
    app = build(Service(worker, prompter_for(tokenizer, worker.engine), metrics, "tiny"), Policy())
    rng = random.Random(path)
    seen = set()
    try:
        for _ in range(300):
            body = mutated(rng, seed)
            data = json.dumps(body).encode()
            got = {}
            out = b"".join(app({"REQUEST_METHOD": "POST", "PATH_INFO": path, "CONTENT_LENGTH": str(len(data)),
                                "CONTENT_TYPE": "application/json",
                                "HTTP_HOST": "localhost", "wsgi.input": io.BytesIO(data), "wsgi.errors": io.StringIO()},
                               lambda status, headers, exc_info=None, got=got: got.update(status=int(status[:3]))))
            assert got["status"] in (200, 400, 501), (got, out, body)
            assert b"internal" not in out and b"Traceback" not in out, (out, body)
            seen.add(got["status"])
    finally:
        worker.close()
    assert expected in seen or path == "/v1/embeddings"


RAW = (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAuthorization: Bearer k\r\n"
       b"Origin: http://localhost:1\r\nContent-Length: 56\r\nConnection: close\r\n\r\n"
       b'{"messages": [{"role": "user", "content": "x"}], "n": 1}')
WORDS = [b"\r\n", b"\0", b"\xff", b":", b" ", b"HTTP/9.9", b"Transfer-Encoding: chunked\r\n", b"Content-Length: -1\r\n", b"Content-Length: 9999\r\n",
         b"GET", b"?a=b&c", b"/../", b"%00", b"Host: [::", b"Expect: 100-continue\r\n", b"Upgrade: websocket\r\n", b"x" * 70_000]


def test_no_bytes_on_the_wire_are_a_500_or_stop_the_server(serve):
    """Requests with words cut out, doubled and put in at random; some never end, and their connection is closed."""
    rng = random.Random(4)
    with serve("hello", parallel=2, queue=100) as s:
        for _ in range(250):
            data = bytearray(RAW)
            for _ in range(rng.choice((1, 1, 2, 5))):
                at = rng.randrange(len(data))
                data[at:at + rng.choice((0, 0, 1, 8))] = rng.choice(WORDS)
            with socket.create_connection(("127.0.0.1", s.client.port), timeout=60) as sock:
                try:
                    sock.sendall(data)
                    sock.shutdown(socket.SHUT_WR)
                    answer = b"".join(iter(lambda: sock.recv(65536), b""))
                except (ConnectionError, TimeoutError):     # refused while it was still being sent
                    continue
            assert not answer or answer.startswith(b"HTTP/1.") and answer[9:12] != b"500" and b"Traceback" not in answer, (bytes(data), answer)
        until(lambda: s.worker.load() == (0, 0))
        assert s.client.chat()[0] == 200
