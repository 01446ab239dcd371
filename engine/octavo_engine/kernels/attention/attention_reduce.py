"""Adds up the results of a context's segments (flash decoding's second kernel)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from octavo_engine.kernels.attention.attention_segments import segment_size, sequence_at, visible_range

_NUMBERS = 4096
"""Of the sums that one program adds up: 32 for each thread of four warps."""


@dataclass(frozen=True, slots=True)
class Partials:
    """The results of all segments, float32."""

    sums: torch.Tensor
    """[T, H, segments, D padded to a power of two] for the launch's T tokens; not yet divided by the totals."""
    maxima: torch.Tensor
    """[T, H, segments], of scores times log2(e): a weight is 2 to the power of what its score has above it."""
    totals: torch.Tensor
    """[T, H, segments], of weights."""

    @staticmethod
    def size(cells: int, head_dim_padded: int) -> int:
        """Return how many float32 numbers the results of so many tokens, heads and segments take."""
        return cells * (head_dim_padded + 2)

    @classmethod
    def within(
        cls, scratch: torch.Tensor, tokens: int, num_heads: int, head_dim_padded: int, segments: int
    ) -> Partials:
        """Return the tensors as views of `scratch`, flat float32 of at least `size`."""
        cells = tokens * num_heads * segments
        sums, maxima, totals = scratch[: cells * (head_dim_padded + 2)].split((cells * head_dim_padded, cells, cells))
        shape = (tokens, num_heads, segments)
        return cls(sums.view(*shape, head_dim_padded), maxima.view(shape), totals.view(shape))


@triton.jit
def store_partials(partial_sums, partial_maxima, partial_totals, cells, kept, sums, maximum, total):
    """Store the `kept` rows of one segment's result at `cells`."""
    columns = tl.arange(0, sums.shape[1])
    tl.store(partial_maxima + cells, maximum, mask=kept)
    tl.store(partial_totals + cells, total, mask=kept)
    tl.store(partial_sums + cells[:, None] * sums.shape[1] + columns[None, :], sums, mask=kept[:, None])


@triton.jit(
    do_not_specialize=[
        "partial_maxima",
        "partial_totals",
        "cu_query_lens",
        "context_lens",
        "num_seqs",
        "one_query",
        "most",
        "least",
        "shares",
    ]
)
def attention_reduce_kernel(
    output,  # [T, H, D]
    partial_sums,  # as in Partials
    partial_maxima,
    partial_totals,
    cu_query_lens,  # [S + 1]
    context_lens,  # [S]
    num_seqs,
    one_query,  # whether each sequence has at most one query token
    most,  # as in ContextSplit
    least,
    shares,
    output_stride,
    output_head_stride,
    NUM_HEADS: tl.constexpr,
    TILE_QUERIES: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    AT_A_TIME: tl.constexpr,
    HEADS: tl.constexpr,  # that one program adds up, a divisor of NUM_HEADS
    COLUMNS: tl.constexpr,  # of these heads, that it adds up
    WINDOW: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    MAX_SEGMENTS: tl.constexpr,
):
    """One program adds up the segments of one query token and some heads, for some columns.

    If no context is split, each program only finds that out and returns, so there should be few programs.
    """
    sequence, query = tl.program_id(0), 0
    if one_query == 0:
        sequence = sequence_at(cu_query_lens, sequence, num_seqs, 1, 0)
        query = tl.program_id(0) - (tl.load(cu_query_lens + sequence) - tl.load(cu_query_lens))
    first_row = tl.load(cu_query_lens + sequence)
    query_len = tl.load(cu_query_lens + sequence + 1) - first_row
    context_len = tl.load(context_lens + sequence)
    position = context_len - query_len + query // TILE_QUERIES * TILE_QUERIES  # of the tile that it was in
    begin, end = visible_range(position, TILE_QUERIES, context_len, WINDOW, TILE_TOKENS)
    size = segment_size(end - begin, (most, least, shares), AT_A_TIME, TILE_TOKENS)
    if (query >= query_len) | (end - begin <= size):
        return  # nothing here, or the one segment there is has written the result

    heads, segments = tl.program_id(1) * HEADS + tl.arange(0, HEADS), tl.arange(0, MAX_SEGMENTS)
    columns = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    used = (begin + segments * size < end)[None, :]
    token = (first_row + query).to(tl.int64)
    cells = ((token - tl.load(cu_query_lens)) * NUM_HEADS + heads[:, None]) * most + segments[None, :]
    maxima = tl.load(partial_maxima + cells, mask=used, other=float("-inf"))
    totals = tl.load(partial_totals + cells, mask=used, other=0.0)
    places = partial_sums + cells[:, :, None] * HEAD_DIM_PADDED + columns[None, None, :]
    sums = tl.load(places, mask=used[:, :, None], other=0.0)
    weights = tl.exp2(maxima - tl.max(maxima, axis=1)[:, None])
    result = tl.sum(sums * weights[:, :, None], axis=1) / tl.sum(totals * weights, axis=1)[:, None]
    places = output + token * output_stride + heads[:, None] * output_head_stride + columns[None, :]
    tl.store(places, result.to(output.dtype.element_ty), mask=(columns < HEAD_DIM)[None, :])


def reduce_segments(
    output: torch.Tensor,
    partials: Partials,
    cu_query_lens: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    one_query: bool,
    tile_queries: int,
    tile_tokens: int,
    least: int,
    max_segments: int,
    window: int | None,
    shares: int = 1,
    at_a_time: int = 1,
) -> None:
    """Add up the segments of every query token into `output` [T, H, D], but of those that have only one.

    `cu_query_lens` [S + 1] and `context_lens` [S] are those of the launch, in which a tile had `tile_queries` query
    tokens, a turn `tile_tokens` cached ones and a segment at least `least` turns; `shares` and `at_a_time` are as in
    ContextSplit, and equal where no number of segments is better than another. No context has more segments than
    `max_segments`, a power of two. `one_query` says that no sequence has more than one query token.
    """
    num_heads, head_dim = output.shape[1:]
    programs = len(context_lens) if one_query else len(partials.sums)
    head_dim_padded = partials.sums.shape[3]
    columns = min(head_dim_padded, _NUMBERS // max_segments)
    heads = math.gcd(num_heads, _NUMBERS // (max_segments * columns))
    attention_reduce_kernel[programs, num_heads // heads, head_dim_padded // columns](
        output,
        partials.sums,
        partials.maxima,
        partials.totals,
        cu_query_lens,
        context_lens,
        len(context_lens),
        int(one_query),
        partials.sums.shape[2],
        least,
        shares,
        *output.stride()[:2],
        NUM_HEADS=num_heads,
        TILE_QUERIES=tile_queries,
        HEAD_DIM=head_dim,
        HEAD_DIM_PADDED=head_dim_padded,
        AT_A_TIME=at_a_time,
        HEADS=heads,
        COLUMNS=columns,
        WINDOW=window or 0,
        TILE_TOKENS=tile_tokens,
        MAX_SEGMENTS=max_segments,
        num_warps=4,
    )
