"""Measures one layer's linears with weights of 4 and 8 bits, beside the same products in bfloat16 by cuBLAS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle

import torch
from torch import Tensor
from torch.nn import functional

from bench.gpu.clock import graphed_seconds_of
from bench.gpu.context import Context
from bench.gpu.result import Figure, timed
from bench.gpu.shapes import Shape
from octavo_engine.kernels.cpu.quantized import QuantizedWeight
from octavo_engine.model.checkpoint.tensors import Span
from octavo_engine.model.layers.operations.triton_compute import triton_compute
from octavo_engine.model.quantization.gguf import GGUFBlocks
from octavo_engine.model.quantization.grouped import Grouped
from octavo_engine.model.quantization.int8 import INT8
from octavo_engine.model.quantization.linear_method import LinearMethod, LinearShape

_LEAST_BYTES = 512 << 20
"""Weights of this many bytes are used in turn: several times the L2 cache."""
_COMPUTE = triton_compute()
Product = Callable[[Tensor], Tensor]


def quantized_linears(context: Context) -> Iterator[Figure]:
    """Measure the linears of one layer for each number of tokens, in bfloat16 and in each format."""
    for tokens in context.scale.quantized_tokens:
        for name, weights in _formats(context):
            yield _one(context, f"linears, {name}", tokens, weights)


def _formats(context: Context) -> Iterator[tuple[str, Callable[[int, int], tuple[Product, int]]]]:
    """Yield names with functions that return the product with a new weight [rows, columns], and the weight's bytes."""
    yield "bf16", partial(_plain, context.device)
    methods: dict[str, LinearMethod] = {
        "AWQ": Grouped("awq", 4, 128, lambda *_: iter(()), has_zeros=True),
        "GPTQ with desc_act": Grouped("gptq", 4, 128, lambda *_: iter(()), has_zeros=True, act_order=True),
        "int4": Grouped("int4", 4, 32, lambda *_: iter(()), has_minimum=True),
        "Q4_K": GGUFBlocks("Q4_K"),
        "int8": INT8(online=True),
    }
    for name, method in methods.items():
        yield name, partial(_quantized, method, context.device)


def _one(context: Context, what: str, tokens: int, create: Callable[[int, int], tuple[Product, int]]) -> Figure:
    shape, device = context.scale.llama, context.device
    sizes, copies = linears(shape), 1
    layers = [[create(*size) for size in sizes]]
    size = sum(its for _, its in layers[0])
    if device.type == "cuda":
        copies = -(-_LEAST_BYTES // size)
        layers += [[create(*size) for size in sizes] for _ in range(copies - 1)]
    inputs = {columns: torch.randn(tokens, columns, device=device).bfloat16() for _, columns in sizes}
    turns = cycle(layers)

    def layer(_: int) -> None:
        for (product, _), (_, columns) in zip(next(turns), sizes, strict=True):
            product(inputs[columns])

    with torch.inference_mode():
        seconds = graphed_seconds_of(layer, device, calls=copies)
    operations = 2 * tokens * sum(rows * columns for rows, columns in sizes)
    floor = max(size / context.rates.read, operations / context.rates.matmul["bf16"])
    note = f"{size / 1e6:.0f} MB, {operations / sorted(seconds)[len(seconds) // 2] / 1e12:.1f} TFLOP/s"
    return timed(shape.name, what, f"{tokens} tokens", seconds, floor, note)


def linears(shape: Shape) -> tuple[tuple[int, int], ...]:
    """Return rows and columns of the weights of one layer, in the order in which it multiplies with them."""
    return (
        (shape.query + 2 * shape.key, shape.hidden),
        (shape.hidden, shape.query),
        (2 * shape.inner, shape.hidden),
        (shape.hidden, shape.inner),
    )


def _plain(device: torch.device, rows: int, columns: int) -> tuple[Product, int]:
    weight = torch.randn(rows, columns, device=device).bfloat16()
    return partial(functional.linear, weight=weight), weight.nbytes


def _quantized(method: LinearMethod, device: torch.device, rows: int, columns: int) -> tuple[Product, int]:
    """Return the product with random codes, as the engine computes it on GPUs; in a dry run, with the numbers."""
    shape = LinearShape((rows,), Span(0, columns, columns, "columns"))
    weights = method.create(shape, torch.bfloat16, device, fp8_products=False)
    for name, values in weights.parameters.items():
        if name == "column_groups":
            values.copy_((torch.arange(columns) // 128)[torch.randperm(columns)])
        elif name == "zero":
            values.random_(0, 16)
        elif values.is_floating_point():
            values.uniform_(0.001, 0.02).copy_(values.half())  # as a checkpoint's scales, which have 16 bits
        else:
            values.random_(1, 127 if values.dtype == torch.int8 else 255)
    size = sum(each.nbytes for each in weights.parameters.values())
    if device.type != "cuda":
        return partial(functional.linear, weight=method.dequantized(weights, torch.bfloat16)), size
    _COMPUTE.prepare([weights])
    assert weights.quantized is not None
    return partial(_product, weights.quantized), size


def _product(weight: QuantizedWeight, x: Tensor) -> Tensor:
    found = _COMPUTE.quantized(x, weight, None, None)
    assert found is not None, "the kernels know all of these formats"
    return found
