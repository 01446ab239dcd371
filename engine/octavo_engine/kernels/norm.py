"""Root mean square normalisation (arXiv 1910.07467) in one pass over each row.

Optionally of a sum (what a linear gave and the residual stream), and optionally quantized to FP8 for a linear that
multiplies in FP8. Rounds where Hugging Face's Llama does: the sum, the normalised row and its product with the weights
are each rounded to the model's type; only the order in which squares are added up is another.

Moves, in bytes a row of N elements of s bytes: 2 N s, with a residual 4 N s; quantized, N s - N less. One program
computes a row, so a decode step of one row keeps one multiprocessor busy, for as long as a launch, one read from
memory, a reduction and a write take one after another: the floor is that latency, whatever N.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_engine.kernels.fp8 import empty_quantized, store_quantized
from octavo_engine.kernels.fp8_activations import Quantized, Scaling


@triton.jit
def rms_norm_kernel(
    output,  # [T, SIZE], x's type or e4m3
    scales,  # [T, SIZE / GROUP] float32, of a quantized output
    given,  # [1] float32, the scale to quantize by, or None
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
    GROUP: tl.constexpr,  # columns that share a scale, SIZE_PADDED where all do; 0: not quantized
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
    if GROUP > 0:
        store_quantized(output, scales, result.to(tl.float32), given, row, 0, SIZE, SIZE_PADDED, GROUP)
    else:
        tl.store(output + row * SIZE + columns, result, mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the RMS norm of x [T, N], or of x + residual, times weight [N]; and the sum x + residual, or x.

    Rows are contiguous, any distance apart; bfloat16, float16 or float32, weight and residual as x.
    """
    output = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return output, _launch(output, None, x, weight, eps, residual, Scaling())


def rms_norm_fp8(
    x: Tensor, weight: Tensor, eps: float, scaling: Scaling, residual: Tensor | None = None
) -> tuple[Quantized, Tensor]:
    """Return `rms_norm` with its first result quantized to e4m3."""
    tokens, size = x.shape
    output = empty_quantized(tokens, size, scaling, x.device)
    return output, _launch(output.values, output.scales, x, weight, eps, residual, scaling)


def _launch(
    output: Tensor,
    scales: Tensor | None,
    x: Tensor,
    weight: Tensor,
    eps: float,
    residual: Tensor | None,
    scaling: Scaling,
) -> Tensor:
    """Fill `output`, and `scales` if it is quantized; return x + residual, or x."""
    tokens, size = x.shape
    summed = x if residual is None else torch.empty(tokens, size, dtype=x.dtype, device=x.device)
    if tokens:
        padded, warps = row_shape(size)
        rms_norm_kernel[(tokens,)](
            output,
            scales,
            scaling.given,
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
            GROUP=0 if scales is None else scaling.group or padded,
            num_warps=warps,
        )
    return summed


def row_shape(size: int) -> tuple[int, int]:
    """Return a padded row's elements and its warps: a thread reads 8 at once (16 bytes of bfloat16), up to 4096."""
    padded = triton.next_power_of_2(size)
    return padded, min(16, max(1, padded // 256))
