"""FP8 (e4m3: 4 bits of exponent, 3 of mantissa, largest 448) as kernels write it, for other kernels to call."""

from __future__ import annotations

import triton
import triton.language as tl

FP8_MAX = tl.constexpr(448.0)


@triton.jit
def to_fp8(x):
    """float32 to e4m3, what is too large to the largest there is; what is no number stays none."""
    # The hardware's conversion saturates by itself, the interpreter's does not.
    return tl.clamp(x, -FP8_MAX, FP8_MAX, propagate_nan=tl.PropagateNan.ALL).to(tl.float8e4nv)


@triton.jit
def quantized_row(row):
    """A whole row, float32, as e4m3 and its scale: row = quantized * scale, the largest element 448."""
    largest = tl.max(tl.abs(row))
    largest = tl.where(largest > 0.0, largest, FP8_MAX)
    # One division a row: one an element takes longer than all else that is done with it.
    return to_fp8(row * (FP8_MAX / largest)), largest / FP8_MAX
