"""Causal attention over a paged cache: one kernel for prefill and decode, with a second one where contexts are split.

After vLLM's unified Triton attention (arXiv 2511.11581) with flash attention's online softmax (arXiv 2205.14135):
- the heads that share a KV head are packed with the query tokens into the rows of one tile, so that each key and
  value is read once for all of them;
- the grid needs only numbers of tokens and sequences and bounds of lengths, so that the host never waits for the
  device and a CUDA graph can be replayed with other lengths;
- where few sequences decode, each one's context is cut into segments (flash decoding), which `attention_reduce` adds
  up. A sequence that is too short for two segments writes its result itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from octavo_engine.kernels.attention_reduce import (
    SEGMENTS,
    Partials,
    reduce_segments,
    segment_range,
    store_partials,
    visible_range,
)

_LOG2_E = 1.4426950408889634
_BUSY = 128
"""The number of programs that keep a device busy (an H100 has 132 multiprocessors): contexts are split if there are no
more."""


@dataclass(frozen=True, slots=True)
class PagedSequences:
    """Sequences that one launch computes; integers int32 on the device."""

    block_table: torch.Tensor
    """[S, M]; blocks beyond a context are never read."""
    cu_query_lens: torch.Tensor
    """[S + 1], where each one's tokens begin in T."""
    context_lens: torch.Tensor
    """[S]; 0: the result is 0."""
    num_tokens: int
    """Query tokens of all, or an upper bound."""
    max_query_len: int


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
def find_sequence(cu_query_lens, tile, num_seqs, TILE_QUERIES: tl.constexpr):
    """The sequence that tile number `tile` belongs to.

    Sequence s has its tiles from (cu_query_lens[s] - cu_query_lens[0]) // TILE_QUERIES + s on, which leaves room for
    one partly filled tile in each.
    """
    base = tl.load(cu_query_lens)
    low = 0
    high = num_seqs
    while low < high:
        middle = (low + high) // 2
        if (tl.load(cu_query_lens + middle) - base) // TILE_QUERIES + middle <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def find_tile(cu_query_lens, num_seqs, TILE_QUERIES: tl.constexpr, ONE_TILE: tl.constexpr):
    """This program's sequence, that one's first token in T, and the first query token of the tile, counted from it."""
    if ONE_TILE:
        sequence = tl.program_id(0)
        first_row = tl.load(cu_query_lens + sequence)
        first_query = 0
    else:
        # The last tiles of a sequence see most: they begin first, so that none is left over at the end.
        tile = tl.num_programs(0) - 1 - tl.program_id(0)
        sequence = find_sequence(cu_query_lens, tile, num_seqs, TILE_QUERIES)
        first_row = tl.load(cu_query_lens + sequence)
        tiles_before = (first_row - tl.load(cu_query_lens)) // TILE_QUERIES + sequence
        first_query = (tile - tiles_before) * TILE_QUERIES
    return sequence, first_row, first_query


@triton.jit
def rows_of_tile(first_token, count, kv_head, ROWS: tl.constexpr, GROUP: tl.constexpr):
    """Return for each row of a tile its query token in the tile, its token in T, its head, and whether it exists.

    The tile has `count` query tokens.
    """
    rows = tl.arange(0, ROWS)
    queries = rows // GROUP
    heads = kv_head * GROUP + rows % GROUP
    tokens = (first_token + queries).to(tl.int64)
    return queries, tokens, heads, queries < count


@triton.jit
def row_offsets(tokens, heads, token_stride, head_stride, HEAD_DIM_PADDED: tl.constexpr):
    """Return the offsets of rows in a tensor [T, H, D]; [ROWS, HEAD_DIM_PADDED]."""
    columns = tl.arange(0, HEAD_DIM_PADDED)
    return tokens[:, None] * token_stride + heads[:, None] * head_stride + columns[None, :]


@triton.jit
def load_queries(pointers, inside, key_cache):
    """The rows' queries, in the type in which they are multiplied with keys of `key_cache`."""
    q = tl.load(pointers, mask=inside, other=0.0)
    if key_cache.dtype.element_ty.primitive_bitwidth == 8 and q.dtype == tl.bfloat16:
        q = q.to(tl.float16)  # Hopper turns two FP8 numbers into these by one instruction, into bfloat16 by five
    return q


@triton.jit
def load_slopes(alibi, heads, row_inside):
    """ALiBi's slopes of the rows' heads, float32; 0 without ALiBi."""
    slopes = 0.0
    if alibi is not None:
        slopes = tl.load(alibi + heads, mask=row_inside, other=0.0)
    return slopes


@triton.jit
def empty_softmax(sinks, heads, row_inside, segment, ROWS: tl.constexpr, HEAD_DIM_PADDED: tl.constexpr):
    """Running maximum, sum of weights and weighted sum before any token: a sink counts as one, in the first segment."""
    maximum = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    sums = tl.zeros([ROWS, HEAD_DIM_PADDED], dtype=tl.float32)
    if sinks is not None:
        sink = tl.load(sinks + heads, mask=row_inside, other=0.0).to(tl.float32) * 1.4426950408889634
        maximum = tl.where(segment == 0, sink, float("-inf"))
        total += tl.where(segment == 0, 1.0, 0.0)
    return maximum, total, sums


@triton.jit
def cut_where_all_see(
    position,
    begin,
    end,
    TILE_QUERIES: tl.constexpr,
    WINDOW: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    ONE_TILE: tl.constexpr,
):
    """Cut begin..end in three, so that in the middle each row sees each token and no mask is needed.

    There is no middle for few queries: each further loop would start its reads anew, and masks cost them little.
    """
    first, after = begin, begin
    if not ONE_TILE:
        after = tl.maximum(tl.minimum(position + 1, end) // TILE_TOKENS * TILE_TOKENS, begin)
        if WINDOW > 0:
            oldest = tl.maximum(position + TILE_QUERIES - WINDOW, 0)
            first = tl.minimum(tl.maximum(tl.cdiv(oldest, TILE_TOKENS) * TILE_TOKENS, begin), after)
    return begin, first, after, end


@triton.jit
def online_softmax(scores, scale, v, maximum, total, sums, PRECISION: tl.constexpr):
    """Take one more tile of scores and values into the running maximum, sum of weights and weighted sum.

    `scale` (positive) makes scores exponents of 2. It is applied in the exponent, where it costs no instruction.
    """
    new_maximum = tl.maximum(maximum, tl.max(scores, axis=1) * scale)
    # A row that has seen nothing yet: any finite number will do, its weights are all exp2(-inf).
    shift = tl.where(new_maximum > float("-inf"), new_maximum, 0.0)
    weights = tl.exp2(scores * scale - shift[:, None])
    decay = tl.exp2(maximum - shift)
    total = total * decay + tl.sum(weights, axis=1)
    sums = tl.dot(weights.to(v.dtype), v, sums * decay[:, None], input_precision=PRECISION)
    return new_maximum, total, sums


@triton.jit
def round_to_bfloat16(x):
    """The nearest bfloat16 to finite float32 numbers, in float32; of two the even one. A cast rounds by device."""
    bits = x.to(tl.int32, bitcast=True)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def alibi_bias(slopes, positions, cached, ALIBI: tl.constexpr):
    """Return the ALiBi terms of scores for rows with these slopes and positions; [ROWS, TILE_TOKENS].

    Counted from the row's own position, which changes no weight and loses no digits in a long context; but as Falcon
    rounds it, it depends on where one counts from.
    """
    if ALIBI == "rounded":
        bias = round_to_bfloat16(slopes)[:, None] * round_to_bfloat16(cached.to(tl.float32))[None, :]
        bias = round_to_bfloat16(bias)
    else:
        bias = slopes[:, None] * (cached[None, :] - positions[:, None]).to(tl.float32)
    return bias


@triton.jit
def attend_tiles(
    rows,  # their q [ROWS, HEAD_DIM_PADDED], their positions, ALiBi slopes of their heads, the factor of these
    state,  # running maximum, sum of weights and weighted sum
    edges,  # as `cut_where_all_see` gives them
    PART: tl.constexpr,  # of the three: tokens edges[PART]..edges[PART + 1]
    cache,  # keys and values at the KV head, the sequence's block table
    scale,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    ALIBI: tl.constexpr,
):
    """Take one part of the cached tokens into the running softmax of the rows.

    What lies beyond the part's end or before the window is never read: it may be another request's, or not a number.
    """
    TOKEN_STRIDE: tl.constexpr = KV_HEADS * HEAD_DIM
    MASKED: tl.constexpr = PART != 1
    q, positions, slopes, alibi_scale = rows
    PRECISION: tl.constexpr = "ieee" if q.dtype == tl.float32 else "tf32"
    maximum, total, sums = state
    keys, values, table = cache
    end = edges[PART + 1]
    lanes = tl.arange(0, TILE_TOKENS)
    columns = tl.arange(0, q.shape[1])
    # A tile is some whole blocks or a part of one, so these do not change from turn to turn.
    inside_block = (lanes % BLOCK_SIZE)[:, None] * TOKEN_STRIDE + columns[None, :]
    real = (columns < HEAD_DIM)[None, :]
    oldest = tl.min(positions) - WINDOW + 1
    for start in range(edges[PART], end, TILE_TOKENS):
        cached = start + lanes
        known = cached < end
        if PART == 0:  # whole tiles
            known = cached >= oldest
        elif MASKED and WINDOW > 0:  # one comparison for both ends: what is before the window wraps around
            known = (cached - oldest).to(tl.uint32) < (end - oldest).to(tl.uint32)
        entries = table + start // BLOCK_SIZE + lanes // BLOCK_SIZE
        blocks = tl.load(entries, mask=known, other=0) if MASKED else tl.load(entries)
        first = blocks.to(tl.int64) * (BLOCK_SIZE * TOKEN_STRIDE) + start % BLOCK_SIZE * TOKEN_STRIDE
        places = first[:, None] + inside_block
        read = known[:, None] & real if MASKED else real
        k = tl.load(keys + places, mask=read, other=0.0).to(q.dtype)
        v = tl.load(values + places, mask=read, other=0.0).to(q.dtype)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        exponent = scale
        if SOFTCAP > 0.0:
            scores = 2.0 * tl.sigmoid(2.0 * scale * scores) - 1.0  # tanh
            exponent = SOFTCAP * 1.4426950408889634
        if ALIBI != "none":
            scores = scores * exponent + alibi_bias(slopes, positions, cached, ALIBI) * alibi_scale
            exponent = 1.0
        if MASKED:
            seen = cached[None, :] <= positions[:, None]
            if WINDOW > 0:
                seen = seen & (cached[None, :] > positions[:, None] - WINDOW)
            scores = tl.where(seen, scores, float("-inf"))
        maximum, total, sums = online_softmax(scores, exponent, v, maximum, total, sums, PRECISION)
    return maximum, total, sums


# What changes from step to step is not specialised on, so that nothing is compiled again while serving.
@triton.jit(do_not_specialize=["block_table", "cu_query_lens", "context_lens", "num_seqs", "table_stride"])
def paged_attention_kernel(
    output,  # [T, H, D]
    partial_sums,  # as in attention_reduce_kernel; None: contexts are not split
    partial_maxima,
    partial_totals,
    query,  # [T, H, D]
    key_cache,  # [num_blocks, B, K, D], contiguous
    value_cache,
    block_table,  # [S, M]
    cu_query_lens,  # [S + 1]
    context_lens,  # [S]
    sinks,  # [H], None: none
    alibi,  # [H] slopes, float32; None: none
    num_seqs,
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
    ONE_TILE: tl.constexpr,  # whether each sequence has only one tile of query tokens
    SEGMENTS: tl.constexpr,
):
    """One program computes ROWS // GROUP query tokens of one sequence, for the heads of one KV head, in one segment."""
    TILE_QUERIES: tl.constexpr = ROWS // GROUP
    kv_head = tl.program_id(1)
    sequence, first_row, first_query = find_tile(cu_query_lens, num_seqs, TILE_QUERIES, ONE_TILE)
    query_len = tl.load(cu_query_lens + sequence + 1) - first_row
    if first_query >= query_len:
        return
    context_len = tl.load(context_lens + sequence)
    position = context_len - query_len + first_query
    begin, end = visible_range(position, TILE_QUERIES, context_len, WINDOW, TILE_TOKENS)
    segment, split = 0, False
    if partial_sums is not None:
        segment = tl.program_id(2)
        begin, end, split = segment_range(begin, end, segment, SEGMENTS, TILE_TOKENS)
        if (segment > 0) & (begin >= end):
            return

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
    if partial_sums is not None:
        cells = ((tokens - tl.load(cu_query_lens)) * (KV_HEADS * GROUP) + heads) * SEGMENTS + segment
        kept = queries < tl.where(split, count, 0)
        store_partials(partial_sums, partial_maxima, partial_totals, cells, kept, result, maximum, total)
        inside = inside & (queries < tl.where(split, 0, count))[:, None]
    result = result / tl.where(total > 0.0, total, 1.0)[:, None]
    offsets = row_offsets(tokens, heads, output_stride, output_head_stride, HEAD_DIM_PADDED)
    tl.store(output + offsets, result.to(output.dtype.element_ty), mask=inside)


def paged_attention(
    output: torch.Tensor,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    sequences: PagedSequences,
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
    """Attention of queries [T, H, D] over caches [num_blocks, B, K, D] into `output` [T, H, D].

    Scores are q k * scale, with a softcap c then c * tanh(scores / c) (Gemma 2, arXiv 2408.00118). `sinks` [H] are one
    logit a head that takes a share of the weights and has no value (gpt-oss, arXiv 2508.10925; after arXiv 2309.17453).
    `alibi` [H] float32 are slopes: each times a key's position, rounded to bfloat16 or not, and times `alibi_factor` is
    added to the scores (arXiv 2108.12409).
    Caches in FP8 (e4m3) hold key / key_scale and value / value_scale. Tokens of no sequence are not written.
    `scratch` is float32 of at least `scratch_floats`; one launch at a time may use it.
    """
    num_heads, head_dim = query.shape[1:]
    kv_heads, block_size, num_seqs = key_cache.shape[2], key_cache.shape[1], len(sequences.context_lens)
    group = num_heads // kv_heads
    tile = tile_shape(group, head_dim, sequences.max_query_len, query.dtype)
    segments = num_segments(sequences, tile, kv_heads, block_size, window)
    partials = None
    if segments > 1:
        partials = Partials.within(scratch, sequences.num_tokens, num_heads, padded(head_dim))
    # Every sequence may have one partly filled tile.
    tiles = num_seqs if tile.one_tile else sequences.num_tokens // (tile.rows // group) + num_seqs
    paged_attention_kernel[tiles, kv_heads, segments](
        output,
        *(None, None, None) if partials is None else (partials.sums, partials.maxima, partials.totals),
        query,
        key_cache,
        value_cache,
        sequences.block_table,
        sequences.cu_query_lens,
        sequences.context_lens,
        sinks,
        alibi,
        num_seqs,
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
    if partials is not None:
        reduce_segments(
            output,
            partials,
            sequences.cu_query_lens,
            sequences.context_lens,
            max_query_len=sequences.max_query_len,
            tile_queries=tile.rows // group,
            tile_tokens=tile.tokens,
            window=window,
        )


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
        "ONE_TILE": tile.one_tile,
        "SEGMENTS": SEGMENTS,
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


def num_segments(sequences: PagedSequences, tile: TileShape, kv_heads: int, block_size: int, window: int | None) -> int:
    """Segments to launch: 1 if that keeps the device busy, else at most SEGMENTS, as a context or window has tiles.

    No length of a context decides it, only how long the block table lets one be.
    """
    if not tile.one_tile or len(sequences.context_lens) * kv_heads > _BUSY:
        return 1
    longest = sequences.block_table.shape[1] * block_size
    if window is not None:  # rounded down to a tile at its beginning
        longest = min(longest, window + sequences.max_query_len + tile.tokens)
    return min(SEGMENTS, -(-longest // tile.tokens))


def scratch_floats(num_heads: int, kv_heads: int, head_dim: int) -> int:
    """Size of the scratch memory that every launch with these heads can do with."""
    rows = _BUSY * max(16, triton.next_power_of_2(num_heads // kv_heads))  # a tile has so many where contexts are split
    return Partials.size(rows, padded(head_dim))
