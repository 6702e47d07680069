"""What was read once is not read again: copies between timelines, kept states, files; and answers do not change by it."""
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from moegg.errors import IOFailure
from moegg.server.archive import Archive
from moegg.server.sessions import Timelines
from moegg.server.shelf import Shelf
from tests import tiny
from tests.loading import convert_to, open_engine
from tests.server.scripted import serving, until

KEY, MIB = ["model", {"default": "template"}], 1 << 20


@pytest.fixture(scope="module", params=["qwen3-moe", "gemma3", "lfm2"])
def engine(request, tmp_path_factory):
    """gemma3's sliding windows cannot go back further than they hold, lfm2's convolutions only to marks."""
    folder = tmp_path_factory.mktemp(request.param)
    return open_engine(convert_to(tiny.hf(folder / "source", request.param), folder, "f32"), ctx=512, n_threads=1, ubatch=16)


def ids(n, seed):
    rng = random.Random(seed)
    return [rng.randrange(5, 480) for _ in range(n)]


def ask(s, prompt, n=6, **fields):
    """(text, tokens of the prompt that were not read)"""
    status, r = s.client.post("/v1/completions", {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, **fields})
    assert status == 200, r
    return r["choices"][0]["text"], r["usage"]["prompt_tokens_details"]["cached_tokens"]


def fresh(engine, tokenizer, prompt):
    with serving(engine, tokenizer, parallel=1) as s:
        return ask(s, prompt)[0]


SYSTEM = ids(200, 0)
A, B, C = (SYSTEM + ids(100, n) for n in (1, 2, 3))


def test_a_second_conversation_copies_the_system_prompt(engine, tokenizer):
    """Q17: and leaves the first one whole. Where a state cannot go back, the third one profits, once the second showed where they part."""
    with serving(engine, tokenizer, parallel=3, shelf=Shelf(32 * MIB)) as s:
        texts = [ask(s, p) for p in (A, B, C)]
        again = [ask(s, p + ids(9, 9)) for p in (A, B, C)]
        rewinds = s.worker._timelines.rewinds
    assert [cached for _, cached in texts] == [0, 200 if rewinds else 0, 200]
    assert all(cached >= (299 if rewinds else 280) for _, cached in again)
    assert [text for text, _ in texts] == [fresh(engine, tokenizer, p) for p in (A, B, C)]
    assert [text for text, _ in again] == [fresh(engine, tokenizer, p + ids(9, 9)) for p in (A, B, C)]


def test_prompts_that_come_together_read_their_common_beginning_once(engine, tokenizer, monkeypatch):
    """Three answers to one prompt, and two others that begin alike."""
    gate, step = threading.Event(), engine.step
    monkeypatch.setattr(engine, "step", lambda *args, **options: gate.wait(60) and step(*args, **options))
    with serving(engine, tokenizer, parallel=5, shelf=Shelf(32 * MIB)) as s, ThreadPoolExecutor(3) as pool:
        done = [pool.submit(s.client.post, "/v1/completions", {"max_tokens": 4, "temperature": 0, "ignore_eos": True, **fields})
                for fields in ({"prompt": A, "n": 3}, {"prompt": B}, {"prompt": C})]
        until(lambda: sum(s.worker.load()) == 5)
        gate.set()
        done = [d.result(60) for d in done]
        assert all(status == 200 for status, _ in done)
        read = s.metrics.value("prompt_tokens_total")
    assert read == len(A) + 2 * 100 + 2
    one, *same = [c["text"] for c in done[0][1]["choices"]]
    assert same == [one, one] and one == fresh(engine, tokenizer, A)[:len(one)]


def test_a_prompt_whose_reader_is_cancelled_goes_on_with_what_was_read(serve):
    with serve("x", ctx=4096, ubatch=16, parallel=2, step_s=0.005) as s, ThreadPoolExecutor(2) as pool:
        first = pool.submit(s.client.post, "/v1/completions", {"prompt": [300] * 2000 + [7]})
        until(lambda: s.worker._running)
        second = pool.submit(s.client.post, "/v1/completions", {"prompt": [300] * 2000 + [8, 9]})
        until(lambda: len(s.worker._running) == 2 and len(s.engine.passes) > 5)
        assert s.worker._running[1].timeline is None
        s.worker._running[0].run.cancel()
        assert second.result(60)[1]["choices"][0]["text"] == "x" and first.result(60)[1]["choices"][0]["finish_reason"] == "cancelled"
        assert s.metrics.value("prompt_tokens_total") < 2100


def test_an_overwritten_conversation_is_kept_in_memory_within_its_budget(engine, tokenizer):
    """One timeline, three conversations in turn: what the shelf has no room for is read again, and its budget holds."""
    others = [ids(150, n) for n in range(4, 11)]
    one = engine.session().saved_bytes(170)
    with serving(engine, tokenizer, parallel=1, shelf=Shelf(4 * one + one // 2)) as s:
        firsts = [ask(s, p)[0] for p in others]
        shelf = s.worker._timelines.shelf
        assert 2 <= len(shelf.entries) <= 5 and s.metrics.value("shelf_bytes") == shelf.nbytes <= 4.5 * one
        assert ask(s, others[5] + [5, 6])[1] >= 149
        assert ask(s, others[0] + [5, 6])[1] == 0
    assert firsts == [fresh(engine, tokenizer, p) for p in others]


def saved(engine, tokenizer, folder, key=KEY, limit=256 * MIB, prompts=(A,)):
    """Serves prompts with a folder, stops, and gives (text, cached) of each."""
    with serving(engine, tokenizer, parallel=2, shelf=Shelf(32 * MIB, Archive(folder, key, limit))) as s:
        return [ask(s, p) for p in prompts]


def test_a_restarted_server_goes_on_where_it_was(engine, tokenizer, tmp_path):
    """Q18."""
    (first, _), = saved(engine, tokenizer, tmp_path)
    assert len(list(tmp_path.iterdir())) >= 1 and all(f.stat().st_mode & 0o77 == 0 for f in tmp_path.iterdir())
    again = saved(engine, tokenizer, tmp_path, prompts=(A, A + ids(9, 9), B))
    assert again[0][0] == first and again[0][1] >= 290 and again[1][1] >= 299
    assert [text for text, _ in again] == [fresh(engine, tokenizer, p) for p in (A, A + ids(9, 9), B)]
    assert saved(engine, tokenizer, tmp_path, key=["model", {"default": "other"}])[0] == (first, 0)         # another model or template
    assert saved(engine, tokenizer, tmp_path)[0][1] >= 290


@pytest.mark.parametrize("harm", ["cut", "longer", "head", "body", "magic", "empty", "huge"])
def test_a_damaged_file_is_ignored_with_a_warning_and_removed(engine, tokenizer, tmp_path, harm, caplog):
    """Q18."""
    text = saved(engine, tokenizer, tmp_path)[0][0]
    for file in tmp_path.iterdir():
        data = bytearray(file.read_bytes())
        if harm in ("head", "body", "magic"):
            data[{"head": 12 + 300, "body": -100, "magic": 3}[harm]] ^= 64
        elif harm == "huge":
            data[8:12] = b"\xff" * 4
        file.write_bytes({"cut": data[:-5000], "longer": data + b"x", "empty": b""}.get(harm, data))
    (tmp_path / "notes.txt").write_text("mine")
    with serving(engine, tokenizer, parallel=2, shelf=Shelf(32 * MIB, Archive(tmp_path, KEY, 256 * MIB))) as s:
        assert ask(s, A) == (text, 0)
    assert "saved conversation is ignored" in caplog.text and (tmp_path / "notes.txt").exists()


def test_a_state_of_other_settings_is_ignored(tokenizer, tmp_path, caplog):
    """Same key, other shapes: nothing is overrun, nothing is used."""
    folder = convert_to(tiny.hf(tmp_path / "source", "gemma3"), tmp_path, "f32")
    prompt = ids(300, 1)
    for ubatch in (16, 64):
        engine = open_engine(folder, ctx=512, n_threads=1, ubatch=ubatch)
        text, cached = saved(engine, tokenizer, tmp_path / "cache", prompts=(prompt,))[0]
        assert cached == 0 and text == fresh(engine, tokenizer, prompt)
    assert "kept conversation is ignored" in caplog.text


def test_the_folder_stays_within_its_limit_and_drops_the_oldest(engine, tokenizer, tmp_path):
    size = engine.session().saved_bytes(170)
    other = tmp_path / ("f" * 16 + "-old.session")
    other.write_bytes(b"x" * 1000)
    os.utime(other, (1, 1))
    prompts = [ids(150, n) for n in range(6)]
    saved(engine, tokenizer, tmp_path, limit=3 * size, prompts=prompts)
    files = [f for f in tmp_path.iterdir() if f.suffix == ".session"]
    assert 1 <= len(files) <= 3 and sum(f.stat().st_size for f in files) <= 3 * size and not other.exists()
    again = saved(engine, tokenizer, tmp_path, limit=3 * size, prompts=[prompts[-1] + [7]])
    assert again[0][1] >= 149


def test_nothing_is_saved_where_there_is_no_room_and_the_server_goes_on(engine, tokenizer, tmp_path, caplog, monkeypatch):
    assert saved(engine, tokenizer, tmp_path / "a", limit=100)[0][1] == 0 and list((tmp_path / "a").iterdir()) == []

    def full(*paths):
        raise OSError(28, "No space left on device")
    monkeypatch.setattr(os, "replace", full)
    assert saved(engine, tokenizer, tmp_path / "b")[0][1] == 0 and list((tmp_path / "b").iterdir()) == []
    assert "No space left on device" in caplog.text
    (tmp_path / "file").write_text("")
    with pytest.raises(IOFailure, match="cannot be used for conversations"):
        Archive(tmp_path / "file", KEY, MIB)


def test_a_slow_disk_delays_no_answer_and_takes_no_more_memory(engine, tokenizer, tmp_path, monkeypatch):
    """The archive was written in the thread that writes the answers."""
    gate, write = threading.Event(), Archive.write

    def slow(self, snapshot):
        assert gate.wait(60)
        return write(self, snapshot)
    monkeypatch.setattr(Archive, "write", slow)
    prompts = [ids(150, n) for n in range(4, 11)]
    budget = 4 * engine.session().saved_bytes(170)
    shelf = Shelf(budget, Archive(tmp_path, KEY, 256 * MIB))
    with serving(engine, tokenizer, parallel=1, shelf=shelf) as s:
        texts = [ask(s, p)[0] for p in prompts]
        assert shelf._pen and shelf._pen.is_alive() and 2 <= len(shelf.entries) and shelf.nbytes <= budget
        gate.set()
        until(lambda: list(tmp_path.glob("*.session")))
        assert ask(s, prompts[-2] + [5, 6])[1] >= 149
    assert texts == [fresh(engine, tokenizer, p) for p in prompts]
    assert shelf._pen is None and len(list(tmp_path.glob("*.session"))) >= 3


def test_a_state_that_is_continued_while_it_is_written_keeps_its_file(engine, tokenizer, tmp_path, monkeypatch):
    gate, write = threading.Event(), Archive.write
    monkeypatch.setattr(Archive, "write", lambda self, snapshot: gate.wait(60) and write(self, snapshot))
    archive = Archive(tmp_path, KEY, 256 * MIB)
    shelf, a, b = Shelf(32 * MIB, archive), engine.session(), engine.session()
    a.sync(A)
    assert shelf.save([a]) and not list(tmp_path.iterdir())
    entry, = shelf.entries
    assert shelf.give(entry, b) and b.tokens == A and shelf.nbytes == shelf._pen.snapshot.nbytes
    gate.set()
    while shelf.save([], wait_s=60):
        pass
    assert [e.file for e in shelf.entries] == list(archive.files) and len(archive.files) == 1
    assert shelf.give(shelf.entries[0], a) and a.tokens == A


def test_partial_files_of_a_crash_go_and_those_of_a_writer_stay(tmp_path):
    for name, age in (("a.session.1.partial", 10_000), ("b.session.2.partial", 0)):
        (tmp_path / name).write_bytes(b"x")
        if age:
            os.utime(tmp_path / name, (1, 1))
    Archive(tmp_path, KEY, MIB)
    assert [f.name for f in tmp_path.iterdir()] == ["b.session.2.partial"]


def test_the_cheapest_way_spares_the_conversations_of_others(engine):
    timelines = Timelines(engine, 2)

    def read(prompt):
        t, kept = timelines.take(prompt)
        engine.step([(t.session, prompt[kept:])])
        timelines.give(t)
        return t, kept
    a, _ = read(A)
    b, kept = read(B)
    assert b is not a and kept == (200 if timelines.rewinds else 0)
    assert read(A + [5])[0] is a and read(B + [5])[0] is b
    assert read(ids(90, 5)) == (a, 0)         # the one that was used longest ago


def test_streams_under_a_small_budget_equal_serial_runs(tokenizer, tmp_path, monkeypatch):
    """D23, with experts that are read from the file: one pass reads them for all."""
    monkeypatch.setattr("moegg.engine.engine.own_bytes", lambda: 0)
    path = convert_to(tiny.hf(tmp_path / "source", "qwen3-moe", num_experts=16, num_hidden_layers=6, mlp_only_layers=[]), tmp_path, "q8")
    whole = open_engine(path, ctx=512, n_threads=1, ubatch=16)
    ram = whole.plan.fixed + 3 * whole.plan.kv_state + whole.plan.experts // 4
    engine = open_engine(path, ctx=512, n_threads=1, ubatch=16, ram=ram, io="direct", sessions=(4, 4))
    assert not engine.plan.all_fits and engine.plan.sessions == 4
    prompts = [ids(40, n) for n in range(5)]
    serial = [fresh(whole, tokenizer, p) for p in prompts]
    with serving(engine, tokenizer, parallel=4, counters=engine.store.counters) as s, ThreadPoolExecutor(5) as pool:
        assert [text for text, _ in pool.map(lambda p: ask(s, p), prompts)] == serial
        metrics = s.client.get("/metrics")[1]
    assert "moegg_engine_misses" in metrics and "moegg_engine_cache_bytes" in metrics
