"""The engine thread: several clients at once, queue, cancellation, disconnects, reuse of prefixes, faults."""
import json
import os
import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from moegg.errors import Cancelled, InternalError
from moegg.server import worker
from moegg.server.sessions import Timelines
from moegg.server.shelf import common_prefix
from tests.server.scripted import ScriptedEngine, joined, parse_sse, serving, until


def texts(s, prompts, **fields):
    with ThreadPoolExecutor(len(prompts)) as pool:
        done = list(pool.map(lambda p: s.client.post("/v1/completions",
                                                     {"prompt": p, "temperature": 0, "ignore_eos": True, **fields}), prompts))
    assert all(status == 200 for status, _ in done), done
    return [r["choices"][0]["text"] for _, r in done]


PROMPTS = ["Once upon a time", "a b c d e f g h i j k l m n o p q r s t u v w x y z " * 3, "!", "the king", "x" * 90]


def test_each_of_many_streams_equals_its_serial_run(tiny_engine, tokenizer):
    """D23: batched passes of a real model, prompts of different lengths read meanwhile."""
    with serving(tiny_engine, tokenizer, parallel=1, queue=8) as s:
        serial = [texts(s, [p], max_tokens=24)[0] for p in PROMPTS]
    with serving(tiny_engine, tokenizer, parallel=4, queue=8) as s:
        assert texts(s, PROMPTS, max_tokens=24) == serial
        assert s.metrics.value("pass_tokens_total") > s.metrics.value("passes_total")        # they did share passes
        assert texts(s, PROMPTS[::-1], max_tokens=24) == serial[::-1]                          # and again over used timelines


def test_seeded_answers_repeat_in_any_company(tiny_engine, tokenizer):
    with serving(tiny_engine, tokenizer, parallel=3) as s:
        alone = texts(s, PROMPTS[:1], max_tokens=16, temperature=1.0, seed=7)
        assert texts(s, [PROMPTS[0], PROMPTS[2], PROMPTS[3]], max_tokens=16, temperature=1.0, seed=7)[0] == alone[0]
        assert len(set(texts(s, PROMPTS[:1] * 3, max_tokens=16, temperature=1.0, seed=7))) == 1


@pytest.fixture(scope="module", params=["qwen3-moe", "gemma3", "lfm2"])
def rewinding_engine(request, tmp_path_factory):
    """gemma3's sliding windows and lfm2's convolutions forget: there not every prefix can be gone back to."""
    from tests import tiny  # here, with what it needs to convert
    from tests.loading import convert_to, open_engine
    folder = tmp_path_factory.mktemp(request.param)
    return open_engine(convert_to(tiny.hf(folder / "source", request.param), folder, "f32"), ctx=256, n_threads=1, ubatch=16)


def test_reused_state_changes_no_answer(rewinding_engine, tokenizer):
    """Prompts that extend, edit, shorten and repeat earlier ones, over used timelines and over fresh ones."""
    rng = random.Random(3)
    prompts = [[rng.randrange(5, 480) for _ in range(90)]]
    for _ in range(14):
        last = prompts[rng.randrange(len(prompts))]
        cut = rng.choice((len(last), len(last), 60, 30, 5))
        prompts.append(last[:cut] + [rng.randrange(5, 480) for _ in range(rng.randrange(1, 40))])
    prompts += [prompts[-1], prompts[0][:50]]
    with serving(rewinding_engine, tokenizer, parallel=2) as s:
        used = [texts(s, [p], max_tokens=6)[0] for p in prompts]
        assert s.metrics.value("prompt_tokens_cached_total") > 250
    for p, text in zip(prompts, used, strict=True):
        with serving(rewinding_engine, tokenizer, parallel=1) as s:
            assert texts(s, [p], max_tokens=6)[0] == text


def test_a_long_prompt_does_not_stop_those_who_write(serve):
    """Fairness: chunks of the prompt and tokens of the others share passes."""
    with serve([300] * 5000, ctx=4096, ubatch=512, parallel=2) as s:
        s.engine.gate = threading.Event()
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(s.client.post, "/v1/completions", {"prompt": "a", "max_tokens": 400})
            until(lambda: s.engine.passes)
            second = pool.submit(s.client.post, "/v1/completions", {"prompt": [301] * 3000, "max_tokens": 1})
            until(lambda: sum(s.worker.load()) == 2)
            s.engine.gate.set()
            assert first.result(60)[0] == second.result(60)[0] == 200
    mixed = [p for p in s.engine.passes if len(p) == 2]
    assert len(mixed) >= 3000 // 128 and all(p[0] == 1 and p[1] <= 128 for p in mixed[:-1])


def test_two_prompts_take_turns(serve):
    with serve("x", ctx=512, ubatch=32, parallel=2) as s:
        s.engine.gate = threading.Event()
        with ThreadPoolExecutor(2) as pool:
            a = pool.submit(s.client.post, "/v1/completions", {"prompt": [300] * 320, "max_tokens": 1})
            until(lambda: s.engine.passes)
            b = pool.submit(s.client.post, "/v1/completions", {"prompt": [301] * 20, "max_tokens": 1})
            until(lambda: sum(s.worker.load()) == 2)
            s.engine.gate.set()
            assert a.result(60)[0] == b.result(60)[0] == 200
    assert any(20 in p for p in s.engine.passes[:4])        # the short one did not wait for the long one's ten chunks


def test_a_pass_of_a_lone_prompt_is_no_longer_than_the_disk_makes_worthwhile(serve, monkeypatch):
    """Whoever came while several ubatches went through the layers together waited for all of them."""
    chunk = worker.Chunk(least=512, most=4096)
    for n, seconds, waited, then in ((4096, 9.0, 0.0, 2048), (2048, 4.5, 0.1, 1024), (900, 9.0, 0.0, 1024), (1024, 2.3, 0.0, 512),
                                     (512, 2.0, 0.9, 1024), (1024, 2.3, 0.0, 1024), (1024, 2.5, 1.2, 2048), (2048, 4.5, 0.0, 2048)):
        chunk.learn(n, seconds, waited)
        assert chunk.tokens == then
    monkeypatch.setattr(worker, "LONG_PASS_S", 0.0)
    with serve("hello", ctx=512, ubatch=16) as s:
        s.worker._chunk = worker.Chunk(16, 64)
        s.client.post("/v1/completions", {"prompt": list(range(10, 210)), "max_tokens": 1})
        assert s.engine.passes[:5] == [[64], [32], [16], [16], [16]]
        assert sum(map(sum, s.engine.passes)) == 200


def test_short_prompts_share_a_pass(serve):
    with serve("x", ctx=512, ubatch=64, parallel=4) as s:
        s.engine.gate = threading.Event()
        with ThreadPoolExecutor(4) as pool:
            first = pool.submit(s.client.post, "/v1/completions", {"prompt": [300] * 3, "max_tokens": 1})
            until(lambda: s.engine.passes)
            rest = [pool.submit(s.client.post, "/v1/completions", {"prompt": [301 + n] * 10, "max_tokens": 1}) for n in range(3)]
            until(lambda: sum(s.worker.load()) == 4)
            s.engine.gate.set()
            assert {r.result(60)[0] for r in (first, *rest)} == {200}
    assert s.engine.passes[1] == [10, 10, 10]


def test_a_full_queue_is_429_with_retry_after(serve):
    with serve("x", parallel=1, queue=1) as s:
        s.engine.gate = threading.Event()
        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(s.client.chat, "a"), pool.submit(s.client.chat, "b")]
            until(lambda: s.worker.load() == (1, 1))
            status, r, headers = s.client.call("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "c"}]})
            assert (status, r["error"]["code"]) == (429, "queue_full") and 1 <= int(headers["Retry-After"]) <= 120
            assert s.client.get("/health")[1]["queue"] == 1
            s.engine.gate.set()
            assert [w.result(60)[0] for w in waiting] == [200, 200]
        assert s.client.chat("d")[0] == 200


def test_more_answers_than_can_ever_run_are_a_400(serve):
    with serve(parallel=1, queue=1) as s:
        assert s.client.chat(n=3)[0] == 400 and s.client.chat(n=2)[0] == 200


def hang_up(s, body, after=b"data: ", path="/v1/chat/completions"):
    """Sends a request, reads until `after` has come (b"": until the answer is being made), and closes the socket."""
    data = json.dumps({"messages": [{"role": "user", "content": "x"}], "stream": True, **body}).encode()
    with socket.create_connection(("127.0.0.1", s.client.port), timeout=60) as sock:
        sock.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (
            path.encode(), len(data)) + data)
        got = b""
        while after and after not in got:
            piece = sock.recv(4096)
            assert piece, got
            got += piece
        until(lambda: after or s.worker.load() != (0, 0))


@pytest.mark.parametrize("body, after", [({}, b"data: "), ({}, b""), ({"stream": False}, b"")],
                         ids=["in a stream", "before a byte is read", "no stream"])
def test_a_client_that_goes_frees_its_place(serve, body, after):
    """D11, D12: while the answer is written; ten times, and nothing is left over."""
    with serve([300] * 100_000, ctx=50_000, parallel=1, step_s=0.002) as s:
        for _ in range(10):
            hang_up(s, body, after)
            until(lambda: s.worker.load() == (0, 0) and (after == b"data: " or s.metrics.value("answers_total") >= 1))
        s.engine.reply = s.engine.tokenizer.encode("hello")
        assert s.client.chat()[1]["choices"][0]["message"]["content"] == "hello"
        assert s.client.get("/health")[1] == {"status": "ok", "slots_idle": 1, "slots_processing": 0, "queue": 0}
        assert s.metrics.value("answers_total", end="cancelled") == 10


def test_a_client_that_goes_while_its_prompt_is_read_stops_within_a_chunk(serve):
    """D11."""
    with serve("x", ctx=100_000, ubatch=16, parallel=1, step_s=0.01) as s:
        hang_up(s, {"prompt": [300] * 50_000}, b": ping", "/v1/completions")
        until(lambda: s.worker.load() == (0, 0))
        passes = len(s.engine.passes)
        assert s.client.chat()[0] == 200 and passes < 50_000 // 16 and s.metrics.value("answers_total", end="cancelled") == 1


def test_cancel_by_id_and_of_all(serve):
    with serve([300] * 100_000, ctx=50_000, parallel=2, step_s=0.002) as s:
        with ThreadPoolExecutor(2) as pool:
            running = [pool.submit(s.client.chat_stream, "a"), pool.submit(s.client.chat, "b")]
            until(lambda: s.worker.load() == (2, 0) and len(s.engine.passes) > 5)
            id = next(j.run.id for j in s.worker._running)
            assert s.client.post("/v1/cancel", {"id": f"chatcmpl-{id}"})[1] == {"cancelled": True, "count": 1}
            until(lambda: s.worker.load() == (1, 0))
            assert s.client.post("/v1/cancel", {"id": "chatcmpl-none"})[1] == {"cancelled": False, "count": 0}
            assert s.client.post("/v1/cancel", {})[1] == {"cancelled": True, "count": 1}
            stream, whole = running[0].result(60), running[1].result(60)[1]
    assert stream[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"] == "cancelled"


def test_a_waiting_answer_can_be_cancelled(serve):
    with serve("x", parallel=1, queue=2) as s:
        s.engine.gate = threading.Event()
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(s.client.chat, "a")
            until(lambda: s.engine.passes)
            second = pool.submit(s.client.chat, "b")
            until(lambda: s.worker.load() == (1, 1))
            s.client.post("/v1/cancel", {})
            s.engine.gate.set()
            done = [first.result(60)[1], second.result(60)[1]]
    assert {d["choices"][0]["finish_reason"] for d in done} == {"cancelled"}


def test_a_silent_stream_gives_pings_that_are_no_text(serve):
    """D10."""
    with serve("hello", ping_s=0.1) as s:
        s.engine.gate = threading.Event()
        events = parse_sse(s.client.released("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]},
                                             s.engine.gate, b": ping\n".__eq__))
    assert (":", "ping") in events and joined([d for name, d in events[:-1] if name != ":"]) == "hello"


def test_the_first_byte_does_not_wait_for_the_prompt(serve):
    """While the engine has not done a single pass: headers and the role, or a ping."""
    with serve("hello") as s:
        for path, body in (("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}), ("/v1/completions", {"prompt": "x"}),
                           ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}), ("/v1/responses", {"input": "x"})):
            s.engine.gate = threading.Event()
            assert s.client.released(path, body, s.engine.gate, bool)


def test_the_next_turn_evaluates_only_what_is_new(serve):
    with serve("hello", ctx=512, parallel=2) as s:
        history = [{"role": "user", "content": "word " * 40}]
        first = s.client.post("/v1/chat/completions", {"messages": history})[1]
        history += [first["choices"][0]["message"], {"role": "user", "content": "more"}]
        second = s.client.post("/v1/chat/completions", {"messages": history})[1]["usage"]
        again = s.client.post("/v1/chat/completions", {"messages": history})[1]["usage"]
    kept = second["prompt_tokens_details"]["cached_tokens"]
    assert kept >= first["usage"]["prompt_tokens"] and second["prompt_tokens"] - kept < 30
    assert again["prompt_tokens_details"]["cached_tokens"] >= again["prompt_tokens"] - 1


def test_a_short_other_question_does_not_cost_a_long_conversation(serve):
    """Chat clients ask for a title between two turns."""
    with serve("hello", ctx=512, parallel=2) as s:
        s.client.chat("word " * 60)
        s.client.chat("a title, please")
        assert s.client.chat("word " * 60)[1]["usage"]["prompt_tokens_details"]["cached_tokens"] > 60


def test_timelines_prefer_what_saves_most(tokenizer):
    timelines = Timelines(ScriptedEngine(tokenizer), 2)
    a, _ = timelines.take([1, 2, 3, 4])
    a.session.tokens = [1, 2, 3, 4]
    b, kept = timelines.take([1, 2, 3, 4, 5])
    assert b is not a and kept == 0            # a is busy
    b.session.tokens = [9] * 50
    timelines.give(a)
    timelines.give(b)
    assert timelines.take([9] * 50 + [8]) == (b, 50)
    timelines.give(b)
    assert timelines.take([1, 2, 7, 7]) == (a, 2) and a.session.tokens == [1, 2]
    timelines.give(a, sound=False)
    assert a.session.tokens == []


@pytest.mark.parametrize("a, b, n", [([], [], 0), ([1], [2], 0), ([1, 2, 3], [1, 2], 2), ([1, 2, 3], [1, 2, 4], 2),
                                     ([5] * 99, [5] * 99, 99)])
def test_common_prefix(a, b, n):
    assert common_prefix(a, b) == n


def test_idle_timelines_and_the_engines_memory_are_given_back_until_somebody_asks(serve):
    with serve("hello", idle_s=0.05) as s:
        s.client.chat()
        until(lambda: s.client.get("/slots")[1] == [] and s.engine.released)
        assert s.client.chat()[1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert s.engine.passes and s.engine.released is not None
        until(lambda: s.engine.released)


def test_a_pass_that_nobody_wants_any_more_is_stopped(serve):
    """A prompt that streams goes through the layers in one long pass; whoever leaves need not wait for it, nor those behind."""
    with serve([300] * 1000, ctx=4096, parallel=2, step_s=0.002) as s, ThreadPoolExecutor(2) as pool:
        stopped = []

        def cancel():
            stopped.append(s.worker._passing)
            s.engine.faults.append(Cancelled("stopped", "cancelled"))
            s.engine.gate.set()
        s.engine.gate, s.engine.cancel = threading.Event(), cancel
        first = pool.submit(s.client.chat, "a")
        until(lambda: s.engine.passes)
        assert s.client.post("/v1/cancel", {})[1]["count"] == 1
        assert first.result(60)[1]["choices"][0]["finish_reason"] == "cancelled" and len(stopped) == 1
        both = [pool.submit(s.client.chat, text, max_tokens=500) for text in ("b", "c")]
        until(lambda: len(s.engine.passes[-1]) == 2)
        s.engine.gate.clear()
        until(lambda: len(s.worker._passing) == 2)
        s.worker._running[0].run.cancel()
        s.engine.gate.set()             # the other one still wants it
        assert sorted(b.result(60)[1]["choices"][0]["finish_reason"] for b in both) == ["cancelled", "length"] and len(stopped) == 1


def test_slots_tell_what_each_answer_has_done(serve):
    with serve([300] * 1000, ctx=4096, parallel=1, step_s=0.002) as s, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(s.client.chat)
        until(lambda: len(s.engine.passes) > 5)
        slot = s.client.get("/slots")[1][0]
        s.client.post("/v1/cancel", {})
        answer.result(60)
    assert slot["is_processing"] and slot["n_cached"] == 0 < slot["n_decoded"] and slot["n_tokens"] >= slot["n_prompt"] > 0


def test_a_fault_ends_the_answers_in_the_pass_and_not_the_server(serve):
    """An HTTP error before the stream, an event inside it."""
    with serve("hello world") as s:
        s.engine.faults = [InternalError("boom")]
        status, r = s.client.chat()
        assert status == 500 and r["error"]["code"] == "internal" and "Traceback" not in str(r)
        s.engine.faults = [InternalError("boom")]
        events = s.client.sse("/v1/chat/completions", {"messages": [{"role": "user", "content": "y"}]})
        assert events[-1][1]["error"]["type"] == "server_error"
        assert s.client.chat()[0] == 200 and s.worker.load() == (0, 0)


def test_stopping_ends_streams_with_an_error_event(serve):
    with serve([300] * 100_000, ctx=50_000, step_s=0.002) as s, ThreadPoolExecutor(1) as pool:
        stream = pool.submit(s.client.sse, "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})
        until(lambda: len(s.engine.passes) > 5)
        assert s.client.post("/v1/shutdown", {}) == (200, {"shutting_down": True})
        assert stream.result(60)[-1][1]["error"]["code"] == "stopping"
        s.thread.join(60)
        assert not s.thread.is_alive()


def test_a_response_that_ends_while_the_server_stops_does_not_break_the_stop(serve):
    """Its thread may wake the loop first, which closes everything before the stop's own call to wake it."""
    with serve() as s:
        trigger, pull = s.server._http.trigger, s.server._http.trigger._physical_pull

        def overtaken():
            pull()
            until(lambda: not s.server._http._map)
            pull()
        trigger._physical_pull = overtaken
        s.server.stop()
        s.thread.join(60)
        assert not s.thread.is_alive() and trigger._fds == []


def started():
    """Python's threads; a dummy only says that code without one, such as a finalizer at a thread's end, asked for its name."""
    return {t for t in threading.enumerate() if not t.name.startswith("Dummy-")}


def test_memory_and_threads_rest_between_a_hundred_answers(tiny_engine, tokenizer):
    """P7: the resident size stays, and nothing computes while nobody asks."""
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    with serving(tiny_engine, tokenizer, parallel=2, queue=8) as s:
        for _ in range(4):
            texts(s, PROMPTS, max_tokens=8)
        before = resident()
        for _ in range(20):
            texts(s, PROMPTS, max_tokens=8)
        assert resident() - before < 4 << 20
        used = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - used < 0.15


@pytest.mark.slow
def test_two_hundred_random_disconnects_leave_nothing_behind(tiny_engine, tokenizer):
    """D11, D12: in the queue, while the prompt is read, in the answer; eight at a time. Counts agree, threads are those of before."""
    rng = random.Random(1)
    with serving(tiny_engine, tokenizer, parallel=3, queue=8) as s:
        s.client.chat("warm")
        before = started()

        def one(n):
            body = {"messages": [{"role": "user", "content": "word " * rng.randrange(1, 30)}], "ignore_eos": True,
                    "max_tokens": 100, "stream": rng.random() < 0.7}
            data = json.dumps(body).encode()
            with socket.create_connection(("127.0.0.1", s.client.port), timeout=60) as sock:
                sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
                sock.settimeout(0.001 + rng.random() * 0.05)
                try:
                    while sock.recv(2048):
                        pass
                except TimeoutError:
                    pass
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(one, range(200)))
        s.client.get("/health")         # connections are taken in turn: those of before have been read
        tasks = s.server._http.task_dispatcher
        until(lambda: not tasks.queue and tasks.active_count == 0)      # nobody can still submit
        until(lambda: s.worker.load() == (0, 0))
        until(lambda: started() <= before)
        assert s.client.chat(max_tokens=3)[0] == 200
        m = s.metrics
        assert m.value("requests_running") == m.value("requests_waiting") == 0
        assert m.value("answers_total") == m.value("answers_total", end="stop") + m.value("answers_total",
                                                                                          end="length") + m.value("answers_total",
                                                                                                                  end="cancelled")
        assert m.value("answers_total", end="cancelled") > 20 and not any(t["is_processing"] for t in s.worker.state())
