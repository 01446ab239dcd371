"""The operations that layers are made of, for GPUs: cuBLAS multiplies, our Triton kernels do what is between."""

from __future__ import annotations

import logging

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo_engine.attention.states import StateStep
from octavo_engine.kernels.activation import ACTIVATIONS, act_mul, act_mul_fp8
from octavo_engine.kernels.cpu.quantized import QuantizedWeight
from octavo_engine.kernels.experts.experts import Experts
from octavo_engine.kernels.experts.moe import mixture_of_experts
from octavo_engine.kernels.experts.moe_autotune import MixtureOfExperts, autotune_mixture_of_experts
from octavo_engine.kernels.experts.moe_lora import mixture_with_adapters
from octavo_engine.kernels.fp8_activations import Quantized, Scaling
from octavo_engine.kernels.norm import rms_norm, rms_norm_fp8
from octavo_engine.kernels.norm_weights import NormWeights
from octavo_engine.kernels.quantized.interleaved import dequantize_interleaved
from octavo_engine.kernels.quantized.interleaved_trial import interleave_if_right
from octavo_engine.kernels.quantized.quantized_linear import most_tokens, quantized_linear
from octavo_engine.kernels.quantized.quantized_numbers import can_dequantize, dequantize
from octavo_engine.kernels.recurrent.causal_conv import causal_conv
from octavo_engine.kernels.recurrent.gated_delta_net import gated_delta_net, has_tiles_for
from octavo_engine.model.layers.adapters.expert_lora import ExpertAdapters
from octavo_engine.model.layers.operations import activations
from octavo_engine.model.layers.operations.compute import Compute
from octavo_engine.model.layers.operations.delta_rule import DeltaInputs, gated_delta_rule
from octavo_engine.model.layers.operations.experts_in_turn import all_experts
from octavo_engine.model.layers.operations.pointwise import TorchPointwise
from octavo_engine.model.layers.operations.products import torch_product
from octavo_engine.model.layers.residual import ResidualStream

log = logging.getLogger(__name__)

_MANY_TOKENS = 2048
"""The fewest tokens for which PyTorch's grouped product is considered; CUDA graphs have fewer."""


def triton_compute() -> Compute:
    """Return the operations for GPUs: eight launches a layer beside those of attention.

    They are norm, GEMM, RoPE with the write to the cache, then attention, GEMM, norm, GEMM, gate, GEMM.

    They round where Hugging Face transformers does but for two places: a linear's product and its addend are rounded
    once, after they are added; and angles stay float32 (kernels/attention/rope.py).

    The residual is added in the GEMM's epilogue, not by the norm after it, which saves one of five passes over
    [T, hidden] between two linears: the epilogue reads the residual and writes the sum, the norm reads the sum and
    writes its result. A norm that added would read the product and the residual and write two results, after the GEMM
    has written the product. Under tensor parallelism both take as long; there the first rank's linear adds the
    residual, and the ranks' sums are added up.
    Products in FP8 have no such epilogue, so norms add: norm and gate give their linears e4m3 numbers, and each norm
    adds the product of the linear before it. Only the result of attention is quantized by a launch of its own: nine.
    """
    return Compute(
        product=cublas_product,
        logits_product=cublas_logits,
        quantized_product=TritonQuantizedProduct(),
        logits_dtype=None,  # float32 would be another pass, and twice as much for the kernels that sample to read
        pointwise=TritonPointwise(),
        experts=TritonExperts(),
        convolution=triton_convolution,
        delta_rule=triton_delta_rule,
        interleave=interleave_if_right,
    )


def cublas_product(x: Tensor, weight: Tensor, bias: Tensor | None, addend: Tensor | None) -> Tensor:
    """Compute a `Product` that writes the sum into `addend`: another result would begin as its copy, two passes more.

    With a bias, which takes the place of the epilogue, the addend is added to the product in a further pass.
    """
    if addend is None:
        return F.linear(x, weight, bias)
    if bias is not None:
        return addend.add_(F.linear(x, weight, bias))
    return addend.addmm_(x, weight.t())


class TritonQuantizedProduct:
    """Products with codes, or of many tokens by cuBLAS with numbers that are written for one call."""

    def knows(self, weight: QuantizedWeight, dtype: torch.dtype) -> bool:  # noqa: ARG002
        """Return True if rows and groups consist of complete words."""
        return can_dequantize(weight)

    def __call__(self, x: Tensor, weight: QuantizedWeight, bias: Tensor | None, addend: Tensor | None) -> Tensor:
        """Compute a `QuantizedProduct`."""
        if len(x) <= most_tokens(weight, x.dtype):
            return quantized_linear(x, weight, bias, addend)
        numbers = dequantize_interleaved if weight.interleaved else dequantize
        return cublas_product(x, numbers(weight, x.dtype), bias, addend)


def cublas_logits(x: Tensor, weight: Tensor, out: Tensor | None) -> Tensor:
    """Compute a `LogitsProduct` in x's dtype, as cuBLAS rounds it."""
    return torch.mm(x, weight.t(), out=out)


def triton_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, states: Tensor, step: StateStep
) -> Tensor:
    """Return a `Convolution` in two launches, the second of which keeps the states.

    Activations but silu are a third.
    """
    silu = activation in {"silu", "swish"}
    convolved = causal_conv(
        x if x.stride(1) == 1 else x.contiguous(),
        weight,
        bias,
        states.view(len(states), -1, len(weight)),
        step.slots,
        step.cu_query_lens,
        step.context_lens,
        max_query_len=max(step.lens),
        silu=silu,
    )
    return convolved if silu or activation is None else activations.ACTIVATIONS[activation](convolved)


def triton_delta_rule(inputs: DeltaInputs, states: Tensor, step: StateStep) -> Tensor:
    """Return a `DeltaRule` in one launch for decodes and three for prompts.

    PyTorch computes it where the kernels have no tiles.
    """
    key_dim, value_dim = states.shape[2:]
    if inputs.log_decay.shape[2] != 1 or not has_tiles_for(key_dim, value_dim):
        return gated_delta_rule(inputs, states, step)
    return gated_delta_net(
        inputs.query,
        inputs.key,
        inputs.value,
        inputs.log_decay[..., 0].contiguous(),
        inputs.strength.contiguous(),
        states,
        step.slots,
        step.cu_query_lens,
        step.context_lens,
        max_query_len=max(step.lens),
        scale=key_dim**-0.5,
        normalize=True,
    )


class TritonPointwise:
    """Norms and gates in one launch each, which may quantize for the next linear; by PyTorch where no kernel fits."""

    def __init__(self) -> None:
        self._torch = TorchPointwise()

    def norm(
        self, stream: ResidualStream, norm: NormWeights, scaling: Scaling | None
    ) -> tuple[Tensor | Quantized, Tensor]:
        """Return the residual stream [T, hidden] normalised, and the stream itself, summed in the same pass."""
        if not norm.is_plain_rms:
            return self._torch.norm(stream, norm, scaling)
        x, residual = (stream, None) if isinstance(stream, Tensor) else (stream.product, stream.residual)
        if scaling is None:
            return rms_norm(x, norm.weight, norm.eps, residual)
        return rms_norm_fp8(x, norm.weight, norm.eps, scaling, residual)

    def gate(self, gate_up: Tensor, activation: str, scaling: Scaling | None) -> Tensor | Quantized:
        """Return act(gate) * up [T, inner] for [gate up] [T, 2 * inner]."""
        if activation not in ACTIVATIONS:
            return self._torch.gate(gate_up, activation, scaling)
        return act_mul(gate_up, activation) if scaling is None else act_mul_fp8(gate_up, activation, scaling)


class TritonExperts:
    """Computes all experts in three launches, and many tokens by the way that was quicker in a trial at start."""

    def __init__(self) -> None:
        self._many: MixtureOfExperts = mixture_of_experts

    def __call__(
        self, x: Tensor, experts: Experts, chosen: Tensor, weights: Tensor, adapters: ExpertAdapters | None = None
    ) -> Tensor:
        """Return each token's weighted sum of experts, [T, hidden], of x [T, hidden]; chosen int64, weights [T, k]."""
        if experts.activation is not None or not experts.gated:
            return all_experts(torch_product, x, experts, chosen, weights, adapters)
        if adapters is not None:
            return mixture_with_adapters(x, experts, chosen, weights, *adapters.for_kernels)
        many = len(x) >= _MANY_TOKENS and experts.in_numbers  # PyTorch multiplies numbers alone
        return (self._many if many else mixture_of_experts)(x, experts, chosen, weights)

    def prepare(self, experts: Experts, top_k: int) -> None:
        """Measure whether PyTorch's grouped product is quicker for many tokens.

        Not for fewer: they may be a CUDA graph's, in which nothing must wait for the device, and PyTorch's may wait.
        """
        if experts.activation is not None or not experts.gated or not experts.in_numbers:
            return
        self._many, seconds = autotune_mixture_of_experts(experts, top_k, _MANY_TOKENS)
        measured = ", ".join(f"{name} {1e3 * time:.2f} ms" for name, time in seconds.items()) or "not measured"
        log.info("mixtures of experts for %d tokens or more: %s (%s)", _MANY_TOKENS, self._many.__name__, measured)
