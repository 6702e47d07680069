"""A server under load, beside `moegg bench` of the same file: one JSON line per measurement.

    python bench/server_load.py MODEL [--streams 1,2,4,8] [--gen N] [--runs N] [--engine "--ram 8G --io direct"] [--options "..."]

Starts `moegg server` on a free port of 127.0.0.1. Per number of streams: tokens per second of all streams together from the first
token to the last, how many times that of one stream it is, whether each greedy stream equals its serial run, the share of bench's
decode rate, and per pass its time, the expert records it wanted and the reads it waited for. Then the second turn of a long
conversation: how many tokens were evaluated again, and the times to the first byte.
Prompts are token ids, so a file without a tokenizer will do (server_ids.py). --engine goes to the server and to bench alike.
"""
import json
import random
import re
import shlex
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from common import ROOT, bench, header, numbers, parser, storage

from moegg.formats.container import Container


@contextmanager
def serving(model: str, parallel: int, options: list[str]):
    """(URL, process id) of a fresh server."""
    bare = model != "demo" and "tokenizer" not in Container.open(model).sections
    start = [str(ROOT / "bench" / "server_ids.py")] if bare else ["-m", "moegg", "server"]
    command = [sys.executable, *start, model, "--port=0", f"--parallel={parallel}", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        ready = next((line for line in iter(process.stderr.readline, "") if "is ready at" in line), None)
        if ready is None:
            sys.exit("moegg server: did not start")
        yield re.search(r"http://\S+", ready)[0], process.pid
    finally:
        process.terminate()
        process.wait(60)


def stream(url: str, prompt: list[int], n: int) -> dict:
    """One greedy stream of n tokens: text, times of first byte, first and last token, the server's timings and usage."""
    body = {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    out = {"start": time.perf_counter(), "text": ""}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode()), timeout=3600) as r:
        lines = [(time.perf_counter(), line) for line in r]         # parsed afterwards: the server shares these cores
    out["first_byte"] = lines[0][0]
    for now, line in lines:
        if not line.startswith(b"data: {"):
            continue
        data = json.loads(line[6:])
        if "timings" in data:
            out["timings"] = data["timings"]
        if data.get("usage"):
            out["usage"] = data["usage"]
        elif data["choices"][0]["text"]:
            out.setdefault("first", now)
            out["last"] = now
            out["text"] += data["choices"][0]["text"]
    return out


def get(url: str, path: str, body: dict | None = None) -> dict:
    with urllib.request.urlopen(urllib.request.Request(url + path, body and json.dumps(body).encode()), timeout=3600) as r:
        return json.load(r)


def prompt(vocab: int, n: int, seed: int) -> list[int]:
    """n ids, none of the first and last, where special tokens tend to be."""
    return random.Random(seed).choices(range(vocab // 20, vocab * 9 // 10), k=n)


def emit(model: str, **facts) -> None:
    print(json.dumps({"bench": "server_load", **header(), "file": model, "storage": storage(model), **facts}), flush=True)


def loads(url: str, a, vocab: int, alone: float | None) -> None:
    """Serial runs of all prompts first, each on its own; then so many at once."""
    with ThreadPoolExecutor(max(a.streams)) as pool:
        for run in range(a.runs):
            prompts = [prompt(vocab, a.prompt, 1000 * run + k) for k in range(max(a.streams))]
            serial = [stream(url, p, a.gen) for p in prompts]
            one = sorted(rate([s], a.gen) for s in serial)[len(serial) // 2]
            for count in a.streams:
                before = counters(url)
                done = list(pool.map(lambda p: stream(url, p, a.gen), prompts[:count]))
                spent = {name: value - before.get(name, 0) for name, value in counters(url).items()}
                emit(a.model, streams=count, prompt=a.prompt, gen=a.gen, repetition=run, tok_per_s=round(rate(done, a.gen), 3),
                     serial_tok_per_s=round(one, 3), times_serial=round(rate(done, a.gen) / one, 3),
                     decode_of_server=[d["timings"]["predicted_per_second"] for d in done],
                     equal_to_serial=[d["text"] for d in done] == [s["text"] for s in serial[:count]], **per_pass(spent),
                     bench_tok_per_s=alone, serial_share_of_bench=alone and round(one / alone, 4))


def counters(url: str) -> dict[str, float]:
    """Those of /metrics, by name."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=3600) as r:
        pairs = [line.rsplit(" ", 1) for line in r.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in pairs}


def per_pass(spent: dict[str, float]) -> dict:
    """What a pass cost: records that it wanted (those of all streams together), those that were absent, bytes read, ms waited."""
    n = max(spent["moegg_passes_total"], 1)
    wanted, absent, waited = (spent.get(f"moegg_engine_{name}", 0) for name in ("hits", "misses", "wait_ns"))
    read = sum(spent.get(f"moegg_engine_{name}", 0) for name in ("demanded", "predicted"))
    return {"passes": n, "records_per_pass": round((wanted + absent) / n, 1), "absent_per_pass": round(absent / n, 1),
            "read_mb_per_pass": round(read / n / 1e6, 1), "waited_ms_per_pass": round(waited / n / 1e6, 2),
            "step_ms": round(1e3 * (spent["moegg_answer_seconds_total"] + spent["moegg_prompt_seconds_total"]) / n, 2)}


def rate(done: list[dict], n: int) -> float:
    """Tokens per second of all streams together, while the last of them was being written; the first token of each is the prompt's."""
    return len(done) * (n - 1) / (max(d["last"] for d in done) - min(d["first"] for d in done))


def turns(url: str, a, vocab: int) -> None:
    """Two turns: the second one should evaluate only what is new."""
    ids = prompt(vocab, a.conversation, 99)
    first = stream(url, ids, 32)
    again = stream(url, ids + get(url, "/tokenize", {"content": first["text"]})["tokens"] + prompt(vocab, 16, 98), 8)
    for turn, d in enumerate((first, again), 1):
        emit(a.model, turn=turn, prompt_tokens=d["usage"]["prompt_tokens"], cached_tokens=d["usage"]["prompt_tokens_details"]["cached_tokens"],
             first_byte_s=round(d["first_byte"] - d["start"], 3), first_token_s=round(d["first"] - d["start"], 3))


def main() -> None:
    p = parser(__doc__)
    p.add_argument("model", metavar="MODEL")
    p.add_argument("--streams", type=numbers, default=[1, 2, 4, 8])
    p.add_argument("--prompt", type=int, default=32, help="tokens of each prompt")
    p.add_argument("--gen", type=int, default=64)
    p.add_argument("--runs", type=int, default=3)
    p.add_argument("--conversation", type=int, default=2000, help="tokens of the first turn of a conversation")
    p.add_argument("--engine", default="", help="options of moegg server and of moegg bench: memory, threads")
    p.add_argument("--options", default="", help="more options of moegg server")
    p.add_argument("--no-bench", action="store_true", help="do not run `moegg bench` for comparison")
    a = p.parse_args()
    engine, alone = shlex.split(a.engine), None
    if not a.no_bench:
        runs = bench(a.model, f"--prompt={a.prompt}", f"--gen={a.gen}", f"--runs={max(3, a.runs)}", *engine)["runs"]
        alone = sorted(r["decode_tps"] for r in runs)[len(runs) // 2]
    with serving(a.model, max(a.streams), [*engine, *shlex.split(a.options)]) as (url, _):
        card = get(url, "/v1/models")["data"][0]
        loads(url, a, card["meta"]["n_vocab"], alone)
        if a.conversation + 64 < card["context_length"]:
            turns(url, a, card["meta"]["n_vocab"])


if __name__ == "__main__":
    main()
