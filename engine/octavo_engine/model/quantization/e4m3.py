"""Quantizes, dequantizes and multiplies numbers in 8-bit floating point (e4m3, arXiv 2209.05433)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.functional import ScalingType

from octavo_engine.kernels.fp8_activations import Quantized, Scaling
from octavo_engine.kernels.gpu_limits import FP8_SINCE, capability

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
BLOCK = 128
"""Rows and columns of the blocks that are multiplied in 8 bits."""
_ALIGNMENT = 16
"""The multiple that `scaled_mm` needs of rows and columns."""


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return e4m3 values and float32 scales [rows, 1] of a weight [rows, columns]; each row's largest value is 448."""
    wide = weight.float()
    scale = wide.abs().amax(dim=1, keepdim=True).clamp_(min=torch.finfo(torch.float32).tiny * FP8_MAX) / FP8_MAX
    return to_fp8(wide / scale), scale


def to_fp8(x: Tensor) -> Tensor:
    """Return x rounded to e4m3; larger numbers become its largest, and NaN stays (unlike in PyTorch's cast)."""
    return x.clamp(-FP8_MAX, FP8_MAX).to(FP8)


def dequantize(weight: Tensor, scale: Tensor, group: int | None = None, first_column: int = 0) -> Tensor:
    """Return the numbers, float32, that e4m3 values [rows, columns] with scales [rows, 1] or [rows, groups] stand for.

    `group`: the columns that share a scale, None: all of them. The weight begins at `first_column` of its first group.
    """
    wide = weight.float()
    if group is None:
        return wide.mul_(scale)
    first = min(-first_column % group, wide.shape[1])  # the columns of a group that begins before this weight
    wide[:, :first].mul_(scale[:, :1])
    others = scale[:, first > 0 :]
    full = (wide.shape[1] - first) // group
    end = first + full * group
    wide[:, first:end].view(len(wide), full, group).mul_(others[:, :full, None])
    wide[:, end:].mul_(others[:, full:])
    return wide


def fp8_linear(
    x: Tensor | Quantized, scaling: Scaling, weight: Tensor, scale: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Return x [T, in] weight^T + bias [out], as `dtype`; x is quantized by `scaling` unless it is already.

    `weight` is e4m3 [out, in], `scale` float32 [out, 1] or [out / BLOCK, in / BLOCK]. `multiplies_fp8` must be true
    of the device, and `suits_fp8` of dtype and sizes.
    """
    if isinstance(x, Tensor):
        from octavo_engine.kernels.fp8 import quantize  # brings Triton: only where there is a GPU

        x = quantize(x, scaling)
    if scaling.group is None:
        return channel_product(x, weight, scale, bias, dtype)
    from octavo_engine.kernels.fp8_gemm import block_fp8_matmul

    product = block_fp8_matmul(x.values, x.scales, weight, scale, dtype)
    return product if bias is None else product + bias


def multiplies_fp8(device: torch.device) -> bool:
    """Return True if `device` has tensor cores for e4m3: NVIDIA's from Ada and Hopper on."""
    found = capability(device)
    return found is not None and found >= FP8_SINCE


def suits_fp8(dtype: torch.dtype, rows: int, columns: int) -> bool:
    """Return True if activations of `dtype` may be multiplied in 8 bits with a weight [rows, columns].

    float32 is not, as it asks for exact products.
    """
    return dtype != torch.float32 and rows % _ALIGNMENT == columns % _ALIGNMENT == 0


def channel_product(x: Quantized, weight: Tensor, scale: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Compute the product where each token of x and each row of the weight has a scale.

    Sums are accumulated in the tensor cores, as in other engines: they have fewer bits than float32, and take half the
    time.
    """
    rows = ScalingType.RowWise
    return F.scaled_mm(
        x.values, weight.t(), x.scales, rows, scale.t(), rows, bias=bias, output_dtype=dtype, use_fast_accum=True
    )
