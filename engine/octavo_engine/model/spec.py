"""What a model is, as data: a list of layers and what stands before and after them.

Planning, sharding, KV groups and fast paths read these alone. What a new family cannot express gets a new value here,
never a question after the family's name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

from octavo_engine.attention.backend import KVGroupSpec, StateSpec
from octavo_engine.model.names import LLAMA_NAMES, SAME_NAMES, StoredNames, TensorNames
from octavo_engine.model.quantization.mxfp4 import MXFP4
from octavo_engine.model.quantization.selection import Quantization


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding (arXiv 2104.09864): how fast each pair of dimensions rotates."""

    theta: float
    kind: str = "default"
    """`default`, `linear` (all pairs `factor` slower), `llama3` and `yarn` (slow pairs are slower), `factors` (one
    divisor for each pair), `longrope` (`factors` for short contexts, `long_factors` for long ones; arXiv 2402.13753),
    `proportional` (the first `proportion` of a whole head's pairs, `factor` slower; the others do not rotate).
    """
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    factors: tuple[float, ...] = ()
    """Divisors of the rotary_dim / 2 frequencies, as a GGUF file's `rope_freqs.weight` gives them."""
    beta_fast: float = 32.0
    """YaRN's: pairs that rotate more often than this within `original_max_position` stay as they are."""
    beta_slow: float = 1.0
    """Those that rotate less often are slower by `factor`."""
    truncate: bool = True
    """Whether the range between is widened to whole pairs."""
    attention_factor: float = 1.0
    """Cosines and sines are multiplied with it."""
    long_factors: tuple[float, ...] = ()
    """Of sequences that are longer than `original_max_position`."""
    long_attention_factor: float = 1.0
    """Of those sequences."""
    recomputed: bool = False
    """Whether a sequence that outgrows that length while it is generated is computed anew with them (Phi-3), or only
    its further tokens are."""
    rotary_dim: int | None = None
    """Only the first so many dimensions of a head are rotated; None: all."""
    proportion: float = 1.0
    backwards: bool = False
    """Whether pairs rotate by negative angles (NanoChat)."""
    interleaved: bool = False
    """Whether checkpoints hold the rows of query and key so that the two dimensions of a pair are neighbours. They are
    permuted while they are loaded: what is computed has dimensions i and i + rotary_dim / 2 as a pair."""


@dataclass(frozen=True, slots=True)
class NormSpec:
    """A normalisation over the last dimension, computed in float32 and cast at the end."""

    eps: float
    kind: Literal["rms", "layer"] = "rms"
    """Divided by the root mean square (arXiv 1910.07467), or LayerNorm, which also subtracts the mean."""
    bias: bool = False
    weight_offset: float = 0.0
    """What is added to the weight first: Gemma's checkpoints hold it less one."""
    weight: bool = True
    """Whether there is a weight to multiply with: OLMo and NanoChat have none."""


@dataclass(frozen=True, slots=True)
class QKNormSpec:
    """Query and key are normalised, before they are rotated unless `after_rope`."""

    norm: NormSpec
    per_head: bool = True
    """Each head by itself (Qwen3), or all heads of a token together (OLMo 2)."""
    own_weights: bool = False
    """Where each head is normalised by itself, whether it has weights of its own (StableLM 2), or shares one's."""
    after_rope: bool = False
    """Whether they are rotated first (HunYuan)."""


@dataclass(frozen=True, slots=True)
class QueryScaling:
    """Queries grow with their position p: times 1 + `beta` * ln(1 + floor((p + `shift`) / `period`)) (Llama 4)."""

    beta: float
    period: int
    """In tokens."""
    shift: int = 0


@dataclass(frozen=True, slots=True)
class ALiBiSpec:
    """Attention with linear biases (arXiv 2108.12409): a head's scores grow with a key's position times its slope."""

    max_bias: float = 8.0
    """The slopes of n heads are 2 ** (-max_bias * i / n), i = 1 ... n; of other numbers than powers of two, every
    second one of the next power's follows."""
    factor: float = 1.0
    """What is added is multiplied with it first."""
    rounded: bool = False
    """Whether slopes, positions and their products are rounded to bfloat16 first (Falcon)."""


@dataclass(frozen=True, slots=True)
class OutputGateSpec:
    """What heads give is multiplied with an activation of one more projection of their input (arXiv 2505.06708)."""

    activation: Literal["sigmoid", "softplus"] = "sigmoid"
    per_head: bool = False
    """Whether each head has one number instead of one for each of its dimensions."""
    with_query: bool = False
    """Whether the query's projection has its rows too, each head's behind those of its query (Qwen3-Next)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """Grouped-query attention (arXiv 2305.13245)."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    """Scores are query times key times this."""
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
    """A root mean square over what all heads give, before the last projection (BitNet)."""
    output_gate: OutputGateSpec | None = None
    adapter_rank: int | None = None
    """Whether query, key and value have a product of two weights beside their own, and of which rank (Zamba2)."""
    value_dim: int | None = None
    """The size of each head's value, where it is smaller than `head_dim`; it is cached with zeros behind it."""
    value_scale: float = 1.0
    """What values are multiplied with before they are cached (MiMo V2)."""
    value_is_key: bool = False
    """Whether the value is the key as it is before it is normalised and rotated."""
    kv_of_layer: int | None = None
    """The earlier layer whose cached keys and values are read; None: the layer has its own."""
    causal: bool = True
    """Whether a query sees no tokens behind its own. If it does, nothing is cached: prompts are computed whole."""
    window: int | None = None
    """Tokens that a query sees, its own included; None: all. Where it is not causal, so many to each side."""
    chunked: bool = False
    """Whether windows lie side by side: a query sees its own chunk of so many tokens up to itself (Llama 4)."""
    softcap: float | None = None
    """Scores become softcap * tanh(score / softcap)."""
    sinks: bool = False
    """Whether each query head has one logit more in the softmax, without a value."""
    alibi: ALiBiSpec | None = None
    """What is added to scaled scores for the distance of a key."""

    @property
    def rope_size(self) -> int:
        """What is rotated of a head, or would be: all of it, or its first part."""
        return self.head_dim

    @property
    def kv_group(self) -> KVGroupSpec | None:
        """What it keeps in the KV cache, without layers; None: nothing, as it reads another layer's, or the prompt."""
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
    """Of a head's query and key, what is not rotated."""
    rotary_dim: int
    """Of a head's query and key, what is rotated; the key's is the same for all heads, and is cached."""
    value_dim: int
    scale: float
    """Scores are query times key times this."""
    rope: RopeSpec | None
    norm: NormSpec
    """Of both latents."""
    bias: bool = False
    """Of the projections to latents and of the output."""
    latent_scales: tuple[float, float] = (1.0, 1.0)
    """What the normalised latents of queries and of keys and values are multiplied with (LongCat)."""
    query_scaling: QueryScaling | None = None
    head_gate: bool = False
    """Whether each head's result is multiplied with the sigmoid of one more projection to a number (Ling 3)."""

    @property
    def key_dim(self) -> int:
        """Size of a head's query and key."""
        return self.plain_dim + self.rotary_dim

    @property
    def num_kv_heads(self) -> int:
        """All heads read one."""
        return 1

    @property
    def head_dim(self) -> int:
        """Numbers that are cached for a token."""
        return self.latent + self.rotary_dim

    @property
    def rope_size(self) -> int:
        """What is rotated of a head, or would be."""
        return self.rotary_dim

    @property
    def kv_group(self) -> KVGroupSpec:
        """What it keeps in the KV cache, without layers."""
        return KVGroupSpec("full", (), 1, self.head_dim, latent=self.latent)

    @property
    def kv_of_layer(self) -> None:
        """Each layer has a cache of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvSpec:
    """A gated causal convolution of each channel over the last few tokens (LFM2, arXiv 2511.23404).

    One projection gives b, c and x; the result is a projection of c * convolution(b * x).
    """

    channels: int
    width: int
    """Tokens that are seen, the own included."""
    bias: bool = False
    """Of both projections and of the convolution."""

    @property
    def kv_group(self) -> KVGroupSpec:
        """What it keeps of a sequence, without layers: the inputs of the convolution that its next token sees."""
        return KVGroupSpec("recurrent", (), 0, 0, states=(StateSpec((self.width - 1) * self.channels),))


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedNormSpec:
    """A root mean square over each group of heads, around a gate (Mamba-2)."""

    eps: float
    before_gate: bool = False
    """Whether it is normalised before it is multiplied with the gate (an option of Falcon-H1), not after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2Spec:
    """A state space model in which a head's state fades at one rate (Mamba-2, arXiv 2405.21060).

    One projection gives a gate, x, b, c and time steps; x, b and c go through a causal convolution. A head's state is
    the sum of x times b, older ones scaled down; what is read of it by c is gated, normalised and projected.
    """

    num_heads: int
    head_dim: int
    num_groups: int
    """Of heads that share b and c."""
    state: int
    """The size of b and c: a head's state has `head_dim` * `state` numbers."""
    width: int
    """Tokens that the convolution sees, the own included."""
    activation: str = "silu"
    """After the convolution."""
    conv_bias: bool = True
    bias: bool = False
    """Of the first projection."""
    output_bias: bool = False
    norm: GatedNormSpec | None
    """None: the gate alone."""
    least_step: float = 0.0
    """Time steps are at least this."""
    scales: tuple[float, float, float, float, float] = (1.0, 1.0, 1.0, 1.0, 1.0)
    """What gate, x, b, c and time steps are multiplied with as they are projected (Falcon-H1)."""

    @property
    def num_kv_heads(self) -> int:
        """Ranks share heads and their groups as they share the query heads and KV heads of attention."""
        return self.num_groups

    @property
    def kv_group(self) -> KVGroupSpec:
        """What it keeps of a sequence, without layers: the convolution's last inputs, and the state in float32."""
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
    """Tokens that the convolution sees, the own included."""
    step_rank: int
    """The size of the latent of time steps."""
    activation: str = "silu"
    """After the convolution."""
    conv_bias: bool = True
    bias: bool = False
    """Of the first projection and of the last."""
    norm: NormSpec | None = None
    """Of b, c and the latent."""

    @property
    def kv_group(self) -> KVGroupSpec:
        """What it keeps of a sequence, without layers: the convolution's last inputs, and the state in float32."""
        conv, state = StateSpec((self.width - 1) * self.channels), StateSpec(self.state * self.channels, torch.float32)
        return KVGroupSpec("recurrent", (), 0, 0, states=(conv, state))


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelMixersSpec:
    """Attention and a state space model of the same input, whose results are added (Falcon-H1, arXiv 2507.22448)."""

    attention: AttentionSpec
    state_mixer: Mamba2Spec
    input_scales: tuple[float, float] = (1.0, 1.0)
    """What the input of each is multiplied with first, attention's before the other's."""
    output_scales: tuple[float, float] = (1.0, 1.0)
    """The same of the results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaNetSpec:
    """Linear attention whose state is corrected towards each token's value by the gated delta rule (arXiv 2412.06464).

    Query, key and value go through a causal convolution and an activation, query and key are divided by their lengths;
    what is read of the state is normalised, multiplied with the silu of a gate, and projected.
    """

    num_heads: int
    """Of values, each with a state of key_dim * value_dim numbers."""
    num_kv_heads: int
    """Of queries and keys; each serves as many heads in a row."""
    key_dim: int
    value_dim: int
    width: int
    """Tokens that the convolution sees, the own included."""
    activation: str
    """After the convolution."""
    norm_eps: float
    most_strength: float = 1.0
    """What the sigmoid that says how much the state is corrected is multiplied with (2: negative eigenvalues)."""

    @property
    def kv_group(self) -> KVGroupSpec:
        """What it keeps of a sequence, without layers: the convolution's last inputs, and the state in float32."""
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
    """Each with a state of head_dim * head_dim numbers."""
    head_dim: int
    width: int
    """Tokens that the convolutions see, the own included."""
    activation: str
    """After the convolutions."""
    norm_eps: float
    low_rank: bool = True
    """Whether decays and gates are projected by way of a vector of `head_dim`."""
    lower_bound: float | None = None
    """What the logarithm of a decay is at least, times a sigmoid (Ling 3); None: minus a softplus, as in Mamba."""

    @property
    def num_kv_heads(self) -> int:
        """Every head has a key and a value of its own."""
        return self.num_heads

    @property
    def kv_group(self) -> KVGroupSpec:
        """What it keeps of a sequence, without layers: the convolutions' last inputs, and the state in float32."""
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
    """Each with a state of head_dim * head_dim numbers."""
    head_dim: int
    slopes: tuple[float, ...]
    """Of each of all ranks' heads: its state is multiplied with exp(-slope) for each token."""
    activation: str
    norm_eps: float

    @property
    def num_kv_heads(self) -> int:
        """Every head has a key and a value of its own."""
        return self.num_heads

    @property
    def kv_group(self) -> KVGroupSpec:
        """What it keeps of a sequence, without layers: the state in float32."""
        state = StateSpec(self.num_heads * self.head_dim**2, torch.float32)
        return KVGroupSpec("recurrent", (), 0, 0, states=(state,))


AttentionMixer = AttentionSpec | LatentAttentionSpec
StateMixer = (
    ShortConvSpec | Mamba2Spec | MambaSpec | GatedDeltaNetSpec | KimiDeltaAttentionSpec | LightningAttentionSpec
)
"""Those that keep a state of a sequence instead of its tokens."""
Mixer = AttentionMixer | StateMixer | ParallelMixersSpec
"""What mixes tokens with those before them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MLPSpec:
    """A dense feed-forward: down(act(gate(x)) * up(x)) (arXiv 2002.05202), or down(act(up(x))) without a gate."""

    intermediate_size: int
    activation: str = "silu"
    """By the name in `layers/activations.py`, or `xielu`, which has parameters of its own."""
    inner_norm: NormSpec | None = None
    """A root mean square over the intermediate size, before the last projection (BitNet)."""
    gated: bool = True
    bias: bool = False
    """Of gate and up."""
    output_bias: bool = False
    gate_scale: float = 1.0
    """What the gate is multiplied with before the activation (Falcon-H1)."""
    output_scale: float = 1.0
    """What the result is multiplied with."""
    adapter_rank: int | None = None
    """Whether gate and up have a product of two weights beside their own, and of which rank (Zamba2)."""
    sparsity: float = 0.0
    """The share of each token's gates that is about to be zero (arXiv 2506.06644): what is left of a gate is how far it
    is above that quantile of the normal distribution with the gates' mean and deviation; 0: all gates as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertGroups:
    """Experts are chosen among those of the best groups alone (node-limited routing, arXiv 2405.04434)."""

    count: int
    """Of neighbouring experts, all of one size."""
    kept: int
    """Groups that experts may be chosen from."""
    best: int
    """A group's score is the sum of so many of its best experts' scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSpec:
    """How experts are chosen for a token, and what their results are multiplied with."""

    scores: Literal["softmax", "sigmoid", "softmax of chosen", "sigmoid of chosen", "sparsemixer"] = "softmax of chosen"
    """Of logits: a softmax or a sigmoid in float32 of all of them, or of the chosen ones; or SparseMixer's
    (arXiv 2409.12136), which chooses two experts one after the other."""
    bias: bool = False
    correction_bias: bool = False
    """Whether numbers are added to scores for the choice alone (arXiv 2408.15664)."""
    groups: ExpertGroups | None = None
    renormalize: bool = False
    """Whether the chosen experts' scores are divided by their sum."""
    sum_floor: float = 0.0
    """The sum is at least this."""
    sum_offset: float = 0.0
    """What is added to the sum."""
    scale: float = 1.0
    """What weights are multiplied with at the end."""
    softcap: float | None = None
    """Logits become softcap * tanh(logit / softcap)."""
    in_float32: bool = False
    """Whether logits are computed in float32, whatever the model's type."""
    input_norm: NormSpec | None = None
    """Of what it reads, before that is multiplied with `input_scale` (Gemma 4)."""
    input_scale: float = 1.0
    expert_scales: bool = False
    """Whether each expert's weights are multiplied with a number of its own at the end (Gemma 4)."""
    jitter: float = 0.0
    """SparseMixer's: scores that are lower than the best by twice this share do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedExpertSpec:
    """A feed-forward beside the experts that every token goes through."""

    mlp: MLPSpec
    gated: bool = False
    """Whether its result is multiplied with the sigmoid of one more projection to a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoESpec:
    """A mixture of experts (arXiv 1701.06538): feed-forwards, of which a router chooses `top_k` for a token."""

    num_experts: int
    top_k: int
    intermediate_size: int
    """Of one expert."""
    router: RouterSpec
    shared: SharedExpertSpec | None = None
    zero_experts: int = 0
    """Experts behind the others that give what they read (LongCat)."""
    bias: bool = False
    """Whether experts' projections have biases."""
    limit: float | None = None
    """Gate and up are cut off there (`Experts.limit`); None: silu(gate) * up."""
    alpha: float = 1.0
    activation: str = "silu"
    """By the name in `layers/activations.py`."""
    gated: bool = True
    """Whether experts have a gate, whose activation is multiplied with up; else it is up's (Nemotron-H)."""
    latent: int | None = None
    """The size that experts read and give, which hidden states are projected to and back; None: the hidden size."""
    latent_bias: bool = False
    """Of both projections."""
    weighs_inputs: bool = False
    """Whether routing weights multiply what experts read instead of what they give (Llama 4)."""
    scale: float = 1.0
    """What the sum of experts and shared expert is multiplied with."""
    branch_norm: NormSpec | None = None
    """Before and after the experts, and before and after the shared one, four norms with weights of their own; the
    router reads what is not normalised, and the layer itself has no norm before them (Gemma 4)."""
    quantization: MXFP4 | None = None
    """How the tensors of all experts together are stored in the checkpoint; None: in floating point."""


FeedForward = MLPSpec | MoESpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNorms:
    """Where norms stand: before a part of the layer, after it (its result is normalised, then added), or both."""

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
    """What that is multiplied with before the mixer's and the feed-forward's result is added (MiniMax)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayerInputSpec:
    """A second vector of each token, of its own for each layer, which gates what is added after both parts (Gemma 4).

    It is the sum of an embedding and of a projection of the token's first vector; the same in all layers.
    """

    size: int
    vocab_size: int
    """Of that embedding."""
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
    """Of what the coefficients are made from."""
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
    """Before each."""
    weights_of_layer: int | None
    """The earlier layer whose weights they have; None: their own."""


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
    output_scale: bool = False
    """Whether the layer's result is multiplied with a number that the checkpoint has for it."""
    residual_scale: float = 1.0
    """What both parts are multiplied with before they are added."""

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
        """The same layer, whose mixer or part of it attends so."""
        if isinstance(self.mixer, ParallelMixersSpec) and isinstance(attention, AttentionSpec):
            return replace(self, mixer=replace(self.mixer, attention=attention))
        return replace(self, mixer=attention)


@dataclass(frozen=True, slots=True)
class PositionSpec:
    """Vectors that are added to the embeddings of tokens, one for each position."""

    offset: int = 0
    """Position p has row p + offset of the table."""
    sinusoidal: bool = False
    """Whether rows are computed, sines before cosines (arXiv 1706.03762), instead of stored."""
    zero_row: int | None = None
    """Of computed ones, that of padding, which is zero (fairseq)."""
    uncounted: int | None = None
    """This token is no position: it has the row of its own number (RoBERTa's padding). Of encoders alone, whose steps
    have whole prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTransformSpec:
    """A linear, an activation and a norm of the last hidden states before the head (BERT's)."""

    bias: bool
    activation: str
    norm: NormSpec | None
    """None: the linear and the activation alone."""


@dataclass(frozen=True, slots=True)
class HeadSpec:
    """What makes logits of the last hidden states: times `scale`, then softcap * tanh(logit / softcap)."""

    tied: bool
    """Whether its weight is the embedding's."""
    scale: float = 1.0
    softcap: float | None = None
    bias: bool = False
    """Added to the product, before it is scaled."""
    transform: HeadTransformSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierSpec:
    """What makes logits of classes, or one score, of the vector that stands for a text or a pair of texts."""

    labels: tuple[str, ...]
    """The names of the classes, one for each logit."""
    activation: Literal["softmax", "sigmoid", "identity"]
    """What makes probabilities of logits."""
    pooling: Literal["last", "cls", "mean"] = "last"
    """Which hidden states the vector is made of: the last token's, the first one's, or the mean of all."""
    bias: bool = False
    transform: HeadTransformSpec | None = None
    """Of the vector, before its product with the weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Everything that decoder, loader, KV cache and plan need to know of a model besides its weights."""

    architecture: str
    """Its name in config.json, for messages."""
    hidden_size: int
    vocab_size: int
    max_position: int
    """Longest context in tokens that the model was made for."""
    dtype: torch.dtype
    """The checkpoint's own type: what `--dtype auto` means."""
    eos_token_ids: tuple[int, ...]
    layers: tuple[LayerSpec, ...]
    norm: NormSpec | None
    """After the last layer."""
    head: HeadSpec | None
    """None: the model does not generate, what it gives are hidden states."""
    classifier: ClassifierSpec | None = None
    """What such a model makes of them; None: vectors that stand for texts."""
    embedding_scale: float = 1.0
    embedding_size: int | None = None
    """Of the vectors that stand for tokens, if it is not `hidden_size`: they are projected to that, and the last hidden
    states back, without biases."""
    embedding_norm: NormSpec | None = None
    """Of what the first layer reads."""
    positions: PositionSpec | None = None
    """None: positions are the attention's business alone."""
    token_types: int = 0
    """Rows of a table of vectors for tokens of the first text of a pair and of the second; 0: there is none."""
    names: TensorNames = LLAMA_NAMES
    stored_names: StoredNames = SAME_NAMES
    """Where the files hold a larger model, of which this is a part."""
    quantization: Quantization | None = None
    """How the weights of linear layers are stored; None: in the type that is computed in."""

    @property
    def num_layers(self) -> int:
        """How many there are."""
        return len(self.layers)

    @property
    def has_experts(self) -> bool:
        """Whether any feed-forward is a mixture of experts."""
        return any(isinstance(part, MoESpec) for layer in self.layers for part in layer.feed_forwards)

    @property
    def attention_mixers(self) -> tuple[AttentionMixer, ...]:
        """Those of the layers that attend."""
        found = (layer.attention for layer in self.layers)
        return tuple(mixer for mixer in found if mixer is not None)

    @property
    def causal(self) -> bool:
        """Whether what is computed of a token does not change with those that follow."""
        return all(not isinstance(mixer, AttentionSpec) or mixer.causal for mixer in self.attention_mixers)

    @property
    def ropes(self) -> tuple[RopeSpec, ...]:
        """The different ones that layers have."""
        found = dict.fromkeys(mixer.rope for mixer in self.attention_mixers)
        return tuple(rope for rope in found if rope is not None)

    @property
    def kv_groups(self) -> tuple[KVGroupSpec, ...]:
        """Layers whose caches live and die together: full attention first, then windows, then states.

        Where no layer keeps anything there is one group without layers, whose blocks take no memory: the scheduler
        counts the tokens of whole prompts as those of any other.
        """
        groups: dict[KVGroupSpec, list[int]] = {}
        for index, layer in enumerate(self.layers):
            for mixer in (layer.attention, layer.state_mixer):
                if mixer is not None and (group := mixer.kv_group) is not None:
                    groups.setdefault(group, []).append(index)
        if not groups:
            return (KVGroupSpec("full", (), 0, 0),)
        ordered = sorted(groups.items(), key=lambda group: (bool(group[0].states), group[0].window is not None))
        return tuple(replace(group, layers=tuple(layers)) for group, layers in ordered)

    @property
    def long_rope(self) -> RopeSpec | None:
        """The RoPE that rotates long sequences otherwise; None: none does."""
        return next((rope for rope in self.ropes if rope.kind == "longrope"), None)
