"""Texts of a file as strangers may write them: whatever JSON a section holds, a command ends well or with one named line."""
import json
import random
import re

import pytest

from moegg.converters.run import convert
from moegg.formats.container import Container
from tests import gguf_convert, oracle

ROUNDS = 8          # per section and command; 100 found nothing more
VALUES = (None, True, -1, 2.5, 1 << 62, -(1 << 63), "", "x", "\ud7ff\n", [], {}, [[]], [1, None], {"a": []}, [{}], {"content": 7})
COMMANDS = {"tokenizer": ["tokenize", "inspect", "export"], "tokenizer_config": ["tokenize", "inspect", "run", "export"],
            "chat_template": ["run", "inspect", "export"],
            "generation_config": ["run", "tokenize"], "source_config": ["tokenize"], "provenance": ["inspect"], "gguf_metadata": ["export"]}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Of safetensors, and of a GGUF."""
    tmp = tmp_path_factory.mktemp("sections")
    folder = oracle.rebuild("qwen3", tmp / "hf")
    gguf = gguf_convert.convert(folder, tmp / "m.gguf")
    return convert(folder, tmp / "a.moegg", "q8").path, convert(gguf, tmp / "b.moegg").path


def nodes(value, path=()):
    """The paths of all that is in it; of long lists and objects the first and the last."""
    yield path
    items = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    for key, x in items if len(items) < 40 else items[:2] + items[-2:]:
        yield from nodes(x, (*path, key))


def changed(text, rng):
    """The JSON `text` with one node replaced or taken away, or cut off."""
    document = json.loads(text)
    path = rng.choice(list(nodes(document)))
    if not path:
        return rng.choice([text[:len(text) // 2], b"", b"[" * 50000, b"\xff", *(json.dumps(v).encode() for v in VALUES)])
    at = document
    for key in path[:-1]:
        at = at[key]
    if rng.random() < 0.2:
        del at[path[-1]]
    else:
        at[path[-1]] = rng.choice(VALUES)
    return json.dumps(document).encode()


@pytest.mark.parametrize("name", COMMANDS)
def test_any_json_in_a_section_is_read_or_a_named_error(name, files, call, tmp_path, monkeypatch):
    path = files[name in ("gguf_metadata", "provenance")]
    text, read, rng = Container.open(path).read_section(name), Container.read_section, random.Random(name)
    for _ in range(ROUNDS):
        data = changed(text, rng)
        monkeypatch.setattr(Container, "read_section", lambda c, n, data=data: data if n == name else read(c, n))
        for command in COMMANDS[name]:
            argv = {"tokenize": ["Hello <|im_end|>"], "inspect": [], "run": ["hi", "--max-tokens", "2", "--ctx", "256"],
                    "export": ["-o", str(tmp_path / "x.gguf"), "--force"]}[command]
            code, _, err = call(command, path, *argv)
            told = re.fullmatch(r"(.*\n)*moegg: .{1,2000} \[[a-z0-9-]+\]\n", err)
            assert code in (0, 3, 4, 5) and (code == 0 or told), (command, data[:3000], code, err)
