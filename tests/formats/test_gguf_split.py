"""moegg.formats.gguf_split: a model in parts reads like one in a file; parts that are missing or lie are named."""
import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter

from moegg.errors import FormatError, NotFound
from moegg.formats.gguf_split import GGUFSet


def write_part(path, tensors, keys, split=None):
    w = GGUFWriter(path, "llama")
    for key, value in keys.items():
        w.add_string(key, value)
    for key, value in (split or {}).items():
        (w.add_int32 if "tensors" in key else w.add_uint16)(key, value)
    for name, x in tensors.items():
        w.add_tensor(name, x)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


@pytest.fixture
def parts(tmp_path):
    """Three parts with two tensors each, metadata in the first."""
    rng = np.random.default_rng(0)
    values = {f"t{i}": rng.standard_normal((i + 1, 32)).astype("f4") for i in range(6)}
    for i in range(3):
        write_part(tmp_path / f"m-0000{i + 1}-of-00003.gguf", {n: values[n] for n in (f"t{2 * i}", f"t{2 * i + 1}")},
                   {"general.name": "M"} if i == 0 else {}, {"split.no": i, "split.count": 3, "split.tensors.count": 6})
    return tmp_path, values


@pytest.mark.parametrize("named", [1, 2, 3])
def test_any_part_opens_all_of_them(parts, named):
    folder, values = parts
    s = GGUFSet.open(folder / f"m-0000{named}-of-00003.gguf")
    assert s.stem == "m" and list(s.tensors) == list(values) and len(s.files) == len(s.paths) == 3
    assert s.metadata["general.name"] == "M" and not any(k.startswith("split.") for k in [*s.metadata, *s.kinds])
    for name, x in values.items():
        assert s.read(name).view("<f4").tobytes() == x.tobytes()
    assert s.read("t5", 2, 4).view("<f4").tobytes() == values["t5"][2:4].tobytes()
    with pytest.raises(NotFound):
        s.read("t6")
    s.close()


def test_a_whole_file_is_a_set_of_one(tmp_path):
    write_part(tmp_path / "one.gguf", {"a": np.ones((1, 32), "f4")}, {"general.name": "M"})
    s = GGUFSet.open(tmp_path / "one.gguf")
    assert s.stem == "one" and s.files == {"one.gguf": (tmp_path / "one.gguf").stat().st_size}
    assert len(GGUFReader(tmp_path / "one.gguf").tensors) == 1


def test_a_missing_part_is_named(parts):
    folder, _ = parts
    (folder / "m-00002-of-00003.gguf").unlink()
    with pytest.raises(NotFound, match=r"one of 3 parts of a model, and m-00002-of-00003.gguf is missing.*\[gguf-split\]"):
        GGUFSet.open(folder / "m-00001-of-00003.gguf")


def test_parts_that_contradict_each_other_are_refused(parts):
    folder, values = parts
    part = folder / "m-00002-of-00003.gguf"

    def refuse(match):
        with pytest.raises(FormatError, match=match) as e:
            GGUFSet.open(folder / "m-00001-of-00003.gguf")
        assert e.value.slug == "gguf-split"

    write_part(part, {"t2": values["t2"]}, {}, {"split.no": 2, "split.count": 3})
    refuse("another part: got split.no 2 of 3, expected 1 of 3")
    write_part(part, {"t2": values["t2"]}, {}, {"split.no": 1, "split.count": 4})
    refuse("expected 1 of 3")
    write_part(part, {"t0": values["t0"]}, {}, {"split.no": 1, "split.count": 3})
    refuse("'t0' is also in")
    write_part(part, {"t2": values["t2"]}, {}, {"split.no": 1, "split.count": 3})
    refuse("hold 5 tensors, expected 6")
    part.rename(folder / "other.gguf")
    with pytest.raises(FormatError, match="expected a name like"):
        GGUFSet.open(folder / "other.gguf")


def test_a_part_count_of_a_billion_costs_nothing(tmp_path):
    write_part(tmp_path / "m.gguf", {}, {}, {"split.no": 0, "split.count": 65535})
    with pytest.raises(FormatError, match="one of 65535 parts"):
        GGUFSet.open(tmp_path / "m.gguf")
    write_part(tmp_path / "m.gguf", {}, {"split.count": "many"})
    with pytest.raises(FormatError, match="'split.count': got 'many'"):
        GGUFSet.open(tmp_path / "m.gguf")
