"""Tiny checkpoints rebuilt from their recipes with numpy alone, and the results transformers computed for them in f32.

tests/fixtures/oracles/<name>: config.json, generation_config.json, weights.json (the recipe), oracle.npz and oracle.json; the
tokenizer is shared. Provenance, grammar and array names: the README there. write_shards() serves tiny.py too.
"""
import base64
import hashlib
import json
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FIXTURES = Path(__file__).parent / "fixtures" / "oracles"
TOKENIZER = FIXTURES / "tokenizer"
NAMES = sorted(p.parent.name for p in FIXTURES.glob("*/oracle.npz"))
# all but MLX layouts, which the reference does not read: their values are the converters' and kernels' tests' business
PLAIN = [n for n in NAMES if "quantization" not in json.loads((FIXTURES / n / "config.json").read_text())]
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


def bf16(x):
    """f32 -> bf16 bits, to nearest even."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype("<u2")


E4M3 = np.array([c % 8 * 2.0 ** -9 if c < 8 else (8 + c % 8) * 2.0 ** (c // 8 - 10) for c in range(127)])


def e4m3(x):
    """f32 -> float8 e4m3 bits, to nearest even, clipped at 448."""
    a = np.minimum(np.abs(np.asarray(x, np.float64)), 448.0)
    step = np.exp2(np.maximum(np.frexp(a)[1] - 1, -6) - 3.0)
    return (np.searchsorted(E4M3, np.rint(a / step) * step) | np.where(np.signbit(x), 128, 0)).astype(np.uint8)


FLOATS = {"BF16": bf16, "F16": lambda x: x.astype("<f2"), "F32": lambda x: x.astype("<f4"), "F8_E4M3": e4m3}
INTEGERS = {"F8_E8M0": "u1", "U8": "u1", "U32": "<u4", "I64": "<i8"}


def encode(x, dtype):
    """(dtype, shape, bytes) as safetensors stores them."""
    bits = FLOATS[dtype](np.asarray(x, np.float32)) if dtype in FLOATS else np.asarray(x).astype(INTEGERS[dtype])
    return dtype, list(np.shape(x)), bits.tobytes()


def write_safetensors(path, tensors, dtype):
    """tensors: {name: array of floats, stored as `dtype`, or what encode() gave}."""
    head, blobs, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, x in sorted(tensors.items()):
        own, shape, blob = x if isinstance(x, tuple) else encode(x, dtype)
        head[name] = {"dtype": own, "shape": shape, "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def write_shards(folder, tensors, dtype, n=1):
    """model.safetensors, or n shards of consecutive names with model.safetensors.index.json."""
    if n == 1:
        return write_safetensors(folder / "model.safetensors", tensors, dtype)
    names, where, per = list(tensors), {}, -(-len(tensors) // n)
    for i in range(n):
        file, part = f"model-{i + 1:05d}-of-{n:05d}.safetensors", names[i * per:(i + 1) * per]
        write_safetensors(folder / file, {k: tensors[k] for k in part}, dtype)
        where.update(dict.fromkeys(part, file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


def values(seed, name, shape, kind, *params):
    """One tensor of a recipe, float64 or whole numbers. A stream depends on its name only, through the frozen legacy generator."""
    stream = np.random.RandomState(zlib.crc32(f"{seed}:{name}".encode()))
    scale, shift = (*params, 0.0)[:2] if kind in ("normal", "uniform") else (0, 0)
    match kind:
        case "normal":
            return shift + scale * stream.standard_normal(shape)
        case "uniform":
            return shift + scale * stream.random_sample(shape)
        case "int":
            low, high = params
            return low + np.floor((high - low) * stream.random_sample(shape)).astype(np.int64)
        case "const":
            return np.full(shape, params[0])
        case "list":
            return np.array(params[0]).reshape(shape)
        case "ternary":
            alpha = as_bf16(values(seed, f"{name}#alpha", shape[:-1], "uniform", *params))
            return (values(seed, name, shape, "int", 0, 3) - 1) * alpha[..., None]
        case "affine":
            scales = as_bf16(values(seed, f"{name}#scales", [*shape[:-1], shape[-1] // 64], "uniform", *params))[..., None]
            q = values(seed, name, shape, "int", 0, 16).reshape(*scales.shape[:-1], 64)
            return (q * scales + as_bf16(-7.5 * scales)).reshape(shape)
    raise ValueError(f"{name}: unknown kind {kind}")


def as_bf16(x):
    """float64 -> the nearest bf16 values, as float64."""
    return (bf16(x).astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def recipe_tensor(recipe, name):
    """What encode() gives for the tensor `name`."""
    shape, kind, *params = recipe["tensors"][name]
    options = params.pop() if params and isinstance(params[-1], dict) else {}
    dtype, stream, seed = options.get("dtype", recipe["dtype"]), options.get("from", name), recipe["seed"]
    if kind == "zlib":
        return dtype, shape, zlib.decompress(base64.b64decode(params[0]))
    if "{}" in stream:
        x = np.stack([values(seed, stream.replace("{}", str(i)), shape[1:], kind, *params) for i in range(shape[0])])
    else:
        x = values(seed, stream, shape, kind, *params)
    x = {"log": np.log, "exp": np.exp, "abs": np.abs, None: np.asarray}[options.get("fn")](x)
    if "times" in options:
        x = options["times"] * as_bf16(x)
    if "pack" in options:
        per = 32 // options["pack"]
        x = (x.reshape(*shape[:-1], -1, per).astype(np.uint64) << (options["pack"] * np.arange(per, dtype=np.uint64))).sum(-1)
    return encode(x, dtype)


def rebuild(name, folder):
    """Write the complete checkpoint `name` (config, tokenizer, weights) into `folder`; returns it. Checks the recorded hash."""
    folder, recipe = Path(folder), json.loads((FIXTURES / name / "weights.json").read_text())
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {k: recipe_tensor(recipe, k) for k in recipe["tensors"]}
    digest = hashlib.sha256(b"".join(blob for _, _, blob in tensors.values()))
    assert digest.hexdigest() == recipe["sha256"], f"{name}: this platform does not reproduce the recipe"
    write_shards(folder, tensors, recipe["dtype"], recipe["shards"])
    for file in ("config.json", "generation_config.json"):
        shutil.copyfile(FIXTURES / name / file, folder / file)
    copy_tokenizer(folder)
    return folder


def copy_tokenizer(folder):
    for file in TOKENIZER_FILES:
        shutil.copyfile(TOKENIZER / file, folder / file)


@dataclass
class Prompt:
    """What the reference computed for one prompt of S tokens: shapes in fixtures/oracles/README.md."""
    ids: np.ndarray
    logits_tail: np.ndarray
    argmax: np.ndarray
    argmax_logit: np.ndarray
    argmax_gap: np.ndarray
    logsumexp: np.ndarray
    greedy: np.ndarray
    greedy_gap: np.ndarray
    hidden_rms: np.ndarray
    hidden_last8: np.ndarray
    router_idx: np.ndarray | None
    router_w: np.ndarray | None
    tolerance: float
    seen: dict[int, np.ndarray]

    def check(self, logits):
        """Logits [S, V] of the whole prompt: tail, every argmax that is not a near tie, every logsumexp."""
        tail = self.logits_tail
        worst = float(np.abs(logits[-len(tail):] - tail).max())
        assert worst <= self.tolerance, f"logits differ by {worst:.2e}, allowed {self.tolerance:.0e}"
        clear = self.argmax_gap > 2 * self.tolerance
        np.testing.assert_array_equal(logits.argmax(-1)[clear], self.argmax[clear])
        np.testing.assert_allclose(logits.max(-1), self.argmax_logit, rtol=0, atol=self.tolerance)
        top = logits.max(-1, keepdims=True)
        total = top[:, 0] + np.log(np.exp((logits - top).astype(np.float64)).sum(-1))
        np.testing.assert_allclose(total, self.logsumexp, rtol=0, atol=self.tolerance)

    def check_router(self, idx, w):
        """idx, w [M, S, K]: the same set of experts per layer and token, and the same weights for it, within 2e-3."""
        ours, theirs = np.argsort(idx, axis=-1), np.argsort(self.router_idx, axis=-1)
        np.testing.assert_array_equal(np.take_along_axis(idx, ours, -1), np.take_along_axis(self.router_idx, theirs, -1))
        w, want = np.take_along_axis(w, ours, -1), np.take_along_axis(self.router_w, theirs, -1).astype(np.float32)
        np.testing.assert_allclose(w, want, rtol=0, atol=2e-3)

    def check_seen(self, seen):
        """seen: {layer: mask [S, S]} of what its indexer chose: the same positions for every token."""
        for layer, ids in self.seen.items():
            want = np.zeros((len(ids), len(ids) + 1), bool)
            np.put_along_axis(want, ids.astype(np.int64), True, -1)          # -1: the last column, which is nobody's
            np.testing.assert_array_equal(seen[layer], want[:, :-1], f"layer {layer}")

    def check_hidden(self, hidden):
        """hidden: L + 1 arrays [S, D]: localises a fault to the first layer that is off."""
        rms = np.array([np.sqrt((x.astype(np.float64) ** 2).mean()) for x in hidden])
        np.testing.assert_allclose(rms, self.hidden_rms, rtol=1e-3)
        off = np.abs(np.array([x[-1, :8] for x in hidden]) - self.hidden_last8).max(-1) / np.maximum(1, self.hidden_rms)
        assert off.max() <= 1e-3, f"hidden state entering layer {int(np.argmax(off > 1e-3))} is off by {off.max():.2e}"


def load(name):
    """(the prompts of `name`, its MoE layers)."""
    data, info = np.load(FIXTURES / name / "oracle.npz"), json.loads((FIXTURES / name / "oracle.json").read_text())
    fields = [f for f in Prompt.__dataclass_fields__ if f not in ("tolerance", "seen")]
    moe = data["moe_layers"].tolist() if "moe_layers" in data else []
    prompts = [Prompt(*(data[f"p{i}_{f}"] if f"p{i}_{f}" in data else None for f in fields), info["tolerance"]["logits_abs"],
                      {int(key.rsplit("_", 1)[1]): data[key] for key in data if key.startswith(f"p{i}_seen_")})
               for i in range(3)]
    return prompts, moe
