"""act(gate) * up of a gated feed-forward (arXiv 2002.05202), optionally quantized to FP8 for the linear that follows.

Rounds where Hugging Face's Llama does: act(gate) to the model's type, then the product.

Moves 3 N s bytes a row of N neurons of s bytes, quantized 2 N s + N. Unquantized, a row is cut among programs: 14 of
them for one row of Llama-8B's 14,336 neurons. A quantized row is one program's, which needs its largest element before
it writes the first: one multiprocessor then reads the 57 KB of a row of Llama-8B, 0.5 µs at its 64 bytes a clock
(computed).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_engine.kernels.fp8 import quantized_row

ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh")
_BLOCK = 1024
"""Neurons of a program: 8 a thread, 16 bytes of bfloat16."""


@triton.jit
def activated(gate, ACTIVATION: tl.constexpr):
    """act(gate), float32."""
    if ACTIVATION == "silu":
        share = tl.sigmoid(gate)
    elif ACTIVATION == "gelu":
        share = 0.5 + 0.5 * tl.erf(gate * 0.7071067811865476)
    else:
        # 0.5 (1 + tanh z) is sigmoid(2 z); z = sqrt(2 / pi) (gate + 0.044715 gate^3)
        share = tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    return gate * share


@triton.jit
def gated(row, columns, INNER: tl.constexpr, ACTIVATION: tl.constexpr):
    """act(gate) * up of some columns of a row [gate up], in its type; zero beyond INNER."""
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
    """One program computes BLOCK neurons of one row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    result = gated(x + row * x_stride, columns, INNER, ACTIVATION)
    tl.store(output + row * INNER + columns, result, mask=columns < INNER)


@triton.jit
def act_mul_fp8_kernel(
    output,  # [T, INNER] e4m3
    scale,  # [T] float32
    x,  # [T, 2 * INNER], rows x_stride apart
    x_stride,
    INNER: tl.constexpr,
    INNER_PADDED: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """One program computes one row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, INNER_PADDED)
    result = gated(x + row * x_stride, columns, INNER, ACTIVATION)
    quantized, row_scale = quantized_row(result.to(tl.float32))
    tl.store(output + row * INNER + columns, quantized, mask=columns < INNER)
    tl.store(scale + row, row_scale)


def act_mul(x: Tensor, activation: str) -> Tensor:
    """act(gate) * up [T, N] of x [T, 2 N] = [gate up], bfloat16, float16 or float32; `activation`: of ACTIVATIONS.

    Rows are contiguous, any distance apart.
    """
    tokens, inner = x.shape[0], x.shape[1] // 2
    output = torch.empty(tokens, inner, dtype=x.dtype, device=x.device)
    if tokens:
        act_mul_kernel[(tokens, triton.cdiv(inner, _BLOCK))](
            output, x, x.stride(0), INNER=inner, BLOCK=_BLOCK, ACTIVATION=activation, num_warps=4
        )
    return output


def act_mul_fp8(x: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """The same as float8_e4m3fn [T, N] and what each row is to be multiplied with, float32 [T, 1]."""
    tokens, inner = x.shape[0], x.shape[1] // 2
    output = torch.empty(tokens, inner, dtype=torch.float8_e4m3fn, device=x.device)
    scale = torch.empty(tokens, 1, dtype=torch.float32, device=x.device)
    if tokens:
        padded, warps = fp8_row_shape(inner)
        act_mul_fp8_kernel[(tokens,)](
            output, scale, x, x.stride(0), INNER=inner, INNER_PADDED=padded, ACTIVATION=activation, num_warps=warps
        )
    return output, scale


def fp8_row_shape(inner: int) -> tuple[int, int]:
    """Neurons of a padded row, and warps: each thread reads 8 of gate and up at once, up to 8192 of each."""
    padded = triton.next_power_of_2(inner)
    return padded, min(32, max(1, padded // 256))
