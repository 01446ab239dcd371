"""Specs of mixers that keep one state for a sequence: convolutions, state space models, linear attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo_engine.attention.backend import KVGroupSpec, StateSpec
from octavo_engine.model.spec.norms import GatedNormSpec, NormSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvSpec:
    """A gated causal convolution of each channel over the last few tokens (LFM2, arXiv 2511.23404).

    One projection gives b, c and x; the result is a projection of c * convolution(b * x).
    """

    channels: int
    width: int
    """The number of tokens that the convolution reads, the current one included."""
    bias: bool = False
    """Whether both projections and the convolution have biases."""

    @property
    def kv_group(self) -> KVGroupSpec:
        """The state of a sequence, without layer numbers: the inputs of the convolution that its next token sees."""
        return KVGroupSpec("recurrent", (), 0, 0, states=(StateSpec((self.width - 1) * self.channels),))


@dataclass(frozen=True, slots=True, kw_only=True)
class QKConvSpec:
    """The part with a state of Compressed Convolutional Attention (Zaya, arXiv 2510.04476).

    Queries and keys go through two causal convolutions, first of each channel, then of each head's channels together;
    some of the values are those of the token before.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    widths: tuple[int, int]
    """The number of tokens that each convolution reads, the current one included."""
    delayed: int
    """The size of the values that are those of the token before, of all ranks' heads."""

    @property
    def past(self) -> int:
        """The number of earlier tokens that both convolutions together read."""
        return sum(self.widths) - 2

    @property
    def kv_group(self) -> KVGroupSpec:
        """The state of a sequence, without layer numbers: the last queries and keys, and the last delayed values."""
        channels = (self.num_heads + self.num_kv_heads) * self.head_dim
        states = (StateSpec(self.past * channels), StateSpec(self.delayed))
        return KVGroupSpec("recurrent", (), 0, 0, states=states)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2Spec:
    """A state space model in which a head's state fades at one rate (Mamba-2, arXiv 2405.21060).

    One projection gives a gate, x, b, c and time steps; x, b and c go through a causal convolution. A head's state is
    the sum of x times b, older ones scaled down; what is read of it by c is gated, normalised and projected.
    """

    num_heads: int
    head_dim: int
    num_groups: int
    """The number of groups of heads that share b and c."""
    state: int
    """The size of b and c: a head's state has `head_dim` * `state` numbers."""
    width: int
    """The number of tokens that the convolution reads, the current one included."""
    activation: str = "silu"
    """The activation after the convolution."""
    conv_bias: bool = True
    bias: bool = False
    """Whether the first projection has a bias."""
    output_bias: bool = False
    norm: GatedNormSpec | None
    """The norm of the result, around the gate; None: there is only the gate."""
    least_step: float = 0.0
    """Time steps are at least this, in prompts and answers alike, so that how a text is cut into steps changes nothing.
    transformers 5.23 does not limit those of one token with a cache, and so differs where steps are shorter."""
    scales: tuple[float, float, float, float, float] = (1.0, 1.0, 1.0, 1.0, 1.0)
    """Factors of gate, x, b, c and time steps, applied as they are projected (Falcon-H1)."""

    @property
    def num_kv_heads(self) -> int:
        """Ranks share heads and their groups as they share the query heads and KV heads of attention."""
        return self.num_groups

    @property
    def kv_group(self) -> KVGroupSpec:
        """The state of a sequence, without layer numbers: the convolution's last inputs, and the state in float32."""
        channels = self.num_heads * self.head_dim + 2 * self.num_groups * self.state
        conv = StateSpec((self.width - 1) * channels)
        state = StateSpec(self.num_heads * self.head_dim * self.state, torch.float32)
        return KVGroupSpec("recurrent", (), 0, 0, states=(conv, state))


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaSpec:
    """A state space model in which each number of a channel's state fades at a rate of its own (arXiv 2312.00752).

    One projection gives x and a gate; x goes through a causal convolution, and what that gives is projected to b, c and
    a latent, of which a second projection makes the time steps of all channels.
    """

    channels: int
    state: int
    """The size of b and c, and of a channel's state."""
    width: int
    """The number of tokens that the convolution reads, the current one included."""
    step_rank: int
    """The size of the latent of time steps."""
    activation: str = "silu"
    """The activation after the convolution."""
    conv_bias: bool = True
    bias: bool = False
    """Whether the first projection and the last have biases."""
    norm: NormSpec | None = None
    """The norm of b, c and the latent."""

    @property
    def kv_group(self) -> KVGroupSpec:
        """The state of a sequence, without layer numbers: the convolution's last inputs, and the state in float32."""
        conv, state = StateSpec((self.width - 1) * self.channels), StateSpec(self.state * self.channels, torch.float32)
        return KVGroupSpec("recurrent", (), 0, 0, states=(conv, state))


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaHeadsSpec:
    """Mamba in several heads (Zamba, arXiv 2405.16712): each selects by projections of its own channels alone."""

    num_heads: int
    head_dim: int
    """The channels of each head."""
    state: int
    width: int
    """The number of tokens that the convolution reads, the current one included."""
    step_rank: int
    activation: str
    """The activation after the convolution."""
    conv_bias: bool
    bias: bool
    """Whether the first projection and the last have biases."""

    @property
    def num_kv_heads(self) -> int:
        """Ranks divide the heads, which depend on nothing else."""
        return self.num_heads

    @property
    def kv_group(self) -> KVGroupSpec:
        """The state of a sequence, without layer numbers: the convolution's last inputs, and the state in float32."""
        channels = self.num_heads * self.head_dim
        states = (StateSpec((self.width - 1) * channels), StateSpec(self.state * channels, torch.float32))
        return KVGroupSpec("recurrent", (), 0, 0, states=states)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaNetSpec:
    """Linear attention whose state is corrected towards each token's value by the gated delta rule (arXiv 2412.06464).

    Query, key and value go through a causal convolution and an activation, query and key are divided by their lengths;
    what is read of the state is normalised, multiplied with the activation of a gate, and projected.
    """

    num_heads: int
    """The number of heads of values, each with a state of key_dim * value_dim numbers."""
    num_kv_heads: int
    """The number of heads of queries and keys; each serves several consecutive heads of values."""
    key_dim: int
    value_dim: int
    width: int
    """The number of tokens that the convolution reads, the current one included."""
    activation: str
    """The activation after the convolution."""
    norm_eps: float
    most_strength: float = 1.0
    """The largest correction of the state, a factor of the sigmoid (2: negative eigenvalues)."""
    gate_activation: str = "silu"
    """The activation of the gate."""

    @property
    def kv_group(self) -> KVGroupSpec:
        """The state of a sequence, without layer numbers: the convolution's last inputs, and the state in float32."""
        channels = 2 * self.num_kv_heads * self.key_dim + self.num_heads * self.value_dim
        conv = StateSpec((self.width - 1) * channels)
        state = StateSpec(self.num_heads * self.key_dim * self.value_dim, torch.float32)
        return KVGroupSpec("recurrent", (), 0, 0, states=(conv, state))


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiDeltaAttentionSpec:
    """The gated delta rule with a decay for each number of a key (Kimi Delta Attention, arXiv 2510.26692).

    Query, key and value go through causal convolutions and an activation, query and key are divided by their lengths;
    what is read of the state is normalised, multiplied with the sigmoid of a gate, and projected.
    """

    num_heads: int
    """The number of heads, each with a state of head_dim * head_dim numbers."""
    head_dim: int
    width: int
    """The number of tokens that the convolutions read, the current one included."""
    activation: str
    """The activation after the convolutions."""
    norm_eps: float
    low_rank: bool = True
    """Whether decays and gates are projected by way of a vector of `head_dim`."""
    lower_bound: float | None = None
    """The least logarithm of a decay, times a sigmoid (Ling 3); None: minus a softplus, as in Mamba."""

    @property
    def num_kv_heads(self) -> int:
        """Every head has a key and a value of its own."""
        return self.num_heads

    @property
    def kv_group(self) -> KVGroupSpec:
        """The state of a sequence, without layer numbers: the convolutions' last inputs, and the state in float32."""
        conv = StateSpec((self.width - 1) * 3 * self.num_heads * self.head_dim)
        state = StateSpec(self.num_heads * self.head_dim**2, torch.float32)
        return KVGroupSpec("recurrent", (), 0, 0, states=(conv, state))


@dataclass(frozen=True, slots=True, kw_only=True)
class LightningAttentionSpec:
    """Linear attention in which a head's state fades at a constant rate (Lightning Attention, arXiv 2401.04658).

    Query, key and value go through an activation; what is read of the state is normalised over all heads, multiplied
    with the sigmoid of a gate, and projected.
    """

    num_heads: int
    """The number of heads, each with a state of head_dim * head_dim numbers."""
    head_dim: int
    slopes: tuple[float, ...]
    """The slopes of all ranks' heads: a head's state is multiplied with exp(-slope) for each token."""
    activation: str
    norm_eps: float

    @property
    def num_kv_heads(self) -> int:
        """Every head has a key and a value of its own."""
        return self.num_heads

    @property
    def kv_group(self) -> KVGroupSpec:
        """The state of a sequence, without layer numbers: one state in float32."""
        state = StateSpec(self.num_heads * self.head_dim**2, torch.float32)
        return KVGroupSpec("recurrent", (), 0, 0, states=(state,))


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedRecurrenceSpec:
    """A real-gated linear recurrent unit (RG-LRU, arXiv 2402.19427), as RecurrentGemma has it.

    One projection goes through an activation; another through a causal convolution and the recurrence, in which a
    channel's state fades at a rate that the token chooses. Their product is projected.
    """

    num_heads: int
    """The number of blocks of channels; a channel's gate reads the channels of its block."""
    head_dim: int
    width: int
    """The number of tokens that the convolution reads, the current one included."""
    activation: str
    """The activation of the first projection."""

    @property
    def num_kv_heads(self) -> int:
        """Ranks divide the blocks, which depend on nothing else."""
        return self.num_heads

    @property
    def kv_group(self) -> KVGroupSpec:
        """The state of a sequence, without layer numbers: the convolution's last inputs, and the state in float32."""
        channels = self.num_heads * self.head_dim
        states = (StateSpec((self.width - 1) * channels), StateSpec(channels, torch.float32))
        return KVGroupSpec("recurrent", (), 0, 0, states=states)
