"""Feed-forwards: dense ones, and mixtures of experts with their routers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo_engine.model.quantization.mxfp4 import MXFP4
from octavo_engine.model.spec.norms import NormSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class MLPSpec:
    """A dense feed-forward: down(act(gate(x)) * up(x)) (arXiv 2002.05202), or down(act(up(x))) without a gate."""

    intermediate_size: int
    activation: str = "silu"
    """A name in `layers/activations.py`, or `xielu`, which has parameters of its own."""
    inner_norm: NormSpec | None = None
    """A root mean square over the intermediate size, before the last projection (BitNet)."""
    gated: bool = True
    bias: bool = False
    """Whether gate and up have biases."""
    output_bias: bool = False
    gate_scale: float = 1.0
    """A factor of the gate before the activation (Falcon-H1)."""
    output_scale: float = 1.0
    """A factor of the result."""
    adapter_rank: int | None = None
    """The rank of the product of two weights that gate and up have beside their own; None: none (Zamba2)."""
    sparsity: float = 0.0
    """The share of each token's gates that is about to be zero (arXiv 2506.06644): what is left of a gate is how far it
    is above that quantile of the normal distribution with the gates' mean and deviation; 0: all gates as they are."""
    limit: float | None = None
    """Gate and up are cut off there (`Experts.limit`), whatever `activation` is; None: they are not."""
    alpha: float = 1.0
    up_offset: float = 1.0
    activated_limit: float | None = None
    """The activated gate is cut off above it, and up at both sides (`Experts.activated_limit`); None: they are not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertGroups:
    """Experts are chosen among those of the best groups alone (node-limited routing, arXiv 2405.04434)."""

    count: int
    """The number of groups, of neighbouring experts, all of one size."""
    kept: int
    """Groups that experts may be chosen from."""
    best: int
    """A group's score is the sum of so many of its best experts' scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSpec:
    """The choice of a token's experts, and the factors of their results."""

    scores: Literal[
        "softmax", "sigmoid", "root of softplus", "softmax of chosen", "sigmoid of chosen", "sparsemixer"
    ] = "softmax of chosen"
    """The function of logits, in float32: of all of them, or of the chosen ones; or SparseMixer's (arXiv 2409.12136),
    which chooses two experts one after the other."""
    table: int | None = None
    """The tokens of a table that names each one's experts, whatever their scores (DeepSeek V4); None: those with the
    highest scores are chosen."""
    bias: bool = False
    correction_bias: bool = False
    """Whether numbers are added to scores for the choice alone (arXiv 2408.15664)."""
    groups: ExpertGroups | None = None
    renormalize: bool = False
    """Whether the chosen experts' scores are divided by their sum."""
    sum_floor: float = 0.0
    """The sum is at least this."""
    sum_offset: float = 0.0
    """A number that is added to the sum."""
    scale: float = 1.0
    """A factor of the weights at the end."""
    softcap: float | None = None
    """Logits become softcap * tanh(logit / softcap)."""
    in_float32: bool = False
    """Whether logits are computed in float32, whatever the model's type."""
    input_norm: NormSpec | None = None
    """A norm of the router's input, before that is multiplied with `input_scale` (Gemma 4)."""
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
    """The intermediate size of one expert."""
    router: RouterSpec
    shared: SharedExpertSpec | None = None
    zero_experts: int = 0
    """Experts behind the others that give what they read (LongCat)."""
    bias: bool = False
    """Whether experts' projections have biases."""
    output_bias: bool = False
    """Whether a vector is added to the sum of experts (JetMoE)."""
    limit: float | None = None
    """Gate and up are cut off there (`Experts.limit`); None: silu(gate) * up."""
    alpha: float = 1.0
    up_offset: float = 1.0
    """A number that is added to what is cut off of up (0 in Hy4 and DeepSeek V4)."""
    activated_limit: float | None = None
    """The activated gate is cut off above it, and up at both sides (`Experts.activated_limit`); None: they are not."""
    activation: str = "silu"
    """A name in `layers/activations.py`."""
    gated: bool = True
    """Whether experts have a gate, whose activation is multiplied with up; else it is up's (Nemotron-H)."""
    latent: int | None = None
    """The size that experts read and give, which hidden states are projected to and back; None: the hidden size."""
    latent_bias: bool = False
    """Whether both projections have biases."""
    weighs_inputs: bool = False
    """Whether routing weights multiply what experts read instead of what they give (Llama 4)."""
    scale: float = 1.0
    """A factor of the sum of experts and shared expert."""
    branch_norm: NormSpec | None = None
    """The kind of four norms with weights of their own, before and after the experts, and before and after the shared
    one (Gemma 4). The router reads what is not normalised, and the layer itself has no norm before them."""
    quantization: MXFP4 | None = None
    """The storage of the tensors with all experts in the checkpoint; None: in floating point."""


FeedForward = MLPSpec | MoESpec
