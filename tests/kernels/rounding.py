"""Rounds numbers in the interpreter as a GPU does, and compares results within that rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from octavo_engine.kernels.fp8_activations import Quantized, Scaling

FP8 = torch.float8_e4m3fn
_STEPS = {
    FP8: (1.01 * 2**-3, 1.01 * 2**-9),
    torch.bfloat16: (2**-6, 4e-6),
    torch.float16: (2**-9, 4e-6),
    torch.float32: (4e-6, 4e-6),
}
"""What one rounding the other way makes, of a number and at least; two of them in 16 bits."""


def assert_rounded_alike(found: Tensor, expected: Tensor, size: Tensor | None = None) -> None:
    """`expected`, in float64 or the type of `found`, with the same roundings made on the way.

    Where the last digits of a sum are others a number can be rounded the other way; that is seldom, and one step.
    `size`: of the rounded numbers that a result is the sum of, where it is less than they are and keeps their steps.
    """
    assert found.shape == expected.shape
    rtol, atol = _STEPS[found.dtype]
    wide, expected = found.double(), expected.to(found.dtype).double()
    if size is not None:
        assert bool(((wide - expected).abs() <= rtol * torch.maximum(size.double(), expected.abs()) + atol).all())
    else:
        torch.testing.assert_close(wide, expected, rtol=rtol, atol=atol, equal_nan=True)
    if found.dtype != torch.float32:
        assert float((wide == expected).double().mean()) > 0.97


def assert_quantized(found: Quantized, expected: Tensor, scaling: Scaling) -> None:
    """Values times scales are `expected` [T, N] to the nearest of e4m3; scales are what was asked for.

    A group's largest number, from which its scale follows, may seldom be rounded the other way, by one step.
    """
    tokens, size = expected.shape
    group = size if scaling.group is None else scaling.group
    assert (found.values.dtype, found.scales.shape) == (FP8, (tokens, size // group))
    wide = expected.double().view(tokens, -1, group)
    scales = found.scales.double().unsqueeze(-1)
    if scaling.given is None:
        largest = wide.abs().amax(-1, keepdim=True) / 448
        torch.testing.assert_close(scales, largest, rtol=max(1e-5, _STEPS[expected.dtype][0]), atol=0)
        assert float(((scales - largest).abs() <= 1e-5 * largest).double().mean()) > 0.999
    else:
        assert bool((scales == scaling.given.double()).all())
    assert_rounded_alike(found.values, to_fp8(wide / scales).view(tokens, size))


def to_fp8(x: Tensor) -> Tensor:
    """The nearest of e4m3, the largest there is beyond that; as float64, by arithmetic: steps of 2^-3 of the binade."""
    step = (x.double().abs().log2().floor() - 3).clamp(min=-9).exp2()
    return (x.double() / step).round().mul(step).clamp(-448, 448)


def round_as_hardware() -> None:
    """Have Triton's interpreter round float32 to bfloat16 and FP8 as a device does.

    By itself (3.6 to 3.9) it cuts bfloat16 off, loses the carry in FP8 (1.97 becomes 1), and makes NaN 384 there.
    """
    from triton.runtime import interpreter

    convert = interpreter._convert_float
    types = {"bf16": (torch.bfloat16, torch.int16), "fp8e4nv": (FP8, torch.uint8)}

    def rounded(values: Any, source: Any, target: Any, mode: Any) -> Any:
        if str(source) != "fp32" or str(target) not in types:
            return convert(values, source, target, mode)
        dtype, bits = types[str(target)]
        result = torch.from_numpy(np.array(values, dtype=np.float32)).to(dtype).view(bits).numpy()
        return result.view(np.uint16) if bits == torch.int16 else result

    interpreter._convert_float = rounded
