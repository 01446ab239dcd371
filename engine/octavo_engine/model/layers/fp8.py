"""Multiplication with weights in e4m3 on tensor cores that compute in 8 bits; elsewhere `Linear` dequantizes them."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.functional import ScalingType

from octavo_engine.model.quantization import BLOCK

_ALIGNMENT = 16
"""`scaled_mm` wants rows and columns to be multiples of it."""


def fp8_linear(x: Tensor, weight: Tensor, scale: Tensor, input_scale: Tensor | None, bias: Tensor | None) -> Tensor:
    """x [T, in] weight^T + bias [out], as x's type.

    `weight` e4m3 [out, in], `scale` float32 as `FP8Scheme.scale_shape` says, `input_scale` float32 [1] of activations.
    x is quantized here; for devices and numbers that `multiplies_fp8` and `suits_fp8` are true of.
    """
    if len(scale) != len(weight):
        product = block_product(x, weight, scale)
        return product if bias is None else product + bias
    return channel_product(x, weight, scale, input_scale, bias)


@cache
def multiplies_fp8(device: torch.device) -> bool:
    """Whether `device` has tensor cores for e4m3: NVIDIA's from Ada and Hopper on."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def suits_fp8(dtype: torch.dtype, rows: int, columns: int) -> bool:
    """Whether activations of `dtype` may be multiplied in 8 bits with a weight [rows, columns]; float32 means exact."""
    return dtype != torch.float32 and rows % _ALIGNMENT == columns % _ALIGNMENT == 0


def channel_product(
    x: Tensor, weight: Tensor, scale: Tensor, input_scale: Tensor | None, bias: Tensor | None
) -> Tensor:
    """A scale for each token and each row of the weight; x is quantized here."""
    from octavo_engine.kernels.fp8 import quantize_tokens  # brings Triton: only where there is a GPU

    return quantized_product(*quantize_tokens(x, input_scale), weight, scale, bias, x.dtype)


def quantized_product(
    x: Tensor, token_scale: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """x e4m3 [T, in] with scales [T, 1], as `quantize_tokens` gives them, times the weight, in `dtype`.

    Sums stay in the tensor cores to the end, as in other engines: they keep fewer bits than float32, and take half the
    time.
    """
    rows = ScalingType.RowWise
    return F.scaled_mm(
        x, weight.t(), token_scale, rows, scale.t(), rows, bias=bias, output_dtype=dtype, use_fast_accum=True
    )


def block_product(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """A scale for each token and 128 columns, and for each block of the weight."""
    from octavo_engine.kernels.fp8 import quantize_groups
    from octavo_engine.kernels.fp8_gemm import block_fp8_matmul

    quantized, group_scale = quantize_groups(x, BLOCK)
    return block_fp8_matmul(quantized, group_scale, weight, scale, x.dtype)
