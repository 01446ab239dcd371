"""A decoder layer: a mixer, a feed-forward, where norms stand, and what some families have beside these."""

from __future__ import annotations

from dataclasses import dataclass, replace

from octavo_engine.model.spec.attention import AttentionSpec
from octavo_engine.model.spec.feed_forward import FeedForward, MLPSpec, MoESpec
from octavo_engine.model.spec.hyper_connections import ConnectionsSpec
from octavo_engine.model.spec.mixer import AttentionMixer, Mixer, ParallelMixersSpec, StateMixer
from octavo_engine.model.spec.norms import NormSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNorms:
    """The places of norms: before a part of the layer, after it (its result is normalised, then added), or both."""

    before_mixer: NormSpec | None = None
    after_mixer: NormSpec | None = None
    before_feed_forward: NormSpec | None = None
    after_feed_forward: NormSpec | None = None
    after_adding: bool = False
    """Whether norms after a part normalise the residual stream with the part's result added to it, and so what the
    stream is from there on (the Transformer of 2017), instead of the result alone."""
    into_stream: bool = False
    """Whether a part's result is added to what the norm before it gave, instead of to what that read (BLOOM has this
    as an option)."""
    stream_scales: tuple[float, float] = (1.0, 1.0)
    """Factors of the stream, before the mixer's and before the feed-forward's result is added (MiniMax)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayerInputSpec:
    """A second vector of each token, of its own for each layer, which gates what is added after both parts (Gemma 4).

    It is the sum of an embedding and of a projection of the token's first vector; the same in all layers.
    """

    size: int
    vocab_size: int
    """The rows of that embedding."""
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
    """The one that layers compute."""
    norm: NormSpec
    """The norm of the vectors that coefficients are computed from."""
    scaled: bool
    """Whether what gates per-layer inputs is multiplied with a weight first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBlockSpec:
    """Attention and a feed-forward before a layer's mixer, with weights that several layers share (Zamba2).

    They read the residual stream side by side with the tokens' embeddings; a projection of what they give, which is the
    layer's own, is added to what the mixer's norm reads, but not to the stream.
    """

    attention: AttentionSpec
    mlp: MLPSpec
    norm: NormSpec
    """The norm before each of the two."""
    weights_of_layer: int | None
    """The earlier layer whose weights they have; None: their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSpec:
    """A layer's place in one of two stacks of layers that run in turn, several times (HRM-Text, arXiv 2506.21734).

    Each stack reads the sum of two vectors of a token, one that changes seldom (`high`) and one that changes often
    (`low`), and gives one of them anew. At first the one is the token's embedding, the other the same for all tokens.
    """

    gives_low: bool
    """Whether its stack gives `low` anew, not `high`."""
    first: bool
    """Whether it is the first layer of its stack."""
    norm: NormSpec | None
    """The norm of what the last layer of the stack gives; None: others follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """One decoder layer: a mixer and a feed-forward, each added to the residual stream."""

    mixer: Mixer | None
    """None: the layer has a feed-forward alone (Nemotron-H)."""
    feed_forward: FeedForward | None
    norms: LayerNorms
    shared_block: SharedBlockSpec | None = None
    shortcut: MoESpec | None = None
    """A mixture that reads what the feed-forward reads, and whose result is added after the next layer (LongCat)."""
    parallel: bool = False
    """Whether the feed-forward reads what the mixer reads, not what it gave; without a norm of its own it shares the
    mixer's."""
    per_layer_input: PerLayerInputSpec | None = None
    laurel: LaurelSpec | None = None
    alternating_updates: AlternatingUpdatesSpec | None = None
    """The same in all layers; None: the residual stream is one vector for each token."""
    connections: ConnectionsSpec | None = None
    """How parts read and change a residual stream of several vectors for each token. The same in all layers, which have
    no norms after a part."""
    stack: StackSpec | None = None
    """The same kind in all layers; None: each layer runs once."""
    weights_of_layer: int | None = None
    """The earlier layer whose weights it has; None: its own. Of layers with attention and a dense feed-forward."""
    output_scale: bool = False
    """Whether the layer's result is multiplied with a number that the checkpoint has for it."""
    stream_weights: bool = False
    """Whether the stream is multiplied with a vector before each part's result is added (Doge)."""
    residual_scale: float = 1.0
    """A factor of both parts' results before they are added."""

    @property
    def attention(self) -> AttentionMixer | None:
        """The mixer that attends, or the part of it that does; None if there is none."""
        if self.shared_block is not None:
            return self.shared_block.attention
        mixer = self.mixer.attention if isinstance(self.mixer, ParallelMixersSpec) else self.mixer
        return mixer if isinstance(mixer, AttentionMixer) else None

    @property
    def state_mixer(self) -> StateMixer | None:
        """The mixer that keeps a state, or the part of it that does; None if there is none."""
        mixer = self.mixer.state_mixer if isinstance(self.mixer, ParallelMixersSpec) else self.mixer
        return mixer if isinstance(mixer, StateMixer) else None

    @property
    def feed_forwards(self) -> tuple[FeedForward, ...]:
        """All that a layer has."""
        block = None if self.shared_block is None else self.shared_block.mlp
        return tuple(part for part in (block, self.feed_forward, self.shortcut) if part is not None)

    def with_attention(self, attention: AttentionMixer) -> LayerSpec:
        """Return a copy of the layer with `attention` as its mixer, or as the attention part of its mixer."""
        if isinstance(self.mixer, ParallelMixersSpec) and isinstance(attention, AttentionSpec):
            return replace(self, mixer=replace(self.mixer, attention=attention))
        return replace(self, mixer=attention)
