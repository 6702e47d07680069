"""moegg.converters.packed: matrices kept as several tensors decode to exactly the values of a plain loop, as blocks or floats."""
import json

import numpy as np
import pytest

from moegg import kernels
from moegg.converters.hf import HFSource
from moegg.converters.packed import find_packed
from moegg.converters.run import convert
from moegg.errors import FormatError, UnsupportedModel
from moegg.formats.safetensors import STInfo
from tests import oracle

FP8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}


class Folder:
    """Named arrays as a checkpoint: dtype and bits of each tensor."""

    def __init__(self, **tensors):
        self.data = {name: x for name, (_, x) in tensors.items()}
        self.infos = {name: STInfo(dtype, x.shape, "f", 0, x.nbytes) for name, (dtype, x) in tensors.items()}

    def read(self, name, start=None, stop=None):
        x = self.data[name]
        return x if start is None else x.reshape(-1, x.shape[-1])[start:stop]

    def values(self, config, name="w"):
        """(quant, f32 values) by two reads that part a tile."""
        p = {p.name: p for p in find_packed(self.infos, config, "model")}[name]
        n, cut = int(np.prod(p.shape[:-1])), int(np.prod(p.shape[:-1])) // 3
        rows = np.concatenate([p.rows(self.read, 0, cut), p.rows(self.read, cut, n)])
        x = rows.view("<f4") if p.quant == "f32" else kernels.dequantize(p.quant, rows, p.shape[-1])
        return p.quant, x.reshape(p.shape)


def e4m3(code: int) -> float:
    e, m = code >> 3 & 15, code & 7
    return (-1) ** (code >> 7) * (m * 2.0**-9 if e == 0 else (8 + m) * 2.0 ** (e - 10))


def codes(rng, *shape):
    c = rng.integers(0, 256, shape, dtype=np.uint8)
    c[c & 0x7f == 0x7f] = 3
    return c


def same(a, b):
    return np.array_equal(np.ascontiguousarray(a, "<f4").view("<u4"), np.ascontiguousarray(b, "<f4").view("<u4"))


@pytest.mark.parametrize("shape, tile, quant", [
    ((1000, 300), 128, "f32"), ((300, 1024), 128, "fp8_128"), ((130, 160), 128, "fp8_32"), ((70, 96), 32, "fp8_32"),
    ((40, 256), 32, "fp8_32"), ((3, 70, 128), 128, "fp8_128"), ((2, 40, 48), 32, "f32")])
def test_fp8_tiles_equal_a_plain_loop(shape, tile, quant):
    """G1: the tile is the config's, not rows over scale rows; tiles are cut at the edges."""
    rng = np.random.default_rng(0)
    q = codes(rng, *shape)
    grid = (*shape[:-2], -(-shape[-2] // tile), -(-shape[-1] // tile))
    s = rng.uniform(0.001, 0.01, grid).astype("<f4")
    table = np.array([e4m3(c) if c & 0x7f != 0x7f else np.nan for c in range(256)], np.float32)
    want = np.empty(shape, np.float32)
    for i in range(grid[-2]):
        for j in range(grid[-1]):
            part = (..., slice(i * tile, (i + 1) * tile), slice(j * tile, (j + 1) * tile))
            want[part] = table[q[part]] * s[..., i:i + 1, j:j + 1]
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [tile, tile]}}
    got, x = Folder(w=("F8_E4M3", q), w_scale_inv=("F32", s)).values(config)
    assert got == quant and same(x, want)


@pytest.mark.parametrize("scale, widen", [
    (np.array([0.5], "<f4"), 0.5), (np.array(0.25, "<f4"), 0.25), (np.array([[0.125]], "<f4"), 0.125)])
def test_a_scalar_scale_is_no_grid(scale, widen):
    """G7."""
    q = codes(np.random.default_rng(1), 200, 256)
    for how in ({"quant_method": "fp8", "weight_block_size": [128, 128]}, {"quant_method": "fp8"},
                {"quant_method": "modelopt", "quant_algo": "FP8"}):
        config = {"quantization_config": how}
        quant, x = Folder(w=("F8_E4M3", q), w_scale=("F32", scale)).values(config)
        assert quant == "fp8_128" and x[7, 9] == np.float32(e4m3(int(q[7, 9]))) * np.float32(widen)


def test_scales_per_row_in_bf16_and_powers_of_two_in_e8m0():
    """G8."""
    rng = np.random.default_rng(2)
    q, bits = codes(rng, 50, 64), rng.integers(0x3a00, 0x3c00, (50, 1)).astype("<u2")
    how = {"quant_method": "compressed-tensors", "format": "float-quantized",
           "config_groups": {"group_0": {"weights": {"strategy": "channel"}}}}
    quant, x = Folder(w=("F8_E4M3", q), w_scale=("BF16", bits)).values({"quantization_config": how})
    d = (bits.astype("<u4") << 16).view("<f4")
    assert quant == "fp8_32" and same(x, np.vectorize(e4m3, otypes=["f4"])(q) * d)
    q, e = codes(rng, 140, 256), np.array([[0, 1], [120, 127]], np.uint8)
    quant, x = Folder(w=("F8_E4M3", q), w_scale_inv=("F8_E8M0", e)).values(FP8)
    want = np.vectorize(e4m3, otypes=["f8"])(q) * np.repeat(np.repeat(2.0 ** (e.astype(float) - 127), 128, 0)[:140], 128, 1)
    assert quant == "fp8_128" and same(x, want.astype(np.float32))


def test_the_shards_of_a_table_share_its_one_scale():
    """Qwen3.8-Flash-Next-FP8: 'is in FP8, but shard_0.weight_scale_inv is missing', at a table of 128 shards."""
    q, d = codes(np.random.default_rng(6), 70, 160), np.float32(0.0123)
    table = Folder(**{"t.shard_0.weight": ("F8_E4M3", q[:40]), "t.shard_1.weight": ("F8_E4M3", q[40:]), "t.weight_scale": ("F32", np.array([d]))})
    want = np.vectorize(e4m3, otypes=["f4"])(q) * d
    for i, part in enumerate((want[:40], want[40:])):
        quant, x = table.values(FP8, f"t.shard_{i}.weight")
        assert quant == "fp8_32" and same(x, part)


@pytest.mark.parametrize("scale", [np.ones((1, 3), "<f4"), np.ones((8, 2), "<f4"), np.ones((2, 2, 1), "<f4"), np.ones(3, "<f4")])
def test_scales_of_another_shape_are_refused_and_not_broadcast(scale):
    """G6."""
    folder = Folder(w=("F8_E4M3", codes(np.random.default_rng(3), 1000, 300)), w_scale_inv=("F32", scale))
    says = r"'w_scale_inv': shape is .*, expected \[8, 3\] for \[1000, 300\] in tiles of \[128, 128\]"
    with pytest.raises(FormatError, match=says):
        find_packed(folder.infos, FP8, "model")
    with pytest.raises(FormatError, match="'w_scale_inv' is missing"):
        find_packed({"w": folder.infos["w"]}, FP8, "model")


def test_mxfp4_blocks_equal_a_plain_loop():
    rng = np.random.default_rng(4)
    blocks, scales = rng.integers(0, 256, (3, 5, 4, 16), dtype=np.uint8), rng.integers(100, 140, (3, 5, 4), dtype=np.uint8)
    scales[0, 0, :3] = 0, 1, 2
    fp4 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    want = np.empty((3, 5, 4, 32), np.float32)
    for at in np.ndindex(3, 5, 4, 32):
        code = int(blocks[(*at[:3], at[3] // 2)]) >> at[3] % 2 * 4 & 15
        want[at] = np.float32(2.0 ** (int(scales[at[:3]]) - 127) * fp4[code & 7] * (-1 if code > 8 else 1))
    config = {"quantization_config": {"quant_method": "mxfp4"}}
    quant, x = Folder(w_blocks=("U8", blocks), w_scales=("U8", scales)).values(config, "w_blocks")
    assert quant == "mxfp4" and x.shape == (3, 5, 128) and same(x, want.reshape(x.shape))
    scales[2, 4, 3] = 255
    with pytest.raises(FormatError, match="'w_scales' holds 255, which is NaN"):
        Folder(w_blocks=("U8", blocks), w_scales=("U8", scales)).values(config, "w_blocks")


def mlx(bits: int, k: int, n: int, rng):
    """(codes [n, k], words uint32): `bits` each, lowest first, without gaps, as mlx.core.quantize packs them."""
    q, words = rng.integers(0, 1 << bits, (n, k)), np.zeros((n, k * bits // 32), np.uint64)
    for i in range(k):
        at, shift = i * bits // 32, i * bits % 32
        v = q[:, i].astype(np.uint64) << np.uint64(shift)
        words[:, at] |= v & np.uint64(0xFFFFFFFF)
        if shift + bits > 32:
            words[:, at + 1] |= v >> np.uint64(32)
    return q, words.astype("<u4")


@pytest.mark.parametrize("bits, size, dtype, quant", [
    (4, 64, "BF16", "mlx4"), (4, 128, "BF16", "mlx4"), (4, 64, "F16", "mlx4_f16"), (4, 32, "BF16", "f32"), (4, 64, "F32", "f32"),
    (2, 64, "BF16", "f32"), (3, 64, "BF16", "f32"), (5, 64, "F16", "f32"), (6, 64, "BF16", "f32"), (8, 64, "F16", "f32")])
def test_mlx_affine_codes_equal_a_plain_loop(bits, size, dtype, quant):
    rng = np.random.default_rng(bits * size)
    q, words = mlx(bits, 256, 7, rng)
    d, m = (rng.standard_normal((7, 256 // size)).astype("<f4") for _ in range(2))
    store = {"BF16": lambda x: (x.view("<u4") >> 16).astype("<u2"), "F16": lambda x: x.astype("<f2"), "F32": lambda x: x}[dtype]
    widen = {"BF16": lambda x: (x.astype("<u4") << 16).view("<f4"), "F16": lambda x: x.astype("<f4"), "F32": lambda x: x}[dtype]
    d, m = store(d), store(m)
    folder = Folder(**{"a.weight": ("U32", words), "a.scales": (dtype, d), "a.biases": (dtype, m)})
    for config in ({"quantization": {"bits": bits, "group_size": size}},
                   {"quantization": {"bits": 7, "group_size": 1, "mode": "affine", "a": {"bits": bits, "group_size": size}}}):
        got, x = folder.values(config, "a.weight")
        want = np.repeat(widen(d), size, 1) * q.astype(np.float32) + np.repeat(widen(m), size, 1)
        assert got == quant and same(x, want)


@pytest.mark.parametrize("k, quant", [(256, "ternary"), (96, "f32")])
def test_ternary_rows_of_maple_equal_a_plain_loop(k, quant):
    rng = np.random.default_rng(6)
    q, words = mlx(2, k, 8, rng)
    alpha = rng.integers(0x3a00, 0x3f00, (2, 4)).astype("<u2")
    folder = Folder(**{"a.weight": ("U32", words.reshape(2, 4, -1)), "a.row_alpha": ("BF16", alpha)})
    got, x = folder.values({"quantization": {"bits": 2, "group_size": 128, "mode": "affine"}}, "a.weight")
    want = (alpha.astype("<u4") << 16).view("<f4").reshape(8, 1) * (q - 1).astype(np.float32)
    assert got == quant and same(x, want.reshape(2, 4, k))


def test_mlx_microscaled_weights_are_mxfp4():
    rng = np.random.default_rng(7)
    q, words = mlx(4, 64, 3, rng)
    e = rng.integers(110, 130, (3, 2), dtype=np.uint8)
    got, x = Folder(**{"a.weight": ("U32", words), "a.scales": ("U8", e)}).values(
        {"quantization": {"bits": 4, "group_size": 32, "mode": "mxfp4"}}, "a.weight")
    grid = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6])
    assert got == "mxfp4" and same(x, (grid[q] * np.repeat(2.0 ** (e.astype(float) - 127), 32, 1)).astype(np.float32))


@pytest.mark.parametrize("how", [{"quant_method": "gptq", "bits": 4}, {"quant_method": "awq"}, {"bits": 4, "mode": "nvfp4"}, 5,
                                 {"quant_method": "compressed-tensors", "format": "pack-quantized"}])
def test_other_kinds_are_refused_by_name(how):
    with pytest.raises(UnsupportedModel, match=r"expected fp8, mxfp4 or MLX's affine kind"):
        find_packed({}, {"quantization_config": how}, "model")


@pytest.mark.parametrize("how", [
    {"bits": 0, "group_size": 64}, {"bits": 4, "group_size": 0}, {"bits": True, "group_size": 64}, {"bits": 7, "group_size": 64},
    {"bits": 4, "group_size": 100}, {"bits": 4, "group_size": 64, "a": {"bits": "4", "group_size": 64}}])
def test_impossible_groups_are_one_clear_line(how):
    q, words = mlx(4, 256, 2, np.random.default_rng(8))
    ones = "F16", np.ones((2, 4), "<f2")
    folder = Folder(**{"a.weight": ("U32", words), "a.scales": ones, "a.biases": ones})
    with pytest.raises(FormatError, match=r"\[source-scales\]"):
        find_packed(folder.infos, {"quantization": how}, "model")


@pytest.mark.parametrize("code", [0x7f, 0xff])
def test_a_nan_among_fp8_weights_is_found(tmp_path, code):
    """G4: two of the 256 codes are NaN, which an export that does not saturate writes for large values."""
    folder = oracle.rebuild("qwen3_moe_fp8", tmp_path / "hf")
    shard, name = folder / "model.safetensors", "model.layers.3.self_attn.q_proj.weight"
    data = bytearray(shard.read_bytes())
    size = int.from_bytes(data[:8], "little")
    data[8 + size + json.loads(data[8:8 + size])[name]["data_offsets"][0] + 65] = code
    shard.write_bytes(data)
    for quant in ("keep", "q8"):
        with pytest.raises(FormatError, match=rf"{name}\[1, 1\].*\[convert-nan\]"):
            convert(folder, tmp_path / "m.moegg", quant)


def test_an_fp8_checkpoint_keeps_its_bits(tmp_path, read_back):
    """keep is the default; rows of 64 and 128 stay FP8, rows of 48, which are no whole blocks, become f32 with a warning."""
    folder, told = oracle.rebuild("qwen3_moe_fp8", tmp_path / "hf"), []
    result = convert(folder, tmp_path / "m.moegg", warn=told.append)
    assert any("32 fp8 matrices" in line and "decoded to f32" in line for line in told)
    got, source = read_back(result.path), HFSource(folder)
    recipe = json.loads((oracle.FIXTURES / "qwen3_moe_fp8" / "weights.json").read_text())
    for name, quant, key in (("layers.0.attn.o", "fp8_32", "model.layers.0.self_attn.o_proj.weight"),
                             ("layers.3.attn.q", "fp8_32", "model.layers.3.self_attn.q_proj.weight")):
        q = np.frombuffer(oracle.recipe_tensor(recipe, key)[2], np.uint8).reshape(recipe["tensors"][key][0])
        s = np.frombuffer(oracle.recipe_tensor(recipe, key + "_scale_inv")[2], "<f4").reshape(-1, q.shape[1] // 32)
        want = np.vectorize(e4m3, otypes=["f4"])(q) * np.repeat(np.repeat(s, 32, 0), 32, 1)
        assert got[name][0] == quant and same(got[name][2], want)
    assert got["layers.0.experts.down"][0] == "f32" and got["layers.0.experts.gate"][0] == "fp8_32"
    assert got["embed"][0] == "bf16" and source.default_quant == "keep"
