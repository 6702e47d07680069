"""A Hugging Face tokenizer.json from the tokenizer that GGUF metadata describes.

Owns: the two vocabulary kinds that GGUF decoder models use. `gpt2`: byte-level BPE with merges, where the pre-tokenizer is only
named (`tokenizer.ggml.pre`) and its regular expression must be known here. `llama`: SentencePiece-style, where a score per
token stands for merges. Also what GGUF says about BOS, end-of-turn ids, chat templates and sampling defaults.
Refuses: unigram, WordPiece, RWKV and PLaMo vocabularies; a pre-tokenizer name it does not know, since a guess would give
slightly wrong ids for ever; keys of another type than GGUF's; tokens longer than any release has (lengths in characters).
Sources: llama.cpp, src/llama-vocab.cpp for GGUF's keys, token types, defaults and which name means which expression. The
expressions are those of the models' own tokenizer.json, also where llama.cpp only comes near them (capitals inside words for
kimi-k2, exotic blanks for deepseek-llm and deepseek-coder). NFC, which GGUF does not record, is added for the families whose
tokenizer.json has it.
"""
from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moegg.arch import ConfigReader
from moegg.errors import FormatError, UnsupportedModel

TOKEN_LIMIT, VOCABULARY_LIMIT = 1024, 1 << 23   # characters of one token and of all: finding merge pairs looks at every cut
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4     # tokenizer.ggml.token_type; 5 is unused, 6 a byte

_KINDS = {str: "text", int: "a whole number", float: "a float"}

# Files from before converters marked them as control tokens; as user-defined ones, chat text could forge a turn with them.
_TURN_LIKE = re.compile(r"<\|.*\|>|<｜.*｜>|<(start|end)_of_turn>", re.DOTALL)


@dataclass(frozen=True)
class Pre:
    """How a named pre-tokenizer works: split by each expression in turn, then merge within the pieces."""
    splits: tuple[str, ...]
    nfc: bool = False
    whole_first: bool = False   # a piece that is in the vocabulary is taken whole, whatever the merges say
    add_bos: bool = False       # what holds where the file does not say


_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _words(digits: str) -> str:
    """The Llama 3 and Qwen 2 shape: words with at most one leading mark, numbers of `digits`."""
    return rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACE}"


def _cased(digits: str, suffix: str, upper: str = _UPPER, lower: str = _LOWER, symbols: str = r"[\r\n/]*") -> str:
    """The o200k shape: words split where lower case turns upper."""
    head = r"[^\r\n\p{L}\p{N}]?"
    return rf"{head}{upper}*{lower}+{suffix}|{head}{upper}+{lower}*{suffix}|{digits}| ?[^\s\p{{L}}\p{{N}}]+{symbols}|{_SPACE}"


_DEEPSEEK3 = (
    r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACE)
# The cased letters that DeepSeek's expression lists, as hexadecimal ranges: neither \p{L} nor a union of Unicode categories.
_DEEPSEEK_LETTERS = "".join(
    "-".join(chr(int(end, 16)) for end in span.split("-")) for span in (
        "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C 38E-3A1 3A3-3F5 "
        "3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 "
        "1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC "
        "1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D "
        "212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B "
        "A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 "
        "104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943").split())
_DEEPSEEK_CJK = "[一-龥ࠀ-一가-퟿]+"

_GPT2_PRE = Pre((_GPT2,))
_DIGIT_PRE = Pre((r"\p{N}", _GPT2))
_LLAMA3_PRE = Pre((_words(r"\p{N}{1,3}"),), whole_first=True, add_bos=True)
_QWEN2_PRE = Pre((_words(r"\p{N}"),))
_QWEN2_NFC_PRE = Pre((_words(r"\p{N}"),), nfc=True)
_GPT4O_PRE = Pre((_cased(r"\p{N}{1,3}", _SUFFIX + "?"),), whole_first=True)
_DEEPSEEK3_PRE = Pre(_DEEPSEEK3)
_BAILING_PRE = Pre((
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",))
_QWEN35_PRE = Pre((
    rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACE}",), nfc=True)
_SEED_PRE = Pre((rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACE}",))
_KIMI_PRE = Pre((r"\p{Han}+|" + _cased(r"\p{N}{1,3}", _SUFFIX + "?", rf"[{_UPPER}&&[^\p{{Han}}]]", rf"[{_LOWER}&&[^\p{{Han}}]]",
                                        r"[\r\n]*"),))
_DEEPSEEK_LLM_PRE = Pre((
    r"[\r\n]", rf"\s?[{_DEEPSEEK_LETTERS}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", _DEEPSEEK_CJK, r"\p{N}+"))

PRE_TOKENIZERS: dict[str, Pre] = {
    "default": Pre((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4", "gigachat", "a.x-4.0",
                     "mellum"), _GPT2_PRE),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"), _DIGIT_PRE),
    "command-r": Pre(_DIGIT_PRE.splits, nfc=True),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"), _LLAMA3_PRE),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), Pre(_LLAMA3_PRE.splits)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2"), _QWEN2_NFC_PRE),
    **dict.fromkeys(("hunyuan", "megrez", "solar-open", "grok-2"), _QWEN2_PRE),
    "qwen35": _QWEN35_PRE,
    "seed-coder": _SEED_PRE,
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2"), _GPT4O_PRE),
    "tekken": Pre((_cased(r"\p{N}", ""),), whole_first=True, add_bos=True),
    "youtu": Pre(("[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+", _cased(r"\p{N}", _SUFFIX + "?")), whole_first=True),
    "kimi-k2": _KIMI_PRE,
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), _DEEPSEEK3_PRE),
    "deepseek-llm": _DEEPSEEK_LLM_PRE,
    "deepseek-coder": Pre((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}")),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), _BAILING_PRE),
    "falcon": Pre((r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]")),
}


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> tuple[bytes, dict[str, Any]] | None:
    """(tokenizer.json, tokenizer_config) from raw GGUF keys; None if the file has no tokenizer.

    Raises UnsupportedModel for a kind or a pre-tokenizer that moegg does not know, FormatError for missing or contradicting keys.
    """
    keys = _keys(metadata)
    kind = keys.str("tokenizer.ggml.model", default="none")
    if kind in ("none", "no_vocab"):
        return None
    vocabulary = _Vocabulary(metadata)
    if kind == "gpt2" and keys.str("tokenizer.ggml.pre", default="default") != "gemma4":
        parts, add_bos = _byte_level(metadata)
    elif kind in ("gpt2", "gemma4"):
        parts, add_bos = _spaced_bpe(metadata, vocabulary)
    elif kind == "llama":
        parts, add_bos = _sentencepiece(metadata, vocabulary)
    else:
        raise UnsupportedModel(f"gguf: tokenizer.ggml.model is not supported: got {kind!r}, expected 'gpt2', 'llama' or 'gemma4'",
                               "gguf-tokenizer-kind")
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, **parts.pop("model"), "vocab": vocabulary.ids}
    document = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": vocabulary.added(), **parts,
                "post_processor": None, "model": model}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(), _config(metadata, vocabulary, add_bos)


def generation_config_from_gguf(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """generation_config.json's keys, as far as GGUF has them: special ids, and sampling defaults of general.sampling.*."""
    keys, prefix = _keys(metadata), "general.sampling."
    ends = [i for name in ("eos", "eot", "eom") if (i := _token_id(metadata, name)) is not None]
    names = {"temperature": "temp", "top_p": "top_p", "min_p": "min_p", "repetition_penalty": "penalty_repeat"}
    config: dict[str, Any] = {"eos_token_id": list(dict.fromkeys(ends)) or None, "bos_token_id": _token_id(metadata, "bos"),
                              "pad_token_id": _token_id(metadata, "padding"), "top_k": keys.int(f"{prefix}top_k", default=None)}
    config |= {name: keys.float(f"{prefix}{key}", default=None) for name, key in names.items()}
    return {key: value for key, value in config.items() if value is not None}


def _keys(metadata: Mapping[str, Any]) -> ConfigReader:
    return ConfigReader(metadata, where="GGUF metadata")


def _token_id(metadata: Mapping[str, Any], name: str) -> int | None:
    """The id that tokenizer.ggml.<name>_token_id gives; None if there is none, or no such token, which llama.cpp ignores too."""
    i = _keys(metadata).int(f"tokenizer.ggml.{name}_token_id", default=None, low=-1 << 63, high=1 << 64)
    tokens = metadata.get("tokenizer.ggml.tokens")
    return i if i is not None and 0 <= i < (len(tokens) if isinstance(tokens, list) else 1 << 31) else None


class _Vocabulary:
    """tokens [V], types [V]; ids: text -> id."""

    def __init__(self, metadata: Mapping[str, Any]):
        tokens = _array(metadata, "tokens", str)
        long = max(range(len(tokens)), key=lambda i: len(tokens[i]), default=None)
        if long is None:
            raise FormatError("gguf: tokenizer.ggml.tokens: got 0 entries, expected at least 1", "gguf-tokenizer")
        if len(tokens[long]) > TOKEN_LIMIT:
            raise FormatError(f"gguf: tokenizer.ggml.tokens: entry {long}: got {len(tokens[long])} characters, expected at most "
                              f"{TOKEN_LIMIT}", "gguf-tokenizer")
        if (total := sum(map(len, tokens))) > VOCABULARY_LIMIT:
            raise FormatError(f"gguf: tokenizer.ggml.tokens: got {total} characters in all, expected at most {VOCABULARY_LIMIT}",
                              "gguf-tokenizer")
        self.tokens = [text or f"[EMPTY_{i}]" for i, text in enumerate(tokens)]
        given = "tokenizer.ggml.token_type" in metadata
        types = _array(metadata, "token_type", int, len(tokens))[:len(tokens)] if given else [NORMAL] * len(tokens)
        self.types = [CONTROL if kind == USER_DEFINED and _TURN_LIKE.fullmatch(text) else kind
                      for kind, text in zip(types, self.tokens, strict=True)]
        self.ids = {text: i for i, text in enumerate(self.tokens)}
        if len(self.ids) != len(self.tokens):
            twice = next(text for i, text in enumerate(self.tokens) if self.ids[text] != i)
            raise FormatError(f"gguf: tokenizer.ggml.tokens: got {twice!r} twice, expected {len(self.tokens)} different tokens",
                              "gguf-tokenizer")

    def added(self) -> list[dict[str, Any]]:
        return [{"id": i, "content": self.tokens[i], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                 "special": kind != USER_DEFINED}
                for i, kind in enumerate(self.types) if kind in (UNKNOWN, CONTROL, USER_DEFINED)]

    def named(self, metadata: Mapping[str, Any], key: str) -> str | None:
        """The token that tokenizer.ggml.<key>_token_id names, None if it names none."""
        i = _token_id(metadata, key)
        return None if i is None else self.tokens[i]


def _config(metadata: Mapping[str, Any], vocabulary: _Vocabulary, add_bos: bool) -> dict[str, Any]:
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    config: dict[str, Any] = {name: text for name, key in names.items() if (text := vocabulary.named(metadata, key)) is not None}
    keys = _keys(metadata)
    config["add_bos_token"] = keys.bool("tokenizer.ggml.add_bos_token", default=add_bos) and "bos_token" in config
    config["clean_up_tokenization_spaces"] = False
    main, prefix = keys.str("tokenizer.chat_template", default=""), "tokenizer.chat_template."
    variants = [{"name": key.removeprefix(prefix), "template": keys.str(key)} for key in metadata if key.startswith(prefix)]
    if variants:
        config["chat_template"] = ([{"name": "default", "template": main}] if main else []) + variants
    elif main:
        config["chat_template"] = main
    return config


def _byte_level(metadata: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    name = _keys(metadata).str("tokenizer.ggml.pre", default="default")
    pre = PRE_TOKENIZERS.get(name)
    if pre is None:
        raise UnsupportedModel(f"gguf: tokenizer.ggml.pre is not known: got {name!r}, expected one of "
                               f"{', '.join(sorted(PRE_TOKENIZERS))}", "gguf-tokenizer-pre")
    steps = [*map(_split, pre.splits), _byte_step(add_prefix_space=False)]
    return {
        "normalizer": {"type": "NFC"} if pre.nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": _byte_step(add_prefix_space=True),
        "model": {"merges": _merges(metadata), "ignore_merges": pre.whole_first},
    }, pre.add_bos


def _spaced_bpe(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> tuple[dict[str, Any], bool]:
    """Merges as in BPE, but over plain characters with SentencePiece's space and byte tokens (Gemma 4)."""
    return _spaced(vocabulary, _merges(metadata), "", _split(r"[^\n]+|\n+")), True


def _sentencepiece(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> tuple[dict[str, Any], bool]:
    """Merge pairs such that BPE joins what SentencePiece joins: the pair whose union has the best score, leftmost first."""
    scores = _array(metadata, "scores", float, len(vocabulary.tokens))
    if any(map(math.isnan, scores)):
        raise FormatError("gguf: tokenizer.ggml.scores: got NaN, expected numbers, which can be put in order", "gguf-tokenizer")
    plain = {text: i for text, i in vocabulary.ids.items() if vocabulary.types[i] == NORMAL}
    merges = []
    for text in sorted(plain, key=lambda text: -scores[plain[text]]):
        cuts = ((text[:n], text[n:]) for n in range(1, len(text)))
        pairs = [(left, right) for left, right in cuts if left in plain and right in plain]
        merges += sorted(pairs, key=lambda pair: (plain[pair[0]], plain[pair[1]]))
    space = "▁" if _keys(metadata).bool("tokenizer.ggml.add_space_prefix", default=True) else ""
    return _spaced(vocabulary, merges, space, None), True


def _spaced(vocabulary: _Vocabulary, merges: Sequence[tuple[str, str]], front: str,
            pre_tokenizer: dict[str, Any] | None) -> dict[str, Any]:
    """`front`: what is put before each stretch of text."""
    escape = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    decoders = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    if front:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unknown = next((text for text, kind in zip(vocabulary.tokens, vocabulary.types, strict=True) if kind == UNKNOWN), None)
    return {
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": front}, escape]} if front else escape,
        "pre_tokenizer": pre_tokenizer,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {"merges": merges, "unk_token": unknown, "fuse_unk": True, "byte_fallback": "<0x00>" in vocabulary.ids},
    }


def _split(regex: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def _byte_step(add_prefix_space: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": False, "use_regex": False}


def _merges(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    pairs = []
    for rank, merge in enumerate(_array(metadata, "merges", str)):
        at = merge.find(" ", 1)     # the left part may itself begin with a space
        if at < 0:
            raise FormatError(f"gguf: tokenizer.ggml.merges: entry {rank}: got {merge!r}, expected two parts", "gguf-tokenizer")
        pairs.append((merge[:at], merge[at + 1:]))
    return pairs


def _array(metadata: Mapping[str, Any], key: str, kind: type, length: int = 0) -> list[Any]:
    name = f"tokenizer.ggml.{key}"
    values = metadata.get(name)
    if not isinstance(values, list):
        raise FormatError(f"gguf: {name}: got {type(values).__name__}, expected an array", "gguf-tokenizer")
    if len(values) < length:
        raise FormatError(f"gguf: {name}: got {len(values)} entries, expected at least {length}", "gguf-tokenizer")
    if (wrong := next((i for i, v in enumerate(values) if type(v) is not kind), None)) is not None:
        raise FormatError(f"gguf: {name}: entry {wrong}: got {values[wrong]!r:.60}, expected {_KINDS[kind]}", "gguf-tokenizer")
    return values
