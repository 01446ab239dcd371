"""A trial of interleaved weights on a device, before loaded weights are put into that order.

Their kernels make numbers of codes by instructions that Triton's interpreter does not know and that no test without a
GPU can run. So a small weight is multiplied first. Where a kernel does not compile or computes something else, weights
keep the order in which they are stored, with which products take longer.
"""

from __future__ import annotations

import logging
from functools import cache

import torch
from torch import Tensor

from octavo_engine.kernels.cpu.quantized import QuantizedPart, QuantizedWeight, unpack
from octavo_engine.kernels.quantized.interleaved import can_be_interleaved, dequantize_interleaved, interleave
from octavo_engine.kernels.quantized.quantized_linear import quantized_linear

log = logging.getLogger(__name__)

_TOKENS = (1, 17, 64)
"""One number of tokens for each size of tiles."""
_ROWS, _COLUMNS = 200, 4096
"""The last tile of rows is not full, and the columns are split."""
_MOST_DIFFERENCE = 0.03
"""Of the largest result. Products of bfloat16 numbers differ by 0.003 of it, and those of mixed-up codes by about 1."""


def interleave_if_right(weight: QuantizedWeight, dtype: torch.dtype) -> None:
    """Interleave a weight for activations in `dtype`, if its parts can be and the device passes a trial of such."""
    if weight.interleaved or not can_be_interleaved(weight, dtype):
        return
    device = weight.parts[0].codes.device
    kinds = {part.minimum is not None for part in weight.parts}
    if device.type != "cuda" or all(_passes(has_minimum, dtype, device) for has_minimum in kinds):
        interleave(weight)


@cache
def _passes(has_minimum: bool, dtype: torch.dtype, device: torch.device) -> bool:
    try:
        difference = largest_difference(has_minimum, dtype, device, _ROWS, _COLUMNS)
    except Exception as error:  # noqa: BLE001  (a compiler of another version may fail in any way)
        log.warning("weights of 4 bits keep their stored order, which is slower: the trial failed: %s", error)
        return False
    if difference <= _MOST_DIFFERENCE:  # not so if it is NaN
        return True
    log.warning(
        "weights of 4 bits keep their stored order, which is slower: results of the trial differ by %.2g of the "
        "largest one, where %.2g is allowed",
        difference,
        _MOST_DIFFERENCE,
    )
    return False


@torch.inference_mode()
def largest_difference(has_minimum: bool, dtype: torch.dtype, device: torch.device, rows: int, columns: int) -> float:
    """Return by how much results of a random interleaved weight [rows, columns] differ, relative to the largest one."""
    random = torch.Generator(device).manual_seed(0)
    part = _part(has_minimum, device, rows, columns, random)
    numbers = _numbers(part)
    weight = QuantizedWeight([part])
    interleave(weight)
    found = [_relative(dequantize_interleaved(weight, dtype), numbers)]
    for tokens in _TOKENS:
        x = torch.randn(tokens, columns, generator=random, device=device).to(dtype)
        found.append(_relative(quantized_linear(x, weight, None, None), x.float() @ numbers.t()))
    return float(torch.stack(found).max())


def _part(has_minimum: bool, device: torch.device, rows: int, columns: int, random: torch.Generator) -> QuantizedPart:
    """Return codes as of AWQ, with zeros and groups of 128, or with minima and groups of 32."""
    group = 32 if has_minimum else 128
    codes = torch.randint(0, 256, (rows, columns // 2), generator=random, device=device).to(torch.uint8)
    scale = torch.rand(rows, columns // group, generator=random, device=device) * 0.01 + 0.001
    if has_minimum:
        scale = scale.bfloat16()
        return QuantizedPart(codes=codes, scale=scale, bits=4, columns=columns, group=group, minimum=-7 * scale)
    zero = torch.randint(0, 16, scale.shape, generator=random, device=device).to(torch.uint8)
    return QuantizedPart(codes=codes, scale=scale.half().float(), bits=4, columns=columns, group=group, zero=zero)


def _numbers(part: QuantizedPart) -> Tensor:
    """Return what the stored codes stand for, float32 [rows, columns]."""
    codes = unpack(part.codes, part.bits).view(len(part.codes), -1, part.group or 1).float()
    if part.zero is not None:
        codes -= part.zero.float()[:, :, None]
    numbers = codes * part.scale.float()[:, :, None]
    if part.minimum is not None:
        numbers += part.minimum.float()[:, :, None]
    return numbers.flatten(1)


def _relative(found: Tensor, wanted: Tensor) -> Tensor:
    return (found.float() - wanted).abs().max() / wanted.abs().max()
