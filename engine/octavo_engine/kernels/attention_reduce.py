"""Contexts in segments: where each begins, and how the results of all are added up (flash decoding's second kernel)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

SEGMENTS = 16
"""Most parts that a context is cut into."""


@dataclass(frozen=True, slots=True)
class Partials:
    """The results of all segments, float32."""

    sums: torch.Tensor
    """[T, H, SEGMENTS, D padded to a power of two] for the launch's T tokens; not yet divided by the totals."""
    maxima: torch.Tensor
    """[T, H, SEGMENTS], of scores times log2(e): a weight is 2 to the power of what its score has above it."""
    totals: torch.Tensor
    """[T, H, SEGMENTS], of weights."""

    @staticmethod
    def size(rows: int, head_dim_padded: int) -> int:
        """Numbers for `rows` pairs of a token and a head."""
        return rows * SEGMENTS * (head_dim_padded + 2)

    @classmethod
    def within(
        cls, scratch: torch.Tensor, tokens: int, num_heads: int, head_dim_padded: int, segments: int = SEGMENTS
    ) -> Partials:
        """Laid out in `scratch`, flat float32 of at least `size`."""
        cells = tokens * num_heads * segments
        sums, maxima, totals = scratch[: cells * (head_dim_padded + 2)].split((cells * head_dim_padded, cells, cells))
        shape = (tokens, num_heads, segments)
        return cls(sums.view(*shape, head_dim_padded), maxima.view(shape), totals.view(shape))


@triton.jit
def visible_range(position, queries, context_len, WINDOW: tl.constexpr, TILE_TOKENS: tl.constexpr):
    """The tokens begin..end that some of `queries` consecutive query tokens, the first at `position`, may see.

    `begin` is a multiple of TILE_TOKENS: a few tokens before the window may be in it.
    """
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(position - WINDOW + 1, 0) // TILE_TOKENS * TILE_TOKENS
    return begin, tl.minimum(position + queries, context_len)


@triton.jit
def segment_size(begin, end, SEGMENTS: tl.constexpr, TILE_TOKENS: tl.constexpr):
    """Tokens in each segment of begin..end: whole tiles, and a number that depends on this sequence's length alone."""
    return tl.cdiv(tl.cdiv(end - begin, TILE_TOKENS), SEGMENTS) * TILE_TOKENS


@triton.jit
def segment_range(begin, end, segment, SEGMENTS: tl.constexpr, TILE_TOKENS: tl.constexpr):
    """The tokens of begin..end that are this segment's, and whether there are others' too; maybe none."""
    size = segment_size(begin, end, SEGMENTS, TILE_TOKENS)
    first = begin + segment * size
    return first, tl.minimum(first + size, end), end - begin > size


@triton.jit
def store_partials(partial_sums, partial_maxima, partial_totals, cells, kept, sums, maximum, total):
    """Put rows of one segment's result into their `cells`, those that are `kept`."""
    columns = tl.arange(0, sums.shape[1])
    tl.store(partial_maxima + cells, maximum, mask=kept)
    tl.store(partial_totals + cells, total, mask=kept)
    tl.store(partial_sums + cells[:, None] * sums.shape[1] + columns[None, :], sums, mask=kept[:, None])


@triton.jit(do_not_specialize=["cu_query_lens", "context_lens", "max_query_len"])
def attention_reduce_kernel(
    output,  # [T, H, D]
    partial_sums,  # as in Partials
    partial_maxima,
    partial_totals,
    cu_query_lens,  # [S + 1]
    context_lens,  # [S]
    max_query_len,
    output_stride,
    output_head_stride,
    NUM_HEADS: tl.constexpr,
    TILE_QUERIES: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    WINDOW: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    SEGMENTS: tl.constexpr,
):
    """One program adds up the segments of one query token and head."""
    sequence, query = tl.program_id(0) // max_query_len, tl.program_id(0) % max_query_len
    head = tl.program_id(1)
    first_row = tl.load(cu_query_lens + sequence)
    query_len = tl.load(cu_query_lens + sequence + 1) - first_row
    context_len = tl.load(context_lens + sequence)
    begin, end = visible_range(context_len - query_len, TILE_QUERIES, context_len, WINDOW, TILE_TOKENS)
    size = segment_size(begin, end, SEGMENTS, TILE_TOKENS)
    if (query >= query_len) | (end - begin <= size):
        return  # nothing here, or the one segment there is has written the result

    segments = tl.arange(0, SEGMENTS)
    columns = tl.arange(0, HEAD_DIM_PADDED)
    used = begin + segments * size < end
    token = (first_row + query).to(tl.int64)
    rows = ((token - tl.load(cu_query_lens)) * NUM_HEADS + head) * SEGMENTS + segments
    maxima = tl.load(partial_maxima + rows, mask=used, other=float("-inf"))
    totals = tl.load(partial_totals + rows, mask=used, other=0.0)
    sums = tl.load(partial_sums + rows[:, None] * HEAD_DIM_PADDED + columns[None, :], mask=used[:, None], other=0.0)
    weights = tl.exp2(maxima - tl.max(maxima, axis=0))
    result = tl.sum(sums * weights[:, None], axis=0) / tl.sum(totals * weights, axis=0)
    places = output + token * output_stride + head * output_head_stride + columns
    tl.store(places, result.to(output.dtype.element_ty), mask=columns < HEAD_DIM)


def reduce_segments(
    output: torch.Tensor,
    partials: Partials,
    cu_query_lens: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    max_query_len: int,
    tile_queries: int,
    tile_tokens: int,
    window: int | None,
) -> None:
    """Add up the segments of every query token into `output` [T, H, D], but of those that have only one.

    `cu_query_lens` [S + 1] and `context_lens` [S] are those of the launch, in which a tile had `tile_queries` query
    tokens and a turn `tile_tokens` cached ones.
    """
    num_heads, head_dim = output.shape[1:]
    attention_reduce_kernel[len(context_lens) * max_query_len, num_heads](
        output,
        partials.sums,
        partials.maxima,
        partials.totals,
        cu_query_lens,
        context_lens,
        max_query_len,
        *output.stride()[:2],
        NUM_HEADS=num_heads,
        TILE_QUERIES=tile_queries,
        HEAD_DIM=head_dim,
        HEAD_DIM_PADDED=partials.sums.shape[3],
        WINDOW=window or 0,
        TILE_TOKENS=tile_tokens,
        SEGMENTS=partials.sums.shape[2],
        num_warps=2,
    )
