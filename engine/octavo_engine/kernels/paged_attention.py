"""Causal attention over a paged cache: one kernel for prefill and decode, with a second one where contexts are split.

After vLLM's unified Triton attention (arXiv 2511.11581) with flash attention's online softmax (arXiv 2205.14135):
- the heads that share a KV head are packed with the query tokens into the rows of one tile, so that each key and
  value is read once for all of them;
- the grid needs only numbers of tokens and sequences and bounds of lengths, so that the host never waits for the
  device and a CUDA graph can be replayed with other lengths;
- contexts are cut into segments (`attention_segments`), which `attention_reduce` adds up. A sequence that is too short
  for two segments writes its result itself.

The list of segments, which a fixed number of programs shares, has not run on a GPU yet (bench/results/ROOFLINE.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from octavo_engine.kernels.attention_reduce import Partials, reduce_segments, store_partials
from octavo_engine.kernels.attention_segments import (
    ContextSplit,
    PagedSequences,
    max_segments,
    most_cells,
    segment_range,
    split_contexts,
    visible_range,
)
from octavo_engine.kernels.paged_tiles import (
    attend_tiles,
    cut_where_all_see,
    empty_softmax,
    find_tile,
    load_queries,
    load_slopes,
    row_offsets,
    rows_of_tile,
)

_LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class TileShape:
    """The tile sizes of a launch."""

    rows: int
    """Query tokens times the heads that share a KV head."""
    tokens: int
    """Cached tokens in one turn of the loop."""
    warps: int
    stages: int
    one_tile: bool
    """Whether each sequence has only one tile of query tokens."""


@triton.jit
def attend_segment(
    place,  # the sequence, its first token in T, the tile's first query token counted from it
    lens,  # of the sequence: its query tokens, its context
    seen,  # of the context: the segment, where it begins and ends, whether there are others, and at most how many
    results,  # output, and sums, maxima and totals as in Partials
    sources,  # query, keys, values, block table, sinks, ALiBi slopes
    scales,  # of scores, of values, of ALiBi
    strides,  # of query and output, token and head of each, and of the block table
    base,  # the launch's first token in T
    kv_head,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    ALIBI: tl.constexpr,
    ROWS: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    ONE_TILE: tl.constexpr,
):
    """Compute ROWS // GROUP query tokens of one sequence, for the heads of one KV head, in one segment."""
    TILE_QUERIES: tl.constexpr = ROWS // GROUP
    sequence, first_row, first_query = place
    query_len, context_len = lens
    segment, begin, end, cut, most = seen
    output, partial_sums, partial_maxima, partial_totals = results
    query, key_cache, value_cache, block_table, sinks, alibi = sources
    scale, value_scale, alibi_scale = scales
    query_stride, query_head_stride, output_stride, output_head_stride, table_stride = strides

    position = context_len - query_len + first_query
    count = tl.minimum(query_len - first_query, TILE_QUERIES)
    queries, tokens, heads, row_inside = rows_of_tile(first_row + first_query, count, kv_head, ROWS, GROUP)
    inside = row_inside[:, None] & (tl.arange(0, HEAD_DIM_PADDED) < HEAD_DIM)[None, :]
    offsets = row_offsets(tokens, heads, query_stride, query_head_stride, HEAD_DIM_PADDED)
    q = load_queries(query + offsets, inside, key_cache)

    state = empty_softmax(sinks, heads, row_inside, segment, ROWS, HEAD_DIM_PADDED)
    edges = cut_where_all_see(position, begin, end, TILE_QUERIES, WINDOW, TILE_TOKENS, ONE_TILE)
    table = block_table + sequence.to(tl.int64) * table_stride
    cache = (key_cache + kv_head * HEAD_DIM, value_cache + kv_head * HEAD_DIM, table)
    rows = (q, position + queries, load_slopes(alibi, heads, row_inside), alibi_scale)
    FIRST_PART: tl.constexpr = 2 if ONE_TILE else 1 if WINDOW == 0 else 0  # part 0 needs a window, one tile has part 2
    for part in tl.static_range(FIRST_PART, 3):
        state = attend_tiles(
            rows, state, edges, part, cache, scale, KV_HEADS, HEAD_DIM, BLOCK_SIZE, TILE_TOKENS, WINDOW, SOFTCAP, ALIBI
        )

    maximum, total, sums = state
    result = sums * value_scale
    whole = True
    if partial_sums is not None:
        whole = not cut
        if cut:
            cells = ((tokens - base) * (KV_HEADS * GROUP) + heads) * most + segment
            store_partials(partial_sums, partial_maxima, partial_totals, cells, row_inside, result, maximum, total)
    if whole:  # a branch: with masks, both ways' places would be in registers at once
        result = result / tl.where(total > 0.0, total, 1.0)[:, None]
        offsets = row_offsets(tokens, heads, output_stride, output_head_stride, HEAD_DIM_PADDED)
        tl.store(output + offsets, result.to(output.dtype.element_ty), mask=inside)


@triton.jit
def attend_own_tile(
    lens,  # of all sequences: where their queries begin, their contexts
    num_seqs,
    most,  # as in ContextSplit
    least,
    results,  # these as in `attend_segment`
    sources,
    scales,
    strides,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    ALIBI: tl.constexpr,
    ROWS: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
):
    """Compute the tile and segment of this program's place in the grid."""
    TILE_QUERIES: tl.constexpr = ROWS // GROUP
    cu_query_lens, context_lens = lens
    sequence, first_row, first_query = find_tile(cu_query_lens, num_seqs, TILE_QUERIES, False)
    query_len = tl.load(cu_query_lens + sequence + 1) - first_row
    if first_query >= query_len:
        return
    context_len = tl.load(context_lens + sequence)
    position = context_len - query_len + first_query
    begin, end = visible_range(position, TILE_QUERIES, context_len, WINDOW, TILE_TOKENS)
    segment, cut = 0, False
    if results[1] is not None:
        segment = tl.program_id(2)
        begin, end, cut = segment_range(begin, end, segment, most, least, TILE_TOKENS)
        if (segment > 0) & (begin >= end):
            return
    place, seen = (sequence, first_row, first_query), (segment, begin, end, cut, most)
    attend_segment(
        place, (query_len, context_len), seen, results, sources, scales, strides,
        tl.load(cu_query_lens), tl.program_id(1),
        KV_HEADS, GROUP, HEAD_DIM, HEAD_DIM_PADDED, BLOCK_SIZE, WINDOW, SOFTCAP, ALIBI, ROWS, TILE_TOKENS, False,
    )  # fmt: skip


@triton.jit
def attend_listed(
    lens,  # as in `attend_own_tile`
    listed,
    most,
    least,
    results,
    sources,
    scales,
    strides,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    ALIBI: tl.constexpr,
    ROWS: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    MAX_SEGMENTS: tl.constexpr,
):
    """Compute this program's share of the list of segments, whose sequences have one tile each.

    The KV heads of a segment follow each other: their keys lie side by side. What does not change from segment to
    segment is computed anew in each: before the loop it would take up registers that keep a third program from running.
    """
    cu_query_lens, context_lens = lens
    base = tl.load(cu_query_lens)
    count = tl.load(listed) * KV_HEADS
    for item in tl.range(tl.program_id(0), count, tl.num_programs(0), disable_licm=True):
        entry = tl.load(listed + 1 + item // KV_HEADS)
        sequence, segment = entry // MAX_SEGMENTS, entry % MAX_SEGMENTS
        first_row = tl.load(cu_query_lens + sequence)
        query_len, context_len = tl.load(cu_query_lens + sequence + 1) - first_row, tl.load(context_lens + sequence)
        begin, end = visible_range(context_len - query_len, ROWS // GROUP, context_len, WINDOW, TILE_TOKENS)
        begin, end, cut = segment_range(begin, end, segment, most, least, TILE_TOKENS)
        attend_segment(
            (sequence, first_row, 0), (query_len, context_len), (segment, begin, end, cut, most),
            results, sources, scales, strides, base, item % KV_HEADS,
            KV_HEADS, GROUP, HEAD_DIM, HEAD_DIM_PADDED, BLOCK_SIZE, WINDOW, SOFTCAP, ALIBI, ROWS, TILE_TOKENS, True,
        )  # fmt: skip


# What changes from step to step is not specialised on, so that nothing is compiled again while serving.
@triton.jit(
    do_not_specialize=[
        "partial_maxima",
        "partial_totals",
        "block_table",
        "cu_query_lens",
        "context_lens",
        "num_seqs",
        "most",
        "least",
        "table_stride",
    ]
)
def paged_attention_kernel(
    output,  # [T, H, D]
    partial_sums,  # as in Partials; None: no context is cut, and there is no list
    partial_maxima,
    partial_totals,
    query,  # [T, H, D]
    key_cache,  # [num_blocks, B, K, D], contiguous
    value_cache,
    block_table,  # [S, M]
    cu_query_lens,  # [S + 1]
    context_lens,  # [S]
    listed,  # as in ContextSplit; None: one program for each tile and segment
    sinks,  # [H], None: none
    alibi,  # [H] slopes, float32; None: none
    num_seqs,
    most,  # as in ContextSplit
    least,
    scale,  # of the products of queries and keys: times log2(e), or with a softcap divided by it
    value_scale,
    alibi_scale,  # of what is added to scores, times log2(e)
    query_stride,
    query_head_stride,
    output_stride,
    output_head_stride,
    table_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads that share a KV head
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,  # 0: none
    SOFTCAP: tl.constexpr,  # 0: none
    ALIBI: tl.constexpr,  # none, exact or rounded
    ROWS: tl.constexpr,  # rows of the query tile
    TILE_TOKENS: tl.constexpr,  # cached tokens in one turn of the loop
    MAX_SEGMENTS: tl.constexpr,
):
    """Programs compute segments: those that are their share of the list, or the one of their tile."""
    results = (output, partial_sums, partial_maxima, partial_totals)
    sources = (query, key_cache, value_cache, block_table, sinks, alibi)
    scales = (scale, value_scale, alibi_scale)
    strides = (query_stride, query_head_stride, output_stride, output_head_stride, table_stride)
    lens = (cu_query_lens, context_lens)
    if listed is None:
        attend_own_tile(
            lens, num_seqs, most, least, results, sources, scales, strides,
            KV_HEADS, GROUP, HEAD_DIM, HEAD_DIM_PADDED, BLOCK_SIZE, WINDOW, SOFTCAP, ALIBI, ROWS, TILE_TOKENS,
        )  # fmt: skip
    else:
        attend_listed(
            lens, listed, most, least, results, sources, scales, strides,
            KV_HEADS, GROUP, HEAD_DIM, HEAD_DIM_PADDED, BLOCK_SIZE, WINDOW, SOFTCAP, ALIBI, ROWS, TILE_TOKENS,
            MAX_SEGMENTS,
        )  # fmt: skip


def paged_attention(
    output: torch.Tensor,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    sequences: PagedSequences,
    split: ContextSplit,
    scratch: torch.Tensor,
    *,
    scale: float,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    alibi: torch.Tensor | None = None,
    alibi_factor: float = 1.0,
    alibi_rounded: bool = False,
    window: int | None = None,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> None:
    """Write the attention of queries [T, H, D] over caches [num_blocks, B, K, D] to `output` [T, H, D].

    Scores are q k * scale, with a softcap c then c * tanh(scores / c) (Gemma 2, arXiv 2408.00118). `sinks` [H] are one
    logit a head that takes a share of the weights and has no value (gpt-oss, arXiv 2508.10925; after arXiv 2309.17453).
    `alibi` [H] float32 are slopes: each times a key's position, rounded to bfloat16 or not, and times `alibi_factor` is
    added to the scores (arXiv 2108.12409).
    Caches in FP8 (e4m3) hold key / key_scale and value / value_scale. Tokens of no sequence are not written.
    `split` is what `split_of` gives for these tensors. `scratch` is float32 of at least `scratch_floats`; one launch at
    a time may use it.
    """
    (num_heads, head_dim), kv_heads = query.shape[1:], key_cache.shape[2]
    tile = tile_shape(num_heads // kv_heads, head_dim, sequences.max_query_len, query.dtype)
    cut = split.launched > 1
    # A list has segments even if no context may be cut, so that one kernel computes all of them.
    partials = Partials.within(scratch, sequences.num_tokens if cut else 0, num_heads, padded(head_dim), split.most)
    given = cut or split.listed is not None
    heads_and_segments = (kv_heads, split.launched) if split.listed is None else (1, 1)
    paged_attention_kernel[split.programs, *heads_and_segments](
        output,
        *((partials.sums, partials.maxima, partials.totals) if given else (None, None, None)),
        query,
        key_cache,
        value_cache,
        sequences.block_table,
        sequences.cu_query_lens,
        sequences.context_lens,
        split.listed,
        sinks,
        alibi,
        len(sequences.context_lens),
        split.most,
        split.least,
        scale * key_scale * _LOG2_E if softcap is None else scale * key_scale / softcap,
        value_scale,
        alibi_factor * _LOG2_E,
        *query.stride()[:2],
        *output.stride()[:2],
        sequences.block_table.stride(0),
        **_constants(query, key_cache, tile, window, softcap),
        ALIBI="none" if alibi is None else "rounded" if alibi_rounded else "exact",
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    if cut:
        reduce_segments(
            output,
            partials,
            sequences.cu_query_lens,
            sequences.context_lens,
            max_query_len=sequences.max_query_len,
            tile_queries=tile.rows * kv_heads // num_heads,
            tile_tokens=tile.tokens,
            least=split.least,
            max_segments=max_segments(kv_heads),
            window=window,
        )


def split_of(
    sequences: PagedSequences, query: torch.Tensor, key_cache: torch.Tensor, window: int | None, *, alibi: bool = False
) -> ContextSplit:
    """Return how contexts are cut for queries [T, H, D] and a cache [num_blocks, B, K, D] of these shapes and types."""
    (num_heads, head_dim), kv_heads = query.shape[1:], key_cache.shape[2]
    tile = tile_shape(num_heads // kv_heads, head_dim, sequences.max_query_len, query.dtype)
    return split_contexts(
        sequences,
        kv_heads=kv_heads,
        tile_queries=tile.rows * kv_heads // num_heads,
        tile_tokens=tile.tokens,
        resident=_resident(tile, head_dim, fp8=key_cache.element_size() == 1, alibi=alibi),
        block_size=key_cache.shape[1],
        window=window,
    )


def _resident(tile: TileShape, head_dim: int, *, fp8: bool, alibi: bool) -> int:
    """Return how many programs of a launch a multiprocessor's registers have room for.

    As built with Triton 3.6 (bench/results/ROOFLINE.md): three programs of 128 threads may have 168 registers a thread.
    A chunk of a prompt has 256 threads of more than 128.
    """
    if not tile.one_tile:
        return 1
    wide = padded(head_dim) > 128 or fp8 or (alibi and padded(head_dim) == 128)
    return 2 if wide else 3


def _constants(
    query: torch.Tensor, key_cache: torch.Tensor, tile: TileShape, window: int | None, softcap: float | None
) -> dict[str, Any]:
    """Compile-time constants of the kernel."""
    (num_heads, head_dim), kv_heads = query.shape[1:], key_cache.shape[2]
    return {
        "KV_HEADS": kv_heads,
        "GROUP": num_heads // kv_heads,
        "HEAD_DIM": head_dim,
        "HEAD_DIM_PADDED": padded(head_dim),
        "BLOCK_SIZE": key_cache.shape[1],
        "WINDOW": window or 0,
        "SOFTCAP": softcap or 0.0,
        "ROWS": tile.rows,
        "TILE_TOKENS": tile.tokens,
        "MAX_SEGMENTS": max_segments(kv_heads),
    }


def padded(head_dim: int) -> int:
    """Return the columns of a tile: a power of two, and no fewer than the smallest matrix product has."""
    columns: int = triton.next_power_of_2(head_dim)
    return max(16, columns)


def tile_shape(group: int, head_dim: int, max_query_len: int, dtype: torch.dtype) -> TileShape:
    """Return the tile sizes of a launch, chosen by arithmetic and by what the compiler makes of them for Hopper.

    Decode is bound by memory: the 16 rows that a matrix product has at least, and turns of 32 KiB. An H200 reads 21
    bytes a cycle for each multiprocessor, so 3 blocks of 72 KiB with one turn on its way in each hide 4,700 cycles.

    Prefill is bound by products. A turn's 4 * rows * tokens * D operations need 4 * tokens * D bytes, `rows` operations
    a byte; L2 gives a multiprocessor some 24 bytes a cycle (5.5 TB/s over 132 at 1.75 GHz) and it multiplies 4,096
    operations in one. 64 rows could reach 37 % of that, 128 reach 75 %. With 8 warps they take 64 registers a thread
    for the sums, 32 for scores and 16 for weights, 176 in all: one block, two warp groups that compute beside each
    other. Two blocks of 64 rows would be as many warps, and read everything twice.

    `stages` counts the block table's entries too: with 5 they are two turns ahead of keys and values and those one turn
    ahead of the products; with 3, Triton gives keys only the buffer that is being read.
    """
    least = max(16, triton.next_power_of_2(group))  # the smallest matrix product there is has 16 rows
    one_tile = max_query_len <= least // group
    if dtype == torch.float32 or head_dim > 256:  # for checks and for odd models: what fits
        return TileShape(least if one_tile else max(least, 32), 32 if head_dim <= 256 else 16, 4, 2, one_tile)
    tokens = 64 if head_dim <= 128 else 32
    if one_tile:
        return TileShape(least, tokens, 4, 5, one_tile)
    return TileShape(max(least, 128), tokens, 8, 5, one_tile)


def scratch_floats(num_heads: int, kv_heads: int, head_dim: int) -> int:
    """Return the size of scratch memory that is enough for every launch with these heads."""
    rows = max(128, triton.next_power_of_2(num_heads // kv_heads))
    return Partials.size(most_cells(num_heads, kv_heads, rows), padded(head_dim))
