"""Checks of quantizing activations to FP8, and of the matrix product with block scales."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo_engine.kernels.activation import act_mul_fp8
from octavo_engine.kernels.attention.kv_write import write_kv
from octavo_engine.kernels.cpu.quantized import QuantizedPart, QuantizedWeight
from octavo_engine.kernels.fp8 import parts, quantize, quantize_kernel
from octavo_engine.kernels.fp8_activations import Quantized, Scaling
from octavo_engine.kernels.fp8_gemm import block_fp8_matmul, block_fp8_matmul_kernel
from octavo_engine.kernels.norm import rms_norm_fp8
from octavo_engine.kernels.quantized.quantized_linear import most_tokens, quantized_linear
from octavo_engine.kernels.quantized.quantized_numbers import dequantize
from octavo_engine.model.quantization.e4m3 import fp8_linear
from tests.kernels.by_bits import by_bits
from tests.kernels.check import Build, Check
from tests.kernels.poison import half_precision, poisoned
from tests.kernels.rounding import to_fp8

FP8 = torch.float8_e4m3fn


def _assert_quantized(x: Tensor, quantized: Quantized, group: int) -> None:
    """Scales are the largest / 448, values as near as the nearest of e4m3; at ties the last bits of float32 decide."""
    scales = quantized.scales
    wide = x.double().view(len(x), -1, group)
    largest = wide.abs().amax(-1)
    torch.testing.assert_close(scales.double()[largest > 0], largest[largest > 0] / 448, rtol=1e-6, atol=0)
    exact = wide / scales.double().unsqueeze(-1)
    found, nearest = quantized.values.double().view_as(exact), to_fp8(exact)
    assert bool(((found - exact).abs() <= (nearest - exact).abs() + 1e-6 * exact.abs()).all())


def _tokens(tokens: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
    """Rows of very different sizes, one of them zeros, in a slice of a wider tensor."""
    wide = torch.randn(tokens, width + 64, device=device) * torch.logspace(-6, 4, tokens, device=device)[:, None]
    x = wide.to(dtype)[:, :width]
    if tokens > 1:
        x[1] = 0
    with poisoned():
        found = quantize(x, Scaling())
    assert (found.values.dtype, found.values.shape, found.scales.shape) == (FP8, x.shape, (tokens, 1))
    assert float(found.values.float().abs().amax()) == 448
    _assert_quantized(x, found, width)


def _given_scale(device: torch.device) -> None:
    """Check that values beyond the scale's range become the largest number, and that NaN stays."""
    x = torch.tensor([[448.0, -900.0, 3e38, -0.25, 0.0, torch.nan, 1.0, 17.0]], device=device)
    quantized = quantize(x, Scaling(given=torch.tensor([0.5], device=device)))
    found = quantized.values.float()[0]
    assert quantized.scales.tolist() == [[0.5]]
    assert found[[0, 1, 2, 3, 4, 6, 7]].tolist() == [448, -448, 448, -0.5, 0, 2, 32]  # 34: a tie of 32 and 36
    assert bool(found[5].isnan())


def _not_finite(device: torch.device) -> None:
    """A token that is no number or infinite stays so, and harms no other."""
    x = torch.randn(3, 256, device=device)
    x[0, 7], x[2, 9] = torch.nan, torch.inf
    quantized = quantize(x, Scaling())
    back = quantized.values.float() * quantized.scales
    assert bool(back[0].isnan().any())
    assert bool(back[2].isnan().any())
    torch.testing.assert_close(back[1], x[1], rtol=0.07, atol=0.01)


def _tiny(device: torch.device) -> None:
    """Rows whose scale has no inverse in float32 are 0, with and without a norm or a gate before: never NaN."""
    x = torch.full((2, 256), 1e-38, device=device)
    x[1, 3] = 0
    ones, noughts = torch.full((256,), 1e-37, device=device), torch.full((2, 256), 1e-38, device=device)
    normed, _ = rms_norm_fp8(torch.randn(2, 256, device=device), ones, 1e-5, Scaling())
    gated = act_mul_fp8(torch.cat((torch.ones_like(x), noughts), dim=1), "silu", Scaling())
    for quantized in (quantize(x, Scaling()), normed, gated):
        back = quantized.values.float() * quantized.scales
        assert not back.abs().ge(1e-30).any()
        assert bool(back.isfinite().all())


def _groups(device: torch.device) -> None:
    """More than one program takes, and its last part is not whole."""
    x = torch.randn(3, 1408, device=device)
    x[:, 128:256] *= 1000
    with poisoned():
        found = quantize(x, Scaling(group=128))
    assert found.scales.shape == (3, 11)
    _assert_quantized(x, found, 128)


def _product(tokens: int, rows: int, depth: int, device: torch.device) -> None:
    """Against float64 of the numbers that values and scales stand for."""
    x, weight = (torch.randn(n, depth, device=device).mul(60).to(FP8) for n in (tokens, rows))
    x_scale = torch.rand(tokens, depth // 128, device=device) + 0.1
    weight_scale = torch.rand(rows // 128, depth // 128, device=device) + 0.1
    left = x.double().view(tokens, -1, 128) * x_scale.double().unsqueeze(-1)
    right = weight.double().view(rows // 128, 128, -1, 128) * weight_scale.double()[:, None, :, None]
    expected = left.view(tokens, depth) @ right.view(rows, depth).T
    found = block_fp8_matmul(x, x_scale, weight, weight_scale, torch.float32)
    # Products of 128 numbers are added up by the tensor cores, which keep 13 bits behind the largest one's first.
    close = partial(torch.testing.assert_close, rtol=2e-3, atol=float(expected.abs().max()) * 1e-3)
    close(found.double(), expected)
    half = block_fp8_matmul(x, x_scale, weight, weight_scale, torch.bfloat16)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), found, rtol=2**-7, atol=0)  # the interpreter cuts off instead of rounding


def _linear(by_block: bool, device: torch.device) -> None:
    """Check a layer with 8-bit products: near the product of what was not quantized, with its bias."""
    x, weight = torch.randn(5, 384, device=device, dtype=torch.bfloat16), torch.randn(256, 384, device=device)
    parts = weight.view(2, 128, 3, 128) if by_block else weight.view(256, 1, 1, 384)
    scale = parts.abs().amax((1, 3)) / 448
    stored = (parts / scale[:, None, :, None]).view(256, 384).to(FP8)
    exact = x.double() @ (stored.double().view(parts.shape) * scale[:, None, :, None]).view(256, 384).T
    bias = torch.randn(256, device=device, dtype=torch.bfloat16)
    exact += bias.double()
    given = Scaling(given=torch.tensor([float(x.abs().max()) / 448], device=device))
    for scaling in [Scaling(group=128)] if by_block else [Scaling(), given]:
        found = fp8_linear(x, scaling, stored, scale, bias, x.dtype)
        assert (found.dtype, found.shape) == (x.dtype, exact.shape)
        torch.testing.assert_close(found.double(), exact, rtol=0.02, atol=2.5)  # of sums whose spread is 20
        assert float((found.double() - exact).std()) < 0.04 * float(exact.std())
        already = fp8_linear(quantize(x, scaling), scaling, stored, scale, bias, x.dtype)
        assert torch.equal(already, found)


def _every_number(device: torch.device) -> None:
    """A weight of every e4m3 number, NaN included, gives these numbers in each type."""
    codes = torch.arange(256, dtype=torch.uint8, device=device).view(FP8).view(2, 128)
    part = QuantizedPart(codes=codes, scale=torch.ones(2, 1, device=device), bits=8, columns=128, group=None)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        found = dequantize(QuantizedWeight([part]), dtype)
        torch.testing.assert_close(found, codes.to(dtype), rtol=0, atol=0, equal_nan=True)


def _every_rounding(device: torch.device) -> None:
    """Numbers between two of e4m3 become the nearest one, at ties the even one, beyond the largest the largest."""
    exact = torch.arange(127, dtype=torch.uint8, device=device).view(FP8).float()
    ties = (exact[:-1] + exact[1:]) / 2
    x = torch.cat((exact, ties, ties * (1 + 2**-20), ties * (1 - 2**-20), torch.tensor([449.0, 3e38, torch.inf])))
    x = torch.cat((x, -x, torch.tensor([torch.nan]))).to(device)
    x = F.pad(x, (0, -len(x) % 64)).view(-1, 1, 64)
    cache = torch.zeros(1, len(x), 1, 64, device=device).to(FP8)
    write_kv(x, None, cache, None, torch.arange(len(x), device=device))
    found, expected = cache.view(x.shape), x.clamp(-448, 448).to(FP8)
    assert torch.equal(found.float().isnan(), expected.float().isnan())
    assert torch.equal(found.view(torch.uint8)[~x.isnan()], expected.view(torch.uint8)[~x.isnan()])


def _weight_alone(tokens: int, rows: int, columns: int, group: int | None, device: torch.device) -> None:
    """The product of activations in 16 bits with a weight in e4m3, against float64; for many tokens its numbers."""
    codes = torch.randn(rows, columns, device=device).to(FP8)
    scale = torch.rand(rows, 1 if group is None else -(-columns // group), device=device) + 0.1
    weight = QuantizedWeight([QuantizedPart(codes=codes, scale=scale, bits=8, columns=columns, group=group)])
    numbers = codes.float() * scale.repeat_interleave(group or columns, 1)[:, :columns]
    torch.testing.assert_close(dequantize(weight, torch.float32), numbers, rtol=1e-6, atol=0)
    dtype = half_precision(device)
    x, bias = (torch.randn(*shape, device=device).to(dtype) for shape in ((tokens, columns), (rows,)))
    assert tokens <= most_tokens(weight, dtype)
    expected = x.double() @ numbers.to(dtype).double().T + bias.double()
    found = quantized_linear(x, weight, bias, None).double()
    torch.testing.assert_close(found, expected, rtol=2**-7, atol=float(expected.abs().max()) * 2**-8)


_WEIGHT_ALONE = ((1, 200, 2048, None), (16, 64, 384, 128), (33, 100, 256, 64))
CHECKS = [
    Check("every_number_by_bits", by_bits(_every_number)),  # of e4m3 itself the interpreter knows no NaN
    Check("every_rounding_by_bits", by_bits(_every_rounding)),
    *(Check(f"weight_alone_{case[0]}", partial(_weight_alone, *case)) for case in _WEIGHT_ALONE),
    *(Check(f"weight_alone_{case[0]}_by_bits", by_bits(partial(_weight_alone, *case))) for case in _WEIGHT_ALONE),
    Check("quantize_tokens", partial(_tokens, 5, 96, torch.bfloat16)),
    Check("quantize_one_long_token", partial(_tokens, 1, 4608, torch.float16)),
    Check("quantize_tokens_wide", partial(_tokens, 300, 28672, torch.bfloat16), large=True),
    Check("quantize_by_a_given_scale", _given_scale),
    Check("quantize_what_is_not_finite", _not_finite),
    Check("quantize_tiny_rows", _tiny),
    Check("quantize_groups", _groups),
    Check("block_product_of_one_token", partial(_product, 1, 256, 256)),
    Check("block_product_of_few_tokens", partial(_product, 19, 128, 384)),
    Check("block_product_of_many_tokens", partial(_product, 70, 256, 256)),
    Check("linear_by_channel", partial(_linear, False)),
    Check("linear_by_block", partial(_linear, True)),
    Check("block_product_large", partial(_product, 333, 4096, 2048), large=True),
]

_QUANTIZE = {"x": "*bf16", "output": "*fp8e4nv", "scales": "*fp32", "x_stride": "i32"}
_PRODUCT = {"x": "*fp8e4nv", "x_scale": "*fp32", "weight": "*fp8e4nv", "weight_scale": "*fp32", "output": "*bf16"}
_PRODUCT |= dict.fromkeys(("T", "row_blocks", "depth_blocks"), "i32")


def _quantizing(size: int, name: str, *, group: int | None = None, given: bool = False) -> Build:
    part, group = parts(size, Scaling(group))
    return Build(
        name,
        quantize_kernel,
        _QUANTIZE | ({"given": "*fp32"} if given else {}),
        {"SIZE": size, "PART": part, "GROUP": group} | ({} if given else {"given": None}),
        warps=min(16, max(1, part // 512)),
        max_registers=64,
        max_shared=1024,
        sass=("LDG.E.128", "STG.E.128"),
    )


BUILDS = [
    _quantizing(4096, "quantize_tokens_of_4096"),
    _quantizing(28672, "quantize_tokens_of_28672_by_a_given_scale", given=True),
    _quantizing(4096, "quantize_groups_of_128", group=128),
    Build(
        "block_product_of_few_tokens",
        block_fp8_matmul_kernel,
        _PRODUCT,
        {"TILE_T": 16, "TILE_N": 32, "SIDE": 128},
        warps=4,
        stages=4,
        max_registers=128,
        max_shared=20 * 1024,
        sass=("MMA",),
        max_loop={"all": 140},
    ),
    Build(
        "block_product_of_many_tokens",
        block_fp8_matmul_kernel,
        _PRODUCT,
        {"TILE_T": 128, "TILE_N": 128, "SIDE": 128},
        warps=8,
        stages=3,
        max_registers=184,
        max_shared=98 * 1024,
        sass=("QGMMA",),
        max_loop={"all": 192},
    ),
]
