"""Checks of RMS norm, of a residual sum too, with and without quantized results."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from octavo_engine.kernels.fp8_activations import Scaling
from octavo_engine.kernels.norm import rms_norm, rms_norm_fp8, rms_norm_kernel, row_shape
from tests.kernels.check import Build, Check
from tests.kernels.poison import poisoned
from tests.kernels.rounding import assert_quantized, assert_rounded_alike

_EPS = 1e-5


def _expected(x: Tensor, weight: Tensor) -> Tensor:
    """In float64, rounded where transformers does: normalised, then multiplied."""
    wide = x.double()
    normalised = wide / (wide.square().mean(1, keepdim=True) + _EPS).sqrt()
    return (normalised.to(x.dtype).double() * weight.double()).to(x.dtype)


def _rows(tokens: int, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Rows of different sizes, in a slice of a wider tensor."""
    wide = torch.randn(tokens, size + 32, device=device) * torch.logspace(-2, 3, tokens, device=device)[:, None]
    return wide.to(dtype)[:, :size]


def _norm(tokens: int, size: int, dtype: torch.dtype, device: torch.device) -> None:
    x, weight = _rows(tokens, size, dtype, device), (torch.rand(size, device=device) + 0.5).to(dtype)
    before = x.clone()
    with poisoned():
        normed, same = rms_norm(x, weight, _EPS)
    assert same is x
    assert torch.equal(x, before)
    assert normed.is_contiguous()
    assert_rounded_alike(normed, _expected(x, weight))


def _norm_of_a_sum(tokens: int, size: int, dtype: torch.dtype, device: torch.device) -> None:
    x, residual = (_rows(tokens, size, dtype, device) for _ in range(2))
    weight = (torch.rand(size, device=device) + 0.5).to(dtype)
    with poisoned():
        normed, summed = rms_norm(x, weight, _EPS, residual)
    assert torch.equal(summed, x + residual)
    assert_rounded_alike(normed, _expected(x + residual, weight))


def _quantized(tokens: int, size: int, dtype: torch.dtype, device: torch.device) -> None:
    x, residual = (_rows(tokens, size, dtype, device) for _ in range(2))
    weight = (torch.rand(size, device=device) + 0.5).to(dtype)
    given = torch.rand(1, device=device) + 0.01
    for scaling in (Scaling(), Scaling(given=given), *([] if size % 128 else [Scaling(group=128)])):
        with poisoned():
            plain, same = rms_norm_fp8(x, weight, _EPS, scaling)
            normed, summed = rms_norm_fp8(x, weight, _EPS, scaling, residual)
        assert same is x
        assert torch.equal(summed, x + residual)
        assert_quantized(plain, _expected(x, weight), scaling)
        assert_quantized(normed, _expected(x + residual, weight), scaling)


def _zeros_and_nan(device: torch.device) -> None:
    """A row of zeros stays one, and a row that is no number harms no other."""
    x = torch.randn(3, 64, device=device)
    x[0], x[1, 5] = 0, torch.nan
    weight = torch.ones(64, device=device)
    normed, _ = rms_norm_fp8(x, weight, _EPS, Scaling())
    back = normed.values.float() * normed.scales
    assert not back[0].any()
    assert bool(back[1].isnan().all())
    torch.testing.assert_close(back[2], _expected(x, weight)[2], rtol=0.07, atol=0.01)


_SHAPES = (
    (1, 576, torch.bfloat16),
    (5, 576, torch.float32),
    (3, 896, torch.float16),
    (1, 4096, torch.bfloat16),
    (3, 8192, torch.bfloat16),
)
_LARGE = ((1, 8192, torch.float32), (4097, 4096, torch.bfloat16), (1000, 896, torch.bfloat16))
_RUNS = {"norm": _norm, "sum": _norm_of_a_sum, "quantized": _quantized}
CHECKS = [
    Check(f"{name}_{tokens}x{size}_{dtype}".replace("torch.", ""), partial(run, tokens, size, dtype), large)
    for name, run in _RUNS.items()
    for shapes, large in ((_SHAPES, False), (_LARGE, True))
    for tokens, size, dtype in shapes
]
CHECKS.append(Check("zeros_and_nan", _zeros_and_nan))


def _build(size: int, *, residual: bool, group: int = 0) -> Build:
    padded, warps = row_shape(size)
    pointers = {"output": "*fp8e4nv" if group else "*bf16", "x": "*bf16", "weight": "*bf16"}
    pointers |= {"scales": "*fp32"} if group else {}
    pointers |= {"residual": "*bf16", "summed": "*bf16"} if residual else {}
    return Build(
        f"rms_norm_{size}" + "_sum" * residual + "_fp8" * bool(group) + "_by_group" * (0 < group < size),
        rms_norm_kernel,
        pointers | {"eps": "fp32", "x_stride": "i32", "residual_stride": "i32"},
        {"SIZE": size, "SIZE_PADDED": padded, "RESIDUAL": residual, "GROUP": group, "given": None}
        | ({} if group else {"scales": None})
        | ({} if residual else {"residual": None, "summed": None}),
        warps=warps,
        max_registers=64,
        max_shared=1024,
        sass=("LDG.E.128", "STG.E.64" if group else "STG.E.128"),
    )


BUILDS = [
    _build(4096, residual=False),
    _build(4096, residual=True, group=4096),
    _build(4096, residual=True, group=128),
    _build(8192, residual=True),
]
