"""The operations between matrix products: norms and activations, by PyTorch and by our C kernels."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from octavo_engine.kernels.cpu.library import DTYPES, LANES, CPUKernels
from octavo_engine.kernels.fp8_activations import Quantized, Scaling
from octavo_engine.kernels.norm_weights import NormWeights
from octavo_engine.model.layers.operations.activations import ACTIVATIONS
from octavo_engine.model.layers.residual import ResidualStream, summed


class Pointwise(Protocol):
    """The operations between products. `scaling` says how the next linear needs its input quantized.

    An operation may leave that to the linear, and return a tensor that is not quantized.
    """

    def norm(
        self, stream: ResidualStream, norm: NormWeights, scaling: Scaling | None
    ) -> tuple[Tensor | Quantized, Tensor]:
        """Return the residual stream [T, hidden] normalised, and the stream itself as one tensor."""

    def gate(self, gate_up: Tensor, activation: str, scaling: Scaling | None) -> Tensor | Quantized:
        """Return act(gate) * up [T, inner] for [gate up] [T, 2 * inner]."""


class TorchPointwise:
    """In PyTorch, rounding where Hugging Face transformers does."""

    def norm(
        self,
        stream: ResidualStream,
        norm: NormWeights,
        scaling: Scaling | None,  # noqa: ARG002
    ) -> tuple[Tensor | Quantized, Tensor]:
        """Return the residual stream [T, hidden] normalised, not quantized, and the stream itself."""
        x = summed(stream)
        return norm.apply(x), x

    def gate(self, gate_up: Tensor, activation: str, scaling: Scaling | None) -> Tensor | Quantized:  # noqa: ARG002
        """Return act(gate) * up [T, inner], not quantized."""
        gate, up = gate_up.chunk(2, dim=-1)
        return ACTIVATIONS[activation](gate).mul_(up)


class CPUPointwise:
    """Norms and activations by our C kernels if they support them, else by PyTorch; bfloat16 or float32."""

    def __init__(self, kernels: CPUKernels) -> None:
        self._kernels = kernels
        self._torch = TorchPointwise()

    def norm(
        self, stream: ResidualStream, norm: NormWeights, scaling: Scaling | None
    ) -> tuple[Tensor | Quantized, Tensor]:
        """Return the residual stream [T, hidden] normalised, not quantized, and the stream itself."""
        x = summed(stream)
        if not (norm.is_plain_rms and self._knows(x, x.shape[-1])):
            return self._torch.norm(x, norm, scaling)
        return self._kernels.rms_norm(x, norm.weight, norm.eps), x

    def gate(self, gate_up: Tensor, activation: str, scaling: Scaling | None) -> Tensor | Quantized:
        """Return act(gate) * up [T, inner], not quantized."""
        if not (activation == "silu" and self._knows(gate_up, gate_up.shape[-1] // 2)):
            return self._torch.gate(gate_up, activation, scaling)
        return self._kernels.silu_mul(gate_up)

    def _knows(self, x: Tensor, width: int) -> bool:
        return x.dtype in DTYPES and x.is_contiguous() and width % LANES == 0
