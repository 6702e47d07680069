"""llama.cpp's side of quant_report.py: quantises a GGUF with llama.cpp's own presets, and writes logits of token windows.

    python bench/peer_quants.py quantize IN.gguf OUT.gguf TYPE [IMPORTANCE.npz]      TYPE: ALL_F32, MOSTLY_Q4_K_M, ...
    python bench/peer_quants.py logits MODEL.gguf FIRST THREADS < windows.json

Needs llama-cpp-python, nothing of moegg. IMPORTANCE.npz: tensor name -> mean squares of its columns, experts one after the other, what
llama.cpp's imatrix holds. `logits` reads one line, a JSON list of equally long lists of token ids, and writes for each the logits of the
positions from FIRST on, float32, to standard output; keys and values are kept in f16, as by default.
"""
import ctypes
import json
import sys

import llama_cpp as lc
import numpy as np
from llama_cpp.llama_cpp import llama_model_imatrix_data


def quantize(source: str, out: str, kind: str, importance: str | None = None) -> None:
    params = lc.llama_model_quantize_default_params()
    params.nthread, params.ftype, params.allow_requantize = 2, getattr(lc, f"LLAMA_FTYPE_{kind}"), True
    if importance:
        held = [(name.encode(), np.ascontiguousarray(x, np.float32).ravel()) for name, x in np.load(importance).items()]
        entries = (llama_model_imatrix_data * (len(held) + 1))()           # the last one, all zero, ends the list
        for entry, (name, x) in zip(entries, held, strict=False):
            entry.name, entry.size, entry.data = name, x.size, x.ctypes.data_as(type(entry.data))
        params.imatrix = entries
    if lc.llama_model_quantize(source.encode(), out.encode(), ctypes.byref(params)):
        raise SystemExit(f"{source}: llama.cpp cannot quantise it to {kind}")


def logits(path: str, first: int, threads: int) -> None:
    params = lc.llama_model_default_params()
    params.use_extra_bufts = False
    model = lc.llama_model_load_from_file(path.encode(), params)
    if not model:
        raise SystemExit(f"{path}: llama.cpp cannot load it")
    vocab = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(model))
    windows = json.loads(sys.stdin.readline())
    n = len(windows[0])
    params = lc.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = n
    params.n_threads = params.n_threads_batch = threads
    ctx = lc.llama_init_from_model(model, params)
    for window in windows:
        lc.llama_memory_clear(lc.llama_get_memory(ctx), True)
        batch = lc.llama_batch_init(n, 0, 1)
        batch.n_tokens = n
        for i, token in enumerate(window):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, i >= first
            batch.seq_id[i][0] = 0
        if lc.llama_decode(ctx, batch):
            raise SystemExit("llama_decode failed")
        for i in range(first, n):
            sys.stdout.buffer.write(np.ctypeslib.as_array(lc.llama_get_logits_ith(ctx, i), (vocab,)).tobytes())
        lc.llama_batch_free(batch)
    sys.stdout.flush()


if __name__ == "__main__":
    if len(sys.argv) < 4 or sys.argv[1] not in ("quantize", "logits"):
        raise SystemExit(__doc__)
    silent = lc.llama_log_callback(lambda *_: None)
    lc.llama_backend_init()
    lc.llama_log_set(silent, ctypes.c_void_p(0))
    if sys.argv[1] == "quantize":
        quantize(*sys.argv[2:])
    else:
        logits(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
