"""Every rule of formats/FORMAT.md: written down, enforced, and broken by a file of ours. F1, F8 of the failure list."""
import gzip
import re
from pathlib import Path

import pytest

from moegg import arch
from moegg.errors import FormatError
from moegg.formats import layout, validate
from moegg.formats.container import Container
from moegg.quants import QUANTS

from .corrupt import MUTATIONS, VALID, header_of, index_at, reseal, table, write

SPEC = (Path(validate.__file__).parent / "FORMAT.md").read_text()


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> bytes:
    return write(tmp_path_factory.mktemp("good") / "tiny.moegg")


@pytest.fixture
def check(tmp_path):
    """Open and verify the container that these bytes are."""
    def run(data: bytes) -> Container:
        path = tmp_path / "x.moegg"
        path.write_bytes(data)
        c = Container.open(path)
        c.verify()
        return c
    return run


@pytest.mark.parametrize(("rule", "mutate"), [pytest.param(r, m, id=f"{r}-{label}") for r, label, m in MUTATIONS])
def test_broken_rule_is_named(rule, mutate, good, check):
    buf = bytearray(good)
    mutate(buf)
    assert buf != good
    with pytest.raises(FormatError) as e:
        check(bytes(buf))
    assert (e.value.rule, e.value.slug) == (rule, validate.RULES[rule])
    text = str(e.value)
    assert text.endswith(f"[{e.value.slug}]") and "\n" not in text and "x.moegg: " in text and len(text) < 400


@pytest.mark.parametrize("mutate", [pytest.param(m, id=label) for label, m in VALID])
def test_what_a_version_1_reader_must_ignore_is_ignored(mutate, good, check):
    buf = bytearray(good)
    mutate(buf)
    assert buf != good
    c = check(bytes(buf))
    assert c.sections.keys() == {"index", "license", "tokenizer", "resident", "gather", "experts", "chat_template", "model_card"}


def test_rules_of_the_spec_the_code_and_the_corrupt_files_agree():
    spec = dict(re.findall(r"^\| (R\d+) \| (format-[a-z]+) \|", SPEC, re.M))
    assert spec == validate.RULES
    assert {r for r, _, _ in MUTATIONS} == validate.RULES.keys()
    assert len(set(validate.RULES.values())) == len(validate.RULES)


def test_numbers_of_the_spec_and_the_code_agree():
    quants = {name: tuple(map(int, row)) for name, *row in re.findall(r"^\| (\w+) \| (\d+) \| (\d+) \| (\d+) \| \d", SPEC, re.M)}
    assert quants == {q.name: (q.id, q.block_elems, q.block_bytes) for q in QUANTS.values()}
    assert ", ".join(f"{i} {r}" for i, r in layout.ROLES.items()) in SPEC
    assert set(layout.ROLES.values()) == set(arch.ROLES)
    assert ", ".join(f"{i} {k}" for i, k in layout.KINDS.items()) in SPEC
    assert ", ".join(f"{i} {k}" for i, k in layout.RESERVED_KINDS.items()) in SPEC
    for row, nbytes in ((layout.SECTION_ROW, 112), (layout.LAYER_ROW, 48), (layout.PART_ROW, 56), (layout.TENSOR_ROW, 48)):
        assert row.itemsize == nbytes


def test_hex_dump_of_the_spec_is_the_golden_file():
    data = gzip.decompress((Path(__file__).parent / "golden_v1.moegg.gz").read_bytes())
    rows = re.findall(r"^    ([0-9a-f]{8})  ((?:[0-9a-f]{2}  ?){16})", SPEC, re.M)
    assert len(rows) > 20
    for at, text in rows:
        assert data[int(at, 16):int(at, 16) + 16] == bytes.fromhex(text)


@pytest.mark.parametrize(("label", "says"), [
    ("gguf", "moegg convert"), ("safetensors", "safetensors"), ("zip archive", "PyTorch"), ("web page", "a web page"),
    ("git-lfs pointer", "git lfs pull"), ("unfinished", "an unfinished conversion or download"), ("no bytes", "no bytes at all")])
def test_a_file_of_another_kind_is_called_by_its_kind(label, says, good, check):
    buf = bytearray(good)
    next(m for r, name, m in MUTATIONS if r == "R1" and name == label)(buf)
    with pytest.raises(FormatError, match=says):
        check(bytes(buf))


def test_an_index_beyond_the_limit_is_refused_before_it_is_read(good, check, monkeypatch):
    monkeypatch.setattr(layout, "MAX_INDEX_BYTES", 300)
    with pytest.raises(FormatError, match="index needs 384 B, expected at most 300 B") as e:
        check(good)
    assert e.value.rule == "R8"


def test_records_in_another_order_are_the_same_content(good, check):
    """A re-layout moves records and says so in the slot table: same answers, same content id, another root."""
    buf, before = bytearray(good), check(good)
    e = before.layers[0]
    a, b = slice(e.base, e.base + e.stride), slice(e.base + e.stride, e.base + 2 * e.stride)
    buf[a], buf[b] = buf[b], buf[a]
    table(buf, "slots")[:2] = 1, 0
    sums = index_at(buf)[2] + 16 * header_of(buf).n_tensors
    buf[sums:sums + 16], buf[sums + 16:sums + 32] = buf[sums + 16:sums + 32], buf[sums:sums + 16]
    reseal(buf)
    after = check(bytes(buf))
    assert after.content_id == before.content_id and after.root != before.root
    assert after.record(0, 0) == before.record(0, 1) and after.record(2, 0) == before.record(2, 0)
    buf[e.base] ^= 1
    with pytest.raises(FormatError, match="record of layer 0, expert 1: checksum differs"):
        check(bytes(buf))
