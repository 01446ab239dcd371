"""Gathers a step's inputs from the rows of the state table.

One launch for each KV group, the first of which gathers all that is not a group's as well. The host sends four integers
a sequence, in one copy, and every token and block id is read on the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from octavo_engine.kernels.gather_outputs import GatherOutputs

_TILE = 1024


# What changes from step to step is not specialised on, so that nothing is compiled again while serving.
@triton.jit(do_not_specialize=["sample_positions", "output_stride", "width"])
def gather_kernel(
    columns,  # [4 * S + 1] int64: rows, starts, sample places, cu_query_lens
    tokens,  # [table rows, token_stride]
    table,  # [table rows, table_stride], of one KV group
    token_ids,
    positions,
    cu_query_lens,
    context_lens,
    block_table,  # [S, output_stride], of one KV group
    slots,
    token_indices,
    state_rows,
    sample_positions,
    token_stride,
    table_stride,
    output_stride,
    width,
    BLOCK_SIZE: tl.constexpr,
    FIRST: tl.constexpr,  # whether what is not a group's is gathered, too
    TILE: tl.constexpr,
):
    """One program gathers one sequence; row -1 is padding."""
    sequence = tl.program_id(0).to(tl.int64)
    num_seqs = tl.num_programs(0)
    row = tl.load(columns + sequence)
    start = tl.load(columns + num_seqs + sequence)
    first = tl.load(columns + 3 * num_seqs + sequence)
    end = tl.load(columns + 3 * num_seqs + sequence + 1)
    real = row >= 0
    last_known = tl.where(real, end, first)  # of padding nothing is read
    lanes = tl.arange(0, TILE)
    for done in range(0, end - first, TILE):
        places = first + done + lanes
        inside = places < end
        known = places < last_known
        position = tl.where(real, start + done + lanes, 0)
        block = tl.load(table + row * table_stride + position // BLOCK_SIZE, mask=known, other=0).to(tl.int64)
        tl.store(slots + places, tl.where(real, block * BLOCK_SIZE + position % BLOCK_SIZE, -1), mask=inside)
        if FIRST:
            tl.store(positions + places, position, mask=inside)
            token = tl.load(tokens + row * token_stride + position, mask=known, other=0)
            tl.store(token_ids + places, token, mask=inside)
    for done in range(0, width, TILE):
        entries = done + lanes
        known = entries < tl.where(real, width, 0)
        blocks = tl.load(table + row * table_stride + entries, mask=known, other=0)
        tl.store(block_table + sequence * output_stride + entries, blocks, mask=entries < width)
    if FIRST:
        context = tl.where(real, start + end - first, 0)
        tl.store(context_lens + sequence, context.to(tl.int32))
        tl.store(cu_query_lens + sequence + 1, end.to(tl.int32))
        if sequence == 0:
            tl.store(cu_query_lens, 0)
        place = tl.load(columns + 2 * num_seqs + sequence)
        if place >= 0:
            tl.store(token_indices + place, end - 1)
            tl.store(state_rows + place, row)
            tl.store(sample_positions + place, context)


def gather_step(
    columns: torch.Tensor,
    tokens: torch.Tensor,
    block_tables: Sequence[torch.Tensor],
    out: GatherOutputs,
    *,
    width: int,
    block_size: int,
) -> None:
    """Fill `out` from the state table's `tokens` and `block_tables`, one for each KV group, all int32 and by rows.

    `columns` [4 * S + 1], int64, are for S sequences: the row of the table, where the step's tokens of it start, the
    place among the R that sample (-1: does not), and after these, S + 1 long, where each one's tokens begin in T. A
    row of -1 is padding: token 0 at position 0 and slot -1, no context, blocks 0. `width` entries of each block table
    are copied.
    """
    num_seqs = (len(columns) - 1) // 4
    for group, (table, block_table, slots) in enumerate(
        zip(block_tables, out.block_tables, out.slot_mapping, strict=True)
    ):
        gather_kernel[num_seqs,](
            columns,
            tokens,
            table,
            out.token_ids,
            out.positions,
            out.cu_query_lens,
            out.context_lens,
            block_table,
            slots,
            out.token_indices,
            out.state_rows,
            out.sample_positions,
            tokens.stride(0),
            table.stride(0),
            block_table.stride(0),
            width,
            BLOCK_SIZE=block_size,
            FIRST=group == 0,
            TILE=_TILE,
        )
