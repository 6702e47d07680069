"""moegg.converters.hf: what a folder holds beside weights, and which folders are refused."""
import json

import pytest

from moegg.converters.hf import HFSource
from moegg.converters.plan import make_plan
from moegg.converters.policy import RECIPES
from moegg.errors import FormatError, NotFound, UnsupportedModel


def section(source: HFSource, name: str):
    return json.loads(source.sections[name][1])


def test_the_files_of_a_folder_become_sections(make_hf):
    folder = make_hf()
    (folder / "generation_config.json").write_text('{"top_p": 0.9, "eos_token_id": [1, 2]}')
    (folder / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\n# Card")
    (folder / "LICENSE.txt").write_text("You may.")
    s = HFSource(folder)
    assert s.name == s.stem == "hf" and s.kind == "safetensors" and list(s.files) == ["model.safetensors"]
    assert s.sections["source_config"] == ("application/json", (folder / "config.json").read_bytes())
    assert s.sections["tokenizer"] == ("application/json", (folder / "tokenizer.json").read_bytes())
    assert s.sections["license"] == ("text/plain", b"You may.")
    assert s.sections["model_card"][1].endswith(b"# Card")
    assert section(s, "generation_config") == {"eos_token_id": [1, 2], "top_p": 0.9}
    assert s.provenance == {"license": "apache-2.0"} and not s.warnings and "chat_template" not in s.sections


def test_several_licence_texts_are_joined_under_their_names(make_hf):
    folder = make_hf()
    (folder / "LICENSE").write_text("You may.\n")
    (folder / "NOTICE").write_text("By us.")
    assert HFSource(folder).sections["license"][1] == b"== LICENSE ==\nYou may.\n\n== NOTICE ==\nBy us.\n\n"


@pytest.mark.parametrize("files, want", [
    ({"tokenizer_config.json": {"chat_template": "T"}}, {"default": "T"}),
    ({"tokenizer_config.json": {"chat_template": [{"name": "default", "template": "T"}, {"name": "rag", "template": "R"}]}},
     {"default": "T", "rag": "R"}),
    ({"tokenizer_config.json": {"chat_template": "old"}, "chat_template.json": {"chat_template": "T"}}, {"default": "T"}),
    ({"tokenizer_config.json": {"chat_template": "old"}, "chat_template.jinja": "T ü"}, {"default": "T ü"}),
    ({"chat_template.jinja": "T", "additional_chat_templates/tool_use.jinja": "U"}, {"default": "T", "tool_use": "U"}),
])
def test_chat_templates_are_found_wherever_releases_put_them(make_hf, files, want):
    folder = make_hf()
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    s = HFSource(folder)
    assert section(s, "chat_template") == want
    assert "chat_template" not in section(s, "tokenizer_config")


@pytest.mark.parametrize("name", ["tokenizer_config.json", "chat_template.json"])
@pytest.mark.parametrize("value", [5, {}, [5], [{"name": "default"}], [{"name": 5, "template": "T"}], False])
def test_a_chat_template_of_another_type_does_not_vanish(make_hf, name, value):
    folder = make_hf()
    (folder / name).write_text(json.dumps({"chat_template": value}))
    with pytest.raises(FormatError, match=f"{name}: 'chat_template': got .*source-file"):
        HFSource(folder)


def test_special_tokens_map_fills_what_tokenizer_config_leaves_open(make_hf):
    folder = make_hf()
    (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>", "bos_token": null}')
    (folder / "special_tokens_map.json").write_text('{"eos_token": "x", "bos_token": {"content": "<s>"}, "other": 1}')
    assert section(HFSource(folder), "tokenizer_config") == {"eos_token": "</s>", "bos_token": {"content": "<s>"}}


def test_a_sentencepiece_model_serves_where_there_is_no_tokenizer_json(make_hf):
    folder = make_hf()
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(b"\x0a\x00")
    assert HFSource(folder).sections["tokenizer"] == ("application/x-sentencepiece", b"\x0a\x00")


def test_a_folder_without_tokenizer_converts_with_a_warning(make_hf):
    """F15."""
    folder = make_hf()
    (folder / "tokenizer.json").unlink()
    s = HFSource(folder)
    assert "tokenizer" not in s.sections and len(s.warnings) == 1 and "tokenizer.json" in s.warnings[0]


def hub_cache(real, hub):
    """The snapshot folder of a hub cache that holds the files of `real`."""
    cache = hub / "models--org--some-model"
    snapshot = cache / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    real.rename(cache / "blobs")
    for file in (cache / "blobs").iterdir():
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    return snapshot


def test_a_hub_cache_of_symlinks_reads_and_keeps_repository_and_revision(make_hf, tmp_path):
    """F10."""
    s = HFSource(hub_cache(make_hf(), tmp_path / "hub"))
    assert s.name == "some-model" and s.provenance == {"repo": "org/some-model", "revision": "0123abcd", "license": None}
    assert s.rows("model.norm.weight", 0, 1).shape == (1, 128)


FILES = ("generation_config.json", "chat_template.jinja", "chat_template.json", "tokenizer.json", "tokenizer_config.json",
         "special_tokens_map.json", "additional_chat_templates", "config.json", "model.safetensors", "model.safetensors.index.json")


@pytest.mark.parametrize("name", FILES)
def test_a_link_to_nothing_is_not_taken_for_an_absent_file(make_hf, name):
    """What a hub cache looks like whose download was cut off."""
    folder = make_hf()
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("../../blobs/0123")
    with pytest.raises((FormatError, NotFound), match=name):
        HFSource(folder)


@pytest.mark.parametrize("name", ["README.md", "LICENSE"])
def test_a_link_to_nothing_in_place_of_a_text_is_told(make_hf, name):
    folder = make_hf()
    (folder / name).symlink_to("nowhere")
    [warning] = HFSource(folder).warnings
    assert name in warning and "does not exist" in warning


@pytest.mark.parametrize("name", ["README.md", "LICENSE", "chat_template.jinja", "tokenizer.json",
                                  "additional_chat_templates/x.jinja"])
def test_a_link_packs_no_file_from_elsewhere(make_hf, tmp_path, name):
    """A README.md -> ~/.ssh/id_rsa would be published with the container."""
    folder = make_hf()
    (tmp_path / "secret").write_text('{"secret": 1}')
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / "secret")
    if name in ("README.md", "LICENSE"):
        s = HFSource(folder)
        assert name in s.warnings[0] and not any(b"secret" in data for _, data in s.sections.values())
    else:
        with pytest.raises(FormatError, match="link to '.*secret'"):
            HFSource(folder)


def test_a_folder_that_is_itself_a_link_and_links_inside_it_are_fine(make_hf, tmp_path):
    folder = make_hf()
    (folder / "COPYING.txt").write_text("You may.")
    (folder / "LICENSE").symlink_to("COPYING.txt")
    (tmp_path / "alias").symlink_to(folder)
    assert b"You may." in HFSource(tmp_path / "alias").sections["license"][1]


def test_the_path_on_its_authors_disk_is_not_carried_along(make_hf):
    folder = make_hf()
    config = json.loads((folder / "config.json").read_text()) | {"_name_or_path": "/home/someone/secret"}
    (folder / "config.json").write_text(json.dumps(config))
    assert b"secret" not in HFSource(folder).sections["source_config"][1]


@pytest.mark.parametrize("more, says", [
    ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
    ({"text_config": {"quantization_config": {"quant_method": "awq"}}}, "awq"), ({"quantization_config": 5}, "5")])
def test_quantised_checkpoints_are_refused_by_name(make_hf, more, says):
    folder = make_hf()
    config = json.loads((folder / "config.json").read_text()) | more
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match=says):
        HFSource(folder)


@pytest.mark.parametrize("value", [[1], "x", 5, True])
def test_a_text_config_that_is_no_object_is_one_clear_line(make_hf, value):
    folder = make_hf()
    config = json.loads((folder / "config.json").read_text()) | {"text_config": value}
    (folder / "config.json").write_text(json.dumps(config))
    assert any("text_config" in line for line in make_plan(HFSource(folder), RECIPES["q4"]).warnings)
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["Gemma3ForConditionalGeneration"]}))
    with pytest.raises(FormatError, match="'text_config': got .*, expected an object"):
        make_plan(HFSource(folder), RECIPES["q4"])


@pytest.mark.parametrize("text, error", [
    ("", FormatError), ("[1]", FormatError), ("{", FormatError), ('{"a": ' + "[" * 100_000, FormatError), ("{}", FormatError),
    ('{"model_type": "marvin"}', UnsupportedModel), ('{"architectures": ["MarvinForCausalLM"]}', UnsupportedModel)])
def test_a_broken_or_foreign_config_is_one_clear_line(make_hf, text, error):
    folder = make_hf()
    (folder / "config.json").write_text(text)
    with pytest.raises(error) as e:
        HFSource(folder)
    assert "\n" not in str(e.value)


def test_a_folder_without_config_or_weights(make_hf, tmp_path):
    with pytest.raises(NotFound, match="config.json"):
        HFSource(tmp_path)
    folder = make_hf()
    (folder / "model.safetensors").unlink()
    with pytest.raises(NotFound, match="safetensors"):
        HFSource(folder)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02.")
    with pytest.raises(UnsupportedModel, match="pickle"):
        HFSource(folder)


def test_an_oversized_model_card_is_left_out_with_a_warning(make_hf):
    folder = make_hf()
    (folder / "README.md").write_bytes(b"x" * (2 << 20))
    s = HFSource(folder)
    assert "model_card" not in s.sections and "README.md" in s.warnings[0]


def test_a_config_with_byte_order_mark_and_infinity_reads(make_hf):
    folder = make_hf()
    (folder / "config.json").write_bytes(b"\xef\xbb\xbf" + (folder / "config.json").read_bytes()[:-1] + b', "limit": Infinity}')
    assert HFSource(folder).config["limit"] == float("inf")
