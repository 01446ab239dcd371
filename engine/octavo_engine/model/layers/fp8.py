"""Multiplication with weights in e4m3 on tensor cores that compute in 8 bits; elsewhere `Linear` dequantizes them."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.functional import ScalingType

from octavo_engine.kernels.quantized import Quantized, Scaling

_ALIGNMENT = 16
"""`scaled_mm` wants rows and columns to be multiples of it."""


def fp8_linear(
    x: Tensor | Quantized, scaling: Scaling, weight: Tensor, scale: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """x [T, in] weight^T + bias [out], as `dtype`; x is quantized by `scaling` unless it comes so.

    `weight` e4m3 [out, in], `scale` float32 as `FP8Scheme.scale_shape` says; for devices and numbers that
    `multiplies_fp8` and `suits_fp8` are true of.
    """
    if isinstance(x, Tensor):
        from octavo_engine.kernels.fp8 import quantize  # brings Triton: only where there is a GPU

        x = quantize(x, scaling)
    if scaling.group is None:
        return channel_product(x, weight, scale, bias, dtype)
    from octavo_engine.kernels.fp8_gemm import block_fp8_matmul

    product = block_fp8_matmul(x.values, x.scales, weight, scale, dtype)
    return product if bias is None else product + bias


@cache
def multiplies_fp8(device: torch.device) -> bool:
    """Whether `device` has tensor cores for e4m3: NVIDIA's from Ada and Hopper on."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def suits_fp8(dtype: torch.dtype, rows: int, columns: int) -> bool:
    """Whether activations of `dtype` may be multiplied in 8 bits with a weight [rows, columns]; float32 means exact."""
    return dtype != torch.float32 and rows % _ALIGNMENT == columns % _ALIGNMENT == 0


def channel_product(x: Quantized, weight: Tensor, scale: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """A scale for each token and each row of the weight.

    Sums stay in the tensor cores to the end, as in other engines: they keep fewer bits than float32, and take half the
    time.
    """
    rows = ScalingType.RowWise
    return F.scaled_mm(
        x.values, weight.t(), x.scales, rows, scale.t(), rows, bias=bias, output_dtype=dtype, use_fast_accum=True
    )
