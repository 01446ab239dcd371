"""Attention over a compressed cache: multi-head latent attention, its up-projections absorbed (arXiv 2405.04434).

A token's cache is one vector for all heads: a latent, which is key and value at once, and a rotated part that only keys
have. So a tile is read once for both products. The rows of a tile are heads of one query token, so that decodes and
chunks of prompts differ in where a context ends alone. Splitting and online softmax are those of `paged_attention`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo_engine.kernels.attention.attention_reduce import Partials, reduce_segments, store_partials
from octavo_engine.kernels.attention.attention_segments import PagedSequences, segment_size, visible_range
from octavo_engine.kernels.attention.paged_tiles import empty_softmax, find_tile, online_softmax
from octavo_engine.kernels.fp8 import for_kernels, of_fp8

_LOG2_E = 1.4426950408889634
_PROGRAMS = 256
"""Contexts are cut into no more segments than give so many programs: each writes a result as long as a latent."""
SEGMENTS = 16
"""Most segments of a context."""
_TILE_TOKENS = 32
ROWS = 16
"""Heads of a tile, as many as a matrix product has rows at least; other tiles of a token find its latents in L2.

With 64, what a warp group multiplies at once, the sums alone are 128 registers a thread, and 320 bytes are spilled.
"""
_LONGEST_LATENT, _LONGEST_ROTATED = 512, 128


@triton.jit(do_not_specialize=["block_table", "cu_query_lens", "context_lens", "num_seqs", "table_stride"])
def latent_attention_kernel(
    output,  # [T, H, LATENT]
    partial_sums,  # as in Partials; None: contexts are not split
    partial_maxima,
    partial_totals,
    query,  # [T, H, LATENT + ROTATED]
    cache,  # [num_blocks, B, LATENT + ROTATED], contiguous
    block_table,  # [S, M]
    cu_query_lens,  # [S + 1]
    context_lens,  # [S]
    sinks,  # [H], None: none
    num_seqs,
    scale,  # times log2(e)
    query_stride,
    query_head_stride,
    output_stride,
    output_head_stride,
    table_stride,
    NUM_HEADS: tl.constexpr,
    LATENT: tl.constexpr,
    ROTATED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,  # 0: none
    ROWS: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    SEGMENTS: tl.constexpr,
    ONE_TOKEN: tl.constexpr,  # whether each sequence has at most one query token
    PRECISION: tl.constexpr,
):
    """One program computes ROWS heads of one query token in one segment; only where ONE_TOKEN there are several."""
    WIDTH: tl.constexpr = LATENT + ROTATED
    sequence, first_row, number = find_tile(cu_query_lens, num_seqs, 1, ONE_TOKEN)
    query_len = tl.load(cu_query_lens + sequence + 1) - first_row
    if number >= query_len:
        return
    token = first_row + number
    context_len, segment = tl.load(context_lens + sequence), tl.program_id(2)
    position = context_len - query_len + number
    begin, end = visible_range(position, 1, context_len, WINDOW, TILE_TOKENS)
    if partial_sums is not None:
        size = segment_size(end - begin, (SEGMENTS, 1, 1), 1, TILE_TOKENS)
        split = end - begin > size
        begin += segment * size
        if (segment > 0) & (begin >= end):
            return
        end = tl.minimum(begin + size, end)

    heads = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = heads < NUM_HEADS
    latent, rotated = tl.arange(0, LATENT), tl.arange(0, ROTATED)
    queries = query + token.to(tl.int64) * query_stride + heads[:, None] * query_head_stride
    q_latent = tl.load(queries + latent[None, :], mask=inside[:, None], other=0.0)
    q_rotated = tl.load(queries + LATENT + rotated[None, :], mask=inside[:, None], other=0.0)
    maximum, total, sums = empty_softmax(sinks, heads, inside, segment, ROWS, LATENT)
    table = block_table + sequence.to(tl.int64) * table_stride
    lanes = tl.arange(0, TILE_TOKENS)
    for start in range(begin, end, TILE_TOKENS):
        known = start + lanes < end
        if WINDOW > 0:
            known = known & (start + lanes > position - WINDOW)
        blocks = tl.load(table + start // BLOCK_SIZE + lanes // BLOCK_SIZE, mask=known, other=0)
        places = (blocks.to(tl.int64) * BLOCK_SIZE + start % BLOCK_SIZE + lanes % BLOCK_SIZE)[:, None] * WIDTH
        k = of_fp8(tl.load(cache + places + latent[None, :], mask=known[:, None], other=0.0), q_latent.dtype)
        k_rotated = tl.load(cache + places + LATENT + rotated[None, :], mask=known[:, None], other=0.0)
        scores = tl.dot(q_latent, tl.trans(k), input_precision=PRECISION)
        scores = tl.dot(q_rotated, tl.trans(of_fp8(k_rotated, q_rotated.dtype)), scores, input_precision=PRECISION)
        scores = tl.where(known[None, :], scores, float("-inf"))
        maximum, total, sums = online_softmax(scores, scale, k, maximum, total, sums, PRECISION)

    if partial_sums is not None:
        cells = ((token - tl.load(cu_query_lens)) * NUM_HEADS + heads) * SEGMENTS + segment
        kept = heads < tl.where(split, NUM_HEADS, 0)
        store_partials(partial_sums, partial_maxima, partial_totals, cells, kept, sums, maximum, total)
        inside = heads < tl.where(split, 0, NUM_HEADS)
    result = sums / tl.where(total > 0.0, total, 1.0)[:, None]
    places = output + token.to(tl.int64) * output_stride + heads[:, None] * output_head_stride + latent[None, :]
    tl.store(places, result.to(output.dtype.element_ty), mask=inside[:, None])


def has_tiles_for(latent: int, rotated: int) -> bool:
    """Return True if caches of these sizes can be computed: powers of two, from 16 on, up to those of DeepSeek."""
    sizes = ((latent, _LONGEST_LATENT), (rotated, _LONGEST_ROTATED))
    return all(16 <= size <= longest and size & (size - 1) == 0 for size, longest in sizes)


def latent_attention(
    output: torch.Tensor,
    query: torch.Tensor,
    cache: torch.Tensor,
    sequences: PagedSequences,
    scratch: torch.Tensor,
    *,
    latent: int,
    scale: float,
    sinks: torch.Tensor | None = None,
    window: int | None = None,
) -> None:
    """Compute causal attention of queries [T, H, latent + rotated] over a cache [num_blocks, B, latent + rotated].

    `sinks` [H]: a logit more in the softmax for each head, without a value. `window`: tokens that a query sees, its own
    included.

    Values are the cache's first `latent` numbers; `output` is [T, H, latent]. The sizes are such that `has_tiles_for`
    them. The cache is of the queries' type or float8_e4m3fn, which is read as it is, without a scale. A sequence
    without context gives zeros. `scratch` is float32 of at least `latent_scratch_floats`; one launch at a time may use
    it.
    """
    num_heads, rotated = query.shape[1], query.shape[2] - latent
    num_seqs, parts = len(sequences.context_lens), triton.cdiv(num_heads, ROWS)
    one_token = sequences.max_query_len <= 1
    tokens = num_seqs if one_token else sequences.num_tokens + num_seqs
    segments = num_latent_segments(num_seqs * parts) if one_token else 1
    partials = Partials.within(scratch, sequences.num_tokens, num_heads, latent, segments) if segments > 1 else None
    latent_attention_kernel[tokens, parts, segments](
        output,
        *(None, None, None) if partials is None else (partials.sums, partials.maxima, partials.totals),
        query,
        for_kernels(cache),
        sequences.block_table,
        sequences.cu_query_lens,
        sequences.context_lens,
        sinks,
        num_seqs,
        scale * _LOG2_E,
        *query.stride()[:2],
        *output.stride()[:2],
        sequences.block_table.stride(0),
        NUM_HEADS=num_heads,
        LATENT=latent,
        ROTATED=rotated,
        BLOCK_SIZE=cache.shape[1],
        WINDOW=window or 0,
        ROWS=ROWS,
        TILE_TOKENS=_TILE_TOKENS,
        SEGMENTS=segments,
        ONE_TOKEN=one_token,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        num_warps=4,
        num_stages=5,
    )
    if partials is not None:
        reduce_segments(
            output,
            partials,
            sequences.cu_query_lens,
            sequences.context_lens,
            one_query=True,
            tile_queries=1,
            tile_tokens=_TILE_TOKENS,
            least=1,
            max_segments=SEGMENTS,
            window=window,
        )


def num_latent_segments(programs: int) -> int:
    """Return the segments for `programs` pairs of a sequence and a tile of heads: a power of two, at most SEGMENTS."""
    return min(SEGMENTS, 1 << max(0, (_PROGRAMS // programs).bit_length() - 1))


def latent_scratch_floats(latent: int) -> int:
    """Return the size of scratch memory that is enough for every launch."""
    return _PROGRAMS * ROWS * (latent + 2)
