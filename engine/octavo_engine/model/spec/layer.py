"""Specs of a decoder layer: mixer, feed-forward and norms, and what only some families have."""

from __future__ import annotations

from dataclasses import dataclass, replace

from octavo_engine.model.spec.attention import AttentionSpec
from octavo_engine.model.spec.feed_forward import FeedForward, MLPSpec, MoESpec
from octavo_engine.model.spec.hyper_connections import ConnectionsSpec
from octavo_engine.model.spec.mixer import AttentionMixer, JointMixer, Mixer, StateMixer
from octavo_engine.model.spec.norms import NormSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNorms:
    """The places of norms: before mixer and feed-forward, after them (the result is normalised, then added) or both."""

    before_mixer: NormSpec | None = None
    after_mixer: NormSpec | None = None
    before_feed_forward: NormSpec | None = None
    after_feed_forward: NormSpec | None = None
    after_adding: bool = False
    """Whether norms after mixer and feed-forward are applied to the residual stream after the result is added to it, as
    in the Transformer of 2017 (post-norm), instead of to the result alone."""
    into_stream: bool = False
    """Whether results are added to the output of the norm before the mixer or feed-forward, instead of to the norm's
    input (an option of BLOOM)."""
    stream_scales: tuple[float, float] = (1.0, 1.0)
    """Factors of the residual stream before the mixer's and before the feed-forward's result is added (MiniMax)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayerInputSpec:
    """Per-layer embeddings: a vector for each token and layer, of which each layer adds a gated projection (Gemma 4).

    The vector is the sum of a second embedding and a projection of the token's first one. This spec is the same in all
    layers.
    """

    size: int
    vocab_size: int
    """The rows of the second embedding; 0: there is none, and the vector is the projection (EmbeddingGemma 2)."""
    activation: str
    norm: NormSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LaurelSpec:
    """A learned augmented residual (LAuReL, arXiv 2411.07501), as Gemma 3n has it.

    Beside the mixer's result, its input and a projection of that of low rank, normalised, are added to the residual
    stream, and the sum is divided by the root of two.
    """

    rank: int
    norm: NormSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class AlternatingUpdatesSpec:
    """A residual stream of several vectors for each token, of which a layer computes one (AltUp, arXiv 2301.13310).

    The others are predicted before, and corrected after by how much the computed one differs from its prediction
    (Gemma 3n).
    """

    count: int
    """Vectors of a token."""
    active: int
    """The index of the vector that layers compute."""
    norm: NormSpec
    """The norm of the vectors that coefficients are computed from."""
    scaled: bool
    """Whether the vector that gates per-layer inputs is multiplied with a weight first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBlockSpec:
    """Attention and a feed-forward before a layer's mixer, with weights that several layers share (Zamba2).

    The block reads the residual stream concatenated with the tokens' embeddings. A projection of its result, with
    weights of each layer's own, is added to the input of the mixer's norm, but not to the stream.
    """

    attention: AttentionSpec
    mlp: MLPSpec
    norm: NormSpec
    """The norm before attention and before the feed-forward."""
    weights_of_layer: int | None
    """The earlier layer whose weights the block has; None: its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSpec:
    """A layer's place in one of two stacks of layers that run in turn, several times (HRM-Text, arXiv 2506.21734).

    Each stack reads the sum of two vectors of a token, one that changes seldom (`high`) and one that changes often
    (`low`), and computes one of them anew. At first `high` is the token's embedding, and `low` is the same vector for
    all tokens.
    """

    gives_low: bool
    """Whether the layer's stack computes `low` anew, not `high`."""
    first: bool
    """Whether the layer is the first one of its stack."""
    norm: NormSpec | None
    """The norm of the result of the stack's last layer; None in all other layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """One decoder layer: a mixer and a feed-forward, each added to the residual stream."""

    mixer: Mixer | None
    """None: the layer has a feed-forward alone (Nemotron-H), or does nothing (Mllama's layers for images)."""
    feed_forward: FeedForward | None
    norms: LayerNorms
    shared_block: SharedBlockSpec | None = None
    shortcut: MoESpec | None = None
    """A mixture that reads what the feed-forward reads, and whose result is added after the next layer (LongCat)."""
    parallel: bool = False
    """Whether mixer and feed-forward read the same residual stream and both results are added to it; a feed-forward
    without a norm of its own shares the mixer's."""
    per_layer_input: PerLayerInputSpec | None = None
    laurel: LaurelSpec | None = None
    alternating_updates: AlternatingUpdatesSpec | None = None
    """The same in all layers; None: the residual stream is one vector for each token."""
    connections: ConnectionsSpec | None = None
    """The hyper-connections of mixer and feed-forward with a residual stream of several vectors for each token; the
    same in all layers, which have no norms after mixer and feed-forward."""
    stack: StackSpec | None = None
    """The layer's place in the stacks; all layers have one, or none does. None: each layer runs once."""
    weights_of_layer: int | None = None
    """The earlier layer whose weights this one has; None: its own. Only for layers of attention and a dense
    feed-forward."""
    output_scale: bool = False
    """Whether the layer's result is multiplied with a number that the checkpoint has for it."""
    stream_weights: bool = False
    """Whether the stream is multiplied with a learnt vector before each result is added (Doge)."""
    affine_sums: bool = False
    """Whether the stream and each result have learnt biases and factors before they are added (Zaya)."""
    residual_scale: float = 1.0
    """A factor of the results of mixer and feed-forward before they are added."""

    @property
    def attention(self) -> AttentionMixer | None:
        """The layer's attention: its mixer, or a part of it; None if it has no attention."""
        if self.shared_block is not None:
            return self.shared_block.attention
        mixer = self.mixer.attention if isinstance(self.mixer, JointMixer) else self.mixer
        return mixer if isinstance(mixer, AttentionMixer) else None

    @property
    def state_mixer(self) -> StateMixer | None:
        """The layer's mixer with a state, or the part of the mixer that keeps one; None if there is none."""
        mixer = self.mixer.state_mixer if isinstance(self.mixer, JointMixer) else self.mixer
        return mixer if isinstance(mixer, StateMixer) else None

    @property
    def feed_forwards(self) -> tuple[FeedForward, ...]:
        """All feed-forwards of the layer, a shared block's and the shortcut included."""
        block = None if self.shared_block is None else self.shared_block.mlp
        return tuple(part for part in (block, self.feed_forward, self.shortcut) if part is not None)

    def with_attention(self, attention: AttentionMixer) -> LayerSpec:
        """Return a copy of the layer with `attention` as its mixer, or as the attention part of its mixer."""
        if isinstance(self.mixer, JointMixer) and isinstance(attention, AttentionSpec):
            return replace(self, mixer=replace(self.mixer, attention=attention))
        return replace(self, mixer=attention)
