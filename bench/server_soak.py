"""Mixed load for a while: answers, streams, hang-ups, cancels, nonsense. One JSON line per minute; the exit code tells.

    python bench/server_soak.py MODEL [--minutes N] [--clients N] [--options "..."]

Ends with 1 if a request got a 5xx, a stream had no end, a place stayed taken, or memory grew by more than 10 % after the first
quarter. Loops are bounded by --minutes. Linux, for the memory of the server.
"""
import collections
import http.client
import json
import random
import re
import shlex
import sys
import threading
import time
import urllib.parse

from common import header, parser
from server_load import serving

WORDS = "river castle winter engine garden letter market island the a of and".split()
KINDS = {"whole": 5, "stream": 5, "hang_up": 3, "cancel": 1, "nonsense": 2, "anthropic": 2}


def request(at: str, path: str, body: object, timeout: float = 600) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    conn = http.client.HTTPConnection(at, timeout=timeout)
    conn.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    return conn, conn.getresponse()


def one(at: str, rng: random.Random, kind: str) -> str:
    """One request; what became of it: 'ok', 'busy' or a fault."""
    text = " ".join(rng.choices(WORDS, k=rng.randrange(1, 200)))
    body = {"prompt": text, "max_tokens": rng.randrange(1, 40), "temperature": rng.choice((0, 1)), "stream": kind in ("stream", "hang_up")}
    path = "/v1/completions"
    if kind == "anthropic":
        path, body = "/v1/messages", {"messages": [{"role": "user", "content": text}], "max_tokens": 20}
    elif kind == "cancel":
        path, body = "/v1/cancel", {}
    elif kind == "nonsense":
        body = rng.choice(([], {"prompt": 3}, {"prompt": text, "n": -1}, {"prompt": "word " * 100_000}))
    conn, r = request(at, path, body)
    try:
        if kind == "hang_up" and r.status == 200:
            r.read(rng.randrange(1, 400))
            return "ok"
        data = r.read()
    finally:
        conn.close()
    if r.status >= 500:
        return f"{kind}: {r.status}"
    if kind == "stream" and r.status == 200 and not data.endswith(b"data: [DONE]\n\n"):
        return "stream: no end"
    return "busy" if r.status == 429 else "ok"


def memory(pid: int) -> int:
    """Bytes of the process that belong to no file."""
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        return int(re.search(r"RssAnon:\s+(\d+) kB", f.read())[1]) << 10


def idle(at: str) -> bool:
    conn = http.client.HTTPConnection(at, timeout=60)
    conn.request("GET", "/health")
    state = json.loads(conn.getresponse().read())
    conn.close()
    return state["slots_processing"] == state["queue"] == 0


def main() -> None:
    p = parser(__doc__)
    p.add_argument("model", metavar="MODEL")
    p.add_argument("--minutes", type=float, default=60)
    p.add_argument("--clients", type=int, default=6)
    p.add_argument("--options", default="", help="more options of moegg server")
    a = p.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    with serving(a.model, 4, shlex.split(a.options)) as (url, pid):
        at, end = urllib.parse.urlsplit(url).netloc, time.monotonic() + 60 * a.minutes

        def client(seed: int) -> None:
            rng = random.Random(seed)
            while time.monotonic() < end:
                kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
                try:
                    counts[one(at, rng, kind)] += 1
                except (OSError, http.client.HTTPException) as e:
                    counts[f"{kind}: {type(e).__name__}"] += 1
        threads = [threading.Thread(target=client, args=(n,), daemon=True) for n in range(a.clients)]
        for t in threads:
            t.start()
        sizes = []
        while time.monotonic() < end:
            time.sleep(max(0.1, min(60, end - time.monotonic())))
            sizes.append(memory(pid))
            print(json.dumps({"bench": "server_soak", **header(), "file": a.model, "anonymous_bytes": sizes[-1], **counts}), flush=True)
        for t in threads:
            t.join(600)
        freed = any(idle(at) or time.sleep(0.5) for _ in range(60))
    faults = {k: n for k, n in counts.items() if k not in ("ok", "busy")}
    grown = max(sizes[len(sizes) // 4:]) / sizes[len(sizes) // 4]
    if faults or not freed or grown > 1.1:
        sys.exit(f"faults {faults}, all places free: {freed}, memory x {grown:.2f}")


if __name__ == "__main__":
    main()
