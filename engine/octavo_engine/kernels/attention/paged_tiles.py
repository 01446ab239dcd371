"""Tiles of paged attention: a program's rows, and the loop over cached tokens with its online softmax."""

from __future__ import annotations

import triton
import triton.language as tl

from octavo_engine.kernels.attention.attention_segments import sequence_at
from octavo_engine.kernels.fp8 import of_fp8


@triton.jit
def find_tile(cu_query_lens, num_seqs, TILE_QUERIES: tl.constexpr, ONE_TILE: tl.constexpr):
    """Return this program's sequence, the sequence's first token in T, and the tile's first query token in it."""
    if ONE_TILE:
        sequence = tl.program_id(0)
        first_row = tl.load(cu_query_lens + sequence)
        first_query = 0
    else:
        # The last tiles of a sequence see most: they begin first, so that none is left over at the end.
        tile = tl.num_programs(0) - 1 - tl.program_id(0)
        sequence = sequence_at(cu_query_lens, tile, num_seqs, TILE_QUERIES, 1)
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
    """Return the rows' queries, in the type in which they are multiplied with keys of `key_cache`."""
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
    """Cut begin..end in three parts; in the middle one each row sees each token, so that no mask is needed.

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
    """Add one tile of scores and values to the running maximum, sum of weights and weighted sum.

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
    """Round finite float32 to bfloat16, ties to even, and return float32. A cast's rounding differs by device."""
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
    """Add one part of the cached tokens to the running softmax of the rows.

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
        k = of_fp8(tl.load(keys + places, mask=read, other=0.0), q.dtype)
        v = of_fp8(tl.load(values + places, mask=read, other=0.0), q.dtype)
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
