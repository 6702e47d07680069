"""Container and ContainerWriter together: what goes in comes out, on any path, at any size; and the file is never half there."""
import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from moegg.errors import BadRequest, FormatError, InternalError, IOFailure, NotFound
from moegg.formats.about import About
from moegg.formats.container import Container, Region, TensorInfo
from moegg.formats.plan import Plan
from moegg.formats.validate import read_preamble
from moegg.formats.writer import ExpertSpec, PartSpec, TensorSpec, planned_bytes

from .corrupt import DOWN, GATE, UP, header_of, pattern, record_parts, tiny, write


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "tiny.moegg"


def test_round_trip_gives_back_every_field_and_byte(path):
    spec, data = tiny(), write(path)
    c = Container.open(path)
    assert (c.path, c.file_bytes) == (path, len(data))
    assert (c.arch, c.name, c.config, c.meta) == tuple(spec[k] for k in ("arch", "name", "config", "meta"))
    assert list(c.tensors) == ["layers.0.attn_norm", "layers.0.attn.q", "embed", "table"]     # row-gather ones last
    for i, t in enumerate(spec["tensors"]):
        got = c.tensors[t.name]
        assert got == TensorInfo(t.name, t.quant, t.layout, t.shape, t.role, t.layer, got.offset, t.nbytes, t.gather)
        assert data[got.offset:got.offset + got.nbytes] == pattern(i, t.nbytes)
        assert got.offset % (16384 if t.gather else 64) == 0
    assert c.resident == Region(c.tensors["layers.0.attn_norm"].offset, 128 + 2 * 16 * 18)
    for e, got in zip(spec["experts"], c.layers, strict=True):
        assert (got.layer, got.n, got.top_k, got.slot.tolist()) == (e.layer, e.n, e.top_k, list(range(e.n)))
        assert got.base % 16384 == got.stride % 16384 == 0
        assert [(p.name, p.quant, p.layout, p.shape, p.nbytes) for p in got.parts] == [
            (p.name, p.quant, p.layout, p.shape, p.nbytes) for p in e.parts]
        for x in range(e.n):
            at, n = c.record(e.layer, x)
            assert n == got.record_bytes
            for p, want in zip(got.parts, record_parts(e, x), strict=True):
                assert p.offset % 64 == 0 and data[at + p.offset:at + p.offset + p.nbytes] == want
    for name, (media, content) in spec["sections"].items():
        assert c.read_section(name) == content and c.sections[name].media == media
        assert c.sections[name].mutable == (name in ("chat_template", "model_card"))
    assert planned_bytes(**spec) == len(data)
    json.dumps(c.summary(), allow_nan=False)


def test_same_input_same_bytes_in_any_order_of_puts_and_sections(path, tmp_path):
    spec = tiny()
    shuffled = spec | {"sections": dict(reversed(spec["sections"].items())), "config": dict(reversed(spec["config"].items())),
                       "experts": spec["experts"][::-1]}
    again = write(tmp_path / "other name.moegg", shuffled, backwards=True)
    assert write(path) == again


def test_golden_file_of_version_1_opens_and_is_what_is_still_written(path):
    """Every later reader must open it. Written by: corrupt.write(path), gzip.compress(data, 9, mtime=0)."""
    golden = gzip.decompress((Path(__file__).parent / "golden_v1.moegg.gz").read_bytes())
    path.write_bytes(golden)
    c = Container.open(path)
    c.verify()
    assert c.read_section("license") == b"Apache-2.0" and c.record(2, 1) == (c.layers[1].base + 16384, 1024)
    assert c.root.hex().startswith("a8b4799d1a1a94a3") and c.content_id.hex().startswith("52b79bf4a29791c3")
    assert write(path.with_name("new.moegg")) == golden


@pytest.mark.parametrize("name", ["mödel 空 x/a b.moegg", "emoji 🐎.moegg", "no-suffix", "-dash.moegg"])
def test_paths_with_spaces_and_other_scripts(name, tmp_path):
    """P1."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    write(path)
    Container.open(path).verify()


def test_symlink_to_a_blob_opens(path, tmp_path):
    """F10: hub caches are folders of symlinks."""
    write(path)
    link = tmp_path / "link.moegg"
    link.symlink_to(path)
    Container.open(link).verify()


def test_progress_ends_at_the_total(path):
    write(path)
    c, seen = Container.open(path), []
    c.verify(lambda done, total: seen.append((done, total)))
    done = [d for d, _ in seen]
    assert done == sorted(done) and seen[-1] == (c.file_bytes - c.index.offset - c.index.nbytes,) * 2


@pytest.mark.parametrize(("layer", "expert"), [(0, 2), (0, -1), (1, 0), (2, 9)])
def test_no_such_expert(layer, expert, path):
    write(path)
    with pytest.raises(BadRequest, match=f"no expert {expert} in layer {layer}"):
        Container.open(path).record(layer, expert)


def test_sections_that_are_not_there_or_hold_weights(path):
    write(path)
    c = Container.open(path)
    for name in ("vision", "experts"):
        with pytest.raises(NotFound, match=f"no section '{name}'"):
            c.read_section(name)


@pytest.mark.parametrize("cut", [0, 1, 9, 10, 511, 512, 513])
def test_cut_file_says_how_much_is_missing(cut, path):
    """F1: a truncated copy must not load."""
    data = write(path)
    path.write_bytes(data[:cut])
    with pytest.raises(FormatError):
        Container.open(path)
    path.write_bytes(data[:len(data) // 2])
    with pytest.raises(FormatError, match=r"file is 96\.2 KiB but header says 192\.1 KiB; the copy is incomplete, download"):
        Container.open(path)
    path.write_bytes(data[:-1])
    with pytest.raises(FormatError, match=f"file is {len(data) - 1} B but header says {len(data)} B"):
        Container.open(path)


def test_every_boundary_plus_and_minus_one_is_refused_when_cut_there(path):
    data = write(path)
    c = Container.open(path)
    ends = {512, 65536, c.tail_offset} | {at for s in c.sections.values() for at in (s.offset, s.offset + s.nbytes)}
    ends |= {t.offset + t.nbytes for t in c.tensors.values()} | {e.base + s * e.stride for e in c.layers for s in range(e.n + 1)}
    with open(path, "r+b") as f:
        for end in sorted({e + d for e in ends for d in (-1, 0, 1)} - {len(data), len(data) + 1}, reverse=True):
            f.truncate(end)
            with pytest.raises(FormatError) as e:
                Container.open(path)
            assert e.value.rule == "R5", end


def test_missing_file_folder_and_pipe(tmp_path):
    with pytest.raises(NotFound, match="no such file"):
        Container.open(tmp_path / "none.moegg")
    with pytest.raises(FormatError, match="got a folder; convert it first"):
        Container.open(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FormatError, match="device, pipe or socket"):
        Container.open(tmp_path / "pipe")


def test_a_file_replaced_after_opening_is_noticed(path):
    write(path)
    c = Container.open(path)
    os.utime(path, ns=(1, 1))
    for use in (c.verify, lambda: c.read_section("license")):
        with pytest.raises(IOFailure, match="changed or replaced since it was opened"):
            use()


def test_short_reads_are_continued_and_errors_name_the_place(path, monkeypatch):
    """H15."""
    write(path)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, n, at: pread(fd, n // 2 + 1, at))
    c = Container.open(path)
    c.verify()

    def broken(fd, n, at):
        raise OSError(5, "Input/output error")
    monkeypatch.setattr(os, "pread", broken)
    with pytest.raises(IOFailure, match=r"read of \d+ B at byte \d+ failed: Input/output error"):
        c.verify()
    monkeypatch.setattr(os, "pread", lambda fd, n, at: b"")
    with pytest.raises(FormatError, match="it was cut while it was read"):
        c.verify()


def big_plan() -> Plan:
    """94 layers of 128 experts, 500 GB."""
    shapes = {"gate": (5120, 4608), "up": (5120, 4608), "down": (4608, 5120)}
    parts = tuple(PartSpec(name, shape, "q4_k", "interleaved") for name, shape in shapes.items())
    tensors = [TensorSpec("embed", (151936, 4608), "q6_k", "interleaved", "embed")]
    for i in range(94):
        tensors += [TensorSpec(f"layers.{i}.{n}", s, q, lay, role, i) for n, s, q, lay, role in (
            ("attn_norm", (4608,), "f32", "row-major", "norm"), ("attn.q", (8192, 4608), "q8_0", "interleaved", "attn"),
            ("attn.k", (512, 4608), "q8_0", "interleaved", "attn"), ("attn.v", (512, 4608), "q8_0", "interleaved", "attn"),
            ("attn.o", (4608, 8192), "q8_0", "interleaved", "attn"), ("ffn.router", (128, 4608), "f32", "interleaved", "router"))]
    experts = [ExpertSpec(i, 128, 8, parts) for i in range(94)]
    sections = {"tokenizer": ("application/json", b"{}")}
    return Plan("big", "qwen3-moe", "Big", {"num_hidden_layers": 94}, {}, tensors, experts, sections)


def test_a_file_of_500_gb_is_opened_by_three_small_reads(path, monkeypatch):
    plan = big_plan()
    assert 480e9 < plan.total_bytes < 520e9
    preamble, index = plan.encode(np.zeros((plan.n_units, 16), np.uint8))
    with open(path, "wb") as f:
        f.truncate(plan.total_bytes)        # sparse: the weights take no disk
        os.pwrite(f.fileno(), preamble + index, 0)
        os.pwrite(f.fileno(), plan.tail, plan.tail_offset)
    reads, pread = [], os.pread
    monkeypatch.setattr(os, "pread", lambda fd, n, at: reads.append(n) or pread(fd, n, at))
    c = Container.open(path)
    assert reads[:2] == [65536, len(index)] and len(reads) == 3 and sum(reads) < 400_000
    assert c.record(93, 127)[0] + c.layers[-1].stride == c.tail_offset
    assert c.resident.offset % (2 << 20) == 0
    with pytest.raises(FormatError, match="section 'tokenizer': checksum differs"):
        c.verify()
    os.truncate(path, plan.total_bytes * 5 // 6)
    with pytest.raises(FormatError, match=r"file is 378\.6 GiB but header says 454\.3 GiB; the copy is incomplete"):
        Container.open(path)
    path.unlink()


def test_the_first_64_kib_are_enough_to_plan_memory():
    plan = big_plan()
    preamble, _ = plan.encode(np.zeros((plan.n_units, 16), np.uint8))
    p = read_preamble(preamble, None, "remote")
    assert p.config == {"num_hidden_layers": 94} and p.regions["resident"].nbytes > 8 << 30
    assert [(e.n, e.top_k, e.record_bytes) for e in p.layers] == [(128, 8, 3 * 5120 * 4608 * 144 // 256)] * 94


@pytest.mark.parametrize(("change", "rule", "says"), [
    ({"config": {"list": list(range(20000))}}, "R9", r"need 1\d\d\.\d KiB"),
    ({"config": {"x": float("nan")}}, "R13", "canonical JSON"), ({"meta": {"x": b"bytes"}}, "R13", "canonical JSON"),
    ({"name": "x" * 256}, "R11", "model name"), ({"name": ""}, "R11", "model name"), ({"arch": "Qwen3"}, "R11", "arch"),
    ({"sections": {"a/b": ("", b"")}}, "R11", "section 1: name"), ({"sections": {"resident": ("", b"")}}, "R12", "two sections"),
    ({"tensors": [TensorSpec("a", (4,), "f32", "row-major", "norm")] * 2}, "R12", "two tensors"),
    ({"tensors": [TensorSpec("a b", (4,), "f32", "row-major", "norm")]}, "R11", "tensor 0: name"),
    ({"tensors": [TensorSpec("a", (4, 32), "f32", "interleaved", "embed", gather=True)]}, "R24", "row-major"),
    ({"tensors": [TensorSpec("a", (16,), "f32", "interleaved", "norm")]}, "R19", "does not go with"),
    ({"experts": [ExpertSpec(0, 2, 3, (GATE,))]}, "R21", "top-k 3 of 2"),
    ({"experts": [ExpertSpec(0, 2, 1, (UP, UP))]}, "R12", "two parts"),
    ({"experts": [ExpertSpec(3, 2, 1, (DOWN,))] * 2}, "R21", "follows 3"),
    ({"experts": [ExpertSpec(0, 2, 1, ())]}, "R21", "0 parts")])
def test_a_plan_that_breaks_a_rule_is_refused_with_that_rule(change, rule, says, path):
    with pytest.raises(FormatError, match=says) as e:
        write(path, tiny() | change)
    assert e.value.rule == rule and not list(path.parent.iterdir())
    with pytest.raises(FormatError):
        planned_bytes(**tiny() | change)


@pytest.mark.parametrize("spec", [
    TensorSpec("a", (4, 33), "q4_0", "interleaved", "attn"), TensorSpec("a", (4,), "q9", "row-major", "norm"),
    TensorSpec("a", (4,), "f32", "diagonal", "norm"), TensorSpec("a", (4,), "f32", "row-major", "gate"),
    TensorSpec("a", (1, 1, 1, 1, 4), "f32", "row-major", "norm"), TensorSpec("a", (1 << 33, 4), "f32", "row-major", "norm"),
    TensorSpec("a", (), "f32", "row-major", "norm")])
def test_a_spec_outside_the_format_is_an_internal_error(spec):
    with pytest.raises(InternalError, match="bug in moegg"):
        planned_bytes(**tiny() | {"tensors": [spec]})


def test_a_dense_model_and_a_model_without_gather_or_text(path):
    spec = tiny() | {"experts": [], "sections": {}, "tensors": [TensorSpec("head", (20, 33), "bf16", "interleaved", "head")]}
    data = write(path, spec)
    c = Container.open(path)
    c.verify()
    assert c.layers == [] and c.gather == c.experts == Region(0, 0)
    assert c.tensors["head"].nbytes == 32 * 68      # rows filled up to 16s, an odd bf16 row to 4 bytes
    assert len(data) == header_of(data).tail_offset + 64


def test_a_large_resident_region_starts_at_2_mib_and_a_small_one_does_not():
    for rows, want in ((1 << 18, 2 << 20), ((1 << 18) - 16, 80 << 10)):
        tensors = [TensorSpec("head", (rows, 32), "bf16", "interleaved", "head")]
        assert Plan("x", "llama", "x", {}, {}, tensors, [], {}).tensors["head"].offset == want


def test_what_a_file_says_of_itself_is_shown_only_where_it_is_of_the_right_type(path):
    write(path)
    c = Container.open(path)
    c.meta = {"quant": {"name": "q4", "version": 2}, "parameters": 30, "active_parameters": 3, "source": "gguf", "creator": "moegg 1"}
    assert c.about == About("q4", 2, 30, 3, "gguf", "moegg 1")
    for meta in ({}, {"quant": 5, "parameters": True, "active_parameters": -1, "source": [], "creator": {}},
                 {"quant": {"name": 1, "version": "2"}, "parameters": 1 << 63, "active_parameters": 1.0}):
        c.meta = meta
        assert c.about == About(None, None, None, None, None, None)
