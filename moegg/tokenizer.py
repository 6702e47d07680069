"""One class over a Hugging Face tokenizer.json or a SentencePiece model: text to ids, ids to text, and which ids end a turn.

Owns: the line between special tokens and text. Special tokens are what the tokenizer's files declare as such
(`special: true`, SentencePiece CONTROL); text that only looks like one stays text unless `special=True` is asked for. Added
tokens that are not special (`<think>`) are atomic either way. BOS is put in front here, never by a post-processor.
Decoding has one path, `StreamDecoder` (moegg/stream.py); whole texts go through it too, so both agree.
Refuses: chat templates (moegg/chat.py), sampling, downloads. `clean_up_tokenization_spaces` is never honoured: it loses text.

Deviation from the `tokenizers` library: it turns a run of byte tokens that is not UTF-8 into one U+FFFD per byte of the whole
run; here the sound characters of the run survive, which a stream needs.
"""
from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sentencepiece
import tokenizers

from moegg.arch import ConfigReader
from moegg.errors import BadRequest, ContextFull, FormatError, MoeggError, UnsupportedModel
from moegg.stream import StreamDecoder

JSON_MEDIA, SENTENCEPIECE_MEDIA = "application/json", "application/x-sentencepiece"

# Special tokens that end a turn whatever the configs forget. Names as in llama.cpp's end-of-generation list
# (src/llama-vocab.cpp), without its fill-in-the-middle tokens.
END_OF_TURN = frozenset((
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>", "<turn|>", "<eos>",
    "</s>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|eot|>", "[e~[",
    "<end_of_utterance>", "<｜end▁of▁sentence｜>", "<|END_OF_TURN_TOKEN|>", "<|role_end|>"))
# Special tokens with which templates open the next turn: a model that writes one has overrun its own.
TURN_MARKERS = frozenset((
    "<|im_start|>", "<start_of_turn>", "<|turn>", "<|start_header_id|>", "<|header_start|>", "<|user|>", "<|system|>",
    "<|observation|>", "<|im_user|>", "<|im_system|>", "<｜User｜>", "<|START_OF_TURN_TOKEN|>", "<|start_of_role|>", "]~b]"))

_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_SENTINEL = "\ufdd0moegg\ufdd0"     # noncharacters: an added token that stands for "text came before"


@dataclass(frozen=True)
class AddedToken:
    """A token that is found in the text before any splitting. strip flags: it swallows blank space on that side."""
    content: str
    special: bool
    lstrip: bool = False
    rstrip: bool = False


class Finder:
    """Finds the longest of many strings at the earliest position, scanning left to right without overlaps."""

    def __init__(self, words: Iterable[str]):
        self.words = frozenset(w for w in words if w)
        self._lasts = {w[-1] for w in self.words}
        self._longest = max(map(len, self.words), default=0)
        self._lengths: dict[str, list[int]] = {}
        for first, length in sorted({(w[0], len(w)) for w in self.words}, reverse=True):
            self._lengths.setdefault(first, []).append(length)

    def spans(self, text: str, unless: str = "") -> Iterator[tuple[int, int]]:
        """[start, stop) of each hit. A hit that is followed by the character `unless` is none."""
        at, end = 0, len(text)
        while at < end:
            for n in self._lengths.get(text[at], ()):
                if at + n <= end and text[at:at + n] in self.words and not (unless and text.startswith(unless, at + n)):
                    yield at, at + n
                    at += n
                    break
            else:
                at += 1

    def seams(self, text: str) -> Iterator[int]:
        """Positions inside `text` that cut what, at its ends, could become a word together with neighbouring text."""
        reach = self._longest - 1
        for n in range(1, min(reach, len(text)) + 1):
            if text[n - 1] in self._lasts and any(w.endswith(text[:n]) and len(w) > n for w in self.words):
                yield 1
                break
        for at in range(max(0, len(text) - reach), len(text)):
            if text[at] in self._lengths and any(w.startswith(text[at:]) and len(w) > len(text) - at for w in self.words):
                yield at + 1


class Tokenizer:
    """vocab_size: ids the model has. bos_id: int or None. eos_ids: ids that end a turn. turn_ids: ids that open another one.
    declared: those of eos_ids that the model's own files name. special_ids: ids not shown to users. named: {'bos_token': '<s>', ...}
    for templates."""

    def __init__(self, backend: _Fast | _SentencePiece, config: Mapping[str, Any], vocab_size: int, eos_ids: Iterable[int] = (),
                 ends: Iterable[str] = ()):
        reader = _reader(config)
        self._backend = backend
        self.vocab_size = vocab_size
        self.named = {key: text for key in _NAMED if (text := _content(reader, config, key))}
        added = backend.added
        self.special_ids = frozenset(i for i, t in added.items() if t.special)
        self.bos_id = backend.find(self.named["bos_token"]) if "bos_token" in self.named else None
        special = {added[i].content: i for i in self.special_ids}
        found = {special[name] for name in END_OF_TURN & special.keys()} | {i for name in ends if (i := backend.find(name)) is not None}
        end = backend.find(self.named.get("eos_token", ""))
        found |= {i for key in ("eot_token", "eom_token") if (i := backend.find(_content(reader, config, key) or "")) is not None}
        if {"<|return|>", "<|call|>"} <= special.keys() or {"<|calls|>", "<|flush|>"} <= special.keys():
            found.discard(special.get("<|end|>"))    # there it closes a message inside a turn, as in harmony
        self.declared = frozenset({*eos_ids, end} - {None})
        self.eos_ids = self.declared | found
        self.turn_ids = frozenset(special[name] for name in TURN_MARKERS & special.keys()) - self.eos_ids
        add_bos = reader.bool("add_bos_token", default=backend.default_bos)
        self.prefix_ids = backend.prefix if add_bos is None else [self.bos_id] if add_bos and self.bos_id is not None else []
        self.specials = Finder(special)
        self._strips = {t.content: t for t in added.values() if t.lstrip or t.rstrip}
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def from_sections(cls, tokenizer: bytes, media: str, tokenizer_config: Mapping[str, Any] | None, vocab_size: int,
                      eos_ids: Iterable[int] = (), ends: Iterable[str] = ()) -> Tokenizer:
        """From a container's bytes. `eos_ids`: those of config.json and generation_config.json, see eos_ids_of. `ends`: tokens that
        end turns besides, as far as there are such.

        Raises FormatError for damaged bytes, UnsupportedModel for a kind of tokenizer that moegg cannot decode.
        """
        config = tokenizer_config or {}
        with _library("cannot be used"):
            if media == SENTENCEPIECE_MEDIA:
                return cls(_SentencePiece(tokenizer, config), config, vocab_size, eos_ids, ends)
            if media == JSON_MEDIA:
                return cls(_Fast(tokenizer), config, vocab_size, eos_ids, ends)
        raise UnsupportedModel(f"tokenizer: unknown media type: got {media!r}, expected {JSON_MEDIA} or {SENTENCEPIECE_MEDIA}",
                               "tokenizer-media")

    def encode(self, text: str, *, special: bool = False, add_bos: bool = False) -> list[int]:
        """Ids of `text`. special: special tokens written in the text become their ids; otherwise they stay text.

        add_bos: put in front what the tokenizer's files want before raw text (its BOS, often nothing), unless it is there.
        Raises BadRequest if an id is not in the model's vocabulary, FormatError if the tokenizer cannot cope with the text.
        """
        with _library("fails on this text"):
            ids = self._backend.encode(_sound(text), special, True)
        if add_bos and ids[:len(self.prefix_ids)] != self.prefix_ids:
            ids = self.prefix_ids + ids
        return self._in_model(ids)

    def encode_marked(self, text: str, marker: str) -> list[int]:
        """Like encode(special=True), but special tokens that `marker` characters break up stay text; markers are dropped."""
        text = _sound(text)
        ids: list[int] = []
        at, strip = 0, False
        for start, stop in self.specials.spans(text, unless=marker):
            token = self._strips.get(text[start:stop])
            ids += self._segment(text[at:start].replace(marker, ""), at == 0, strip, bool(token and token.lstrip))
            ids.append(self._backend.find(text[start:stop]))
            at, strip = stop, bool(token and token.rstrip)
        ids += self._segment(text[at:].replace(marker, ""), at == 0, strip, False)
        return self._in_model(ids)

    def check_length(self, characters: int, ctx: int) -> None:
        """Raises ContextFull for a text of so many characters that is more than `ctx` tokens whatever they are: tokenising takes a
        hundred times a text's memory."""
        if characters >= ctx and (least := characters // self._longest) >= ctx:
            raise ContextFull(f"context: the prompt has at least {least} tokens and the context holds {ctx}: no room for an answer; shorten the "
                              "prompt, or use a larger --ctx", "context-full")

    @cached_property
    def _longest(self) -> int:
        """Bytes of the longest token."""
        return max(1, *(len(self.token_bytes(i)) for i in range(self.vocab_size)))

    def id_of(self, text: str) -> int | None:
        """The id of the token with exactly this text; None if there is none."""
        return self._backend.find(text)

    def decode(self, ids: Sequence[int], skip_special: bool = False) -> str:
        """Text of `ids`; skip_special leaves out special tokens only. Ids between the tokenizer's and the model's size: ''."""
        stream = self.stream(skip_special=skip_special)
        return "".join([stream.push(i) for i in ids]) + stream.flush()

    def stream(self, *, skip_special: bool = True, continues: bool = False, keep: Iterable[int] = ()) -> StreamDecoder:
        """A decoder for ids as they come. continues: the text goes on from a prompt, so a leading space is shown.

        keep: special ids to show all the same (reasoning tags that are special).
        """
        skip = self.special_ids - frozenset(keep) if skip_special else frozenset()
        return StreamDecoder(self.token_bytes, skip, self._backend.strip_start and not continues)

    def token_bytes(self, token: int) -> bytes:
        """The bytes that this id stands for; b'' if the tokenizer has no such id. Raises BadRequest outside the model."""
        got = self._bytes.get(token)
        if got is None:
            if not 0 <= token < self.vocab_size:
                raise BadRequest(f"token id: outside the model's vocabulary: got {token}, expected 0 to {self.vocab_size - 1}",
                                 "token-range")
            got = self._bytes[token] = self._decode(token)
        return got

    def _decode(self, token: int) -> bytes:
        with _library("has a token that is no text"):
            return self._backend.to_bytes(token)

    def _segment(self, text: str, start: bool, lstrip: bool, rstrip: bool) -> list[int]:
        text = text.lstrip() if lstrip else text
        text = text.rstrip() if rstrip else text
        with _library("fails on this text"):
            return self._backend.encode(text, False, start) if text else []

    def _in_model(self, ids: list[int]) -> list[int]:
        if ids and max(ids) >= self.vocab_size:
            bad = next(i for i in ids if i >= self.vocab_size)
            raise BadRequest(f"prompt: token {self._decode(bad).decode(errors='replace')!r} is unknown to the model: "
                             f"got id {bad}, expected less than {self.vocab_size}", "token-range")
        return ids


def eos_ids_of(*configs: Mapping[str, Any] | None) -> set[int]:
    """The union of `eos_token_id` (an int, a list, or null) over config.json, generation_config.json and their like.

    Raises FormatError for anything else.
    """
    ids: set[int] = set()
    for config in configs:
        value = (config or {}).get("eos_token_id")
        for one in value if isinstance(value, list) else [value]:
            token = ConfigReader({"eos_token_id": one}, where="config").int("eos_token_id", default=None)
            ids |= {token} - {None}
    return ids


def _reader(config: Mapping[str, Any]) -> ConfigReader:
    return ConfigReader(config, where="tokenizer_config")


def _content(reader: ConfigReader, config: Mapping[str, Any], key: str) -> str | None:
    """The text of a token as tokenizer_config.json may write it: a string, an object with 'content', or null."""
    return (reader.child(key).str("content", default=None) if isinstance(config.get(key), Mapping)
            else reader.str(key, default=None))


@contextmanager
def _library(what: str) -> Iterator[None]:
    """Whatever the libraries for tokenizers raise, panics of Rust code included, as FormatError: it is the file's fault."""
    try:
        yield
    except (MoeggError, MemoryError):
        raise
    except BaseException as e:
        if isinstance(e, Exception) or type(e).__name__ == "PanicException":        # that one is no Exception
            first = str(e).partition("\n")[0]
            raise FormatError(f"tokenizer: {what}: {type(e).__name__}: {first}", "tokenizer-damaged") from e
        raise


def _sound(text: str) -> str:
    """`text` with surrogate pairs joined and lone surrogates (bad JSON escapes, undecodable input) as U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# --- tokenizer.json -----------------------------------------------------------------------------------------------------

def _byte_letters() -> list[str]:
    """The printable character that byte-level BPE (GPT-2) writes for each byte value."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (b for b in range(256) if b not in printable)
    table = {b: chr(b) for b in printable} | {b: chr(256 + n) for n, b in enumerate(others)}
    return [table[b] for b in range(256)]


BYTE_LETTERS = _byte_letters()
_LETTER_BYTES = {letter: byte for byte, letter in enumerate(BYTE_LETTERS)}


# With a prefix of pieces the library cuts merged tokens within a character, and ends the process over the message. Keys may be escaped.
_PIECE_PREFIX = re.compile(('(?i)"' + "".join(rf"(?:{c}|\\u00{ord(c):02x})" for c in "continuing_subword_prefix") + r'"\s*:\s*"[^"]').encode())


class _Fast:
    """tokenizer.json behind the `tokenizers` library."""
    default_bos = None      # the post-processor tells

    def __init__(self, data: bytes):
        if _PIECE_PREFIX.search(data):
            raise UnsupportedModel("tokenizer: model has a 'continuing_subword_prefix', expected byte-level BPE or SentencePiece-style pieces",
                                   "tokenizer-decoder")
        with _library("not a readable tokenizer.json"):
            self._lib = tokenizers.Tokenizer.from_buffer(data)
        self._lib.no_truncation()
        self._lib.no_padding()
        self._lock = threading.Lock()       # encode_special_tokens is a switch of the library's object, not an argument
        self.added = {i: AddedToken(t.content, t.special, t.lstrip, t.rstrip)
                      for i, t in self._lib.get_added_tokens_decoder().items()}
        unknown = self.find(getattr(self._lib.model, "unk_token", None) or "")
        self._forbidden = {i for i, t in self.added.items() if t.special} - {unknown}
        self._read_decoder()
        self.prefix = self._read_prefix()
        self._before: list[str] = []
        if any(step.get("prepend_scheme") == "first" for step in _steps(self._lib.pre_tokenizer)):
            self._before = [_SENTINEL]
            self._lib.add_tokens([tokenizers.AddedToken(_SENTINEL, normalized=False)])

    def _read_decoder(self) -> None:
        self._byte_level, self._byte_tokens, self.strip_start = False, False, False
        self._replace: list[tuple[str, str]] = []
        for step in _steps(self._lib.decoder):
            kind = step["type"]
            if kind == "ByteLevel":
                self._byte_level = True
            elif kind == "ByteFallback":
                self._byte_tokens = True
            elif kind == "Replace" and "String" in step["pattern"]:
                self._replace.append((step["pattern"]["String"], step["content"]))
            elif kind == "Metaspace":
                self._replace.append((step["replacement"], " "))
                self.strip_start = step.get("prepend_scheme", "always") != "never"
            elif kind == "Strip" and step["content"] == " " and (step["start"], step["stop"]) == (1, 0):
                self.strip_start = True
            elif kind != "Fuse":
                raise UnsupportedModel(f"tokenizer: decoder step {kind!r} is not supported; expected byte-level BPE or "
                                       "SentencePiece-style decoding", "tokenizer-decoder")

    def _read_prefix(self) -> list[int]:
        """What the post-processor puts before a text: BOS, or nothing, or a model's own pair of tokens."""
        with_text = self._lib.encode("a", add_special_tokens=True).ids
        text = self._lib.encode("a", add_special_tokens=False).ids
        at = next((n for n in range(len(with_text)) if with_text[n:n + len(text)] == text), 0)
        return with_text[:at]

    def find(self, content: str) -> int | None:
        return self._lib.token_to_id(content)

    def encode(self, text: str, special: bool, start: bool) -> list[int]:
        before = [] if start else self._before
        with self._lock:
            self._lib.encode_special_tokens = not special
            ids = self._lib.encode("".join([*before, text]), add_special_tokens=False).ids[len(before):]
        if not special and not self._forbidden.isdisjoint(ids):     # merges of a careless vocabulary can spell '</s>'
            return [u for i in ids for u in (self._spell(self.added[i].content) if i in self._forbidden else (i,))]
        return ids

    def to_bytes(self, token: int) -> bytes:
        piece = self._lib.id_to_token(token)
        if piece is None or piece == _SENTINEL:
            return b""
        if self._byte_level:
            if token not in self.added and all(ch in _LETTER_BYTES for ch in piece):
                return bytes(_LETTER_BYTES[ch] for ch in piece)
            return piece.encode()
        if self._byte_tokens and (byte := _byte_of(piece)) is not None:
            return bytes([byte])
        for old, new in self._replace:
            piece = piece.replace(old, new)
        return piece.encode()

    def _spell(self, text: str) -> list[int]:
        """`text` in the smallest units of the vocabulary, so that no token is atomic."""
        if self._byte_level:
            units = [BYTE_LETTERS[b] for b in text.encode()]
        else:
            units = [u for ch in text for u in ([ch] if self.find(ch) is not None else [f"<0x{b:02X}>" for b in ch.encode()])]
        return [i for u in units if (i := self.find(u)) is not None]


def _steps(component: Any) -> list[dict[str, Any]]:
    """The settings of a decoder or pre-tokenizer, sequences laid flat; [] if there is none."""
    if component is None:
        return []
    todo, flat = [json.loads(component.__getstate__())], []
    while todo:
        step = todo.pop(0)
        inner = step.get("decoders", step.get("pretokenizers"))
        if inner is None:
            flat.append(step)
        else:
            todo = [*inner, *todo]
    return flat


def _byte_of(piece: str) -> int | None:
    """The value of a byte token '<0x0A>', or None."""
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        try:
            return int(piece[3:5], 16)
        except ValueError:
            return None
    return None


# --- SentencePiece ------------------------------------------------------------------------------------------------------

# A message that follows another of the same field is merged into it: ModelProto.normalizer_spec.add_dummy_prefix = false.
_NO_DUMMY_PREFIX = b"\x1a\x02\x18\x00"


def _added(config: Mapping[str, Any]) -> Iterator[tuple[int, AddedToken]]:
    """The tokens of tokenizer_config.json's added_tokens_decoder: {"7": {"content", "special", "lstrip", "rstrip"}}."""
    tokens = _reader(config).child("added_tokens_decoder")
    for key in _reader(config).dict("added_tokens_decoder", default={}):
        if not re.fullmatch("[0-9]{1,9}", key):
            raise tokens.wrong(key, "expected token ids as keys")
        token = tokens.child(key)
        flags = (token.bool(flag, default=False) for flag in ("special", "lstrip", "rstrip"))
        yield int(key), AddedToken(token.str("content"), *flags)


class _SentencePiece:
    """A SentencePiece model with the tokens that tokenizer_config.json adds to it."""
    default_bos = True      # what the reference implementations assume for this kind

    def __init__(self, data: bytes, config: Mapping[str, Any]):
        self._lib = self._later = sentencepiece.SentencePieceProcessor()
        with _library("not a readable SentencePiece model"):
            self._lib.LoadFromSerializedProto(data)
            self._pieces = [self._lib.id_to_piece(i) for i in range(self._lib.get_piece_size())]
        size = len(self._pieces)
        self.added = {i: AddedToken(piece, True) for i, piece in enumerate(self._pieces)
                      if self._lib.is_control(i) or self._lib.is_unknown(i)}
        for i, token in _added(config):
            if i >= size or token.special:
                self.added[i] = token
        self._ids = {t.content: i for i, t in self.added.items()}
        self._all = Finder(self._ids)
        self._plain = Finder(t.content for i, t in self.added.items() if not t.special)
        self.prefix: list[int] = []
        self.strip_start = any(self._pieces[i].startswith("▁") for i in self._lib.encode("a")[:1])
        if self.strip_start and config.get("legacy") is False:      # then only the text's very start gets a space
            self._later = sentencepiece.SentencePieceProcessor()
            self._later.LoadFromSerializedProto(data + _NO_DUMMY_PREFIX)

    def find(self, content: str) -> int | None:
        if (token := self._ids.get(content)) is not None:
            return token
        token = self._lib.piece_to_id(content)
        return token if token != self._lib.unk_id() or content == self._pieces[token] else None

    def encode(self, text: str, special: bool, start: bool) -> list[int]:
        ids: list[int] = []
        at, lstrip = 0, False
        finder = self._all if special else self._plain
        for begin, stop in [*finder.spans(text), (len(text), len(text))]:
            token = self._ids.get(text[begin:stop])
            part = text[at:begin].lstrip() if lstrip else text[at:begin]
            part = part.rstrip() if token is not None and self.added[token].lstrip else part
            ids += (self._lib if start and at == 0 else self._later).encode(part)
            if token is not None:
                ids.append(token)
            at, lstrip = stop, token is not None and self.added[token].rstrip
        return ids

    def to_bytes(self, token: int) -> bytes:
        if token in self.added:
            return self.added[token].content.encode()
        if token >= len(self._pieces):
            return b""
        piece = self._pieces[token]
        return bytes([int(piece[3:5], 16)]) if self._lib.is_byte(token) else piece.replace("▁", " ").encode()
