"""act(gate) * up of a gated feed-forward (arXiv 2002.05202), optionally quantized to FP8 for the linear that follows.

Rounds where Hugging Face's Llama does: act(gate) to the model's type, then the product.

Moves 3 N s bytes a row of N intermediate values of s bytes, quantized 2 N s + N. Unquantized, or with scales for groups
of values, a row is cut among programs: 14 of them for one row of Llama-8B's 14,336 values. A row that has one scale is
one program's, which needs its largest element before it writes the first: one multiprocessor then reads the 57 KB of a
row of Llama-8B, 0.5 µs at its 64 bytes a clock (computed).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_engine.kernels.fp8 import PART, empty_quantized, parts, store_quantized
from octavo_engine.kernels.fp8_activations import Quantized, Scaling

ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh")


@triton.jit
def activated(gate, ACTIVATION: tl.constexpr):
    """Return act(gate), float32."""
    if ACTIVATION == "silu":
        share = tl.sigmoid(gate)
    elif ACTIVATION == "gelu":
        share = 0.5 + 0.5 * tl.erf(gate * 0.7071067811865476)
    else:  # gelu_pytorch_tanh
        # 0.5 (1 + tanh z) is sigmoid(2 z); z = sqrt(2 / pi) (gate + 0.044715 gate^3)
        share = tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    return gate * share


@triton.jit
def gated(row, columns, INNER: tl.constexpr, ACTIVATION: tl.constexpr):
    """Return act(gate) * up of some columns of a row [gate up], in its type; zero beyond INNER."""
    inside = columns < INNER
    gate = tl.load(row + columns, mask=inside, other=0.0)
    up = tl.load(row + INNER + columns, mask=inside, other=0.0)
    active = activated(gate.to(tl.float32), ACTIVATION).to(gate.dtype)
    return (active.to(tl.float32) * up.to(tl.float32)).to(gate.dtype)


@triton.jit
def act_mul_kernel(
    output,  # [T, INNER]
    x,  # [T, 2 * INNER], rows x_stride apart
    x_stride,
    INNER: tl.constexpr,
    BLOCK: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """One program computes BLOCK values of one row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    result = gated(x + row * x_stride, columns, INNER, ACTIVATION)
    tl.store(output + row * INNER + columns, result, mask=columns < INNER)


@triton.jit
def act_mul_fp8_kernel(
    output,  # [T, INNER] e4m3
    scales,  # [T, INNER / GROUP] float32
    given,  # [1] float32, the scale to quantize by, or None
    x,  # [T, 2 * INNER], rows x_stride apart
    x_stride,
    INNER: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """One program computes BLOCK values of one row, or the whole row if all of it shares a scale."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    result = gated(x + row * x_stride, part * BLOCK + tl.arange(0, BLOCK), INNER, ACTIVATION)
    store_quantized(output, scales, result.to(tl.float32), given, row, part, INNER, BLOCK, GROUP)


def act_mul(x: Tensor, activation: str) -> Tensor:
    """Return act(gate) * up [T, N] of x [T, 2 N] = [gate up], in bfloat16, float16 or float32.

    `activation` is one of ACTIVATIONS. Rows are contiguous, any distance apart.
    """
    tokens, inner = x.shape[0], x.shape[1] // 2
    output = torch.empty(tokens, inner, dtype=x.dtype, device=x.device)
    if tokens:
        act_mul_kernel[(tokens, triton.cdiv(inner, PART))](
            output, x, x.stride(0), INNER=inner, BLOCK=PART, ACTIVATION=activation, num_warps=4
        )
    return output


def act_mul_fp8(x: Tensor, activation: str, scaling: Scaling) -> Quantized:
    """Return `act_mul` with its result quantized to e4m3."""
    tokens, inner = x.shape[0], x.shape[1] // 2
    result = empty_quantized(tokens, inner, scaling, x.device)
    if tokens:
        block, group = parts(inner, scaling)
        act_mul_fp8_kernel[(tokens, triton.cdiv(inner, block))](
            result.values,
            result.scales,
            scaling.given,
            x,
            x.stride(0),
            INNER=inner,
            BLOCK=block,
            GROUP=group,
            ACTIVATION=activation,
            num_warps=fp8_warps(block),
        )
    return result


def fp8_warps(block: int) -> int:
    """Return the warps of a program that computes `block` columns.

    Each thread reads 8 columns of gate and of up at once, up to 8192 of each.
    """
    return min(32, max(1, block // 256))
