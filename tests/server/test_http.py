"""What is common to all routes: who may ask, what a refusal looks like, limits, methods, connections."""
import http.client
import json
import socket
from types import SimpleNamespace

import pytest

from moegg.server import serve as http_server
from moegg.server.guard import Policy, host_name

CHAT = {"messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize("host, ok", [
    ("localhost", True), ("LOCALHOST:8484", True), ("127.0.0.1:1", True), ("127.0.0.9", True), ("[::1]:8484", True),
                                      ("::1", True), ("localhost.", True),
    ("evil.example:8080", False), ("localhost.evil.example", False), ("127.0.0.1.evil.example", False), ("192.168.1.5", False),
                                      ("", False), ("[", False)])
def test_only_known_host_names_are_served(serve, host, ok):
    """D20."""
    with serve() as s:
        status, r = s.client.get("/v1/models", headers={"Host": host})
    assert status == (200 if ok else 403) and (ok or r["error"]["code"] == "host_not_allowed")


def test_more_host_names_can_be_allowed(serve):
    """D21."""
    with serve(policy=Policy(hosts=frozenset(["my.lan"]))) as s:
        assert s.client.get("/health", headers={"Host": "my.lan:80"})[0] == 200
        assert s.client.get("/health", headers={"Host": "other.lan"})[0] == 403


def test_a_server_for_a_network_is_reached_by_address_but_not_by_foreign_names():
    policy = Policy(host="0.0.0.0")
    assert policy.host_allowed("192.168.1.5:8484") and not policy.host_allowed("evil.example") and Policy(hosts=frozenset("*")).host_allowed("a.b")
    assert host_name("[fe80::1]:80") == "fe80::1" and host_name("a.b:80") == "a.b" and host_name("::1") == "::1"


@pytest.mark.parametrize("origin, status", [("http://evil.example", 403), ("null", 403), ("http://localhost:3000", 200),
                                            ("", 403), ("http://[", 403)])
def test_pages_of_other_sites_are_refused_unless_allowed(serve, origin, status):
    with serve(policy=Policy(origins=frozenset(["http://localhost:3000"]))) as s:
        got, r, headers = s.client.call("POST", "/v1/chat/completions", CHAT,
                                        headers={"Origin": origin, "Content-Type": "text/plain"})
    assert got == status and headers.get("Access-Control-Allow-Origin") == (origin if status == 200 else None)


def test_the_servers_own_pages_need_no_permission(serve):
    with serve() as s:
        origin = f"http://127.0.0.1:{s.client.port}"
        assert s.client.call("GET", "/v1/models", headers={"Origin": origin})[0] == 200


def test_preflight(serve):
    with serve(policy=Policy(origins=frozenset("*"), keys=("k",))) as s:
        status, _, headers = s.client.call("OPTIONS", "/v1/chat/completions", headers={
            "Origin": "http://a.b", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"})
        assert status == 204 and headers["Access-Control-Allow-Origin"] == "http://a.b" and "POST" in headers["Access-Control-Allow-Methods"]
        assert headers["Access-Control-Allow-Headers"] == "authorization,content-type"
    with serve() as s:
        assert s.client.call("OPTIONS", "/v1/models", headers={"Origin": "http://a.b"})[0] == 403


@pytest.mark.parametrize("headers, ok", [({}, False), ({"Authorization": "Bearer secret"}, True),
                                         ({"authorization": "bearer secret "}, True), ({"X-Api-Key": "secret"}, True),
                                         ({"Authorization": "Bearer secre"}, False), ({"Authorization": "Basic secret"}, False),
                                         ({"X-Api-Key": ""}, False),
                                         ({"X-Api-Key": "sécret"}, False), ({"Authorization": "Bearer"}, False)])
def test_the_key(serve, headers, ok):
    with serve("hello", policy=Policy(keys=("other", "secret"))) as s:
        assert s.client.post("/v1/chat/completions", CHAT, headers=headers)[0] == (200 if ok else 401)
        assert s.client.get("/health")[0] == 200


def test_the_key_vouches_for_a_foreign_origin(serve):
    with serve("hello", policy=Policy(keys=("k",))) as s:
        assert s.client.post("/v1/chat/completions", CHAT, headers={"Origin": "app://x", "X-Api-Key": "k"})[0] == 200


@pytest.mark.parametrize("path", ["/v1/cancel", "/v1/shutdown"])
@pytest.mark.parametrize("headers, status", [({"Sec-Fetch-Site": "cross-site", "Content-Type": "text/plain"}, 415),
                                             ({"Origin": "http://localhost", "Content-Type": "application/x-www-form-urlencoded"}, 403),
                                             ({"Origin": "http://evil.example"}, 403)])
def test_routes_that_change_state_cannot_be_called_by_a_page(serve, path, headers, status):
    with serve() as s:
        assert s.client.post(path, {}, headers=headers)[0] == status
        assert s.client.get("/health")[0] == 200


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "application/x-www-form-urlencoded"}])
def test_curl_without_body_and_content_type_can_stop_answers_and_the_server(serve, headers):
    """What `curl -X POST` sends."""
    with serve() as s:
        assert s.client.call("POST", "/v1/cancel", raw=b"", headers=headers)[:2] == (200, {"cancelled": True, "count": 0})
        assert s.client.call("POST", "/v1/shutdown", raw=b"", headers=headers)[:2] == (200, {"shutting_down": True})


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"messages": NaN}', b"[" * 5000, b'{"a":' * 100_000,
                                  b'{"messages":' + b"[" * 900 + b"]" * 900 + b"}",
                                  b'{"n": 1' + b"0" * 5000 + b"}",
                                  b'{"messages": [' + b"{}," * 600_000 + b"{}]}", b'{"a": [' + b"[]," * 300_000 + b'[]], "b": "' + b'\\"' * 300_000,
                                  b'{"max_tokens": 1e999, "messages": [{"role": "user", "content": "x"}]}'])
def test_a_body_that_is_no_request_is_a_400(serve, data):
    with serve() as s:
        status, r = s.client.call("POST", "/v1/chat/completions", raw=data)[:2]
    assert status == 400 and r["error"]["type"] == "invalid_request_error"


def test_a_large_body_is_taken_whole_and_one_too_large_is_a_413(serve, monkeypatch):
    """D17."""
    with serve("hello", ctx=100_000, ubatch=4096) as s:
        assert s.client.chat("x", pad="y" * 600_000)[0] == 200
        with socket.create_connection(("127.0.0.1", s.client.port), timeout=60) as sock:
            sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n")
            head, _, body = b"".join(iter(lambda: sock.recv(65536), b"")).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 413") and json.loads(body)["error"]["type"] == "request_too_large"


@pytest.mark.parametrize("method, path, status, code", [("GET", "/nothing", 404, "not_found"),
                                                        ("POST", "/v1/nothing", 404, "not_found"),
                                                        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
                                                        ("DELETE", "/v1/models", 405, "method_not_allowed"),
                                                        ("GET", "/v1/models/list", 404, "model_not_found"),
                                                        ("GET", "/v1/models/a/b", 404, "model_not_found")])
def test_unknown_places_are_json_errors(serve, method, path, status, code):
    """D24."""
    with serve() as s:
        got, r = s.client.call(method, path)[:2]
    assert got == status and r["error"]["code"] == code


def test_errors_have_the_form_of_their_dialect(serve):
    with serve() as s:
        assert s.client.post("/v1/messages", {})[1] == {"type": "error",
                                                        "error": {"type": "invalid_request_error",
                                                                  "message": "messages: got none, expected at least one"}}
        assert set(s.client.post("/api/chat", {"messages": 1})[1]) == {"error"}


def test_head_keep_alive_chunked_and_expect(serve):
    with serve("hello") as s:
        conn = http.client.HTTPConnection("127.0.0.1", s.client.port, timeout=60)
        for _ in range(3):
            conn.request("GET", "/health")
            assert conn.getresponse().read()
        conn.request("HEAD", "/v1/models")
        r = conn.getresponse()
        assert r.status == 200 and r.read() == b""
        conn.request("POST", "/v1/chat/completions", iter([json.dumps(CHAT).encode()]), {"Content-Type": "application/json"},
                     encode_chunked=True)
        r = conn.getresponse()
        assert r.status == 200 and json.loads(r.read())["choices"][0]["message"]["content"] == "hello"
        conn.close()
        data = json.dumps(CHAT).encode()
        with socket.create_connection(("127.0.0.1", s.client.port), timeout=60) as sock:
            sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nConnection: close\r\nContent-Length: "
                         b"%d\r\n\r\n" % len(data))
            assert sock.recv(100).startswith(b"HTTP/1.1 100")
            sock.sendall(data)
            assert b"hello" in b"".join(iter(lambda: sock.recv(65536), b""))


def test_a_malformed_request_is_a_json_error(serve):
    with serve() as s, socket.create_connection(("127.0.0.1", s.client.port), timeout=60) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nbad header\r\n\r\n")
        head, _, body = b"".join(iter(lambda: sock.recv(65536), b"")).partition(b"\r\n\r\n")
        assert b" 400 " in head and json.loads(body)["error"]["code"] == "invalid_http_request"


@pytest.mark.parametrize("line", [b"Content-Length: " + b"9" * 5000, b"Content-Length: -1", b"Content-Length: 2\r\nContent-Length: 3"])
def test_a_length_that_is_no_number_is_a_400_and_nothing_on_stderr(serve, line, capfd):
    """Python refuses to convert more than 4,300 digits: the connection was closed without an answer."""
    with serve() as s, socket.create_connection(("127.0.0.1", s.client.port), timeout=60) as sock:
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n" + line + b"\r\n\r\n")
        head, _, body = b"".join(iter(lambda: sock.recv(65536), b"")).partition(b"\r\n\r\n")
        assert b" 400 " in head and json.loads(body)["error"]["code"] == "invalid_http_request"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("coding, status", [("gzip", 415), ("zstd", 415), ("identity", 200), ("", 200)])
def test_a_compressed_body_is_refused_by_name(serve, coding, status):
    with serve() as s:
        got, r = s.client.post("/v1/chat/completions", CHAT, headers={"Content-Encoding": coding})
    assert got == status and (status == 200 or r["error"]["type"] == "invalid_request_error" and coding in r["error"]["message"])


def test_silent_connections_make_room_for_new_ones(serve, monkeypatch):
    """As many as the server takes, none of which says anything: the next client would have waited until they time out."""
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 40)
    with serve("hello") as s:
        silent = [socket.create_connection(("127.0.0.1", s.client.port), timeout=60) for _ in range(60)]
        for sock in silent[::2]:
            sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        assert s.client.chat()[0] == 200 and len(s.server._http.active_channels) <= 40
        for sock in silent:
            sock.close()


@pytest.mark.parametrize("soft, hard, expected, raised", [
    (1024, 4096, 512, 1024), (256, 4096, 512, 576), (256, 256, 192, 256), (48, 48, 16, 48), (-1, -1, 512, -1), (256, -1, 512, 576)])
def test_connections_leave_room_for_other_files_of_the_process(monkeypatch, soft, hard, expected, raised):
    """With all open files taken by silent connections, nothing was accepted any more."""
    limits = [(soft, hard)]
    monkeypatch.setattr(http_server, "resource", SimpleNamespace(RLIMIT_NOFILE=7, RLIM_INFINITY=-1, getrlimit=lambda which: limits[-1],
                                                                 setrlimit=lambda which, pair: limits.append(pair)))
    assert http_server.connections() == expected and limits[-1] == (raised, hard)


def test_many_slow_connections_do_not_block_others(serve):
    """Slowloris: a connection costs a thread only once its request is complete."""
    with serve("hello", parallel=1, queue=1) as s:
        slow = [socket.create_connection(("127.0.0.1", s.client.port), timeout=60) for _ in range(60)]
        for sock in slow:
            sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        assert s.client.chat()[0] == 200
        for sock in slow:
            sock.close()


def test_prompts_are_not_logged_unless_asked(serve, caplog):
    with caplog.at_level("DEBUG"):
        with serve("hello") as s:
            s.client.chat("private words", stop=[1])
            s.client.chat("private words")
        assert "private" not in caplog.text and "/v1/chat/completions" in caplog.text
        with serve("hello", log_prompts=True) as s:
            s.client.chat("private words")
        assert "private words" in caplog.text


def test_metrics_count_and_parse(serve):
    with serve("hello") as s:
        s.client.chat()
        s.client.chat("y" * 9000)
        text = s.client.get("/metrics")[1]
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}
    assert values['moegg_answers_total{end="stop"}'] == 1 and values['moegg_http_requests_total{route="/v1/chat/completions",status="400"}'] == 1
    assert values["moegg_answer_tokens_total"] > 0 and values["moegg_requests_running"] == 0


def test_a_limit_is_told_in_all_its_digits(serve):
    """'expected -1 to 2.14748e+09' is no number that one could send."""
    with serve() as s:
        status, r = s.client.post("/v1/completions", {"prompt": "x", "max_tokens": -5})
    assert status == 400 and r["error"]["message"] == "max_tokens: got -5, expected -1 to 2147483647"
