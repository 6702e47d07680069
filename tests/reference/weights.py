"""Source checkpoints to the names of moegg files, by the Src steps of a description; the tests' own reading, in numpy alone.

load_hf() and load_gguf() give {name: f32}: tensors as named in moegg.arch, experts as "layers.{l}.experts.{e}.{gate|up|down}".
"""
import json
from pathlib import Path

import numpy as np

DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "F8_E4M3": np.uint8, "F8_E8M0": np.uint8, "U8": np.uint8}
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def e4m3(codes):
    """FP8 codes -> f32: sign, 4 bits of exponent (bias 7), 3 of mantissa; 127 and 255 are NaN."""
    b = np.arange(256)
    e, m = b >> 3 & 15, b & 7
    x = np.where(e > 0, (1 + m / 8) * 2.0 ** (e - 7.0), m / 8 * 2.0 ** -6) * np.where(b >> 7, -1, 1)
    x[(b & 127) == 127] = np.nan
    return x.astype(np.float32)[codes]


def unpack(arrays):
    """Folds the scales of FP8 tiles (`*_scale_inv`) and of MXFP4 blocks (`*_scales` of `*_blocks`) into their weights."""
    for name in [n for n in arrays if n.endswith("_scale_inv")]:
        scale, w = arrays.pop(name), arrays[name.removesuffix("_scale_inv")]
        tile = next(t for t in (32, 128) if all(-(-n // t) == s for n, s in zip(w.shape, scale.shape, strict=True)))
        w *= np.repeat(np.repeat(scale, tile, 0), tile, 1)[:w.shape[0], :w.shape[1]]
    for name in [n for n in arrays if n.endswith("_scales")]:
        scale, blocks = arrays.pop(name), f"{name.removesuffix('_scales')}_blocks"
        codes = arrays[blocks].astype(np.uint8)
        x = np.stack([FP4[codes & 15], FP4[codes >> 4]], -1).reshape(*scale.shape, 32) * (2.0 ** (scale - 127))[..., None]
        arrays[blocks] = x.reshape(*scale.shape[:-1], -1).astype(np.float32)
    return arrays


def read_safetensors(path):
    """{name: f32} of one file or of all shards in a folder."""
    path = Path(path)
    if path.is_dir():
        return unpack({k: v for file in sorted(path.glob("*.safetensors")) for k, v in _read_file(file).items()})
    return unpack(_read_file(path))


def _read_file(path):
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    out = {}
    for name, info in json.loads(raw[8:start]).items():
        if name == "__metadata__" or info["dtype"] == "I64":         # I64: hash tables, which descriptions derive
            continue
        a, b = info["data_offsets"]
        x = np.frombuffer(raw[start + a:start + b], DTYPES[info["dtype"]])
        x = (x.astype(np.uint32) << 16).view(np.float32) if info["dtype"] == "BF16" else (
            e4m3(x) if info["dtype"] == "F8_E4M3" else np.ldexp(np.float32(1), x.astype(np.int32) - 127) if info["dtype"] == "F8_E8M0" else
            x.astype(np.float32))
        out[name] = x.reshape(info["shape"])
    return out


def apply(src, array, e=0):
    """The steps of one Src: squeeze, stacked, transpose, rows of groups, add."""
    x = np.atleast_1d(array.squeeze()) if src.squeeze else array.reshape(-1, array.shape[-1]) if src.flat else array
    x = x[e] if src.stacked else x
    x = x.swapaxes(-1, -2) if src.transpose else x
    if src.rows:
        parts = np.split(x, src.groups or 1)
        parts = [part[slice(*src.rows)] for part in parts]
        x = np.concatenate([part.T for part in parts] if src.turn else parts)
    x = np.log(src.log * x) if src.log else x
    return x + np.float32(src.add) if src.add else x


def resolve(model, arrays, kind):
    """Arrays under the source's names -> arrays under the file's names. kind: 'hf' or 'gguf'. Checks every shape."""
    def pick(node, e=0):
        src = next(s for s in getattr(node, kind) if s.name.format(e=e) in arrays)
        x = apply(src, arrays[src.name.format(e=e)], e)
        assert x.shape == node.shape, (node.name, x.shape, node.shape)
        return np.ascontiguousarray(x, np.float32)
    out = {t.name: pick(t) for t in model.tensors()}
    experts = [(x.layer, e, p) for x in model.experts() for e in range(x.n) for p in x.parts]
    return out | {f"layers.{layer}.experts.{e}.{p.name}": pick(p, e) for layer, e, p in experts}


def load_hf(folder, model):
    return resolve(model, read_safetensors(folder), "hf")


def gguf_meta(path, tensors=()):
    """The metadata mapping that gguf_config() takes: Python values, tensor_names, and the float values of `tensors`."""
    import gguf
    reader = gguf.GGUFReader(path)
    meta = {k: f.contents() for k, f in reader.fields.items()}
    meta["tensor_names"] = frozenset(t.name for t in reader.tensors)
    return meta | {f"tensor:{t.name}": t.data.astype(float).tolist() for t in reader.tensors if t.name in tensors}


def load_gguf(path, model):
    import gguf
    reader = gguf.GGUFReader(path)
    arrays = {t.name: gguf.dequantize(t.data, t.tensor_type).reshape([int(n) for n in reversed(t.shape)]) for t in reader.tensors}
    keys = {s.name for t in model.tensors() for s in t.gguf} & reader.fields.keys()
    return resolve(model, arrays | {k: np.array(reader.fields[k].contents(), np.float32) for k in keys}, "gguf")
