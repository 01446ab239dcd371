"""LoRA for a step whose tokens belong to different adapters: y[t] += scale[a] * B[a] A[a] x[t], a the token's adapter.

After Punica's segmented products (SGMV, arXiv 2310.18547) and S-LoRA (arXiv 2311.03285): *shrink* takes x to the rank,
*expand* from there to the output. Tokens are put into tiles of one adapter each, so that an adapter's weights are read
once for a whole tile: one kernel pair for decode, where tiles hold one token, and prefill, where they are full.

What is added to a token does not depend on who else is in the step: tiles always have the same shape, and the long sums
of shrink are cut at the same places (by the layer alone) and added up in order. Punica's split adds up atomically. A
token without an adapter keeps what it had, but for mixtures of experts, which round otherwise beside one (moe_lora.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate

import torch
import triton
import triton.language as tl

from octavo_engine.kernels.grouping import RowGroups, group_rows, tile_rows

_TILE_TOKENS = 32
_BLOCK_IN = 128
_BLOCK_OUT = 128
_BLOCK_RANK = 64
"""The most ranks in a tile: larger ranks are computed in blocks, so that a tile's size does not depend on them."""
_MAX_SPLITS = 4


@dataclass(slots=True)
class LoraWeights:
    """All adapters of one projection, or of several that are fused (query, key and value; gate and up): its slices.

    ValueError for a rank that is no power of two from 16 on, for widths that do not fit b or are not multiples of 16.
    """

    a: torch.Tensor
    """[adapters, slices * rank, in], contiguous: slice after slice; smaller ranks are padded by zeros."""
    b: torch.Tensor
    """[adapters, out, rank], contiguous, of a's dtype: the slices' rows one after another, as in the fused weight."""
    scales: torch.Tensor
    """[adapters] float32: alpha / rank."""
    widths: tuple[int, ...]
    """The number of columns of `out` of each slice."""
    starts: torch.Tensor = field(init=False)
    """[slices + 1] int32 on the device: where slices begin in `out`."""

    def __post_init__(self) -> None:
        out, rank = self.b.shape[1:]
        if rank < 16 or rank & (rank - 1):
            raise ValueError(f"LoRA ranks are padded to a power of two from 16 on, not {rank}")
        if sum(self.widths) != out or any(width % 16 for width in self.widths):
            raise ValueError(f"slices of {self.widths} columns do not make {out}, or are not multiples of 16")
        self.starts = torch.tensor((0, *accumulate(self.widths)), dtype=torch.int32, device=self.b.device)


def group_by_adapter(adapter_of_token: torch.Tensor, num_adapters: int) -> RowGroups:
    """Group a step's tokens by adapter for `add_lora`, once for all layers.

    `adapter_of_token` are integers [T]; -1: none.
    """
    return group_rows(adapter_of_token, num_adapters, _TILE_TOKENS)


@triton.jit(do_not_specialize=["tiles", "num_tiles", "num_tokens"])
def lora_shrink_kernel(
    hidden,  # [SPLITS, T, blocks, BLOCK_RANK] float32
    x,  # [T, IN]
    a,  # [adapters, blocks, BLOCK_RANK, IN]
    order,
    tiles,
    num_tiles,
    num_tokens,
    x_stride,
    IN: tl.constexpr,
    PART: tl.constexpr,  # input features of a split
    BLOCK_RANK: tl.constexpr,  # the ranks of a block; a slice has one block or more
    TILE_ROWS: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program computes one tile of tokens, one block of ranks, one split of the input features."""
    tile = tl.program_id(0)
    block = tl.program_id(1)
    split = tl.program_id(2)
    if tile >= tl.load(num_tiles):
        return
    blocks = tl.num_programs(1)
    adapter, _, tokens, exists = tile_rows(order, tiles, tile, TILE_ROWS)
    ranks = tl.arange(0, BLOCK_RANK)
    a_rows = ((adapter * blocks + block) * BLOCK_RANK + ranks) * IN
    sums = tl.zeros([TILE_ROWS, BLOCK_RANK], dtype=tl.float32)
    for first in range(split * PART, tl.minimum(split * PART + PART, IN), BLOCK_IN):
        columns = first + tl.arange(0, BLOCK_IN)
        known = (columns < IN)[None, :]
        x_tile = tl.load(x + tokens[:, None] * x_stride + columns[None, :], mask=exists[:, None] & known, other=0.0)
        a_tile = tl.load(a + a_rows[:, None] + columns[None, :], mask=known, other=0.0)
        sums = tl.dot(x_tile, tl.trans(a_tile), sums, input_precision=PRECISION)
    hidden_rows = ((split * num_tokens + tokens) * blocks + block) * BLOCK_RANK
    tl.store(hidden + hidden_rows[:, None] + ranks[None, :], sums, mask=exists[:, None])


@triton.jit(do_not_specialize=["tiles", "num_tiles", "num_tokens"])
def lora_expand_kernel(
    output,  # [T, out], added to
    hidden,  # [SPLITS, T, slices, RANK] float32
    b,  # [adapters, out, RANK]
    scales,  # [adapters] float32
    starts,  # [slices + 1] int32
    order,
    tiles,
    num_tiles,
    num_tokens,
    out,
    output_stride,
    RANK: tl.constexpr,
    BLOCK_RANK: tl.constexpr,
    SPLITS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program computes one tile of tokens, BLOCK_OUT columns of one slice."""
    tile = tl.program_id(0)
    part = tl.program_id(2)
    first = tl.multiple_of(tl.load(starts + part), 16) + tl.program_id(1) * BLOCK_OUT
    end = tl.multiple_of(tl.load(starts + part + 1), 16)
    if (tile >= tl.load(num_tiles)) | (first >= end):
        return
    adapter, _, tokens, exists = tile_rows(order, tiles, tile, TILE_ROWS)
    columns = first + tl.arange(0, BLOCK_OUT)
    known = columns < end
    b_rows = b + ((adapter * out + columns) * RANK)[:, None]
    added = tl.zeros([TILE_ROWS, BLOCK_OUT], dtype=tl.float32)
    for first_rank in range(0, RANK, BLOCK_RANK):
        ranks = first_rank + tl.arange(0, BLOCK_RANK)
        shrunk = tl.zeros([TILE_ROWS, BLOCK_RANK], dtype=tl.float32)
        for split in range(SPLITS):
            hidden_rows = ((split * num_tokens + tokens) * tl.num_programs(2) + part) * RANK
            shrunk += tl.load(hidden + hidden_rows[:, None] + ranks[None, :], mask=exists[:, None], other=0.0)
        b_tile = tl.load(b_rows + ranks[None, :], mask=known[:, None], other=0.0)
        added = tl.dot(shrunk.to(b_tile.dtype), tl.trans(b_tile), added, input_precision=PRECISION)
    added *= tl.load(scales + adapter)
    places = output + tokens[:, None] * output_stride + columns[None, :]
    inside = exists[:, None] & known[None, :]
    tl.store(places, (tl.load(places, mask=inside, other=0.0) + added).to(output.dtype.element_ty), mask=inside)


def add_lora(output: torch.Tensor, x: torch.Tensor, weights: LoraWeights, groups: RowGroups) -> None:
    """Add each token's adapter's product with `x` [T, in] to `output` [T, out], in place.

    `groups` is `group_by_adapter` of the step; tokens without an adapter are left as they are. `x` and `output` have
    contiguous rows and the weights' dtype; what comes out of shrink is rounded to it, all sums are float32. Scratch: at
    most 4 * T * slices * rank floats.
    """
    tokens, features = x.shape
    out, rank = weights.b.shape[1:]
    slices, block = weights.a.shape[1] // rank, min(rank, _BLOCK_RANK)
    if not tokens:
        return
    splits, part = split_of(features)
    hidden = torch.empty(splits, tokens, slices, rank, dtype=torch.float32, device=x.device)
    rows = (groups.order, groups.tiles, groups.num_tiles, tokens)
    precision = "ieee" if x.dtype == torch.float32 else "tf32"
    lora_shrink_kernel[groups.max_tiles, slices * rank // block, splits](
        hidden,
        x,
        weights.a,
        *rows,
        x.stride(0),
        IN=features,
        PART=part,
        BLOCK_RANK=block,
        TILE_ROWS=groups.tile_rows,
        BLOCK_IN=_BLOCK_IN,
        PRECISION=precision,
    )
    lora_expand_kernel[groups.max_tiles, triton.cdiv(max(weights.widths), _BLOCK_OUT), slices](
        output,
        hidden,
        weights.b,
        weights.scales,
        weights.starts,
        *rows,
        out,
        output.stride(0),
        RANK=rank,
        BLOCK_RANK=block,
        SPLITS=splits,
        TILE_ROWS=groups.tile_rows,
        BLOCK_OUT=_BLOCK_OUT,
        PRECISION=precision,
    )


def split_of(features: int) -> tuple[int, int]:
    """Return the number and size of the parts of a sum over `features`; parts give decode steps more programs."""
    splits = min(_MAX_SPLITS, triton.cdiv(features, 1024))
    part = triton.cdiv(triton.cdiv(features, splits), _BLOCK_IN) * _BLOCK_IN
    return triton.cdiv(features, part), part
