"""The operations that layers are made of: in PyTorch for every device, and by our C kernels for CPUs.

Which of the two is chosen once, when a decoder is built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo_engine.attention.context import AttentionContext
from octavo_engine.kernels.cpu.library import DTYPES, LANES, CPUKernels, cpu_kernels
from octavo_engine.model.layers.fused import FusedLayers, can_fuse
from octavo_engine.model.layers.rope import rotate
from octavo_engine.model.spec import ModelSpec

if TYPE_CHECKING:
    from octavo_engine.model.decoder import DecoderLayer

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
}
_FEW_TOKENS = 16
"""On a CPU with AMX, oneDNN's matrix multiplication is quicker for more tokens than these."""


class TorchCompute:
    """In PyTorch, rounding where Hugging Face transformers does."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, addend: Tensor | None = None) -> Tensor:
        """x [T, in] weight [out, in]^T + bias [out], added to `addend` [T, out]."""
        product = F.linear(x, weight, bias)
        return product if addend is None else addend + product

    def gated(self, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
        """act(gate) * up [T, inner], where [gate up] are x times the two halves of weight [2 * inner, in]."""
        return self.gate(F.linear(x, weight, bias), activation)

    def gate(self, gate_up: Tensor, activation: str) -> Tensor:
        """act(gate) * up [T, inner] of [gate up] [T, 2 * inner]."""
        gate, up = gate_up.chunk(2, dim=-1)
        return _ACTIVATIONS[activation](gate).mul_(up)

    def logits(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [T, in] weight [vocabulary, in]^T, float32."""
        return F.linear(x, weight).float()

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / rms(x) * weight, the first part in float32, then cast, as Hugging Face's Llama does it."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return weight * (wide * scale).to(x.dtype)

    def prepare(self, weights: Iterable[Tensor]) -> None:
        """The weights of all linears are in place now."""

    def run(
        self, layers: Sequence[DecoderLayer], x: Tensor, cos: Tensor, sin: Tensor, attention: AttentionContext
    ) -> Tensor:
        """x [T, hidden] through all layers."""
        for layer in layers:
            x = layer(x, cos, sin, attention)
        return x

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The heads of x [T, heads, D] turned by `RotaryEmbedding`'s angles; x itself may be what is turned."""
        return rotate(x, cos, sin)


class CPUCompute(TorchCompute):
    """By C kernels: weights are read once, and what is added or gated is so before sums are rounded to bfloat16."""

    def __init__(self, kernels: CPUKernels) -> None:
        self._kernels = kernels
        self._fused: FusedLayers | None = None

    def run(
        self, layers: Sequence[DecoderLayer], x: Tensor, cos: Tensor, sin: Tensor, attention: AttentionContext
    ) -> Tensor:
        """In one call of the kernels, in place, if they can do all of it."""
        if not can_fuse(layers, x, attention):
            return super().run(layers, x, cos, sin, attention)
        if self._fused is None or not self._fused.fits(attention):
            self._fused = FusedLayers(self._kernels, layers, attention)
        return self._fused(x, cos, sin, attention)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, addend: Tensor | None = None) -> Tensor:
        """As in PyTorch, float32 by PyTorch."""
        if x.dtype == torch.bfloat16:
            return self._kernels.linear(x, weight, bias, addend)
        return super().linear(x, weight, bias, addend)

    def gated(self, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
        """As in PyTorch; other activations than SiLU by PyTorch."""
        if activation != "silu":
            return super().gated(x, weight, bias, activation)
        if x.dtype == torch.bfloat16:
            return self._kernels.linear(x, weight, bias, silu=True)
        return self._kernels.silu_mul(F.linear(x, weight, bias))

    def logits(self, x: Tensor, weight: Tensor) -> Tensor:
        """Not rounded to bfloat16 first, which cannot tell apart two tokens whose logits are near 25 and 0.1 apart."""
        return self._kernels.logits(x, weight) if x.dtype == torch.bfloat16 else super().logits(x, weight)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """As in PyTorch."""
        return self._kernels.rms_norm(x, weight, eps)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """In place."""
        self._kernels.rotate(x, cos, sin)
        return x


class AMXCompute(CPUCompute):
    """For CPUs with AMX, bfloat16: many tokens by oneDNN with a second copy of the weights, laid out for tiles.

    Without the copy oneDNN rearranges all weights in every call: 17 instead of 11 ms for SmolLM2 and 32 tokens.
    """

    def __init__(self, kernels: CPUKernels) -> None:
        super().__init__(kernels)
        self._packed: dict[int, Tensor] = {}

    def prepare(self, weights: Iterable[Tensor]) -> None:
        """Lay out the weights anew."""
        self._packed = {w.data_ptr(): torch.ops.mkldnn._reorder_linear_weight(w, 2 * _FEW_TOKENS) for w in weights}

    def run(
        self, layers: Sequence[DecoderLayer], x: Tensor, cos: Tensor, sin: Tensor, attention: AttentionContext
    ) -> Tensor:
        """Few tokens in one call of the kernels, many layer by layer."""
        if len(x) <= _FEW_TOKENS:
            return super().run(layers, x, cos, sin, attention)
        return TorchCompute.run(self, layers, x, cos, sin, attention)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, addend: Tensor | None = None) -> Tensor:
        """As in PyTorch."""
        if len(x) <= _FEW_TOKENS:
            return super().linear(x, weight, bias, addend)
        packed, multiply = self._packed[weight.data_ptr()], torch.ops.mkldnn._linear_pointwise
        if addend is None:
            return cast("Tensor", multiply(x, packed, bias, "none", [], ""))
        return cast("Tensor", multiply.binary(x, addend, packed, bias, "add"))

    def gated(self, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
        """As in PyTorch; other activations than SiLU by PyTorch."""
        if len(x) <= _FEW_TOKENS or activation != "silu":
            return super().gated(x, weight, bias, activation)
        return self._kernels.silu_mul(self.linear(x, weight, bias))


def uses_amx(spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether linears want a second copy of their weights."""
    possible = device.type == "cpu" and dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported()
    return possible and spec.quantization is None


def choose_compute(spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> TorchCompute:
    """The quickest way to compute the model of `spec` in `dtype` on `device`."""
    if device.type != "cpu" or dtype not in DTYPES:
        return TorchCompute()
    whole_lanes = spec.hidden_size % LANES == spec.intermediate_size % LANES == spec.head_dim % (2 * LANES) == 0
    kernels = cpu_kernels() if whole_lanes else None
    if kernels is None:
        return TorchCompute()
    return AMXCompute(kernels) if uses_amx(spec, dtype, device) else CPUCompute(kernels)
