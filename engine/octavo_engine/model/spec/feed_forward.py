"""Specs of feed-forwards: dense ones, and mixtures of experts with their routers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from octavo_engine.model.quantization.mxfp4 import MXFP4
from octavo_engine.model.spec.norms import NormSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class MLPSpec:
    """A dense feed-forward: down(act(gate(x)) * up(x)) (arXiv 2002.05202), or down(act(up(x))) without a gate."""

    intermediate_size: int
    activation: str = "silu"
    """A name in `layers/operations/activations.py`, or `xielu`, which has parameters of its own."""
    inner_norm: NormSpec | None = None
    """RMSNorm over the intermediate size, before the last projection (BitNet)."""
    gated: bool = True
    bias: bool = False
    """Whether gate and up have biases."""
    output_bias: bool = False
    gate_scale: float = 1.0
    """A factor of the gate before the activation (Falcon-H1)."""
    output_scale: float = 1.0
    """A factor of the result."""
    adapter_rank: int | None = None
    """The rank of the low-rank weights that are added to those of gate and up; None: there are none (Zamba2)."""
    sparsity: float = 0.0
    """The approximate share of each token's gates that becomes zero (arXiv 2506.06644): a gate is reduced by this
    quantile of the normal distribution with the gates' mean and deviation, and is zero below it; 0: gates are not
    changed."""
    limit: float | None = None
    """The limit at which gate and up are clamped (`Experts.limit`), whatever `activation` is; None: they are not."""
    alpha: float = 1.0
    up_offset: float = 1.0
    activated_limit: float | None = None
    """The upper limit of the activated gate, and of up at both sides (`Experts.activated_limit`); None: no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertGroups:
    """Groups of experts: a token chooses only experts of its best groups (node-limited routing, arXiv 2405.04434)."""

    count: int
    """The number of groups, of neighbouring experts, all of one size."""
    kept: int
    """The number of best groups, from which experts are chosen."""
    best: int
    """The number of a group's best experts whose scores are summed for the group's score."""
    dropped: float = -math.inf
    """The score of all experts of the other groups; 0 where those are chosen before experts with a negative score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentRouterSpec:
    """A router whose logits are those of a feed-forward of a latent, to which layers add the earlier one's (Zaya)."""

    size: int
    """The size of the latent."""
    norm: NormSpec
    """The norm of the latent."""
    carried: bool
    """Whether the latent of the layer before, times learnt numbers, is added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSpec:
    """A router: the choice of a token's experts, and the weights of their results."""

    scores: Literal[
        "softmax", "sigmoid", "root of softplus", "softmax of chosen", "sigmoid of chosen", "sparsemixer"
    ] = "softmax of chosen"
    """The function from logits to weights, in float32: of all logits, or of the chosen ones; or SparseMixer
    (arXiv 2409.12136), which chooses two experts one after the other."""
    table: int | None = None
    """The number of token ids in a table that names the experts of each (DeepSeek V4); None: the experts with the
    highest scores are chosen."""
    bias: bool = False
    latent: LatentRouterSpec | None = None
    """None: logits are a projection of the input."""
    correction_bias: bool = False
    """Whether a bias for each expert is added to scores, for the choice alone (arXiv 2408.15664)."""
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
    """For SparseMixer: scores that are lower than the best by more than twice this share are left out."""


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
    """The number of zero-computation experts, which follow the others and return their input (LongCat)."""
    skipped: bool = False
    """Whether zero-computation experts return zeros instead (Zaya)."""
    bias: bool = False
    """Whether experts' projections have biases."""
    output_bias: bool = False
    """Whether a vector is added to the sum of experts (JetMoE)."""
    limit: float | None = None
    """The limit at which gate and up are clamped (`Experts.limit`); None: silu(gate) * up."""
    alpha: float = 1.0
    up_offset: float = 1.0
    """A number that is added to the clamped up (0 in Hy4 and DeepSeek V4)."""
    activated_limit: float | None = None
    """The upper limit of the activated gate, and of up at both sides (`Experts.activated_limit`); None: no limit."""
    activation: str = "silu"
    """A name in `layers/operations/activations.py`."""
    gated: bool = True
    """Whether experts have a gate, whose activation is multiplied with up; otherwise up is activated (Nemotron-H)."""
    latent: int | None = None
    """The size of the experts' input and output, to which hidden states are projected and back; None: the hidden size.
    """
    latent_bias: bool = False
    """Whether both projections have biases."""
    weighs_inputs: bool = False
    """Whether routing weights multiply the experts' inputs instead of their results (Llama 4)."""
    scale: float = 1.0
    """A factor of the sum of experts and shared expert."""
    branch_norm: NormSpec | None = None
    """The kind of four norms, before and after the experts, and before and after the shared expert (Gemma 4). The
    router then reads the input without a norm, and the layer has no norm before its feed-forward."""
    quantization: MXFP4 | None = None
    """The storage of the tensors with all experts in the checkpoint; None: in floating point."""


FeedForward = MLPSpec | MoESpec
