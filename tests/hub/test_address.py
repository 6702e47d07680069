"""Names on a hub: what is one, where it lies, what could leave its folder."""
from pathlib import Path

import pytest

from moegg.errors import UsageError
from moegg.hub.address import Address, is_address, likely, parse_address


@pytest.mark.parametrize("text, address", [
    ("hf:ann/big", Address("ann/big")), ("ann/big", Address("ann/big")), ("ann/big:m.moegg", Address("ann/big", "m.moegg")),
    ("hf:ann/big/m.moegg", Address("ann/big", "m.moegg")), ("hf:ann/big/a/b.moegg", Address("ann/big", "a/b.moegg")),
    ("ann/big:a/b.moegg", Address("ann/big", "a/b.moegg")), ("hf:ann/big@v1.0/m.moegg", Address("ann/big", "m.moegg", "v1.0")),
    ("ann/big@abc:m.moegg", Address("ann/big", "m.moegg", "abc")), ("hf:a.b/C-d_e", Address("a.b/C-d_e"))])
def test_addresses(text, address):
    assert parse_address(text) == address and parse_address(str(address)) == address


@pytest.mark.parametrize("text", ["", "hf:", "big", "hf:big", "ann/", "/big", "hf:ann//m", "ann/big@", "../big", "ann/..",
                                  "hf:ann/big/../x", "ann/big:", "ann/big:/etc/x", "ann/big:a//b", "ann/big:a/../../b",
                                  "ann/big:a\\b", "ann/big:a\nb", "an n/big", "hf:ann/big/./x", "ann/" + "x" * 200])
def test_other_words_are_refused(text):
    with pytest.raises(UsageError, match="hub-address") as e:
        print(parse_address(text))
    assert "\n" not in str(e.value)


def test_each_revision_has_its_own_place():
    assert parse_address("ann/big:a/b.moegg").local(Path("/m")) == Path("/m/ann/big/a/b.moegg")
    assert parse_address("ann/big@v1:b.moegg").local(Path("/m")) == Path("/m/ann/big@v1/b.moegg")
    assert parse_address("ann/big").local(Path("/m")) == Path("/m/ann/big")
    assert is_address("hf:x") and not is_address("ann/big")


@pytest.mark.parametrize("text, meant", [
    ("ann/big", "hf:ann/big"), ("https://huggingface.co/ann/big", "hf:ann/big"), ("https:/huggingface.co/ann/big/tree/main", "hf:ann/big"),
    ("hf.co/ann/big:Q4_K_M", "hf:ann/big"), ("https://huggingface.co/ann/big?x=1", "hf:ann/big"), ("ann/big/m.gguf", None), ("big", None),
    ("/ann/big", None), ("../big", None), ("https://huggingface.co/ann", None), ("https://example.org/ann/big", None), ("a\nb/c", None)])
def test_the_page_of_a_repository_is_understood_but_not_taken_for_its_address(text, meant):
    """People paste what their browser shows; a Path has taken one of its slashes."""
    found = likely(text)
    assert (found and str(found)) == meant
    if text.startswith("http") and meant:
        with pytest.raises(UsageError, match=f"did you mean {meant}"):
            parse_address(text)
