"""Checks of products with weights of 4 and 8 bits, against float64 of the numbers that the codes stand for."""

from __future__ import annotations

from functools import partial
from unittest.mock import patch

import torch

from octavo_engine.kernels.cpu.quantized import QuantizedWeight
from octavo_engine.kernels.quantized import interleaved_trial
from octavo_engine.kernels.quantized.interleaved import (
    can_be_interleaved,
    dequantize_interleaved,
    dequantize_interleaved_kernel,
    interleave,
)
from octavo_engine.kernels.quantized.interleaved_linear import interleaved_linear_kernel
from octavo_engine.kernels.quantized.interleaved_linear import tiles_for as interleaved_tiles_for
from octavo_engine.kernels.quantized.interleaved_trial import interleave_if_right
from octavo_engine.kernels.quantized.quantized_linear import (
    most_tokens,
    quantized_linear,
    quantized_linear_kernel,
    tiles_for,
)
from octavo_engine.kernels.quantized.quantized_numbers import can_dequantize, dequantize, dequantize_kernel
from octavo_engine.kernels.quantized.split_columns import sum_kernel
from octavo_engine.model.checkpoint.tensors import Span
from octavo_engine.model.layers.operations.triton_compute import TritonQuantizedProduct, triton_compute
from octavo_engine.model.quantization.gguf import GGUFBlocks
from octavo_engine.model.quantization.grouped import Grouped
from octavo_engine.model.quantization.int8 import INT8
from octavo_engine.model.quantization.linear_method import LinearMethod, LinearShape, Weights
from tests.kernels.check import Build, Check
from tests.kernels.poison import half_precision, poisoned
from tests.kernels.random_codes import exact_numbers, random_part

_STEPS = {torch.float32: 3e-5, torch.float16: 2**-10, torch.bfloat16: 2**-7}


def _weight(kind: str, bits: int, rows: int, columns: int, group: int | None, device: torch.device) -> QuantizedWeight:
    """Return a weight of two parts."""
    return QuantizedWeight([random_part(kind, bits, count, columns, group, device) for count in (rows, 24)])


def _dequantized(
    kind: str, bits: int, rows: int, columns: int, group: int | None, device: torch.device, *, half: bool = False
) -> None:
    dtype = half_precision(device) if half else torch.float32
    weight = _weight(kind, bits, rows, columns, group, device)
    exact = torch.cat([exact_numbers(part) for part in weight.parts]).to(dtype)
    with poisoned():
        found = dequantize(weight, dtype)
    largest = float(exact.abs().max())
    torch.testing.assert_close(found, exact, rtol=_STEPS[dtype], atol=2e-6 * largest)


def _product(
    kind: str, bits: int, tokens: int, rows: int, columns: int, group: int | None, device: torch.device,
    *, sums: bool = False,
) -> None:  # fmt: skip
    """`sums`: bias and addend are added to the product."""
    dtype = half_precision(device)
    weight = _weight(kind, bits, rows, columns, group, device)
    exact = torch.cat([exact_numbers(part) for part in weight.parts])
    x = torch.randn(tokens, columns + 8, device=device).to(dtype)[:, :columns]
    expected = x.double() @ exact.T
    bias, addend = (torch.randn(*size, rows + 24, device=device).to(dtype) for size in ((), (tokens,)))
    if sums:
        expected += bias.double() + addend.double()
    assert tokens <= most_tokens(weight, dtype)
    with poisoned():
        product = quantized_linear(x, weight, bias if sums else None, addend if sums else None)
    assert product.dtype == dtype
    close = _STEPS[dtype]
    torch.testing.assert_close(product.double(), expected, rtol=close, atol=close * float(expected.abs().max()))


def _interleaved(
    kind: str, tokens: int, rows: int, columns: int, group: int | None, device: torch.device,
    *, dtype: torch.dtype | None = None,
) -> None:  # fmt: skip
    """Products with bias and addend, and the numbers that more tokens are multiplied with."""
    dtype = dtype or half_precision(device)
    weight = _weight(kind, 4, rows, columns, group, device)
    exact = torch.cat([exact_numbers(part) for part in weight.parts])
    x = torch.randn(tokens, columns + 8, device=device).to(dtype)[:, :columns]
    bias, addend = (torch.randn(*size, rows + 24, device=device).to(dtype) for size in ((), (tokens,)))
    expected = x.double() @ exact.T + bias.double() + addend.double()
    with poisoned():
        assert can_be_interleaved(weight, dtype)
        interleave(weight)
        interleave_if_right(weight, dtype)  # is done once
        numbers = dequantize_interleaved(weight, torch.float32)
        found = TritonQuantizedProduct()(x, weight, bias, addend)
    torch.testing.assert_close(numbers, exact.float(), rtol=3e-5, atol=2e-6 * float(exact.abs().max()))
    close = _STEPS[dtype]
    torch.testing.assert_close(found.double(), expected, rtol=close, atol=close * float(expected.abs().max()))


def _trial(device: torch.device) -> None:
    """The trial of a device passes, and finds weights that are not in the order that kernels read."""

    def out_of_order(weight: QuantizedWeight) -> None:
        interleave(weight)
        weight.parts[0].codes.copy_(weight.parts[0].codes.flip(1))

    dtype = half_precision(device)
    for has_minimum in (False, True):
        passes = partial(interleaved_trial._passes.__wrapped__, has_minimum, dtype, device)
        with patch.multiple(interleaved_trial, _ROWS=24, _COLUMNS=256):
            assert passes()
            with patch.object(interleaved_trial, "interleave", out_of_order):
                assert not passes()
            with patch.object(interleaved_trial, "quantized_linear", side_effect=RuntimeError("it does not compile")):
                assert not passes()


def _left_as_they_are(device: torch.device) -> None:
    """Weights that the kernel for interleaved ones does not know, and that they would not be exact in."""
    half = half_precision(device)
    weights = {
        "columns": _weight("zeros", 4, 16, 384 + 8, None, device),
        "groups": _weight("zeros", 4, 16, 256, 64, device),
        "bits": _weight("zeros", 8, 16, 256, 128, device),
        "supers": _weight("supers", 4, 16, 256, 32, device),
        "scale": _weight("zeros", 4, 16, 256, 128, device),
        "zero": _weight("zeros", 4, 16, 256, 128, device),
    }
    weights["scale"].parts[1].scale[3, 1] = 1 / 3
    zero = weights["zero"].parts[1].zero
    assert zero is not None
    zero[3, 1] = 200
    for name, weight in weights.items():
        interleave_if_right(weight, half)
        assert not weight.interleaved, name
    weight = _weight("zeros", 4, 16, 256, 128, device)
    interleave_if_right(weight, torch.float32)
    assert not weight.interleaved


def _left_to_others(device: torch.device) -> None:
    """What is not complete words is left to the linear method; what has no tiles is dequantized and then multiplied."""
    for columns, group in ((36, None), (64, 12)):
        assert not can_dequantize(QuantizedWeight([random_part("zeros", 4, 16, columns, group, device)]))
    half = half_precision(device)
    assert most_tokens(_weight("zeros", 4, 16, 384, 96, device), half) == 0, "neither a multiple nor a divisor of 128"
    assert most_tokens(_weight("order", 4, 16, 256, 128, device), half) == 0
    assert most_tokens(_weight("zeros", 4, 16, 256, 128, device), torch.float32) == 0
    assert most_tokens(_weight("zeros", 4, 16, 256, 128, device), half) > 0


def _methods() -> list[LinearMethod]:
    """Return linear methods of all forms that the kernels read."""
    grouped = partial(Grouped, stored=lambda *_: iter(()))
    return [
        grouped("awq", 4, 32, has_zeros=True),
        grouped("gptq", 8, 32, has_zeros=True, act_order=True),
        grouped("pack_quantized", 4, None),
        grouped("torchao", 4, 32, has_minimum=True, wide=True),
        grouped("int4", 4, 32, has_minimum=True),
        INT8(online=True),
        *(GGUFBlocks(name) for name in ("Q4_0", "Q5_1", "Q4_K", "Q6_K")),
    ]


def _created(method: LinearMethod, device: torch.device) -> Weights:
    """Return random weights [24, 256] of two projections."""
    shape = LinearShape((8, 16), Span(0, 256, 256, "columns"))
    weights = method.create(shape, half_precision(device), device, fp8_products=False)
    for name, values in weights.parameters.items():
        if name == "column_groups":
            values.random_(0, 8)
        elif name == "zero":
            values.random_(0, 17)  # GPTQ's may be 16
        elif values.is_floating_point():
            values.uniform_(0.01, 0.1).copy_(values.half())
        else:
            values.random_(1, 127 if values.dtype == torch.int8 else 255)
    return weights


def _sorted_by_group(group: int, device: torch.device) -> None:
    """Columns with act-order are sorted before the first product, if they are complete groups of all projections.

    Sorted groups of 128 are interleaved then.
    """
    for changed in (False, True):
        method = Grouped("gptq", 4, group, lambda *_: iter(()), has_zeros=True, act_order=True)
        weights, compute = _created(method, device), triton_compute()
        assert weights.column_groups is not None
        weights.column_groups.copy_((torch.arange(256) // group)[torch.randperm(256)])
        if changed:  # a column in another group, as a rank with some of the columns may have
            weights.column_groups[1, 0] = (weights.column_groups[1, 0] + 1) % (256 // group)
        exact = method.dequantized(weights, torch.float64)
        compute.prepare([weights])
        quantized, dtype = weights.quantized, half_precision(device)
        assert quantized is not None
        assert (quantized.column_order is None) == changed
        assert quantized.interleaved == (group == 128 and not changed)
        x = torch.randn(3, 256, device=device).to(dtype)
        found, expected = compute.quantized(x, quantized, None, None), x.double() @ exact.T
        assert found is not None
        close = _STEPS[dtype]
        torch.testing.assert_close(found.double(), expected, rtol=close, atol=close * float(expected.abs().max()))


def _as_the_linear_method_says(device: torch.device) -> None:
    """Weights of two projections as methods create them, against what the methods say that they stand for."""
    for method in _methods():
        weights = _created(method, device)
        x = torch.randn(19, 256, device=device)
        quantized = weights.quantized
        assert quantized is not None, method.name
        exact = method.dequantized(weights, torch.float64)
        for dtype, close in ((torch.float32, 1e-5), (half_precision(device), _STEPS[half_precision(device)])):
            found = triton_compute().quantized(x.to(dtype), quantized, None, None)
            assert found is not None, method.name
            expected = x.to(dtype).double() @ exact.T
            torch.testing.assert_close(found.double(), expected, rtol=close, atol=close * float(expected.abs().max()))


_DEQUANTIZED = [
    ("zeros", 4, 72, 160, 32),
    ("symmetric", 4, 64, 136, None),
    ("minimum", 4, 40, 144, 32),
    ("order", 4, 60, 160, 32),
    ("supers", 4, 24, 512, 32),
    ("zeros", 4, 40, 192, 96),
    ("zeros", 8, 66, 192, 64),
    ("signed", 8, 33, 100, None),
    ("supers", 8, 16, 256, 16),
]
_MULTIPLIED = [
    ("zeros", 4, 1, 40, 1088, 64),  # columns are split, and tiles end beyond rows and columns
    ("zeros", 4, 19, 72, 160, 32),
    ("zeros", 4, 2, 40, 1152, 128),  # differences are multiplied and scaled afterwards, as in the next two
    ("symmetric", 4, 5, 70, 256, 256),
    ("symmetric", 4, 3, 64, 136, None),
    ("minimum", 4, 33, 40, 144, 32),
    ("minimum", 4, 2, 40, 256, 128),
    ("supers", 4, 1, 24, 512, 32),
    ("zeros", 8, 7, 66, 192, 64),
    ("signed", 8, 17, 33, 100, None),
    ("supers", 8, 2, 16, 256, 16),
]
_INTERLEAVED = [
    ("zeros", 1, 40, 4224, 128),  # parts of columns end beyond the last
    ("zeros", 17, 136, 512, 256),
    ("symmetric", 40, 40, 256, None),
    ("zeros", 65, 40, 256, 128),  # multiplied by cuBLAS
    ("minimum", 3, 72, 1024, 32),
    ("minimum", 64, 136, 256, 32),
    ("minimum", 70, 40, 256, 32),
]
_LARGE = [("zeros", 4, 128), ("minimum", 4, 32), ("supers", 4, 32), ("signed", 8, None)]
CHECKS = [
    *(
        Check(
            f"dequantized-{kind}-{bits}-{rows}x{columns}-{group}",
            partial(_dequantized, kind, bits, rows, columns, group),
        )
        for kind, bits, rows, columns, group in _DEQUANTIZED
    ),
    Check("dequantized-half_precision", partial(_dequantized, "zeros", 4, 40, 256, 128, half=True)),
    Check("dequantized-large", partial(_dequantized, "order", 4, 4096, 14336, 128, half=True), large=True),
    *(
        Check(
            f"{kind}-{bits}-{tokens}x{rows}x{columns}-{group}",
            partial(_product, kind, bits, tokens, rows, columns, group),
        )
        for kind, bits, tokens, rows, columns, group in _MULTIPLIED
    ),
    *(
        Check(
            f"interleaved-{kind}-{tokens}x{rows}x{columns}-{group}",
            partial(_interleaved, kind, tokens, rows, columns, group),
        )
        for kind, tokens, rows, columns, group in _INTERLEAVED
    ),
    Check("trial", _trial),
    Check("left_as_they_are", _left_as_they_are),
    Check("with_bias_and_addend", partial(_product, "zeros", 4, 5, 40, 1024, 128, sums=True)),
    Check("of_8_bits_with_bias_and_addend", partial(_product, "signed", 8, 3, 40, 128, None, sums=True)),
    Check("left_to_others", _left_to_others),
    Check("as_the_linear_method_says", _as_the_linear_method_says),
    *(Check(f"sorted_by_group-{group}", partial(_sorted_by_group, group)) for group in (32, 128)),
    *(
        Check(
            f"large-{kind}-{bits}-{tokens}",
            partial(_product, kind, bits, tokens, 4096, 14336, group, sums=True),
            large=True,
        )
        for tokens in (1, 16, 20, 50)
        for kind, bits, group in _LARGE
    ),
    *(
        Check(
            f"large-interleaved-{kind}-{tokens}-{str(dtype).removeprefix('torch.')}",
            partial(_interleaved, kind, tokens, 4096, 14336, group, dtype=dtype),
            large=True,
        )
        for tokens in (1, 20, 50, 100)
        for kind, group in (("zeros", 128), ("minimum", 32))
        for dtype in (torch.bfloat16, torch.float16)
    ),
]

_NUMBERS = dict.fromkeys(("N", "K", "words", "groups", "columns"), "i32:16")
_PRODUCT = {"output": "*bf16", "x": "*bf16", "codes": "*i32", "M": "i32", "x_stride": "i32", "output_stride": "i32"}
_OF_KIND: dict[str, tuple[dict[str, str], dict[str, object]]] = {
    "zeros": ({"scale": "*fp32", "zero": "*u8"}, {"BITS": 4, "GROUP": 64, "OFFSET": 16.0}),
    "minimum": ({"scale": "*fp32", "minimum": "*fp32"}, {"BITS": 4, "GROUP": 32, "OFFSET": 16.0}),
    "order": ({"scale": "*fp32", "zero": "*u8", "column_groups": "*i32"}, {"BITS": 4, "GROUP": 128, "OFFSET": 16.0}),
    "supers": (
        {"scale": "*i8", "minimum": "*i8", "super_scale": "*fp16", "super_minimum": "*fp16"},
        {"BITS": 4, "GROUP": 32, "SUPER": 8, "OFFSET": 16.0},
    ),
    "signed": ({"scale": "*fp32"}, {"BITS": 8, "GROUP": 0, "SIGNED": True, "OFFSET": 384.0}),
    "e4m3": ({"codes": "*fp8e4nv", "scale": "*fp32"}, {"BITS": 8, "GROUP": 128, "OFFSET": 256.0}),
}
_WEIGHT = ("scale", "zero", "minimum", "super_scale", "super_minimum", "column_groups")


def _types_of(kind: str) -> tuple[dict[str, str], dict[str, object]]:
    """Return the types and constants of a kind's codes."""
    types, constants = _OF_KIND[kind]
    return types, {"SIGNED": False, "SUPER": 1} | constants | {name: None for name in _WEIGHT if name not in types}


def _build(kind: str, tokens: int, registers: int, shared: int, loop: int, *, products: str) -> Build:
    """Return the product of so many tokens, whose columns are split."""
    types, constants = _types_of(kind)
    cut = tiles_for(tokens)
    signature = _PRODUCT | _NUMBERS | types | {"output": "*fp32"}
    sizes = {"BLOCK_M": cut.tokens, "BLOCK_N": cut.rows, "BLOCK_K": cut.columns, "SPLIT": True, "ADDS": False}
    constants = {name: value for name, value in constants.items() if name != "column_groups"}
    return Build(
        f"quantized_linear_{kind}_{tokens}",
        quantized_linear_kernel,
        signature,
        constants | sizes | {"bias": None},
        warps=cut.warps,
        stages=cut.stages,
        max_registers=registers,
        max_shared=shared * 1024,
        sass=(products,),
        max_loop={"all": loop},
    )


_INTERLEAVED_KINDS: dict[str, tuple[dict[str, str], dict[str, object]]] = {
    "zeros": ({"codes": "*i16", "scale": "*i32"}, {"minimum": None, "GROUP": 128}),
    "minimum": ({"codes": "*i16", "scale": "*bf16", "minimum": "*bf16"}, {"GROUP": 32}),
}


def _interleaved_build(kind: str, tokens: int, registers: int, shared: int, loop: int) -> Build:
    """Return the product of so many tokens with an interleaved weight, whose columns are split."""
    types, constants = _INTERLEAVED_KINDS[kind]
    cut = interleaved_tiles_for(tokens, minimum=kind == "minimum")
    numbers = dict.fromkeys(("N", "K", "columns", "x_stride", "output_stride"), "i32:16")
    sizes = {"BLOCK_M": cut.tokens, "BLOCK_N": cut.rows, "SPLIT": True, "ADDS": False, "bias": None}
    return Build(
        f"interleaved_linear_{kind}_{tokens}",
        interleaved_linear_kernel,
        {"output": "*fp32", "x": "*bf16", "M": "i32"} | types | numbers,
        constants | sizes,
        warps=cut.warps,
        stages=cut.stages,
        max_registers=registers,
        max_shared=shared * 1024,
        sass=("HGMMA", "LDS.128"),
        max_loop={"all": loop},
    )


BUILDS = [
    _interleaved_build("zeros", 16, 128, 42, 356),
    _interleaved_build("zeros", 64, 255, 66, 433),
    _interleaved_build("minimum", 16, 96, 31, 280),
    _interleaved_build("minimum", 64, 224, 68, 464),
    *(
        Build(
            f"dequantize_interleaved_{kind}",
            dequantize_interleaved_kernel,
            {"output": "*bf16", "N": "i32:16", "K": "i32:16"} | types,
            constants | {"BLOCK_N": 32},
            max_registers=48,
            max_shared=16 * 1024,
            sass=("STG.E.128",),
        )
        for kind, (types, constants) in _INTERLEAVED_KINDS.items()
    ),
    _build("zeros", 16, 128, 26, 461, products="HMMA"),
    _build("zeros", 64, 216, 73, 487, products="HGMMA"),
    _build("minimum", 16, 168, 46, 434, products="HMMA"),
    _build("minimum", 64, 200, 76, 486, products="HGMMA"),
    _build("supers", 16, 168, 25, 509, products="HMMA"),
    _build("supers", 64, 168, 73, 506, products="HGMMA"),
    _build("signed", 16, 128, 52, 406, products="HMMA"),
    _build("signed", 64, 128, 80, 465, products="HGMMA"),
    _build("e4m3", 16, 96, 40, 400, products="HMMA"),
    _build("e4m3", 64, 128, 84, 400, products="HGMMA"),
    Build(
        "quantized_linear_sum",
        sum_kernel,
        {"output": "*bf16", "parts": "*fp32", "M": "i32", "N": "i32:16", "output_stride": "i32"},
        {"PARTS": 4, "BLOCK": 1024, "ADDS": True, "bias": None},
        max_registers=32,
    ),
    *(
        Build(
            f"dequantize_{kind}",
            dequantize_kernel,
            {"output": "*bf16", "codes": "*i32"}
            | dict.fromkeys(("N", "K", "words", "groups"), "i32:16")
            | _types_of(kind)[0],
            _types_of(kind)[1] | {"BLOCK_N": 32, "BLOCK_K": 128},
            max_registers=registers,
            max_shared=16 * 1024,
            sass=("STG.E.128",),
        )
        for kind, registers in (("zeros", 48), ("order", 168), ("e4m3", 64))
    ),
]
