"""Mutations of sources, and what a conversion may do with them: succeed, or end with one line of an error that has a slug.

Seeded: a number gives the same file everywhere. `python -m tests.converters.fuzz MINUTES FOLDER` goes on until the time is over
and keeps what was wrong in FOLDER.
"""
import copy
import json
import math
import random
import shutil
import struct
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

from moegg import kernels
from moegg.converters.export import export
from moegg.converters.run import convert
from moegg.errors import InternalError, MoeggError
from moegg.formats.container import Container
from moegg.formats.safetensors import DTYPE_BITS

NUMBERS = [0, 1, 2, 3, 7, 8, 31, 32, 33, 127, 128, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**62,
           2**63 - 1, 2**63, 2**64 - 1]
VALUES = [None, True, False, 0, 1, -1, 3, 2**31, 2**63, 1e308, float("inf"), float("nan"), "", "x", "F32", "bf16", [], [0],
          [1, 1], {}, {"a": 1}, [[]]]
CONFIG = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 5, "hidden_size": 128,
          "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "intermediate_size": 128,
          "moe_intermediate_size": 128, "num_experts": 2, "num_experts_per_tok": 1, "norm_topk_prob": True,
          "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": False}
KINDS = ("fp8", "mlx", "mlx3", "ternary", "plain")


def matrices():
    """(HF name, GGUF name, shape) of CONFIG's model; experts singly."""
    out = [("model.embed_tokens", "token_embd", (5, 128)), ("lm_head", "output", (5, 128))]
    for hf, gguf, shape in (("q", "q", (128, 128)), ("k", "k", (64, 128)), ("v", "v", (64, 128)), ("o", "output", (128, 128))):
        out.append((f"model.layers.0.self_attn.{hf}_proj", f"blk.0.attn_{gguf}", shape))
    out.append(("model.layers.0.mlp.gate", "blk.0.ffn_gate_inp", (2, 128)))
    for part in ("gate", "up", "down"):
        out += [(f"model.layers.0.mlp.experts.{e}.{part}_proj", f"blk.0.ffn_{part}_exps", (128, 128)) for e in range(2)]
    return out


VECTORS = [("model.norm", "output_norm", 128), ("model.layers.0.input_layernorm", "blk.0.attn_norm", 128),
           ("model.layers.0.post_attention_layernorm", "blk.0.ffn_norm", 128),
           ("model.layers.0.self_attn.q_norm", "blk.0.attn_q_norm", 64),
           ("model.layers.0.self_attn.k_norm", "blk.0.attn_k_norm", 64)]


def write_gguf(path: Path, quant: str = "Q8_0") -> None:
    w, rng, stacks = GGUFWriter(path, "qwen3moe"), np.random.default_rng(0), {}
    for key, value in {"block_count": 1, "embedding_length": 128, "feed_forward_length": 128, "expert_feed_forward_length": 128,
                       "expert_count": 2, "expert_used_count": 1, "attention.head_count": 2, "attention.head_count_kv": 1,
                       "attention.key_length": 64, "attention.value_length": 64, "context_length": 64}.items():
        w.add_uint32(f"qwen3moe.{key}", value)
    w.add_float32("qwen3moe.attention.layer_norm_rms_epsilon", 1e-6)
    for key, value in (("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", "gpt-2"), ("general.name", "F")):
        w.add_string(key, value)
    w.add_array("tokenizer.ggml.tokens", ["a", "b", "ab", "c", "<|end|>"])
    w.add_array("tokenizer.ggml.token_type", [1, 1, 1, 1, 3])
    w.add_array("tokenizer.ggml.merges", ["a b"])
    w.add_uint32("tokenizer.ggml.eos_token_id", 4)
    for _, name, shape in matrices():
        stacks.setdefault(name, []).append(rng.standard_normal(shape).astype("f4"))
    for name, each in stacks.items():
        x = np.stack(each) if "_exps" in name else each[0]
        if "gate_inp" in name:
            w.add_tensor(name + ".weight", x)
        else:
            rows = kernels.quantize(quant.lower(), x.reshape(-1, 128)).reshape(*x.shape[:-1], -1)
            w.add_tensor(name + ".weight", rows, raw_dtype=GGMLQuantizationType[quant])
    for _, name, n in VECTORS:
        w.add_tensor(name + ".weight", np.ones(n, "f4"))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


@cache
def gguf_bytes(quant: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        write_gguf(Path(folder) / "m.gguf", quant)
        return (Path(folder) / "m.gguf").read_bytes()


@cache
def folder_of(kind: str) -> tuple[dict, dict, bytes]:
    """(config, safetensors header, data) of a checkpoint whose matrices are packed as `kind`."""
    rng, head, blobs = np.random.default_rng(1), {}, []

    def add(name: str, dtype: str, x: np.ndarray) -> None:
        at = sum(map(len, blobs))
        blobs.append(x.tobytes())
        head[name] = {"dtype": dtype, "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}

    how = {"fp8": {"quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 32]}}, "plain": {},
           "mlx": {"quantization": {"group_size": 64, "bits": 4}}, "mlx3": {"quantization": {"group_size": 64, "bits": 3}},
           "ternary": {"quantization": {"group_size": 128, "bits": 2, "mode": "affine"}}}[kind]
    for name, _, (n, k) in matrices():
        if kind == "plain" or name.endswith("gate") or kind == "fp8" and n == 5:
            add(name + ".weight", "F32", rng.standard_normal((n, k)).astype("f4"))
        elif kind == "fp8":
            add(name + ".weight", "F8_E4M3", rng.integers(0, 100, (n, k), dtype=np.uint8))
            add(name + ".weight_scale_inv", "F32", np.ones((n // 32, k // 32), "f4"))
        else:
            bits = how["quantization"]["bits"]
            add(name + ".weight", "U32", rng.integers(0, 2**32, (n, k * bits // 32), dtype=np.uint64).astype("<u4"))
            if kind == "ternary":
                add(name + ".row_alpha", "BF16", np.full(n, 0x3f80, "<u2"))
            else:
                for part in ("scales", "biases"):
                    add(f"{name}.{part}", "BF16", np.full((n, k // 64), 0x3c00, "<u2"))
    for name, _, n in VECTORS:
        add(name + ".weight", "F32", np.ones(n, "f4"))
    return CONFIG | how, head, b"".join(blobs)


def mutate_bytes(data: bytes, rnd: random.Random, head: int) -> bytes:
    """A few changes within the first `head` bytes: bits, numbers, cuts, copies."""
    out = bytearray(data)
    for _ in range(rnd.choice((1, 1, 1, 2, 3, 8))):
        at = rnd.randrange(min(head, len(out)) or 1)
        match rnd.randrange(7):
            case 0:
                out[at] ^= 1 << rnd.randrange(8)
            case 1:
                out[at] = rnd.randrange(256)
            case 2:
                out[at:at + 8] = struct.pack("<Q", rnd.choice(NUMBERS) & (2**64 - 1))
            case 3:
                out[at:at + 4] = struct.pack("<I", rnd.choice(NUMBERS) & (2**32 - 1))
            case 4:
                n = rnd.choice((1, 4, 8, 100))
                del out[at:at + n]
            case 5:
                n = rnd.choice((1, 4, 8, 100))
                out[at:at] = out[at:at + n]
            case 6:
                del out[rnd.randrange(len(out) + 1):]
        if not out:
            break
    return bytes(out)


def mutate_json(value, rnd: random.Random):
    """One place of a JSON value changed, removed or doubled."""
    value = copy.deepcopy(value)
    node = value
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return value
        key = rnd.choice(keys)
        if isinstance(node[key], (dict, list)) and node[key] and rnd.random() < 0.8:
            node = node[key]
            continue
        match rnd.randrange(4):
            case 0:
                del node[key]
            case 1 if isinstance(node, dict):
                node[str(rnd.choice(VALUES))] = node.pop(key)
            case 2 if isinstance(node[key], int) and not isinstance(node[key], bool):
                node[key] = rnd.choice((node[key] + 1, node[key] - 1, node[key] * 2, -node[key], rnd.choice(NUMBERS)))
            case _:
                node[key] = rnd.choice(VALUES)
        return value


def repaired(head: dict, data: bytes) -> tuple[dict, bytes]:
    """The header with offsets that fit its dtypes and shapes where they make sense, and as many bytes: to reach what lies behind."""
    at, out = 0, {}
    for name, e in head.items():
        try:
            nbytes = math.prod(e["shape"]) * DTYPE_BITS[e["dtype"]] // 8 if all(type(n) is int for n in e["shape"]) else -1
            ok = 0 <= nbytes < 1 << 20 and at + nbytes < 1 << 22
        except (TypeError, KeyError, IndexError):
            ok = False
        if ok:
            out[name] = e | {"data_offsets": [at, at + nbytes]}
            at += nbytes
    return out, (data * (at // len(data) + 1))[:at]


def make(seed: int, folder: Path) -> Path:
    """Writes source number `seed` into `folder`, which is empty."""
    rnd = random.Random(seed)
    if seed % 2:
        path = folder / rnd.choice(("m.gguf", "m-00001-of-00002.gguf"))
        path.write_bytes(mutate_bytes(gguf_bytes(rnd.choice(("Q8_0", "Q4_0", "MXFP4", "F16"))), rnd, 3000))
        return path
    config, head, data = folder_of(rnd.choice(KINDS))
    which = rnd.randrange(4)
    if which in (0, 3):
        config = mutate_json(config, rnd)
    if which in (1, 3):
        for _ in range(rnd.choice((1, 1, 2, 4))):
            head = mutate_json(head, rnd)
        if rnd.random() < 0.8:
            head, data = repaired(head, data)
    text = json.dumps(head).encode()
    file = struct.pack("<Q", len(text)) + text + data
    (folder / "model.safetensors").write_bytes(mutate_bytes(file, rnd, len(text) + 8) if which == 2 else file)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def check(path: Path, out: Path) -> str:
    """Converts, and exports what came from a GGUF. The slug of the error, or '' if all went well. Everything else is raised."""
    try:
        made = convert(path, out / "o.moegg", force=True)
        container = Container.open(made.path)
        container.verify()
        if "gguf_metadata" in container.sections:
            export(container, out / "o.gguf", force=True)
        return ""
    except InternalError:
        raise
    except MoeggError as e:
        assert "\n" not in str(e) and len(str(e)) < 2000, str(e)
        return e.slug


def main(minutes: float, keep: Path) -> None:
    end, seed, found, slugs = time.monotonic() + 60 * minutes, int(time.time()) << 20, 0, {}
    while time.monotonic() < end:
        with tempfile.TemporaryDirectory() as folder:
            source, out = Path(folder) / "s", Path(folder) / "o"
            source.mkdir()
            out.mkdir()
            try:
                slug = check(make(seed, source), out)
                slugs[slug or "ok"] = slugs.get(slug or "ok", 0) + 1
            except BaseException as e:
                if isinstance(e, KeyboardInterrupt):
                    raise
                found += 1
                print(f"seed {seed}: {type(e).__name__}: {e}", flush=True)
                shutil.copytree(source, keep / str(seed), dirs_exist_ok=True)
        seed += 1
    print(f"{sum(slugs.values()) + found} sources, {found} wrong; {dict(sorted(slugs.items(), key=lambda i: -i[1]))}")


if __name__ == "__main__":
    main(float(sys.argv[1]), Path(sys.argv[2]))
