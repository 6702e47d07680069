"""The vocabulary in which an architecture is described, and ConfigReader, the only way a module reads its config.

`describe(cfg) -> Model` of moegg/models/*.py builds one frozen `Model`; converter, planner, scheduler, forward pass and tests
derive everything from it. Shapes are as stored, [out, in], row-major; letters as in CONTRIBUTING.md's glossary:
D hidden size, H/Hkv query/KV heads, Dh head dim, F width, E experts, K top-k, V vocabulary.
A new architecture of known kinds is one module; a new kind of block is a kernel, a state rule, a reference and a decision.
"""
from moegg.arch.blocks import Gqa, Indexer, Mlp, Norm, PerLayerGate, PerLayerInputs, Xielu
from moegg.arch.chat import Chat, choose_chat
from moegg.arch.config import F32_MAX, F32_MIN, I32_MAX, ConfigReader, fits_f32
from moegg.arch.mixers import PAST_MAX, SCAN_MAX, Conv, DeltaNet, Lightning, LowRank, Mamba, Mixer, ShortConv
from moegg.arch.mla import Mla
from moegg.arch.model import Layer, Model, walk
from moegg.arch.moe import MAX_GROUPS, Moe, Router
from moegg.arch.rope import ROPE_TYPES, Rope, read_layer_ropes, read_rope, rope_of
from moegg.arch.streams import NGram, Ple, Streams, hash_multipliers, offsets_of, primes_from
from moegg.arch.tensors import ROLES, Experts, Part, Src, Tensor

__all__ = ["F32_MAX", "F32_MIN", "I32_MAX", "MAX_GROUPS", "PAST_MAX", "ROLES", "ROPE_TYPES", "SCAN_MAX", "Chat", "ConfigReader", "Conv", "DeltaNet",
           "Experts", "Gqa", "Indexer", "Layer", "Lightning", "LowRank", "Mamba", "Mixer", "Mla", "Mlp", "Model", "Moe", "NGram", "Norm",
           "Part", "PerLayerGate", "PerLayerInputs", "Ple", "Rope", "Router",
           "ShortConv", "Src", "Streams", "Tensor", "Xielu", "choose_chat", "fits_f32", "hash_multipliers",
           "offsets_of", "primes_from", "read_layer_ropes", "read_rope", "rope_of", "walk"]
