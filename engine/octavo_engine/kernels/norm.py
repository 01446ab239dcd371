"""Root mean square normalisation (arXiv 1910.07467) in one pass over each row.

Optionally of a sum (what a linear gave and the residual stream), and optionally quantized to FP8 for a linear that
multiplies in FP8. Rounds where Hugging Face's Llama does: the sum, the normalised row and its product with the weights
are each rounded to the model's type; only the order in which squares are added up is another.

Moves, in bytes a row of N elements of s bytes: 2 N s, with a residual 4 N s; quantized, N s - N less. One program
computes a row, so a decode step of one row keeps one multiprocessor busy, for as long as a launch, one read from
memory, a reduction and a write take one after another: the floor is that latency, whatever N.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_engine.kernels.fp8 import quantized_row


@triton.jit
def rms_norm_kernel(
    output,  # [T, SIZE], x's type or e4m3
    scale,  # [T] float32, of a quantized output
    summed,  # [T, SIZE], x + residual
    x,  # [T, SIZE], rows x_stride apart
    residual,  # [T, SIZE], rows residual_stride apart
    weight,  # [SIZE]
    eps,
    x_stride,
    residual_stride,
    SIZE: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
    RESIDUAL: tl.constexpr,
    QUANTIZE: tl.constexpr,
):
    """One program normalises one row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, SIZE_PADDED)
    inside = columns < SIZE
    value = tl.load(x + row * x_stride + columns, mask=inside, other=0.0)
    # Asked for before the sum of squares is known, so that nothing waits for it then.
    factors = tl.load(weight + columns, mask=inside, other=0.0)
    if RESIDUAL:
        addend = tl.load(residual + row * residual_stride + columns, mask=inside, other=0.0)
        value = (value.to(tl.float32) + addend.to(tl.float32)).to(value.dtype)
        tl.store(summed + row * SIZE + columns, value, mask=inside)
    wide = value.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(wide * wide) / SIZE + eps)
    normalised = (wide * inverse).to(value.dtype).to(tl.float32)
    result = (normalised * factors.to(tl.float32)).to(value.dtype)
    if QUANTIZE:
        quantized, row_scale = quantized_row(result.to(tl.float32))
        tl.store(output + row * SIZE + columns, quantized, mask=inside)
        tl.store(scale + row, row_scale)
    else:
        tl.store(output + row * SIZE + columns, result, mask=inside)


@dataclass(frozen=True, slots=True)
class Normed:
    """What `rms_norm` gives."""

    output: Tensor
    """[T, N], x's dtype; quantized float8_e4m3fn."""
    scale: Tensor | None
    """float32 [T, 1], what a row of a quantized output is to be multiplied with."""
    summed: Tensor
    """[T, N], x + residual; x itself where there is none."""


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, *, residual: Tensor | None = None, quantize: bool = False
) -> Normed:
    """Rows of x [T, N], or of x + residual, divided by their root mean square, times weight [N].

    Rows are contiguous, any distance apart; bfloat16, float16 or float32, weight and residual as x.
    """
    tokens, size = x.shape
    output = torch.empty(tokens, size, dtype=torch.float8_e4m3fn if quantize else x.dtype, device=x.device)
    scale = torch.empty(tokens, 1, dtype=torch.float32, device=x.device) if quantize else None
    summed = x if residual is None else torch.empty(tokens, size, dtype=x.dtype, device=x.device)
    if tokens:
        padded, warps = row_shape(size)
        rms_norm_kernel[(tokens,)](
            output,
            scale,
            summed,
            x,
            residual,
            weight,
            eps,
            x.stride(0),
            0 if residual is None else residual.stride(0),
            SIZE=size,
            SIZE_PADDED=padded,
            RESIDUAL=residual is not None,
            QUANTIZE=quantize,
            num_warps=warps,
        )
    return Normed(output, scale, summed)


def row_shape(size: int) -> tuple[int, int]:
    """Elements of a padded row, and warps: each thread reads 8 at once (16 bytes of bfloat16), up to 4096 elements."""
    padded = triton.next_power_of_2(size)
    return padded, min(16, max(1, padded // 256))
