"""The operations that layers are made of: in PyTorch for every device, by our C kernels for CPUs, by Triton's for GPUs.

Which of them is chosen once, when a decoder is built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo_engine.attention.context import AttentionContext
from octavo_engine.attention.rotation import rms_norm
from octavo_engine.kernels.cpu.library import DTYPES, LANES, CPUKernels, cpu_kernels
from octavo_engine.kernels.experts import Experts
from octavo_engine.kernels.quantized import Quantized, Scaling
from octavo_engine.kernels.where import triton_runs_on
from octavo_engine.model.footprint import linear_bytes, widening_bytes
from octavo_engine.model.layers.fused import FusedLayers, can_fuse
from octavo_engine.model.layers.stream import Stream, added_up
from octavo_engine.model.spec import ModelSpec

if TYPE_CHECKING:
    from octavo_engine.model.decoder import DecoderLayer

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
}
_FEW_TO_WIDEN_FOR = 8
"""For no more tokens than these a weight is read as it is."""


class TorchCompute:
    """In PyTorch, rounding where Hugging Face transformers does."""

    widens = False
    """Whether products of many tokens are in float32, all they take widened for them alone."""
    copies = False
    """Whether linears' weights are kept twice."""
    logits_dtype: torch.dtype | None = torch.float32
    """In which logits are sampled; None: in the model's type, as they are multiplied."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, addend: Tensor | None = None) -> Tensor:
        """x [T, in] weight [out, in]^T + bias [out], added to `addend` [T, out], which may be overwritten."""
        product = self.multiply(x, weight, bias)
        return product if addend is None else addend + product

    def multiply(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x [T, in] weight [out, in]^T + bias [out]."""
        return F.linear(x, weight, bias)

    def gated(self, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
        """act(gate) * up [T, inner], where [gate up] are x times the two halves of weight [2 * inner, in]."""
        return self.gate(self.multiply(x, weight, bias), activation)

    def gate(self, gate_up: Tensor, activation: str) -> Tensor:
        """act(gate) * up [T, inner] of [gate up] [T, 2 * inner]."""
        gate, up = gate_up.chunk(2, dim=-1)
        return _ACTIVATIONS[activation](gate).mul_(up)

    def gate_for(self, gate_up: Tensor, activation: str, scaling: Scaling | None) -> Tensor | Quantized:  # noqa: ARG002
        """`gate` for a linear that wants it quantized by `scaling`, unless that is left to the linear."""
        return self.gate(gate_up, activation)

    def logits(self, x: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
        """x [T, in] weight [vocabulary, in]^T in `logits_dtype`, into `out` if it is given."""
        product = F.linear(x, weight)
        return product.float() if out is None else out.copy_(product)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / rms(x) * weight, the first part in float32, then cast, as Hugging Face's Llama does it."""
        return rms_norm(x, weight, eps)

    def mixture(self, x: Tensor, experts: Experts, chosen: Tensor, weights: Tensor) -> Tensor:
        """The sum of each token's experts [T, hidden] for x [T, hidden]; the router's choice and weights [T, k].

        One expert after another, for all of its tokens at once; their sum is float32.
        """
        total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        bias, down_bias = experts.gate_up_bias, experts.down_bias
        for expert in torch.bincount(chosen.flatten()).nonzero().flatten().tolist():
            tokens, places = torch.nonzero(chosen == expert, as_tuple=True)
            inner = self.linear(x[tokens], experts.gate_up[expert], None if bias is None else bias[expert])
            inner = experts.activate(inner)
            part = self.linear(inner, experts.down[expert], None if down_bias is None else down_bias[expert])
            total.index_add_(0, tokens, part.float().mul_(weights[tokens, places, None]))
        return total.to(x.dtype)

    def norm(
        self,
        stream: Stream,
        weight: Tensor,
        eps: float,
        scaling: Scaling | None,  # noqa: ARG002
    ) -> tuple[Tensor | Quantized, Tensor]:
        """`rms_norm` of the stream for a linear that wants it quantized by `scaling`, as `gate_for`; and its sum."""
        x = added_up(stream)
        return self.rms_norm(x, weight, eps), x

    def prepare(self, weights: Iterable[Tensor]) -> None:
        """The weights of all linears are in place now."""

    def prepare_mixture(self, experts: Experts, top_k: int) -> None:
        """So are the experts, all layers' of the shapes of these, of which each token goes through `top_k`."""

    def run(
        self, layers: Sequence[DecoderLayer], x: Tensor, cos: Tensor, sin: Tensor, attention: AttentionContext
    ) -> Tensor:
        """x [T, hidden] through all layers."""
        stream: Stream = x
        for layer in layers:
            stream = layer(stream, cos, sin, attention)
        return added_up(stream)


def multiply_wide(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [T, in] weight [out, in]^T + bias [out]; of more than a few tokens in float32, rounded once to x's type.

    The weight is widened for this call alone, which is as quick as a buffer that is kept.
    """
    if len(x) <= _FEW_TO_WIDEN_FOR:
        return F.linear(x, weight, bias)
    return F.linear(x.float(), weight.float(), None if bias is None else bias.float()).to(x.dtype)


class WideningCompute(TorchCompute):
    """For CPUs on which PyTorch emulates products of half precision: many tokens are multiplied in float32.

    With AVX2 SmolLM2's linears take 3.4 s in bfloat16 for 512 tokens and 0.75 s so; for 8 tokens both take 53 ms.
    """

    widens = True

    def multiply(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """As in PyTorch; sums are rounded once."""
        return multiply_wide(x, weight, bias)


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

    def logits(self, x: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
        """Not rounded to bfloat16 first, which cannot tell apart two tokens whose logits are near 25 and 0.1 apart."""
        if x.dtype != torch.bfloat16:
            return super().logits(x, weight, out)
        product = self._kernels.logits(x, weight)
        return product if out is None else out.copy_(product)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """As in PyTorch."""
        return self._kernels.rms_norm(x, weight, eps)


class FewTokensCompute(CPUCompute):
    """For CPUs on which many tokens are multiplied quicker by others than by our kernels; bfloat16."""

    few: int
    """Up to so many tokens are left to the kernels."""

    def many(self, x: Tensor, weight: Tensor, bias: Tensor | None, addend: Tensor | None) -> Tensor:
        """As `linear`, for more than `few` tokens."""
        raise NotImplementedError

    def run(
        self, layers: Sequence[DecoderLayer], x: Tensor, cos: Tensor, sin: Tensor, attention: AttentionContext
    ) -> Tensor:
        """Few tokens in one call of the kernels, many layer by layer."""
        if len(x) <= self.few:
            return super().run(layers, x, cos, sin, attention)
        return TorchCompute.run(self, layers, x, cos, sin, attention)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, addend: Tensor | None = None) -> Tensor:
        """As in PyTorch."""
        linear = super().linear if len(x) <= self.few else self.many
        return linear(x, weight, bias, addend)

    def gated(self, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
        """As in PyTorch; other activations than SiLU by PyTorch."""
        if len(x) <= self.few or activation != "silu":
            return super().gated(x, weight, bias, activation)
        return self._kernels.silu_mul(self.linear(x, weight, bias))


class AMXCompute(FewTokensCompute):
    """For CPUs with AMX, bfloat16: many tokens by oneDNN with a second copy of the weights, laid out for tiles.

    Without the copy oneDNN rearranges all weights in every call: 17 instead of 11 ms for SmolLM2 and 32 tokens.
    """

    few = 16
    copies = True

    def __init__(self, kernels: CPUKernels) -> None:
        super().__init__(kernels)
        self._packed: dict[int, Tensor] = {}

    def prepare(self, weights: Iterable[Tensor]) -> None:
        """Lay out the weights anew."""
        self._packed = {w.data_ptr(): torch.ops.mkldnn._reorder_linear_weight(w, 2 * self.few) for w in weights}

    def many(self, x: Tensor, weight: Tensor, bias: Tensor | None, addend: Tensor | None) -> Tensor:
        """By oneDNN. A weight that `prepare` was not given is rearranged in each call: slower, and as right."""
        packed, multiply = self._packed.get(weight.data_ptr()), torch.ops.mkldnn._linear_pointwise
        if packed is None:
            return TorchCompute.linear(self, x, weight, bias, addend)
        if addend is None:
            return cast("Tensor", multiply(x, packed, bias, "none", [], ""))
        return cast("Tensor", multiply.binary(x, addend, packed, bias, "add"))


class AVX2Compute(FewTokensCompute):
    """For CPUs without AVX-512, bfloat16: many tokens in float32, whose products need no unpacking."""

    few = 64
    widens = True

    def many(self, x: Tensor, weight: Tensor, bias: Tensor | None, addend: Tensor | None) -> Tensor:
        """In float32, rounded before `addend` is added."""
        return TorchCompute.linear(self, x, weight, bias, addend)

    def multiply(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Also what is not the kernels' for want of SiLU."""
        return multiply_wide(x, weight, bias)


def _uses_amx(spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether linears want a second copy of their weights."""
    possible = device.type == "cpu" and dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported()
    return possible and spec.quantization is None and spec.moe is None


def _widens(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether PyTorch emulates products of `dtype` on this x86 CPU, so that weights are widened for many tokens."""
    if device.type != "cpu" or dtype not in {torch.bfloat16, torch.float16} or not torch.cpu._is_avx2_supported():
        return False
    return not (torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported())


def compute_bytes(spec: ModelSpec, dtype: torch.dtype, device: torch.device, max_tokens: int) -> tuple[int, int]:
    """Bytes that `choose_compute`'s choice keeps of weights besides, and what a step of `max_tokens` takes besides."""
    if device.type != "cpu":  # it need not be here, nor need Triton
        return 0, 0
    compute = choose_compute(spec, dtype, device)
    return linear_bytes(spec, dtype) * compute.copies, widening_bytes(spec, max_tokens) * compute.widens


def choose_compute(spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> TorchCompute:
    """The quickest way to compute the model of `spec` in `dtype` on `device`."""
    if triton_runs_on(device):
        from octavo_engine.model.layers.triton_compute import TritonCompute

        return TritonCompute()
    plain = WideningCompute() if _widens(dtype, device) else TorchCompute()
    if device.type != "cpu" or dtype not in DTYPES:  # a decoder without memory is no reason to compile kernels
        return plain
    whole_lanes = spec.hidden_size % LANES == spec.intermediate_size % LANES == spec.head_dim % (2 * LANES) == 0
    kernels = cpu_kernels() if whole_lanes else None
    if kernels is None:
        return plain
    if _uses_amx(spec, dtype, device):
        return AMXCompute(kernels)
    avx2_alone = dtype == torch.bfloat16 and not torch.cpu._is_avx512_supported()
    return AVX2Compute(kernels) if avx2_alone else CPUCompute(kernels)
