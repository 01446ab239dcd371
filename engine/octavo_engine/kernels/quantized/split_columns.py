"""Products for few tokens whose columns are split among programs: each writes its sums, which a second kernel adds up.

A weight of few rows alone would not give every multiprocessor a program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor

_LEAST_COLUMNS = 512
"""The fewest columns of a program where columns are split."""
_SUM_COLUMNS = 1024


@triton.jit
def store_product(total, output, bias, m, n, M, N, output_stride, part, SPLIT: tl.constexpr, ADDS: tl.constexpr):
    """Store a tile [BLOCK_M, BLOCK_N] of sums of tokens m [BLOCK_M, 1] and rows n [BLOCK_N].

    SPLIT: into float32 [parts, M, N]; otherwise into `output`, with bias [N] (None: none), and added to it if ADDS.
    """
    inside = (m < M) & (n < N)[None, :]
    if SPLIT:
        tl.store(output + (part * M + m).to(tl.int64) * N + n[None, :], total, mask=inside)
    else:
        target = output + m.to(tl.int64) * output_stride + n[None, :]
        if bias is not None:
            total += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
        if ADDS:
            total += tl.load(target, mask=inside, other=0.0).to(tl.float32)
        tl.store(target, total.to(output.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["M"])
def sum_kernel(
    output,  # [M, N], rows output_stride apart
    parts,  # float32 [PARTS, M, N]
    bias,  # [N], None: none
    M,
    N,
    output_stride,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    ADDS: tl.constexpr,
):
    """One program adds up BLOCK columns of one token's sums, and what `output` has if ADDS."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < N
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for part in tl.static_range(PARTS):
        total += tl.load(parts + (part * M + row) * N + columns, mask=inside, other=0.0)
    if bias is not None:
        total += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    target = output + row * output_stride + columns
    if ADDS:
        total += tl.load(target, mask=inside, other=0.0).to(tl.float32)
    tl.store(target, total.to(output.dtype.element_ty), mask=inside)


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tile sizes of a product."""

    tokens: int
    rows: int
    columns: int
    warps: int
    stages: int
    programs: int
    """The most programs that splitting columns gives."""


class Launch(Protocol):
    """Launches the product of one kernel."""

    def __call__(self, target: Tensor, bias: Tensor | None, columns: int, splits: int, *, adds: bool) -> None:
        """Write the product into `target` [T, rows] with bias [rows], or add it if it `adds`. With several `splits`
        write the sums of each part of so many `columns`, float32 [splits, T, rows]."""


def splits_for(rows: int, columns: int, cut: Tiles) -> int:
    """Return among how many programs the columns of a weight are split, a power of two up to 8."""
    tiles = -(-rows // cut.rows)
    wanted = min(cut.programs // tiles, columns // _LEAST_COLUMNS, 8)
    return 1 << (max(1, wanted).bit_length() - 1)


def multiply_split(
    output: Tensor, columns: int, cut: Tiles, bias: Tensor | None, launch: Launch, *, adds: bool
) -> None:
    """Write a product over so many columns into `output` [T, rows] with bias [rows], or add it if it `adds`."""
    tokens, rows = output.shape
    splits = splits_for(rows, columns, cut)
    if splits == 1:
        launch(output, bias, triton.cdiv(columns, cut.columns) * cut.columns, 1, adds=adds)
        return
    parts = torch.empty(splits, tokens, rows, dtype=torch.float32, device=output.device)
    launch(parts, None, triton.cdiv(triton.cdiv(columns, splits), cut.columns) * cut.columns, splits, adds=False)
    sum_kernel[tokens, triton.cdiv(rows, _SUM_COLUMNS)](
        output, parts, bias, tokens, rows, output.stride(0), PARTS=splits, BLOCK=_SUM_COLUMNS, ADDS=adds
    )
