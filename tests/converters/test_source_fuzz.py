"""Hostile sources: whatever the bytes of a GGUF, a safetensors header or a config.json, the answer is a file or one line."""
import json

import pytest

from tests.converters import fuzz


@pytest.mark.parametrize("first", range(0, 1500, 250))
def test_mutated_sources_convert_or_end_with_one_line(first, tmp_path):
    slugs = set()
    for seed in range(first, first + 250):
        source, out = tmp_path / f"s{seed}", tmp_path / f"o{seed}"
        source.mkdir()
        out.mkdir()
        slugs.add(fuzz.check(fuzz.make(seed, source), out))
        assert not list(out.glob("*.partial")), seed
    assert "" in slugs and len(slugs) > 8       # not all of one kind


@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_the_sources_that_are_mutated_are_sound(kind, tmp_path):
    config, head, data = fuzz.folder_of(kind)
    text = json.dumps(head).encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert fuzz.check(tmp_path, tmp_path) == ""
    fuzz.write_gguf(tmp_path / "m.gguf")
    assert fuzz.check(tmp_path / "m.gguf", tmp_path) == ""
