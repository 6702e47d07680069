"""Mixers: blocks that stand where attention stands and carry a float state from token to token instead of keys and values.

A state's size does not depend on the context. It cannot go back: a session keeps copies of it at marks (engine/state.py). Kernels:
kernels/csrc/mixers.h; references: tests/reference/mixers.py. Refuses nothing; describe() has checked the sizes.
"""
from __future__ import annotations

from dataclasses import dataclass

from moegg.arch.blocks import Norm
from moegg.arch.tensors import Tensor

PAST_MAX, SCAN_MAX = 16, 64     # past inputs of a convolution, states per channel of a scan (MG_PAST_MAX, MG_SCAN_MAX)


def _pad16(n: int) -> int:
    return -(-n // 16) * 16


@dataclass(frozen=True)
class Conv:
    """Causal depthwise convolution over time: y[t] = act(bias + sum over j of weight[:, j] x[t - (taps - 1 - j) dilation]), zeros
    before the start. weight [C, taps]; act: silu or none."""
    weight: Tensor
    bias: Tensor | None = None
    silu: bool = True
    dilation: int = 1

    @property
    def state_floats(self) -> int:
        channels, taps = self.weight.shape
        return _pad16(channels) * (taps - 1) * self.dilation


@dataclass(frozen=True)
class ShortConv:
    """o(c * conv(b * u)) where b, c and u are linear in the input; the convolution has no activation."""
    b: Tensor
    c: Tensor
    u: Tensor
    o: Tensor
    conv: Conv

    @property
    def state_floats(self) -> int:
        return self.conv.state_floats


@dataclass(frozen=True)
class LowRank:
    """up(down x)."""
    down: Tensor
    up: Tensor


@dataclass(frozen=True)
class DeltaNet:
    """The gated delta rule. Per value head a matrix S [key_dim, value_dim], zero at the start; with unit q and k, q / sqrt(key_dim):

    S = decay S; S += k (beta (v - S^T k))^T; o = S^T q; the block is out(norm(o) * act(gate)). q, k, v: linear, then a convolution
    with SiLU. n_head / n_key_head neighbouring value heads share a key head; tiled: those that are n_key_head apart (GGUF).
    beta = sigmoid of a linear map. decay is one factor per head
    (Gated DeltaNet) or per head and key (KDA), from f, linear in the input: exp(-exp(a_log) softplus(f + bias)), or, if `bound` is
    not 0, exp(bound sigmoid(exp(a_log) (f + bias))). gate_act: 'silu' or 'sigmoid'. norm [value_dim].
    """
    n_head: int
    n_key_head: int
    key_dim: int
    value_dim: int
    q: Tensor
    k: Tensor
    v: Tensor
    q_conv: Conv
    k_conv: Conv
    v_conv: Conv
    decay: Tensor | LowRank
    beta: Tensor
    gate: Tensor | LowRank
    decay_bias: Tensor
    a_log: Tensor
    norm: Norm
    o: Tensor
    gate_act: str = "silu"
    bound: float = 0.0
    tiled: bool = False

    @property
    def decays(self) -> int:
        """Decay factors per token."""
        return self.decay_bias.shape[0]

    @property
    def state_floats(self) -> int:
        return (sum(c.state_floats for c in (self.q_conv, self.k_conv, self.v_conv))
                + self.n_head * self.key_dim * _pad16(self.value_dim))


@dataclass(frozen=True)
class Lightning:
    """Linear attention: S = decays[h] S + k v^T per head, o = S^T q; the block is out(sigmoid(gate) * norm(o)), the norm over all
    heads together. q, k, v: SiLU of linear maps. decays [H]: fixed factors."""
    n_head: int
    head_dim: int
    decays: tuple[float, ...]
    q: Tensor
    k: Tensor
    v: Tensor
    gate: Tensor
    norm: Norm
    o: Tensor

    @property
    def state_floats(self) -> int:
        return self.n_head * self.head_dim * _pad16(self.head_dim)


@dataclass(frozen=True)
class Mamba:
    """A selective scan over C channels with N states each: x = conv(x in) with SiLU; dt, b, c = norms of linear maps of x;
    dt = softplus(dt_up dt + bias); h = exp(-dt exp(a_log)) h + dt b x; the block is out((h c + d x) * silu(z))."""
    x: Tensor
    z: Tensor
    conv: Conv
    dt: Tensor
    b: Tensor
    c: Tensor
    dt_norm: Norm
    b_norm: Norm
    c_norm: Norm
    dt_up: Tensor
    dt_bias: Tensor
    a_log: Tensor
    d: Tensor
    o: Tensor

    @property
    def state_floats(self) -> int:
        channels, states = self.a_log.shape
        return self.conv.state_floats + _pad16(channels) * states


Mixer = ShortConv | DeltaNet | Lightning | Mamba
