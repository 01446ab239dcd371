"""Checks of the gated activations act(gate) * up, with and without quantized results."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo_engine.kernels.activation import (
    ACTIVATIONS,
    act_mul,
    act_mul_fp8,
    act_mul_fp8_kernel,
    act_mul_kernel,
    fp8_warps,
)
from octavo_engine.kernels.fp8 import parts
from octavo_engine.kernels.fp8_activations import Scaling
from tests.kernels.check import Build, Check
from tests.kernels.poison import poisoned
from tests.kernels.rounding import assert_quantized, assert_rounded_alike

_PLAIN = {"silu": F.silu, "gelu": F.gelu, "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh")}


def _expected(x: Tensor, activation: str) -> Tensor:
    """In float64, rounded where transformers does: activated, then multiplied."""
    gate, up = x.double().chunk(2, dim=1)
    return (_PLAIN[activation](gate).to(x.dtype).double() * up).to(x.dtype)


def _projection(tokens: int, inner: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Gate and up [T, 2 * inner] in a slice of a wider tensor."""
    return torch.randn(tokens, 2 * inner + 32, device=device).to(dtype)[:, : 2 * inner]


def _gated(tokens: int, inner: int, dtype: torch.dtype, activation: str, device: torch.device) -> None:
    x = _projection(tokens, inner, dtype, device)
    with poisoned():
        result = act_mul(x, activation)
    assert result.is_contiguous()
    assert_rounded_alike(result, _expected(x, activation))


def _quantized(tokens: int, inner: int, dtype: torch.dtype, activation: str, device: torch.device) -> None:
    x = _projection(tokens, inner, dtype, device)
    given = torch.rand(1, device=device) + 0.001
    for scaling in (Scaling(), Scaling(given=given), *([] if inner % 128 else [Scaling(group=128)])):
        with poisoned():
            result = act_mul_fp8(x, activation, scaling)
        assert_quantized(result, _expected(x, activation), scaling)


def _extreme_gates(device: torch.device) -> None:
    """Check gates whose exponential exceeds float32, and NaN."""
    gate = torch.tensor([-1000.0, -90.0, -1.0, 0.0, 1.0, 90.0, 1000.0, torch.nan], device=device)
    x = torch.cat((gate, torch.ones(8, device=device)))[None]
    for activation, plain in _PLAIN.items():
        torch.testing.assert_close(act_mul(x, activation)[0], plain(gate), rtol=1e-5, atol=1e-30, equal_nan=True)


def _no_tokens(device: torch.device) -> None:
    assert act_mul(torch.empty(0, 64, device=device), "silu").shape == (0, 32)


_SHAPES = (
    (1, 1536, torch.bfloat16, "silu"),
    (3, 1536, torch.float16, "gelu"),
    (3, 100, torch.float32, "gelu_pytorch_tanh"),
    (2, 4864, torch.bfloat16, "silu"),
    (1, 14336, torch.bfloat16, "silu"),
)
_LARGE = tuple((1023, 14336, torch.bfloat16, activation) for activation in ACTIVATIONS)
CHECKS = [
    Check(
        f"{name}_{tokens}x{inner}_{dtype}_{act}".replace("torch.", ""), partial(run, tokens, inner, dtype, act), large
    )
    for name, run in (("gated", _gated), ("quantized", _quantized))
    for shapes, large in ((_SHAPES, False), (_LARGE, True))
    for tokens, inner, dtype, act in shapes
]
CHECKS += [Check("extreme_gates", _extreme_gates), Check("no_tokens", _no_tokens)]


def _quantizing(inner: int, group: int | None = None) -> Build:
    block, group = parts(inner, Scaling(group))
    return Build(
        f"silu_mul_fp8_{inner}" + "_by_group" * (group < block),
        act_mul_fp8_kernel,
        {"output": "*fp8e4nv", "scales": "*fp32", "x": "*bf16", "x_stride": "i32"},
        {"given": None, "INNER": inner, "BLOCK": block, "GROUP": group, "ACTIVATION": "silu"},
        warps=fp8_warps(block),
        max_registers=64,  # of 1024 threads each has no more
        max_shared=1024,
        sass=("LDG.E.128", "STG.E.64" if group < block else "STG.E.128"),
    )


BUILDS = [
    Build(
        f"act_mul_{activation}",
        act_mul_kernel,
        {"output": "*bf16", "x": "*bf16", "x_stride": "i32"},
        {"INNER": 14336, "BLOCK": 1024, "ACTIVATION": activation},
        max_registers=40,
        max_shared=0,
        sass=("LDG.E.128", "STG.E.128"),
    )
    for activation in ACTIVATIONS
]
BUILDS += [_quantizing(14336), _quantizing(28672), _quantizing(14336, 128)]
