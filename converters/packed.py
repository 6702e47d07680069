"""Matrices that a checkpoint keeps as several tensors: FP8 codes and scales, MXFP4 blocks and scales, MLX codes, scales, biases.

Each becomes one SourceTensor with the name of the tensor that holds its codes, the shape of its values, and the quant with just
these values. Where no quant has them (rows that are no whole blocks, other bits or groups) it is decoded to f32, which is as
exact but has to be quantised anew. Values: FP8 q * scale of its tile (tiles are cut at the edges); MXFP4 2^(scale - 127) * e2m1;
MLX scale * q + bias per group, or row_alpha * (q - 1), all in f32.
Refuses scales whose shape does not fit, and MXFP4 scales of 255 (NaN). Sources: DeepSeek-V3's and Qwen's FP8 releases, gpt-oss,
mlx.core.quantize, deepgrove's Maple.
"""
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from moegg import kernels
from moegg.errors import FormatError, UnsupportedModel
from moegg.quants import QUANTS

Read = Callable[..., np.ndarray]                # SafetensorsSet.read
SCALES = {"F32", "BF16", "F16", "F8_E8M0"}
E4M3 = kernels.dequantize("fp8_128", np.concatenate([np.tile(np.array([1], "<f4").view(np.uint8), (2, 1)),
                                                     np.arange(256, dtype=np.uint8).reshape(2, 128)], 1), 128).reshape(256)


@dataclass(frozen=True)
class Packed:
    """One matrix or stack of matrices. kind: what it is, for people; parts: the tensors it is made of, its own name first."""
    name: str
    shape: tuple[int, ...]
    quant: str
    kind: str
    parts: tuple[str, ...]
    make: Callable[[Read, int, int], np.ndarray]

    def rows(self, read: Read, start: int, stop: int) -> np.ndarray:
        """Rows [start:stop], leading axes flattened, as blocks of `quant`: uint8 [n, row_bytes]."""
        return np.ascontiguousarray(self.make(read, start, stop)).view(np.uint8).reshape(stop - start, -1)


def find_packed(tensors: Mapping[str, Any], config: Mapping[str, Any], where: str) -> list[Packed]:
    """All packed matrices among `tensors` (name -> dtype, shape), by the config's quantization. where: the model, for messages.

    Raises UnsupportedModel for methods other than these, FormatError for tensors that contradict each other.
    """
    how = settings(config, where)
    if not how:
        return []
    finders = {"fp8": _fp8, "mxfp4": _mxfp4, "mlx": _mlx}
    return [p for name in tensors if (p := finders[how["method"]](name, tensors, how, where))]


def settings(config: Mapping[str, Any], where: str) -> dict[str, Any] | None:
    """{"method": fp8, mxfp4 or mlx, ...the config's own keys}, or None if weights are plain. Raises UnsupportedModel."""
    for key in ("quantization", "quantization_config"):
        text = config.get("text_config")
        q = config.get(key) or (text.get(key) if isinstance(text, Mapping) else None)
        if not q:
            continue
        if isinstance(q, Mapping):
            method = q.get("quant_method")
            if method == "compressed-tensors" and q.get("format") == "float-quantized":
                return {"method": "fp8", "weight_block_size": _block_structure(q)}
            if method == "modelopt" and q.get("quant_algo") == "FP8":
                return {"method": "fp8"}
            if method in ("fp8", "mxfp4"):
                return {**q, "method": method}
            if method is None and "bits" in q and q.get("mode", "affine") in ("affine", "mxfp4"):
                return {**q, "method": "mlx"}
            method = method or q.get("mode") or q.get("bits")
        else:
            method = q
        raise UnsupportedModel(f"{where}: config.json: {key!r} says {method!r:.60}; expected fp8, mxfp4 or MLX's affine kind, or "
                               "weights in bf16, f16 or f32: convert the checkpoint that this one was made from",
                               "source-quantised")
    return None


def _block_structure(q: Mapping[str, Any]) -> Any:
    """The tile of compressed-tensors' config groups, None for scales per row or tensor."""
    groups = q.get("config_groups")
    found = [g["weights"].get("block_structure") for g in (groups.values() if isinstance(groups, Mapping) else ())
             if isinstance(g, Mapping) and isinstance(g.get("weights"), Mapping)]
    return found[0] if found else None


def _whole(cols: int, *quants: str) -> str:
    """The first of `quants` that a row of `cols` fits, else f32."""
    return next((q for q in quants if QUANTS[q].fits(cols)), "f32")


def _misfit(where: str, name: str, shape: Iterable[int], expected: str) -> FormatError:
    return FormatError(f"{where}: tensor {name!r}: shape is {list(shape)}, expected {expected}", "source-scales")


# --- FP8 ----------------------------------------------------------------------------------------------------------------

def _fp8(name: str, tensors: Mapping[str, Any], how: Mapping[str, Any], where: str) -> Packed | None:
    t = tensors[name]
    if t.dtype != "F8_E4M3" or len(t.shape) < 2:
        return None
    whole = re.sub(r"\.shards?[._]\d+\.weight$", ".weight", name)      # shards of one table share a scale
    scale = next((s for s in (f"{name}_scale_inv", f"{name}_scale", f"{whole}_scale") if s in tensors), None)
    if scale is None:
        raise FormatError(f"{where}: tensor {name!r} is in FP8, but {name + '_scale_inv'!r} is missing", "source-scales")
    s, tile = tensors[scale], how.get("weight_block_size")
    if s.dtype not in SCALES:
        raise FormatError(f"{where}: tensor {scale!r}: dtype is {s.dtype}, expected one of {', '.join(sorted(SCALES))}",
                          "source-scales")
    sizes = tile if isinstance(tile, list) else []
    if tile is not None and (len(sizes) != 2 or not all(type(n) is int and 0 < n < 1 << 20 for n in sizes)):
        raise FormatError(f"{where}: config.json: 'weight_block_size' is {tile!r:.60}, expected [rows, columns]", "source-scales")
    *lead, n, k = t.shape
    grid = (*lead, -(-n // tile[0]), -(-k // tile[1])) if tile else ()
    if tile and s.shape == grid:                            # one scale per tile
        high, wide = tile
    elif prod(s.shape) in {1, prod(lead)} and not (tile and len(s.shape) == len(t.shape) and prod(s.shape) > 1):
        high, wide, grid = n, k, (1, 1)                     # one per tensor or matrix; [1, 1] is a scalar too (G7)
    elif not tile and prod(s.shape) == prod(lead) * n:
        high, wide, grid = 1, k, (n, 1)                     # one per row
    else:
        raise _misfit(where, scale, s.shape, f"{list(grid) if tile else [*lead, n, 1]} for {list(t.shape)}"
                                             f"{f' in tiles of {tile}' if tile else ''}")
    fits = [q for q, b in (("fp8_128", 128), ("fp8_32", 32)) if grid[-1] == 1 or wide % b == 0]
    quant, one = _whole(k, *fits), prod(s.shape) == 1

    def make(read: Read, start: int, stop: int) -> np.ndarray:
        codes, at = read(name, start, stop), np.arange(start, stop)
        at = at // n * grid[-2] + at % n // high if not one else at * 0
        if grid[-1] > 1:                                    # rows of the scale tensor are rows of tiles
            d = _widen(read(scale, int(at[0]), int(at[-1]) + 1), s.dtype)[at - at[0]]
        else:
            d = _widen(read(scale), s.dtype).reshape(-1, 1)[at]
        if quant == "f32":
            return E4M3[codes] * np.repeat(d, wide, axis=1)[:, :k]
        size = QUANTS[quant].block_elems
        d = np.broadcast_to(d, (len(codes), k // size)) if grid[-1] == 1 else np.repeat(d, wide // size, axis=1)[:, :k // size]
        return np.concatenate([np.ascontiguousarray(d)[..., None].view(np.uint8), codes.reshape(len(codes), -1, size)], -1)
    # the scale of activations is of no use: they are never rounded to 8 bits where weights are FP8
    parts = (name, scale, name.removesuffix("weight") + "input_scale")
    return Packed(name, t.shape, quant, "fp8", tuple(p for p in parts if p in tensors), make)


def _widen(x: np.ndarray, dtype: str) -> np.ndarray:
    """Scales as f32 [..., n]; e8m0 is a power of two, 255 is NaN."""
    if dtype == "F8_E8M0":
        return np.where(x == 255, np.float32(np.nan), np.ldexp(np.float32(1), x.astype(np.int32) - 127)).astype(np.float32)
    if dtype == "BF16":
        return (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float32)


# --- MXFP4 --------------------------------------------------------------------------------------------------------------

def _mxfp4(name: str, tensors: Mapping[str, Any], how: Mapping[str, Any], where: str) -> Packed | None:
    scale = name.removesuffix("_blocks") + "_scales"
    if not name.endswith("_blocks") or scale not in tensors:
        return None
    t, s = tensors[name], tensors[scale]
    if t.dtype != "U8" or s.dtype != "U8" or len(t.shape) < 3 or t.shape[-1] != 16 or s.shape != t.shape[:-1]:
        raise _misfit(where, scale, s.shape, f"U8 {list(t.shape[:-1])} beside U8 blocks of 16, got {t.dtype} {list(t.shape)}")
    groups = t.shape[-2]

    def make(read: Read, start: int, stop: int) -> np.ndarray:
        return _mx_blocks(read(name, start * groups, stop * groups).reshape(stop - start, groups, 16), read(scale, start, stop),
                          f"{where}: tensor {scale!r}")
    return Packed(name, (*t.shape[:-2], 32 * groups), "mxfp4", "mxfp4", (name, scale), make)


def _mx_blocks(pairs: np.ndarray, scales: np.ndarray, what: str) -> np.ndarray:
    """pairs uint8 [n, G, 16] of neighbouring elements, scales uint8 [n, G] -> blocks, whose nibbles are 16 elements apart."""
    if (scales == 255).any():
        raise FormatError(f"{what} holds 255, which is NaN; the source is damaged", "convert-nan")
    q = np.stack([pairs & 15, pairs >> 4], -1).reshape(*scales.shape, 32)
    return np.concatenate([scales[..., None], q[..., :16] | q[..., 16:] << 4], -1)


# --- MLX ----------------------------------------------------------------------------------------------------------------

def _mlx(name: str, tensors: Mapping[str, Any], how: Mapping[str, Any], where: str) -> Packed | None:
    t, root = tensors[name], name.removesuffix(".weight")
    if t.dtype != "U32" or not name.endswith(".weight") or len(t.shape) < 2:
        return None
    own = how.get(root) if isinstance(how.get(root), Mapping) else how
    bits, size, mode = own.get("bits"), own.get("group_size"), own.get("mode", how.get("mode", "affine"))
    if not (type(bits) is int and 1 <= bits <= 8 and type(size) is int and 1 <= size <= 4096 and t.shape[-1] * 32 % bits == 0):
        raise FormatError(f"{where}: config.json: quantization of {root!r} is {bits!r:.20} bits in groups of {size!r:.20}",
                          "source-scales")
    k = t.shape[-1] * 32 // bits
    shape, alpha = (*t.shape[:-1], k), f"{root}.row_alpha"
    if alpha in tensors:
        if tensors[alpha].dtype != "BF16" or tensors[alpha].shape != shape[:-1]:
            raise _misfit(where, alpha, tensors[alpha].shape, f"bf16 {list(shape[:-1])}")
        quant = _whole(k, "ternary") if bits == 2 else "f32"

        def ternary(read: Read, start: int, stop: int) -> np.ndarray:
            q, a = _unpack(read(name, start, stop), bits, k), read(alpha).reshape(-1)[start:stop]
            if quant == "f32":
                return _widen(a, "BF16")[:, None] * (q.astype(np.float32) - 1)
            q = q.reshape(len(q), -1, 4, 32)
            codes = q[:, :, 0] | q[:, :, 1] << 2 | q[:, :, 2] << 4 | q[:, :, 3] << 6
            return np.concatenate([np.broadcast_to(a.view(np.uint8).reshape(-1, 1, 2), (*codes.shape[:2], 2)), codes], -1)
        return Packed(name, shape, quant, "ternary", (name, alpha), ternary)

    scale, bias = f"{root}.scales", f"{root}.biases"
    parts = (name, scale) if mode == "mxfp4" else (name, scale, bias)
    for part in parts[1:]:
        if part not in tensors or tensors[part].shape != (*t.shape[:-1], k // size) or k % size:
            shape = tensors[part].shape if part in tensors else ()
            raise _misfit(where, part, shape, f"{[*t.shape[:-1], k // size]}, groups of {size}")
    if mode == "mxfp4":
        if bits != 4 or size != 32 or tensors[scale].dtype != "U8":
            raise _misfit(where, scale, tensors[scale].shape, f"U8 scales of groups of 32, got {tensors[scale].dtype} of {size}")

        def microscaled(read: Read, start: int, stop: int) -> np.ndarray:
            pairs = read(name, start, stop).view(np.uint8).reshape(stop - start, k // 32, 16)
            return _mx_blocks(pairs, read(scale, start, stop), f"{where}: tensor {scale!r}")
        return Packed(name, shape, "mxfp4", "mxfp4", parts, microscaled)
    dtype = tensors[scale].dtype
    if dtype not in ("F32", "BF16", "F16") or tensors[bias].dtype != dtype:
        raise FormatError(f"{where}: tensor {scale!r}: dtype is {dtype}, expected bf16, f16 or f32, the same as its biases",
                          "source-scales")
    quant = {"BF16": "mlx4", "F16": "mlx4_f16"}.get(dtype, "f32") if bits == 4 and size % 64 == 0 else "f32"

    def affine(read: Read, start: int, stop: int) -> np.ndarray:
        q, d, m = _unpack(read(name, start, stop), bits, k), read(scale, start, stop), read(bias, start, stop)
        if quant == "f32":
            d, m = (np.repeat(_widen(x, dtype), size, axis=1) for x in (d, m))
            return d * q.astype(np.float32) + m
        q = q.reshape(len(q), -1, 64)
        d, m = (np.repeat(x.view(np.uint16), size // 64, axis=1)[..., None].view(np.uint8) for x in (d, m))
        return np.concatenate([d, m, q[..., :32] | q[..., 32:] << 4], -1)
    return Packed(name, shape, quant, f"mlx {bits}-bit", parts, affine)


def _unpack(words: np.ndarray, bits: int, k: int) -> np.ndarray:
    """uint32 [n, W] -> codes uint8 [n, k]: `bits` each, lowest first, without gaps."""
    data = np.ascontiguousarray(words, "<u4").view(np.uint8).reshape(len(words), -1)
    if 8 % bits == 0:
        return np.stack([data >> s & (1 << bits) - 1 for s in range(0, 8, bits)], -1).reshape(len(words), k)
    each = np.unpackbits(data, axis=1, bitorder="little").reshape(len(words), k, bits)
    return np.packbits(each, axis=-1, bitorder="little")[..., 0]
