"""convert(), end to end on tiny models: values, identity of paths, refusals, memory, crashes."""
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc

import numpy as np
import pytest

from moegg import kernels
from moegg.arch import ConfigReader
from moegg.converters import run
from moegg.converters.run import convert
from moegg.errors import FormatError, NoRoom, NotFound, UnsupportedModel, UsageError
from moegg.formats.container import Container
from moegg.formats.importance import write_importance
from moegg.models import gemma3
from moegg.quants import QUANTS
from tests.kernels.blocks import SCALES, random_blocks

ERROR_BOUND = {"f32": 0, "bf16": 0, "f16": 2**-10, "q8_0": 0.012, "q4_0": 0.16}     # of the block's largest value


def files(folder) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if ".moegg" in p.name)


@pytest.mark.parametrize("recipe", ["keep", "f32", "bf16", "f16", "q8", "q4@1"])
@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_every_recipe_writes_every_value_within_its_bound(make_hf, make_values, read_back, moe, tmp_path, recipe, dtype):
    out = convert(make_hf(dtype=dtype), tmp_path / "m.moegg", recipe).path
    want, got = make_values(moe), read_back(out)
    assert set(got) == set(want)
    for name, (quant, _, x) in got.items():
        if recipe == "keep":
            assert quant == ("f32" if "norm" in name or "router" in name else dtype.lower())
        source = want[name].astype("f2").astype("f4") if dtype == "F16" else want[name]
        bound = ERROR_BOUND[quant] * np.abs(source).max()
        np.testing.assert_allclose(x, source, rtol=0, atol=bound, err_msg=f"{name} as {quant}")


def test_the_file_says_what_it_is_and_where_it_came_from(make_hf, moe, tmp_path):
    folder = make_hf()
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    (folder / "generation_config.json").write_text('{"temperature": 0.5}')
    result = convert(folder, tmp_path / "m.moegg")
    c = Container.open(result.path)
    assert c.file_bytes == result.file_bytes == result.path.stat().st_size
    assert c.name == "hf" and c.arch == "qwen3-moe"
    assert c.meta["quant"] == {"name": "q4", "version": 4} and c.meta["source"] == "safetensors"
    assert c.meta["parameters"] == result.plan.model.parameter_count()
    assert result.plan.source.module.describe(ConfigReader(c.config)) == result.plan.model
    provenance = json.loads(c.read_section("provenance"))
    size = (folder / "model.safetensors").stat().st_size
    assert provenance["source"]["files"] == [{"name": "model.safetensors", "bytes": size}]
    assert provenance["source"]["license"] == "mit"
    assert c.read_section("source_config") == (folder / "config.json").read_bytes()
    assert c.read_section("tokenizer") == (folder / "tokenizer.json").read_bytes()
    assert json.loads(c.read_section("generation_config")) == {"temperature": 0.5}
    assert str(tmp_path).encode() not in result.path.read_bytes()


@pytest.mark.parametrize("quant", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_gguf_blocks_are_kept_bit_for_bit(make_gguf, read_back, dense, moe, tmp_path, quant):
    for config in (moe, dense):
        path = make_gguf(config, quant, name=f"{config['model_type']}.gguf")
        result = convert(path, tmp_path / f"{config['model_type']}.moegg")
        got, source = read_back(result.path), result.plan.source
        assert result.plan.recipe.name == "keep"
        file = type(source)(path)
        for t in result.plan.tensors:
            assert got[t.tensor.name][1] == file.rows(t.view.tensor.name, 0, t.view.n_rows).tobytes()
        for e in result.plan.experts:
            for p in e.parts:
                rows = file.rows(p.views[0].tensor.name, 0, e.n * p.part.shape[0])
                assert got[f"layers.{e.layer}.experts.{p.part.name}"][1] == rows.tobytes()


@pytest.mark.parametrize("recipe", ["f32", "bf16", "q8", "q4"])
def test_the_same_weights_as_safetensors_and_as_gguf_give_the_same_records(make_hf, make_gguf, read_back, dense, moe, tmp_path,
                                                                           recipe):
    for i, config in enumerate((moe, dense)):
        a = read_back(convert(make_hf(config, name=f"hf{i}"), tmp_path / f"a{i}.moegg", recipe).path)
        b = read_back(convert(make_gguf(config, name=f"{i}.gguf"), tmp_path / f"b{i}.moegg", recipe).path)
        assert {n: v[:2] for n, v in a.items()} == {n: v[:2] for n, v in b.items()}


def test_fused_experts_give_the_same_records_as_separate_ones(make_hf, make_values, read_back, moe, tmp_path):
    values = make_values(moe)

    def fuse(tensors):
        for i in range(2):
            for name in [n for n in tensors if f"layers.{i}.mlp.experts." in n]:
                del tensors[name]
            gate, up, down = (values[f"layers.{i}.experts.{p}"] for p in ("gate", "up", "down"))
            tensors[f"model.layers.{i}.mlp.experts.gate_up_proj"] = np.concatenate([gate, up], 1)
            tensors[f"model.layers.{i}.mlp.experts.down_proj"] = down
    a = read_back(convert(make_hf(name="a"), tmp_path / "a.moegg").path)
    b = read_back(convert(make_hf(name="b", edit=fuse), tmp_path / "b.moegg").path)
    assert {n: v[:2] for n, v in a.items()} == {n: v[:2] for n, v in b.items()}


def test_norms_that_are_stored_as_w_minus_one_are_written_as_w(make_hf, make_values, read_back, tmp_path):
    config = gemma3.tiny()
    got, want = read_back(convert(make_hf(config, "F32"), tmp_path / "m.moegg", "f32").path), make_values(config)
    for name, (_, _, x) in got.items():
        np.testing.assert_allclose(x, want[name], rtol=0, atol=1e-6 if "norm" in name else 0)


@pytest.mark.parametrize("recipe", ["keep", "q4"])
def test_two_conversions_are_identical_and_so_are_conversions_in_small_blocks(make_hf, tmp_path, monkeypatch, recipe):
    folder = make_hf()
    a = convert(folder, tmp_path / "a.moegg", recipe).path.read_bytes()
    assert convert(folder, tmp_path / "b.moegg", recipe).path.read_bytes() == a
    monkeypatch.setattr(run, "BLOCK_BYTES", 1)
    assert convert(folder, tmp_path / "c.moegg", recipe).path.read_bytes() == a


def importance(path, model, *, cols: float = 0.0, leave: str = "", **about):
    """An imatrix for every matrix of `model`; column c counts exp(cols * c / n). leave: a name that is not written."""
    names = {t.name: (1, t.shape[1]) for t in model.tensors() if len(t.shape) == 2 and t.role != "router" and not t.gather}
    names |= {f"layers.{e.layer}.experts.{p.name}": (e.n, p.shape[1]) for e in model.experts() for p in e.parts}
    names.pop(leave, None)
    squares = {name: np.exp(np.linspace(0, cols, c))[None].repeat(n, 0) * 100 for name, (n, c) in names.items()}
    write_importance(path, squares, {name: np.full(n, 100) for name, (n, _) in names.items()}, {}, about)
    return path


def test_importance_moves_errors_away_from_columns_that_matter(make_hf, make_values, read_back, moe, tmp_path):
    folder, warnings = make_hf(), []
    model = convert(folder, tmp_path / "x.moegg", "q4@1", dry_run=True).plan.model
    file = importance(tmp_path / "i", model, cols=16.0, text_bytes=5)
    plain = convert(folder, tmp_path / "a.moegg", "q4@1")
    seeing = convert(folder, tmp_path / "b.moegg", "q4@1", imatrix=file, warn=warnings.append)
    assert Container.open(seeing.path).meta["quant"] == {"name": "q4", "version": 1, "imatrix": {"text_bytes": 5}} and not warnings
    want, a, b = make_values(moe), read_back(plain.path), read_back(seeing.path)
    name = "layers.0.experts.gate"
    errors = [((x[name][2] - want[name]) ** 2).reshape(-1, 32).mean(0)[-8:].sum() for x in (a, b)]     # the last columns of blocks
    assert errors[1] < 0.9 * errors[0] and a[name][1] != b[name][1]
    assert a["layers.0.ffn.router"][1] == b["layers.0.ffn.router"][1]


def test_importance_that_knows_only_some_matrices_is_told_of_and_of_another_model_refused(make_hf, moe, tmp_path):
    folder, warnings = make_hf(), []
    model = convert(folder, tmp_path / "x.moegg", "q4", dry_run=True).plan.model
    convert(folder, tmp_path / "m.moegg", "q4", imatrix=importance(tmp_path / "i", model, leave="layers.1.attn.o"), dry_run=True,
            warn=warnings.append)
    assert [w for w in warnings if "knows nothing of" in w and "'layers.1.attn.o'" in w]
    other = make_hf(moe | {"num_experts": 6}, name="other")
    with pytest.raises(FormatError, match=r"\[imatrix-file\]"):
        convert(other, tmp_path / "m.moegg", "q4", imatrix=tmp_path / "i", warn=warnings.append)
    assert files(tmp_path) == []


def test_a_dry_run_reads_no_weights_and_writes_nothing(make_hf, make_gguf, tmp_path, monkeypatch):
    sources = make_hf(), make_gguf()
    monkeypatch.setattr(run.HFSource, "rows", None)
    monkeypatch.setattr(run.GGUFSource, "rows", None)
    plans = []
    for source in sources:
        result = convert(source, tmp_path / "m.moegg", dry_run=True, on_plan=lambda p, n: plans.append((p, n)))
        assert result.file_bytes == plans[-1][1] > plans[-1][0].weight_bytes
    assert files(tmp_path) == []


def test_a_dry_run_announces_the_size_that_is_written(make_hf, tmp_path):
    folder = make_hf()
    announced = convert(folder, tmp_path / "m.moegg", dry_run=True).file_bytes
    assert convert(folder, tmp_path / "m.moegg").path.stat().st_size == announced


def test_paths_with_spaces_and_non_ascii_characters(make_hf, tmp_path):
    """P1."""
    folder = make_hf(name="mödel 空 x")
    c = Container.open(convert(folder, folder / "ö ut.moegg").path)
    assert c.name == "mödel 空 x"


def test_progress_and_warnings_are_handed_on(make_hf, moe, tmp_path):
    seen, warned = [], []
    result = convert(make_hf(moe | {"frobnicate": 1}), tmp_path / "m.moegg", progress=lambda *p: seen.append(p),
                     warn=warned.append)
    total = result.plan.weight_bytes
    assert seen[0] == (0, total) and seen[-1] == (total, total) and [d for d, _ in seen] == sorted(d for d, _ in seen)
    assert len(warned) == 1 and "frobnicate" in warned[0]


def test_the_default_name_is_that_of_the_source(make_hf, make_gguf, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert convert(make_hf(name="tiny-1.5B"), dry_run=True).path.name == "tiny-1.5B-q4.moegg"
    assert convert(tmp_path / "tiny-1.5B", quant="keep", dry_run=True).path.name == "tiny-1.5B.moegg"
    assert convert(make_gguf(), dry_run=True).path.name == "m.moegg"
    assert convert(tmp_path / "m.gguf", quant="q8", dry_run=True).path.name == "m-q8.moegg"


# --- refusals -------------------------------------------------------------------------------------------------------------

def put(name: str, place: tuple, value: float):
    def edit(tensors):
        tensors[name] = tensors[name].copy()
        tensors[name][place] = value
    return edit


@pytest.mark.parametrize("quant", [q.name for q in QUANTS.values() if q.scales])
def test_scales_tell_whether_values_are_finite(quant):
    """Kept rows are not decoded to look for NaN: it took half of the time of an import."""
    rows = random_blocks(quant, 4, 512, np.random.default_rng(3))
    assert run._sound(quant, rows) and np.isfinite(kernels.dequantize(quant, rows, 512)).all()
    for at in SCALES[quant]:
        for bits in (0x7c00, 0xfc00, 0x7e01):
            broken = rows.copy()
            broken.reshape(-1, QUANTS[quant].block_bytes)[3, at:at + 2] = np.array([bits], "<u2").view(np.uint8)
            assert not run._sound(quant, broken)
    assert SCALES[quant] == QUANTS[quant].scales and not run._sound("mxfp4", rows)


@pytest.mark.parametrize("recipe", ["keep", "f32", "bf16", "q4"])
@pytest.mark.parametrize("name, place", [
    ("model.layers.1.mlp.experts.3.down_proj.weight", (17, 5)), ("model.embed_tokens.weight", (300, 63)),
    ("model.norm.weight", (7,))])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_found_and_named_by_element(make_hf, tmp_path, recipe, name, place, value):
    """F8."""
    with pytest.raises(FormatError) as e:
        convert(make_hf(edit=put(name, place, value)), tmp_path / "m.moegg", recipe)
    assert e.value.slug == "convert-nan" and f"{name}[{', '.join(map(str, place))}]" in str(e.value)
    assert files(tmp_path) == []


def test_a_nan_scale_in_a_gguf_block_is_found(make_gguf, tmp_path):
    def edit(tensors):
        tensors["blk.0.ffn_up_exps.weight"] = tensors["blk.0.ffn_up_exps.weight"].copy()
        tensors["blk.0.ffn_up_exps.weight"][4, 31, 33] = np.nan
    with pytest.raises(FormatError, match=r"blk.0.ffn_up_exps.weight\[4, 31, \d+\]"), np.errstate(all="ignore"):
        convert(make_gguf(quant="F16", edit=edit), tmp_path / "m.moegg")


@pytest.mark.parametrize("recipe, value, ok", [
    ("f16", 65504.0, True), ("f16", -65536.0, False), ("q4@1", 4e5, True), ("q4@1", 1e7, False), ("q8", 8e6, True),
    ("q8", 1e7, False), ("bf16", 3.3e38, True), ("bf16", 3.4e38, False), ("f32", 3.4e38, True)])
def test_a_value_beyond_the_quants_range_is_refused_not_made_infinite(make_hf, read_back, tmp_path, recipe, value, ok):
    """G3."""
    name = "model.layers.0.mlp.experts.2.gate_proj.weight"
    folder = make_hf(dtype="F32", edit=put(name, (3, 9), value))
    if ok:
        got = read_back(convert(folder, tmp_path / "m.moegg", recipe).path)
        assert np.isfinite(got["layers.0.experts.gate"][2]).all()
    else:
        with pytest.raises(FormatError, match=r"\[3, 9\].*--quant bf16 or f32") as e:
            convert(folder, tmp_path / "m.moegg", recipe)
        assert e.value.slug == "convert-overflow"


def test_an_existing_target_stays_unless_forced(make_hf, tmp_path):
    folder, out = make_hf(), tmp_path / "m.moegg"
    out.write_bytes(b"precious")
    with pytest.raises(UsageError, match="--force"):
        convert(folder, out)
    assert out.read_bytes() == b"precious"
    convert(folder, out, force=True)
    Container.open(out).verify()
    assert files(tmp_path) == ["m.moegg"]


def test_a_failed_conversion_keeps_the_file_it_was_to_replace(make_hf, tmp_path):
    out = tmp_path / "m.moegg"
    out.write_bytes(b"precious")
    with pytest.raises(FormatError):
        convert(make_hf(edit=put("model.norm.weight", (0,), np.nan)), out, force=True)
    assert out.read_bytes() == b"precious" and files(tmp_path) == ["m.moegg"]


def test_a_source_is_never_its_own_target(make_gguf):
    path = make_gguf()
    before = path.read_bytes()
    with pytest.raises(UsageError, match="source itself"):
        convert(path, path, force=True)
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "README.md"])
def test_a_forced_target_inside_the_source_folder_spares_the_source(make_hf, tmp_path, name):
    folder = make_hf()
    (folder / "README.md").write_text("# Card")
    (tmp_path / "alias").symlink_to(folder)
    before = (folder / name).read_bytes()
    for out in (folder / name, tmp_path / "alias" / name):
        with pytest.raises(UsageError, match="file of the source"):
            convert(folder, out, force=True)
    assert (folder / name).read_bytes() == before


def test_a_source_under_the_name_of_the_partial_file_is_spared(make_gguf, tmp_path):
    path = make_gguf(name="m.moegg.partial")
    before = path.read_bytes()
    with pytest.raises(UsageError, match="file of the source"):
        convert(path, tmp_path / "m.moegg", force=True)
    assert path.read_bytes() == before


@pytest.mark.parametrize("recipe, value, lost", [("q4@1", 1e-9, True), ("q8", 1e-9, True), ("f16", 1e-9, True), ("bf16", 1e-9, False),
                                                 ("f32", 1e-9, False), ("q4@1", 0.0, False), ("q4@1", 1e-4, False)])
def test_rows_that_become_zero_are_told_of_once(make_hf, moe, tmp_path, recipe, value, lost):
    def edit(tensors):
        for name in ("model.layers.0.mlp.experts.2.gate_proj.weight", "model.layers.1.mlp.experts.0.up_proj.weight"):
            tensors[name] = tensors[name].copy()
            tensors[name][3:5] = value
    warned = []
    convert(make_hf(edit=edit, dtype="F32"), tmp_path / "m.moegg", recipe, warn=warned.append)
    assert len(warned) == lost
    if lost:
        assert "4 rows" in warned[0] and "'model.layers.0.mlp.experts.2.gate_proj.weight', 'model.layers.1" in warned[0]


def test_a_full_disk_leaves_nothing(make_hf, tmp_path, monkeypatch):
    folder = make_hf()
    real, written = os.pwrite, 0

    def full(fd, data, offset):
        nonlocal written
        written += len(data)
        if written > 50_000:
            raise OSError(28, "No space left on device")
        return real(fd, data, offset)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(NoRoom):
        convert(folder, tmp_path / "m.moegg")
    assert files(tmp_path) == []


def test_too_little_room_is_said_before_a_weight_is_read(make_hf, tmp_path, monkeypatch):
    folder = make_hf()
    monkeypatch.setattr(run.HFSource, "rows", None)
    monkeypatch.setattr("shutil.disk_usage", lambda p: type("U", (), {"free": 1000})())
    with pytest.raises(NoRoom, match="1000 B free"):
        convert(folder, tmp_path / "m.moegg")
    assert files(tmp_path) == []


@pytest.mark.parametrize("name, content, error, says", [
    ("x.bin", b"PK\x03\x04 zip", FormatError, "GGUF file or a Hugging Face folder"), ("x.bin", b"", FormatError, "GGUF"),
    ("m.safetensors", b"", UsageError, "folder that holds it"), ("none", None, NotFound, "no such file")])
def test_what_is_no_source_is_one_clear_line(tmp_path, name, content, error, says):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=says):
        convert(tmp_path / name, tmp_path / "m.moegg")


def test_an_unknown_recipe_is_a_usage_error(make_hf, tmp_path):
    with pytest.raises(UsageError, match="q9"):
        convert(make_hf(), tmp_path / "m.moegg", "q9")


def test_a_file_cut_after_it_was_opened_fails_cleanly(make_hf, tmp_path):
    """F1."""
    folder = make_hf()
    cut = lambda plan, n: os.truncate(folder / "model.safetensors", 100_000)  # noqa: E731
    with pytest.raises(FormatError, match="file-short"):
        convert(folder, tmp_path / "m.moegg", on_plan=cut)
    assert files(tmp_path) == []


def test_an_architecture_that_nobody_knows_is_named(make_hf, moe, tmp_path):
    folder = make_hf()
    (folder / "config.json").write_text(json.dumps(moe | {"architectures": ["MarvinForCausalLM"]}))
    with pytest.raises(UnsupportedModel, match="MarvinForCausalLM"):
        convert(folder, tmp_path / "m.moegg")


# --- memory and crashes ---------------------------------------------------------------------------------------------------

def test_memory_does_not_grow_with_the_model(make_hf, moe, dense, tmp_path, monkeypatch):
    """Peak of a conversion: a few row blocks and one record, whatever the number of experts and the size of the vocabulary."""
    monkeypatch.setattr(run, "BLOCK_BYTES", 64 << 10)

    def peak(config: dict, name: str) -> int:
        folder = make_hf(config, name=name)
        tracemalloc.start()
        convert(folder, tmp_path / f"{name}.moegg")
        try:
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    tokens = [peak(dense | {"vocab_size": n}, f"vocab{n}") for n in (2_000, 40_000)]
    assert tokens[1] < tokens[0] + (1 << 20)        # the larger embedding: 10 MB as f32, 5 MB as bf16
    experts = [peak(moe | {"num_experts": n, "moe_intermediate_size": 256}, f"experts{n}") for n in (4, 40)]
    assert experts[1] < experts[0] + (1 << 20)      # the larger experts: 16 MB as f32, 8 MB as bf16


def test_a_killed_conversion_leaves_no_file_that_opens_and_a_rerun_succeeds(make_hf, dense, tmp_path):
    folder, out = make_hf(dense | {"vocab_size": 4000}), tmp_path / "m.moegg"
    code = ("import sys; from moegg.converters import run\nrun.BLOCK_BYTES = 1\nsys.stdout.write('go\\n'); sys.stdout.flush()\n"
            "run.convert(sys.argv[1], sys.argv[2])")
    rng, killed = np.random.default_rng(3), 0
    for _ in range(4):
        p = subprocess.Popen([sys.executable, "-c", code, folder, out], stdout=subprocess.PIPE, cwd=tmp_path)
        assert p.stdout.readline() == b"go\n"
        time.sleep(rng.uniform(0, 0.06))
        p.send_signal(signal.SIGKILL)
        p.wait()
        p.stdout.close()
        if out.exists():
            Container.open(out).verify()
            out.unlink()
        else:
            killed += 1
        for partial in tmp_path.glob("*.partial"):     # one that was only not renamed yet is whole
            whole = None
            with contextlib.suppress(FormatError):
                whole = Container.open(partial)
            if whole:
                whole.verify()
    assert killed
    convert(folder, out)
    Container.open(out).verify()
    assert files(tmp_path) == ["m.moegg"]
