"""Matrix multiplication in e4m3 with a scale for each block (DeepSeek-V3, arXiv 2412.19437, section 3.3).

The activation has a scale for each token and 128 columns, the weight one for each 128 x 128. Products of 128 columns
are added up by the tensor cores and come into the float32 sum with their scales; longer sums would lose bits, as
Hopper's tensor cores keep few of sums of products in 8 bits.

PyTorch's `scaled_mm` knows these scales too, of Hopper alone and in layouts of their own for either side; this kernel
takes them as checkpoints have them, and can be read and interpreted.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 128
_FEW_TOKENS = 64
"""Up to so many tokens, time goes into reading the weight: narrow tiles give every multiprocessor a part of it."""


@triton.jit(do_not_specialize=["T"])
def block_fp8_matmul_kernel(
    x,  # [T, K] e4m3, contiguous
    x_scale,  # [T, K / 128] float32, contiguous
    weight,  # [N, K] e4m3, contiguous
    weight_scale,  # [N / 128, K / 128] float32, contiguous
    output,  # [T, N], contiguous
    T,
    row_blocks,  # N / 128
    depth_blocks,  # K / 128
    TILE_T: tl.constexpr,
    TILE_N: tl.constexpr,  # divides 128
    SIDE: tl.constexpr,  # 128
):
    """One program computes a tile [TILE_T, TILE_N] of the output; neighbours share a tile of the weight."""
    rows = (tl.program_id(0) * TILE_T + tl.arange(0, TILE_T)).to(tl.int64)
    columns = (tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)).to(tl.int64)
    inside = rows < T
    depth = tl.arange(0, SIDE)
    x_tile = x + rows[:, None] * (depth_blocks * SIDE) + depth[None, :]
    weight_tile = weight + columns[None, :] * (depth_blocks * SIDE) + depth[:, None]
    x_scales = x_scale + rows * depth_blocks
    weight_scales = weight_scale + (tl.program_id(1) * TILE_N // SIDE) * depth_blocks
    total = tl.zeros((TILE_T, TILE_N), tl.float32)
    for block in range(depth_blocks):
        left = tl.load(x_tile + block * SIDE, mask=inside[:, None], other=0.0)
        right = tl.load(weight_tile + block * SIDE)
        scale = tl.load(x_scales + block, mask=inside, other=0.0) * tl.load(weight_scales + block)
        total += tl.dot(left, right) * scale[:, None]
    places = output + rows[:, None] * (row_blocks * SIDE) + columns[None, :]
    tl.store(places, total.to(output.dtype.element_ty), mask=inside[:, None])


def block_fp8_matmul(
    x: torch.Tensor, x_scale: torch.Tensor, weight: torch.Tensor, weight_scale: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Return x [T, K] times weight [N, K] transposed, both e4m3, as [T, N] in `dtype`.

    N and K are multiples of 128; `x_scale` float32 [T, K / 128], `weight_scale` float32 [N / 128, K / 128].
    """
    tokens, depth = x.shape
    rows = weight.shape[0]
    output = torch.empty(tokens, rows, dtype=dtype, device=x.device)
    if not tokens:
        return output
    few = tokens <= _FEW_TOKENS
    tile_t, tile_n = (max(16, triton.next_power_of_2(tokens)), 32) if few else (BLOCK, BLOCK)
    block_fp8_matmul_kernel[(triton.cdiv(tokens, tile_t), rows // tile_n)](
        x,
        x_scale,
        weight,
        weight_scale,
        output,
        tokens,
        rows // BLOCK,
        depth // BLOCK,
        TILE_T=tile_t,
        TILE_N=tile_n,
        SIDE=BLOCK,
        num_warps=4 if few else 8,
        num_stages=4 if few else 3,
    )
    return output
