"""A server under load, beside `moegg bench` of the same file: one JSON line per measurement.

    python bench/server_load.py MODEL [--streams 1,2,4,8] [--gen N] [--runs N] [--options "--ram 8G --ctx 4096"]

Starts `moegg server` on a free port of 127.0.0.1. Per number of streams: tokens per second of all streams together from the first
token to the last, whether each greedy stream equals its serial run, and the share of bench's decode rate. Then the second turn of a
long conversation: how many tokens were evaluated again, and the time to the first byte.
"""
import json
import re
import shlex
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from common import bench, header, numbers, parser, storage

WORDS = ("river", "castle", "winter", "engine", "garden", "letter", "market", "island")


@contextmanager
def serving(model: str, parallel: int, options: list[str]):
    """(URL, process id) of a fresh server."""
    command = [sys.executable, "-m", "moegg", "server", model, "--port=0", f"--parallel={parallel}", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        ready = next((line for line in iter(process.stderr.readline, "") if "is ready at" in line), None)
        if ready is None:
            sys.exit("moegg server: did not start")
        yield re.search(r"http://\S+", ready)[0], process.pid
    finally:
        process.terminate()
        process.wait(60)


def stream(url: str, prompt: str, n: int) -> dict:
    """One greedy stream of n tokens: text, times of first byte, first and last token, the server's timings and usage."""
    body = {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    out = {"start": time.perf_counter(), "text": ""}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode()), timeout=3600) as r:
        for line in r:
            now = time.perf_counter()
            out.setdefault("first_byte", now)
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


def prompt(k: int, run: int) -> str:
    return f"Story {run}-{k}, about a {WORDS[k % len(WORDS)]}. Once upon a time"


def emit(model: str, **facts) -> None:
    print(json.dumps({"bench": "server_load", **header(), "file": model, "storage": storage(model), **facts}), flush=True)


def loads(url: str, a, alone: float | None) -> None:
    with ThreadPoolExecutor(max(a.streams)) as pool:
        for run in range(a.runs):
            serial = [stream(url, prompt(k, run), a.gen)["text"] for k in range(max(a.streams))]
            for count in a.streams:
                done = list(pool.map(lambda k, run=run: stream(url, prompt(k, run), a.gen), range(count)))
                seconds = max(d["last"] for d in done) - min(d["first"] for d in done)
                rate = count * (a.gen - 1) / seconds
                emit(a.model, streams=count, gen=a.gen, repetition=run, tok_per_s=round(rate, 3),
                     decode_of_server=[d["timings"]["predicted_per_second"] for d in done],
                     equal_to_serial=[d["text"] for d in done] == serial[:count], share_of_bench=alone and round(rate / alone, 4))


def turns(url: str, a) -> None:
    """Two turns: the second one should evaluate only what is new."""
    first = stream(url, "word " * a.conversation, 32)
    again = stream(url, "word " * a.conversation + first["text"] + " And then?", 8)
    emit(a.model, turn=1, prompt_tokens=first["usage"]["prompt_tokens"], first_byte_s=round(first["first_byte"] - first["start"], 3),
         first_token_s=round(first["first"] - first["start"], 3))
    details = again["usage"]["prompt_tokens_details"]
    emit(a.model, turn=2, prompt_tokens=again["usage"]["prompt_tokens"], cached_tokens=details["cached_tokens"],
         first_token_s=round(again["first"] - again["start"], 3))


def main() -> None:
    p = parser(__doc__)
    p.add_argument("model", metavar="MODEL")
    p.add_argument("--streams", type=numbers, default=[1, 2, 4, 8])
    p.add_argument("--gen", type=int, default=64)
    p.add_argument("--runs", type=int, default=3)
    p.add_argument("--conversation", type=int, default=400, help="words of the first turn of a conversation")
    p.add_argument("--options", default="", help="more options of moegg server")
    p.add_argument("--no-bench", action="store_true", help="do not run `moegg bench` for comparison")
    a = p.parse_args()
    alone = None
    if not a.no_bench:
        runs = bench(a.model, "--prompt=0", f"--gen={a.gen}", f"--runs={a.runs}")["runs"]
        alone = sorted(r["decode_tps"] for r in runs)[len(runs) // 2]
    with serving(a.model, max(a.streams), shlex.split(a.options)) as (url, _):
        loads(url, a, alone)
        turns(url, a)


if __name__ == "__main__":
    main()
