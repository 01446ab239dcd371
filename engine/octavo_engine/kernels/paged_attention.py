"""Causal attention over a paged cache: one kernel for prefill, decode and steps that mix them.

After vLLM's unified Triton attention (arXiv 2511.11581) with flash attention's online softmax (arXiv 2205.14135):
- the heads that share a KV head are packed with the query tokens into the rows of one tile, so that each key and
  value is read once for all of them;
- the grid needs only the number of tokens and sequences, an upper bound of the tiles there are; each program finds
  its sequence by binary search, so that the host never waits for the device.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_LOG2_E = 1.4426950408889634


@triton.jit
def find_sequence(cu_query_lens, tile, num_seqs, TILE_QUERIES: tl.constexpr):
    """The sequence that tile number `tile` belongs to.

    Sequence s has its tiles from cu_query_lens[s] // TILE_QUERIES + s on, which leaves room for one partly filled tile
    in each.
    """
    low = 0
    high = num_seqs
    while low < high:
        middle = (low + high) // 2
        if tl.load(cu_query_lens + middle) // TILE_QUERIES + middle <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def load_tile(
    cache,
    table,
    cached,
    known,
    columns,
    kv_head,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """Keys or values [TILE_TOKENS, HEAD_DIM_PADDED] of the tokens `cached`; zero where they are not `known`.

    What is not known is never read: it may be another request's, or not a number.
    """
    blocks = tl.load(table + cached // BLOCK_SIZE, mask=known, other=0).to(tl.int64)
    rows = (blocks * BLOCK_SIZE + cached % BLOCK_SIZE) * KV_HEADS + kv_head
    inside = known[:, None] & (columns < HEAD_DIM)[None, :]
    return tl.load(cache + rows[:, None] * HEAD_DIM + columns[None, :], mask=inside, other=0.0)


@triton.jit
def online_softmax(scores, v, maximum, total, sums, PRECISION: tl.constexpr):
    """Take one more tile of scores and values into the running maximum, sum of weights and weighted sum."""
    new_maximum = tl.maximum(maximum, tl.max(scores, axis=1))
    # A row that has seen nothing yet: any finite number will do, its weights are all exp2(-inf).
    shift = tl.where(new_maximum > float("-inf"), new_maximum, 0.0)
    weights = tl.exp2(scores - shift[:, None])
    decay = tl.exp2(maximum - shift)
    total = total * decay + tl.sum(weights, axis=1)
    sums = tl.dot(weights.to(v.dtype), v, sums * decay[:, None], input_precision=PRECISION)
    return new_maximum, total, sums


@triton.jit
def paged_attention_kernel(
    output,  # [T, H, D]
    query,  # [T, H, D]
    key_cache,  # [num_blocks, B, K, D], contiguous
    value_cache,
    block_table,  # [S, M]
    cu_query_lens,  # [S + 1]
    context_lens,  # [S]
    num_seqs,
    scale,  # multiplied by log2(e)
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
    ROWS: tl.constexpr,  # rows of the query tile
    TILE_TOKENS: tl.constexpr,  # cached tokens in one turn of the loop
    PRECISION: tl.constexpr,
):
    """One program computes ROWS // GROUP query tokens of one sequence, for the heads of one KV head."""
    TILE_QUERIES: tl.constexpr = ROWS // GROUP
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    sequence = find_sequence(cu_query_lens, tile, num_seqs, TILE_QUERIES)
    first_row = tl.load(cu_query_lens + sequence)
    query_len = tl.load(cu_query_lens + sequence + 1) - first_row
    first_query = (tile - first_row // TILE_QUERIES - sequence) * TILE_QUERIES
    if first_query >= query_len:
        return
    context_len = tl.load(context_lens + sequence)
    past_len = context_len - query_len

    rows = tl.arange(0, ROWS)
    queries = first_query + rows // GROUP
    heads = kv_head * GROUP + rows % GROUP
    columns = tl.arange(0, HEAD_DIM_PADDED)
    row_inside = (rows // GROUP < TILE_QUERIES) & (queries < query_len)
    inside = row_inside[:, None] & (columns < HEAD_DIM)[None, :]
    tokens = (first_row + queries).to(tl.int64)
    query_offsets = tokens[:, None] * query_stride + heads[:, None] * query_head_stride + columns[None, :]
    q = tl.load(query + query_offsets, mask=inside, other=0.0)

    positions = past_len + queries
    end = tl.minimum(past_len + first_query + TILE_QUERIES, context_len)
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(past_len + first_query - WINDOW + 1, 0) // TILE_TOKENS * TILE_TOKENS

    maximum = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    sums = tl.zeros([ROWS, HEAD_DIM_PADDED], dtype=tl.float32)
    table = block_table + sequence.to(tl.int64) * table_stride
    for start in range(begin, end, TILE_TOKENS):
        cached = start + tl.arange(0, TILE_TOKENS)
        known = cached < context_len
        k = load_tile(key_cache, table, cached, known, columns, kv_head, KV_HEADS, HEAD_DIM, BLOCK_SIZE)
        v = load_tile(value_cache, table, cached, known, columns, kv_head, KV_HEADS, HEAD_DIM, BLOCK_SIZE)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        seen = known[None, :] & (cached[None, :] <= positions[:, None])
        if WINDOW > 0:
            seen = seen & (cached[None, :] > positions[:, None] - WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
        maximum, total, sums = online_softmax(scores, v, maximum, total, sums, PRECISION)

    result = sums / tl.where(total > 0.0, total, 1.0)[:, None]
    output_offsets = tokens[:, None] * output_stride + heads[:, None] * output_head_stride + columns[None, :]
    tl.store(output + output_offsets, result.to(output.dtype.element_ty), mask=inside)


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    cu_query_lens: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    max_query_len: int,
    scale: float,
    window: int | None,
) -> torch.Tensor:
    """Attention of queries [T, H, D] over caches [num_blocks, B, K, D]; [T, H, D].

    `block_table` [S, M], `cu_query_lens` [S + 1] and `context_lens` [S] are int32 on the device. A sequence without
    context gives zeros; so do rows that belong to no sequence.
    """
    tokens, num_heads, head_dim = query.shape
    num_seqs = context_lens.shape[0]
    kv_heads = key_cache.shape[2]
    if query.stride(2) != 1:
        query = query.contiguous()
    output = torch.zeros_like(query, memory_format=torch.contiguous_format)
    group = num_heads // kv_heads
    rows, tile_tokens, warps = tile_shape(group, head_dim, max_query_len, query.dtype)
    strides = (*query.stride()[:2], *output.stride()[:2], block_table.stride(0))
    # Every sequence may have one partly filled tile.
    grid = (tokens // (rows // group) + num_seqs, kv_heads)
    paged_attention_kernel[grid](
        output,
        query,
        key_cache,
        value_cache,
        block_table,
        cu_query_lens,
        context_lens,
        num_seqs,
        scale * _LOG2_E,
        *strides,
        KV_HEADS=kv_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        HEAD_DIM_PADDED=max(16, triton.next_power_of_2(head_dim)),
        BLOCK_SIZE=key_cache.shape[1],
        WINDOW=window or 0,
        ROWS=rows,
        TILE_TOKENS=tile_tokens,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        num_warps=warps,
    )
    return output


def tile_shape(group: int, head_dim: int, max_query_len: int, dtype: torch.dtype) -> tuple[int, int, int]:
    """Rows of a query tile, cached tokens of a turn, warps: small tiles for decoding, large ones for prefill."""
    least = max(16, triton.next_power_of_2(group))  # the smallest matrix product there is has 16 rows
    if max_query_len == 1:
        return least, 32, 4
    if dtype == torch.float32 or head_dim > 128:
        return max(least, 32), 32, 4
    return max(least, 64), 64, 4
