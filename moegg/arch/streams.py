"""Blocks around the layers of a model whose residual is several streams: gated readers and writers, hashed n-gram embeddings.

X is B streams of D values side by side. Kernels: kernels/csrc/op_streams.c; references: tests/reference/streams.py.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moegg.arch.blocks import Norm
from moegg.arch.mixers import Conv
from moegg.arch.tensors import Tensor


@dataclass(frozen=True)
class Streams:
    """What a block reads of the streams, and how they take its result y: n = X with each stream normed apart (norm [B D]);
    input = mean over the streams of sigmoid(up silu(down n / B)) * n; X_b += 2 sigmoid(inject n / B)_b y. inject None: only read.
    """
    norm: Norm
    down: Tensor
    up: Tensor
    inject: Tensor | None = None


@dataclass(frozen=True)
class NGram:
    """Rows of a table by hashes of a token and its predecessors; before the start, and beyond an end-of-sequence id, stands `eos`.

    mix_n = t0 m0 xor ... xor t_{n-1} m_{n-1} in 64 bits, for n = 2..len(multipliers). Of each there are moduli / (len - 1) heads; head h
    takes row mix mod moduli[h] + offsets[h] of the table [rows, dim], which lies in shards of equally many rows. The rows side by side.
    """
    multipliers: tuple[int, ...]
    moduli: tuple[int, ...]
    offsets: tuple[int, ...]
    eos: int
    shards: tuple[Tensor, ...]

    @property
    def width(self) -> int:
        return len(self.moduli) * self.shards[0].shape[1]


@dataclass(frozen=True)
class Ple:
    """X += g + conv(norm_conv g) with g_b = sigmoid(s_b) (value e), e the n-gram embedding, s_b = signed root of the product of
    norm_key(key e)_b and norm_query(X)_b over sqrt(D). Norms [B D] of each stream apart; the convolution has SiLU."""
    ngram: NGram
    key: Tensor
    value: Tensor
    norm_key: Norm
    norm_query: Norm
    norm_conv: Norm
    conv: Conv

    @property
    def state_floats(self) -> int:
        return self.conv.state_floats


def splitmix64(x: int) -> int:
    mask = (1 << 64) - 1
    x = (x + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def hash_multipliers(vocab: int, n: int, layer: int, seed: int) -> tuple[int, ...]:
    """The n odd multipliers of the layer-th n-gram table: small enough that no product of a token id leaves 63 bits."""
    half, base = max(1, ((1 << 63) - 1) // vocab // 2), seed + 10007 * layer
    return tuple(2 * (splitmix64((base + 0x9E3779B97F4A7C15 * (i + 1)) & ((1 << 64) - 1)) % half) + 1 for i in range(n))


def primes_from(first: int, n: int) -> list[int]:
    """The first n primes >= first."""
    out, x = [], max(first, 2)
    while len(out) < n:
        if _is_prime(x):
            out.append(x)
        x += 1
    return out


def _is_prime(x: int) -> bool:
    return x % 2 == 1 and all(x % d for d in range(3, int(x ** 0.5) + 1, 2)) or x == 2


def offsets_of(sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(sum(sizes[:i]) for i in range(len(sizes)))
