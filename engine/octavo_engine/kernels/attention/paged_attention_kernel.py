"""The Triton kernel of causal attention over a paged cache, which `paged_attention` launches."""

from __future__ import annotations

import triton
import triton.language as tl

from octavo_engine.kernels.attention.attention_reduce import store_partials
from octavo_engine.kernels.attention.attention_segments import segment_range, visible_range
from octavo_engine.kernels.attention.paged_tiles import (
    attend_tiles,
    cut_where_all_see,
    empty_softmax,
    find_tile,
    load_queries,
    load_slopes,
    row_offsets,
    rows_of_tile,
)


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
    rule,  # as in ContextSplit
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
    AT_A_TIME: tl.constexpr,
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
        begin, end, cut = segment_range(begin, end, segment, rule, AT_A_TIME, TILE_TOKENS)
        if (segment > 0) & (begin >= end):
            return
    place, seen = (sequence, first_row, first_query), (segment, begin, end, cut, rule[0])
    attend_segment(
        place, (query_len, context_len), seen, results, sources, scales, strides,
        tl.load(cu_query_lens), tl.program_id(1),
        KV_HEADS, GROUP, HEAD_DIM, HEAD_DIM_PADDED, BLOCK_SIZE, WINDOW, SOFTCAP, ALIBI, ROWS, TILE_TOKENS, False,
    )  # fmt: skip


@triton.jit
def attend_listed(
    lens,  # as in `attend_own_tile`
    listed,
    rule,
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
    AT_A_TIME: tl.constexpr,
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
        begin, end, cut = segment_range(begin, end, segment, rule, AT_A_TIME, TILE_TOKENS)
        attend_segment(
            (sequence, first_row, 0), (query_len, context_len), (segment, begin, end, cut, rule[0]),
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
        "shares",
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
    shares,
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
    AT_A_TIME: tl.constexpr,
    MAX_SEGMENTS: tl.constexpr,
):
    """Programs compute segments: those that are their share of the list, or the one of their tile."""
    results = (output, partial_sums, partial_maxima, partial_totals)
    sources = (query, key_cache, value_cache, block_table, sinks, alibi)
    scales = (scale, value_scale, alibi_scale)
    strides = (query_stride, query_head_stride, output_stride, output_head_stride, table_stride)
    lens, rule = (cu_query_lens, context_lens), (most, least, shares)
    if listed is None:
        attend_own_tile(
            lens, num_seqs, rule, results, sources, scales, strides,
            KV_HEADS, GROUP, HEAD_DIM, HEAD_DIM_PADDED, BLOCK_SIZE, WINDOW, SOFTCAP, ALIBI, ROWS, TILE_TOKENS,
            AT_A_TIME,
        )  # fmt: skip
    else:
        attend_listed(
            lens, listed, rule, results, sources, scales, strides,
            KV_HEADS, GROUP, HEAD_DIM, HEAD_DIM_PADDED, BLOCK_SIZE, WINDOW, SOFTCAP, ALIBI, ROWS, TILE_TOKENS,
            AT_A_TIME, MAX_SEGMENTS,
        )  # fmt: skip
