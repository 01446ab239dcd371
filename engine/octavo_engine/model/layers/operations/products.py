"""The ways to multiply activations with a weight; `Compute` is given one for each kind of weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo_engine.kernels.cpu.library import DTYPES, CPUKernels
from octavo_engine.kernels.cpu.quantized import QuantizedWeight
from octavo_engine.model.layers.operations.crossovers import Crossovers

Product = Callable[[Tensor, Tensor, Tensor | None, Tensor | None], Tensor]
"""x [T, in], weight [out, in], bias [out], addend [T, out] to x weight^T + bias + addend [T, out], in x's dtype.

The addend may be overwritten."""
GatedProduct = Callable[[Tensor, Tensor, Tensor | None, str], Tensor | None]
"""x [T, in], weight [2 * inner, in], bias and an activation's name to act(gate) * up [T, inner] in one pass, where
[gate up] is x times the two halves of the weight; None where the function does not support its inputs."""
LogitsProduct = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""x [T, in], weight [vocabulary, in] to logits [T, vocabulary], into the third argument if it is given."""


class QuantizedProduct(Protocol):
    """Like `Product`, with a weight of 4 or 8 bits."""

    def knows(self, weight: QuantizedWeight, dtype: torch.dtype) -> bool:
        """Return True if such codes are multiplied with inputs of this type; the weight's memory is not read."""
        ...

    def __call__(self, x: Tensor, weight: QuantizedWeight, bias: Tensor | None, addend: Tensor | None) -> Tensor:
        """Multiply x [T, in] with a weight that the product `knows`."""
        ...


def torch_product(x: Tensor, weight: Tensor, bias: Tensor | None, addend: Tensor | None) -> Tensor:
    """Multiply by PyTorch, rounded before `addend` is added, as Hugging Face transformers does."""
    product = F.linear(x, weight, bias)
    return product if addend is None else addend + product


def wide_product(x: Tensor, weight: Tensor, bias: Tensor | None, addend: Tensor | None) -> Tensor:
    """Multiply by PyTorch in float32, rounded once before `addend` is added.

    The weight is widened for this call alone, which is as quick as a buffer that is kept. With AVX2 SmolLM2's linears
    take 3.4 s in bfloat16 for 512 tokens and 0.75 s so; for 8 tokens both take 53 ms.
    """
    wide = F.linear(x.float(), weight.float(), None if bias is None else bias.float()).to(x.dtype)
    return wide if addend is None else addend + wide


def torch_logits(x: Tensor, weight: Tensor, out: Tensor | None) -> Tensor:
    """Compute logits by PyTorch, rounded to x's dtype and then float32."""
    product = F.linear(x, weight)
    return product.float() if out is None else out.copy_(product)


def kernel_product(kernels: CPUKernels) -> Product:
    """Return the product of our C kernels, which read weights once and round once.

    Float32, and rows of an odd length, are multiplied by PyTorch.
    """

    def product(x: Tensor, weight: Tensor, bias: Tensor | None, addend: Tensor | None) -> Tensor:
        if x.dtype != torch.bfloat16 or x.shape[-1] % 2:
            return torch_product(x, weight, bias, addend)
        return kernels.linear(x, weight, bias, addend)

    return product


class KernelQuantizedProduct:
    """The product of our C kernels with quantized weights; `product` multiplies those that they dequantize first."""

    def __init__(self, kernels: CPUKernels, crossovers: Crossovers, product: Product) -> None:
        self._kernels, self._crossovers, self._product = kernels, crossovers, product

    def knows(self, weight: QuantizedWeight, dtype: torch.dtype) -> bool:
        """Return False for half precision, and for groups that the kernels do not know."""
        return dtype in DTYPES and weight.known_to_kernels

    def __call__(self, x: Tensor, weight: QuantizedWeight, bias: Tensor | None, addend: Tensor | None) -> Tensor:
        """Compute a `QuantizedProduct` with codes where that is quicker than with their numbers."""
        if self._crossovers.multiplies_codes(len(x), interleaved=weight.interleaved):
            return self._kernels.quantized_linear(x, weight, bias, addend)
        return self._product(x, self._kernels.dequantize(weight, x.dtype), bias, addend)


def kernel_interleaving(kernels: CPUKernels) -> Callable[[QuantizedWeight, torch.dtype], None]:
    """Return the function that interleaves weights for our C kernels, which round inputs to 8 bits with them.

    Products in float32 are to be exact, so weights are not interleaved for them.
    """

    def interleave(weight: QuantizedWeight, dtype: torch.dtype) -> None:
        if dtype == torch.bfloat16 and weight.can_be_interleaved:
            kernels.interleave(weight)

    return interleave


def kernel_gated_product(kernels: CPUKernels, most_tokens: int | None) -> GatedProduct:
    """Return the product of our C kernels with SiLU, for at most `most_tokens` tokens in bfloat16.

    Sums are gated before they are rounded.
    """

    def product(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor | None:
        few = most_tokens is None or len(x) <= most_tokens
        known = few and activation == "silu" and x.dtype == torch.bfloat16
        return kernels.linear(x, weight, bias, silu=True) if known else None

    return product


def kernel_logits(kernels: CPUKernels) -> LogitsProduct:
    """Return the logits of our C kernels, which are not rounded to bfloat16.

    Two logits near 25 that differ by 0.1 would be equal in bfloat16.
    """

    def product(x: Tensor, weight: Tensor, out: Tensor | None) -> Tensor:
        if x.dtype != torch.bfloat16:
            return torch_logits(x, weight, out)
        logits = kernels.logits(x, weight)
        return logits if out is None else out.copy_(logits)

    return product


class QuantizedVocabulary:
    """Embeddings and logits by our C kernels, from weights that stay in 4 or 8 bits."""

    def __init__(self, kernels: CPUKernels) -> None:
        self._kernels = kernels

    def embeddings(self, rows: Tensor, weight: QuantizedWeight, dtype: torch.dtype) -> Tensor:
        """Return the numbers [T, in] of a weight's `rows` [T]; zeros for rows that the weight does not have."""
        return self._kernels.dequantize_rows(weight, rows.long(), dtype)

    def logits(self, x: Tensor, weight: QuantizedWeight, out: Tensor | None) -> Tensor:
        """Return x [T, in] weight [vocabulary, in]^T in float32, in `out` if it is given.

        With interleaved codes x is rounded to 8 bits, as for linear layers.
        """
        logits = self._kernels.quantized_linear(x, weight, out=torch.float32)
        return logits if out is None else out.copy_(logits)


def by_tokens(few: Product, most_tokens: int | None, many: Product) -> Product:
    """Return the product that calls `few` for at most `most_tokens` tokens, and `many` for more; None: `few` alone."""
    if most_tokens is None:
        return few

    def product(x: Tensor, weight: Tensor, bias: Tensor | None, addend: Tensor | None) -> Tensor:
        return (few if len(x) <= most_tokens else many)(x, weight, bias, addend)

    return product
