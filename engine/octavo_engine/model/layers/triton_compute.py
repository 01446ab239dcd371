"""The operations that layers are made of, for GPUs: cuBLAS multiplies, our Triton kernels do what is between."""

from __future__ import annotations

import logging

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo_engine.kernels.activation import act_mul, act_mul_fp8
from octavo_engine.kernels.experts import Experts
from octavo_engine.kernels.moe import mixture_of_experts
from octavo_engine.kernels.moe_choice import MixtureOfExperts, faster_mixture_of_experts
from octavo_engine.kernels.norm import rms_norm, rms_norm_fp8
from octavo_engine.kernels.quantized import Quantized, Scaling
from octavo_engine.model.layers.compute import TorchCompute
from octavo_engine.model.layers.stream import Stream

log = logging.getLogger(__name__)

_MANY_TOKENS = 2048
"""More than a CUDA graph has."""


class TritonCompute(TorchCompute):
    """A layer is norm, GEMM, rotation with the cache's write, attention, GEMM, norm, GEMM, gate, GEMM: eight launches
    beside attention's.

    Rounds where Hugging Face transformers does but for two places: what a linear adds is added to the product before
    both are rounded, once; and angles stay float32 (kernels/rope.py).

    The residual is added in the GEMM's epilogue, not by the norm after it. In passes over [T, hidden] from one linear
    to the next, the first reads the residual, writes the sum, reads that and writes what is normalised: 4. The second
    writes the product, reads it and the residual, writes both sums: 5, in as many launches. Under tensor parallelism
    both are as quick, and the first needs no second rule: the first rank's linear adds, then the ranks' are summed.
    Products in FP8 have no such epilogue and go the second way: norm and gate give their linears e4m3 numbers, and each
    norm adds what the linear before it gave. Only what attention gives is quantized in a launch of its own: nine.
    """

    logits_dtype = None
    """Float32 would be another pass, and twice as much for the kernels that sample to read."""

    def __init__(self) -> None:
        self._many: MixtureOfExperts = mixture_of_experts

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, addend: Tensor | None = None) -> Tensor:
        """As in PyTorch, but the sum is in `addend`: a result of its own would begin as a copy of it, two passes more.

        With a bias, which takes the epilogue's place, it is added after it.
        """
        if addend is None:
            return F.linear(x, weight, bias)
        if bias is not None:
            return addend.add_(F.linear(x, weight, bias))
        return addend.addmm_(x, weight.t())

    def mixture(self, x: Tensor, experts: Experts, chosen: Tensor, weights: Tensor) -> Tensor:
        """As in PyTorch, all experts in three launches; for many tokens by whoever was quicker at start."""
        compute = mixture_of_experts if len(x) < _MANY_TOKENS else self._many
        return compute(x, experts, chosen, weights)

    def prepare_mixture(self, experts: Experts, top_k: int) -> None:
        """Measure whether PyTorch's grouped product is quicker for many tokens.

        For fewer it is not asked: they may be a CUDA graph's, which nothing must wait in, and whether PyTorch's does is
        not ours to say.
        """
        self._many, seconds = faster_mixture_of_experts(experts, top_k, _MANY_TOKENS)
        said = ", ".join(f"{name} {1e3 * time:.2f} ms" for name, time in seconds.items()) or "not measured"
        log.info("mixtures of experts for %d tokens or more: %s (%s)", _MANY_TOKENS, self._many.__name__, said)

    def gate(self, gate_up: Tensor, activation: str) -> Tensor:
        """As in PyTorch."""
        return act_mul(gate_up, activation)

    def gate_for(self, gate_up: Tensor, activation: str, scaling: Scaling | None) -> Tensor | Quantized:
        """In one pass."""
        return act_mul(gate_up, activation) if scaling is None else act_mul_fp8(gate_up, activation, scaling)

    def logits(self, x: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
        """As cuBLAS rounds them."""
        return torch.mm(x, weight.t(), out=out)

    def norm(
        self, stream: Stream, weight: Tensor, eps: float, scaling: Scaling | None
    ) -> tuple[Tensor | Quantized, Tensor]:
        """In one pass."""
        x, residual = (stream, None) if isinstance(stream, Tensor) else (stream.product, stream.residual)
        if scaling is None:
            return rms_norm(x, weight, eps, residual)
        return rms_norm_fp8(x, weight, eps, scaling, residual)
