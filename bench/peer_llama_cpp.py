"""llama.cpp, through llama-cpp-python, doing the work of `moegg bench` on a GGUF: same tokens, same stretches, same JSON keys.

    python bench/peer_llama_cpp.py MODEL.gguf [--prompt N] [--warm N] [--gen N] [--ctx-depth N] [--threads N] [--seed N] [--runs N]
                                   [--vocab N] [--repack]

Needs llama-cpp-python, nothing of moegg. --repack lets llama.cpp rearrange the weights into its own fast layout, as it does by
default; that copies the model into anonymous memory, so a model near the size of RAM cannot have it. --vocab: what ids are drawn
from, if the model's vocabulary is not what the other side says.
"""
import argparse
import ctypes
import json
import random
import statistics
import time
from pathlib import Path

UBATCH = 512


def draw(seed: int, vocab: int, counts: list[int]) -> list[list[int]]:
    """The ids of context, prompt, warm-up and answer, one stream, as moegg/commands/measure.py draws them."""
    rnd = random.Random(seed)
    return [[rnd.randrange(vocab) for _ in range(n)] for n in counts]


class Peer:
    """One model and one sequence."""

    def __init__(self, path: str, threads: int, repack: bool):
        import llama_cpp as lc
        self.lc, self.threads = lc, threads
        self._quiet = lc.llama_log_callback(lambda *_: None)
        lc.llama_backend_init()
        lc.llama_log_set(self._quiet, ctypes.c_void_p(0))
        params = lc.llama_model_default_params()
        params.use_extra_bufts = repack
        self.model = lc.llama_model_load_from_file(path.encode(), params)
        if not self.model:
            raise SystemExit(f"{path}: llama.cpp cannot load it")
        self.vocab = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(self.model))

    def reserve(self, ctx: int) -> None:
        params = self.lc.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = ctx, UBATCH, UBATCH
        params.n_threads = params.n_threads_batch = self.threads
        params.swa_full = False         # as llama.cpp's own programs do
        self.length = 0
        self.ctx = self.lc.llama_init_from_model(self.model, params)
        if not self.ctx:
            raise SystemExit(f"llama.cpp cannot make a context of {ctx} tokens")

    def feed(self, ids: list[int]) -> None:
        """Evaluates ids after what is there; the logits of the last one exist afterwards."""
        lc = self.lc
        for i in range(0, len(ids), UBATCH):
            part = ids[i:i + UBATCH]
            array = (lc.llama_token * len(part))(*part)         # the batch only points to it
            if lc.llama_decode(self.ctx, lc.llama_batch_get_one(array, len(part))):
                raise SystemExit("llama_decode failed")
            self.length += len(part)
        lc.llama_synchronize(self.ctx)

    def keep(self, n: int) -> int:
        """Forgets all but the first n tokens; returns how many are left: none where a sliding window has forgotten them."""
        memory, n = self.lc.llama_get_memory(self.ctx), min(n, self.length)
        if not n or self.lc.llama_model_n_swa(self.model) or not self.lc.llama_memory_seq_rm(memory, 0, n, -1):
            self.lc.llama_memory_clear(memory, True)
            n = 0
        self.length = n
        return n


def run(peer: Peer, depth: list[int], prompt: list[int], warm: list[int], gen: list[int]) -> dict:
    """One repetition, as moegg/commands/measure.py does it."""
    kept = peer.keep(len(depth))
    peer.feed(depth[kept:])
    out: dict = {"prefill_tps": None, "ttft_s": None, "decode_tps": None}
    if prompt:
        start = time.perf_counter()
        peer.feed(prompt)
        out["ttft_s"] = time.perf_counter() - start
        out["prefill_tps"] = len(prompt) / out["ttft_s"]
    for t in warm:
        peer.feed([t])
    if gen:
        start = time.perf_counter()
        for t in gen:
            peer.feed([t])
        out["decode_tps"] = len(gen) / (time.perf_counter() - start)
    return out


def peak_memory() -> int | None:
    try:
        line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
    except (OSError, StopIteration):
        return None
    return int(line.split()[1]) * 1024


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    for name, default in (("prompt", 512), ("warm", 16), ("gen", 64), ("ctx-depth", 0), ("threads", 2), ("seed", 7), ("runs", 5), ("vocab", 0)):
        p.add_argument(f"--{name}", type=int, default=default)
    p.add_argument("--repack", action="store_true")
    a = p.parse_args()
    counts = [a.ctx_depth, a.prompt, a.warm, a.gen]
    start = time.perf_counter()
    peer = Peer(a.model, a.threads, a.repack)
    vocab = a.vocab or peer.vocab
    depth, prompt, warm, gen = draw(a.seed, vocab, counts)
    peer.reserve(sum(counts) + 8)
    peer.feed((depth + prompt)[:UBATCH])
    for t in warm:
        peer.feed([t])
    peer.keep(0)
    load = time.perf_counter() - start
    runs = [run(peer, depth, prompt, warm, gen) for _ in range(a.runs)]
    result: dict = {"engine": "llama.cpp", "version": f"llama-cpp-python {peer.lc.__version__}", "load_s": load, "spread": {}}
    for key in runs[0]:
        values = [r[key] for r in runs if r[key] is not None]
        result[key] = statistics.median(values) if values else None
        result["spread"][key] = [min(values), max(values)] if values else None
    print(json.dumps(result | {"runs": runs, "peak_memory_bytes": peak_memory(), "prompt": a.prompt, "warm": a.warm, "gen": a.gen,
                               "ctx_depth": a.ctx_depth, "seed": a.seed, "vocab": vocab, "threads": a.threads, "repack": a.repack,
                               "file": a.model}))


if __name__ == "__main__":
    main()
