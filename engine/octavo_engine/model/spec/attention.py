"""Specs of attention: to keys and values of earlier tokens, or to one latent of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo_engine.attention.backend import KVGroupSpec, RowSpec
from octavo_engine.model.spec.norms import NormSpec, QKNormSpec
from octavo_engine.model.spec.rope import RopeSpec
from octavo_engine.model.spec.token_index import TokenIndexSpec


@dataclass(frozen=True, slots=True)
class QueryScaling:
    """Queries grow with their position p: times 1 + `beta` * ln(1 + floor((p + `shift`) / `period`)) (Llama 4)."""

    beta: float
    period: int
    """The period in tokens."""
    shift: int = 0
    power: bool = False
    """Whether the factor is (1 + (p + `shift`) / `period`) ** `beta` instead (Beam)."""


@dataclass(frozen=True, slots=True)
class LearntQueryScaling:
    """Queries grow with their position p: times s * ln(1 + p) + b; each head has a learnt s and b (Mistral Large 4)."""


@dataclass(frozen=True, slots=True)
class ALiBiSpec:
    """Attention with linear biases (arXiv 2108.12409): a head's scores grow with a key's position times its slope."""

    max_bias: float = 8.0
    """The slopes of n heads are 2 ** (-max_bias * i / n), i = 1 ... n, if n is a power of two. Otherwise they are those
    of the next lower power, and then every second one of the next higher power."""
    factor: float = 1.0
    """A factor of the added terms."""
    rounded: bool = False
    """Whether slopes, positions and their products are rounded to bfloat16 first (Falcon)."""


@dataclass(frozen=True, slots=True)
class OutputGateSpec:
    """The heads' results are multiplied with an activation of one more projection of the input (arXiv 2505.06708)."""

    activation: Literal["sigmoid", "softplus"] = "sigmoid"
    per_head: bool = False
    """Whether each head has one number instead of one for each of its dimensions."""
    with_query: bool = False
    """Whether the query's projection also has the gate's rows, each head's after its query's (Qwen3-Next)."""
    head_bias: bool = False
    """Whether a number that each head has is added to its gates before the activation (Beam)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """Grouped-query attention (arXiv 2305.13245)."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    """The factor of attention scores: a score is query times key times this factor."""
    rope: RopeSpec | None
    """None: query and key are not rotated."""
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: QKNormSpec | None = None
    clip: float | None = None
    """Query, key and value are clamped to [-clip, clip], after query and key are normalised (OLMo, OLMoE)."""
    query_scaling: QueryScaling | None = None
    value_norm: NormSpec | None = None
    """Each head of the value is normalised by itself."""
    output_norm: NormSpec | None = None
    """RMSNorm of all heads' results together, before the output projection (BitNet)."""
    output_gate: OutputGateSpec | None = None
    adapter_rank: int | None = None
    """The rank of the low-rank weights added to those of query, key and value; None: there are none (Zamba2)."""
    value_dim: int | None = None
    """The size of each head's value, where it is smaller than `head_dim`; cached values are padded with zeros."""
    value_scale: float = 1.0
    """A factor of values, applied before they are cached (MiMo V2)."""
    value_is_key: bool = False
    """Whether the value is the key before its norm and RoPE."""
    kv_of_layer: int | None = None
    """The earlier layer whose cached keys and values are read; None: the layer has its own."""
    causal: bool = True
    """Whether a query sees no tokens after its own. If false, nothing is cached: prompts are computed in one step."""
    window: int | None = None
    """The number of tokens that a query sees, its own included; None: all. Where not causal, so many to each side."""
    chunked: bool = False
    """Whether windows are disjoint chunks: a query sees the tokens of its own chunk up to itself (Llama 4)."""
    softcap: float | None = None
    """Scores become softcap * tanh(score / softcap)."""
    sinks: bool = False
    """Whether each query head has one further logit in the softmax, which has no value (attention sinks)."""
    alibi: ALiBiSpec | None = None
    """The terms added to scaled scores for the distance of a key; the same to both sides where not causal."""
    distance_buckets: int | None = None
    """The number of learnt terms of a head for distances to keys, which are added to scaled scores (MPNet); only where
    not causal. All layers have the same terms. None: there are none."""

    @property
    def rope_size(self) -> int:
        """Dimensions of a head that RoPE rotates, or would rotate: all of them, or the first ones."""
        return self.head_dim

    @property
    def kv_group(self) -> KVGroupSpec | None:
        """The KV cache group of the layer, without layer numbers; None: it reads another layer's, or is not causal."""
        if self.kv_of_layer is not None or not self.causal:
            return None
        kind = "full" if self.window is None else "sliding"
        return KVGroupSpec(kind, (), self.num_kv_heads, self.head_dim, self.window, chunked=self.chunked)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttentionSpec:
    """Multi-head latent attention (arXiv 2405.04434): all heads' keys and values are projected from one latent.

    To a KV cache it is attention with one KV head, whose value is a part of its key.
    """

    num_heads: int
    query_rank: int | None
    """Size of the latent that queries are projected from; None: they are projected from the hidden state."""
    latent: int
    """Size of the latent that keys and values are projected from, which is cached."""
    plain_dim: int
    """The dimensions of a head's query and key that are not rotated."""
    rotary_dim: int
    """The dimensions of a head's query and key that are rotated; the key's are the same for all heads, and are
    cached."""
    value_dim: int
    scale: float
    """The factor of attention scores: a score is query times key times this factor."""
    rope: RopeSpec | None
    norm: NormSpec
    """The norm of both latents."""
    bias: bool = False
    """Whether the projections to latents and of the output have biases."""
    latent_scales: tuple[float, float] = (1.0, 1.0)
    """Factors of the normalised latents of queries, and of keys and values (LongCat)."""
    query_scaling: QueryScaling | LearntQueryScaling | None = None
    output_gate: OutputGateSpec | None = None
    """The gate of the heads' results, by a projection of its own (Ling 3, Hy4)."""
    query_gate: bool = False
    """Whether the queries' projection also has the rows of an output gate, each head's after its query's, and reads the
    queries' latent twice: normalised and as it is (A.X K2)."""
    rotated_norm: bool = False
    """Whether the rotated part of a key has a norm of its own before RoPE (dots3)."""
    sinks: bool = False
    """Whether each head has one further logit in the softmax, which has no value (attention sinks; Hy4)."""
    window: int | None = None
    """Tokens that a query sees, its own included; None: all."""
    kv_of_layer: int | None = None
    """The earlier layer whose cached latents and rotated parts are read; None: the layer has its own."""
    index: TokenIndexSpec | None = None
    """The choice of the tokens that a query attends to; None: it attends to all that it sees."""

    @property
    def key_dim(self) -> int:
        """Size of a head's query and key."""
        return self.plain_dim + self.rotary_dim

    @property
    def num_kv_heads(self) -> int:
        """All heads read the same cached latent."""
        return 1

    @property
    def head_dim(self) -> int:
        """The number of values that are cached for a token."""
        return self.latent + self.rotary_dim

    @property
    def rope_size(self) -> int:
        """Dimensions of a head that RoPE rotates, or would rotate."""
        return self.rotary_dim

    @property
    def kv_groups(self) -> tuple[KVGroupSpec, ...]:
        """The KV cache group that the layer needs, without layer numbers; none if it reads another layer's."""
        if self.kv_of_layer is not None:
            return ()
        if (index := self.index) is not None:
            keys = () if index.of_layer is not None else (RowSpec("index", index.row_size),)
            return (KVGroupSpec("full", (), 0, 0, rows=(RowSpec("latents", self.head_dim), *keys)),)
        kind = "full" if self.window is None else "sliding"
        return (KVGroupSpec(kind, (), 1, self.head_dim, self.window, latent=self.latent),)


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferentialAttentionSpec:
    """Attention by the difference of two softmaxes (arXiv 2410.05258), as DiffLlama has it.

    A result is the attention of a head of the first half minus a learnt share of that of its partner in the second
    half. Both heads of a pair attend to the concatenated values of both.
    """

    num_heads: int
    """Pairs of query heads: half of all heads."""
    num_kv_heads: int
    """Pairs of KV heads."""
    size: int
    """The size of a head's query, key and own value."""
    scale: float
    """The factor of attention scores: a score is query times key times this factor."""
    rope: RopeSpec | None
    share: float
    """A constant that is added to the learnt share (lambda_init of the paper)."""
    eps: float
    """The epsilon of the root mean square over each pair's result."""
    bias: bool = False
    """Whether the projections have biases."""

    @property
    def head_dim(self) -> int:
        """The size of a cached head: that of its value; its key is padded with as many zeros as it has numbers."""
        return 2 * self.size

    @property
    def rope_size(self) -> int:
        """The dimensions of a head that are rotated together."""
        return self.size

    @property
    def query_scaling(self) -> None:
        """Queries do not grow with their position."""

    @property
    def kv_group(self) -> KVGroupSpec:
        """Return the KV cache group that this mixer needs, without its layers (the model adds them)."""
        return KVGroupSpec("full", (), 2 * self.num_kv_heads, self.head_dim)

    @property
    def kv_of_layer(self) -> None:
        """Each layer has a cache of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BiasedAttentionSpec:
    """Attention whose scores have a bias for each key and KV head, computed from the key's values (Doge).

    The bias is cached as a further number of the key, which a query multiplies with one.
    """

    num_heads: int
    num_kv_heads: int
    size: int
    """The size of a head's query, key and value."""
    scale: float
    """The factor of attention scores: a score is query times key times this factor."""
    rope: RopeSpec | None
    norm: NormSpec
    """The norm of each head of query and key."""
    window: int | None = None
    """Tokens that a query sees, its own included; None: all."""
    bias: bool = False
    """Whether the projections have biases."""

    @property
    def head_dim(self) -> int:
        """The size of a cached head: the key, its bias and 15 zeros, since kernels need aligned sizes."""
        return self.size + 16

    @property
    def rope_size(self) -> int:
        """The dimensions of a head that are rotated together."""
        return self.size

    @property
    def query_scaling(self) -> None:
        """Queries do not grow with their position."""

    @property
    def kv_group(self) -> KVGroupSpec:
        """Return the KV cache group that this mixer needs, without its layers (the model adds them)."""
        kind = "full" if self.window is None else "sliding"
        return KVGroupSpec(kind, (), self.num_kv_heads, self.head_dim, self.window)

    @property
    def kv_of_layer(self) -> None:
        """Each layer has a cache of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionExpertsSpec:
    """Attention whose queries and output projections are experts' (JetMoE, arXiv 2404.07413).

    A router chooses `top_k` experts for a token, each with a query head for every KV head; all share keys and values.
    """

    num_heads: int
    """KV heads; each is read by one query head of each chosen expert."""
    head_dim: int
    num_experts: int
    top_k: int
    scale: float
    """The factor of attention scores: a score is query times key times this factor."""
    rope: RopeSpec | None

    @property
    def num_kv_heads(self) -> int:
        """The number of KV heads that ranks divide among themselves."""
        return self.num_heads

    @property
    def rope_size(self) -> int:
        """The dimensions of a head that are rotated together."""
        return self.head_dim

    @property
    def query_scaling(self) -> None:
        """Queries do not grow with their position."""

    @property
    def kv_group(self) -> KVGroupSpec:
        """Return the KV cache group that this mixer needs, without its layers (the model adds them)."""
        return KVGroupSpec("full", (), self.num_heads, self.head_dim)

    @property
    def kv_of_layer(self) -> None:
        """Each layer has a cache of its own."""
