"""The operations that layers are made of: in PyTorch for every device, and by our C kernels for CPUs.

Which of the two is chosen once, when a decoder is built.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo_engine.kernels.cpu.library import DTYPES, LANES, CPUKernels, cpu_kernels
from octavo_engine.model.layers.rope import rotate
from octavo_engine.model.spec import ModelSpec

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
}
_FEW_TOKENS = 256
"""Above so many tokens PyTorch's (oneDNN's) matrix multiplication is quicker, on a CPU with AMX much earlier."""
_FEW_TOKENS_AMX = 16


class TorchCompute:
    """In PyTorch, rounding where Hugging Face transformers does."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, addend: Tensor | None = None) -> Tensor:
        """x [T, in] weight [out, in]^T + bias [out], added to `addend` [T, out]."""
        product = F.linear(x, weight, bias)
        return product if addend is None else addend + product

    def gated(self, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
        """act(gate) * up [T, inner], where [gate up] are x times the two halves of weight [2 * inner, in]."""
        gate, up = F.linear(x, weight, bias).chunk(2, dim=-1)
        return _ACTIVATIONS[activation](gate).mul_(up)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / rms(x) * weight, the first part in float32, then cast, as Hugging Face's Llama does it."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return weight * (wide * scale).to(x.dtype)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The heads of x [T, heads, D] turned by `RotaryEmbedding`'s angles; x itself may be what is turned."""
        return rotate(x, cos, sin)


class CPUCompute(TorchCompute):
    """By C kernels: weights are read once, and what is added or gated is so before sums are rounded to bfloat16."""

    def __init__(self, kernels: CPUKernels) -> None:
        self._kernels = kernels
        self._few = _FEW_TOKENS_AMX if torch.cpu._is_amx_tile_supported() else _FEW_TOKENS

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, addend: Tensor | None = None) -> Tensor:
        """As in PyTorch, float32 by PyTorch."""
        if x.dtype == torch.bfloat16 and x.shape[0] <= self._few:
            return self._kernels.linear(x, weight, bias, addend)
        return super().linear(x, weight, bias, addend)

    def gated(self, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
        """As in PyTorch; other activations than SiLU by PyTorch."""
        if activation != "silu":
            return super().gated(x, weight, bias, activation)
        if x.dtype == torch.bfloat16 and x.shape[0] <= self._few:
            return self._kernels.linear(x, weight, bias, silu=True)
        return self._kernels.silu_mul(F.linear(x, weight, bias))

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """As in PyTorch."""
        return self._kernels.rms_norm(x, weight, eps)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """In place."""
        self._kernels.rotate(x, cos, sin)
        return x


def choose_compute(spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> TorchCompute:
    """The quickest way to compute the model of `spec` in `dtype` on `device`."""
    if device.type != "cpu" or dtype not in DTYPES:
        return TorchCompute()
    whole_lanes = spec.hidden_size % LANES == spec.intermediate_size % LANES == spec.head_dim % (2 * LANES) == 0
    kernels = cpu_kernels() if whole_lanes else None
    return TorchCompute() if kernels is None else CPUCompute(kernels)
