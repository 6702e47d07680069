"""`moegg server` for a file without a tokenizer, such as a synthetic one: token i is the word ' i'. For measurements only.

    python bench/server_ids.py MODEL [options of moegg server]
"""
import json
import sys

from moegg import cli
from moegg.commands import server
from moegg.tokenizer import JSON_MEDIA, Tokenizer


def words(container, vocab: int) -> Tokenizer:
    """A byte-level tokenizer whose whole words are numbers."""
    text = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "post_processor": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "ignore_merges": True, "merges": [], "vocab": {f"Ġ{i}": i for i in range(vocab)}}}
    return Tokenizer.from_sections(json.dumps(text).encode(), JSON_MEDIA, {}, vocab)


if __name__ == "__main__":
    server.open_tokenizer = words
    sys.argv = ["moegg", "server", *sys.argv[1:]]
    sys.exit(cli.main())
