"""Splits contexts into segments (flash decoding), and lists the segments of a step on the device.

A long context beside short ones would keep few programs busy long after all others. So a context's segments are work of
their own, and a fixed number of programs shares all of them: what one computes follows from a list that is made on the
device once a step, for all layers of as many heads. Neither the host nor a CUDA graph has to know a context's length.
Where a context is cut depends on its own length, and on the number of a step's tokens up to the next power of two;
never on other contexts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

_BUSY = 128
"""The number of programs that keep a device busy (an H100 has 132 multiprocessors)."""
_MOST_TOKENS = 256
"""Query tokens of a step whose contexts are cut: with more, all others take as long as the longest context."""
_LEAST_OF_MANY = 2048
"""Tokens of a segment at least where many sequences decode. Each segment begins with loads that wait for one another:
32 contexts of 4,096 tokens took 126 µs whole and 141 in segments of 704 (8 KV heads, H200, 2026-11-28)."""
_LEAST_OF_A_SHARE = 8
"""Tokens of a segment at least for each share (a token's KV head): the fewer there are, the more segments they need."""
_LEAST_OF_CHUNK = 256
"""Tokens of a segment at least for a chunk of a prompt: a tile's partial results are as large as 130 tokens' keys."""
_LANES = 512


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
class ContextSplit:
    """How one launch cuts contexts; the same in all layers of a step that have as many heads."""

    most: int
    """Segments of a context at most; 1: none is cut."""
    least: int
    """Tiles of cached tokens in a segment at least, but in a context's last one."""
    shares: int
    """Programs that compute the step if no context is cut, at most `at_a_time`; see `segment_size`."""
    at_a_time: int
    """Programs that run at a time."""
    launched: int
    """Segments of a context that there may be in this launch, as its block table or window is long; at most `most`."""
    listed: torch.Tensor | None
    """Their number, then each as sequence * `max_segments` + segment, int32; None: there is a program for each."""
    programs: int
    """Those that share the list, each segment once for every KV head; without one the tiles there may be."""
    few: bool
    """Whether contexts may have `max_segments`; otherwise they have `most_of_many` or are not cut."""

    @property
    def rule(self) -> tuple[int, int, int]:
        """What the kernels are given: `most`, `least` and `shares`."""
        return self.most, self.least, self.shares


def max_segments(kv_heads: int) -> int:
    """Return the most segments of a context, a power of two: those of one context keep a device busy.

    One context of 33,000 tokens took 48 µs in 32 segments and 55 in 16 (8 KV heads, H200, 2026-11-26).
    """
    return max(32, 1 << ((_BUSY // kv_heads) or 1).bit_length() - 1)


def most_of_many(kv_heads: int) -> int:
    """Return the most segments of a context where more than `few_tokens` are computed in one step."""
    return max_segments(kv_heads) // 4


def few_tokens(kv_heads: int) -> int:
    """Return with how many tokens of a step a context may have `max_segments`.

    Their results take no more memory than those of `_MOST_TOKENS` with `most_of_many`, or of a busy device's programs.
    """
    return max(_BUSY // kv_heads, _MOST_TOKENS // 4)


def most_cells(num_heads: int, kv_heads: int, rows: int) -> int:
    """Return how many results of a token, a head and a segment a launch has at most; a chunk's tile has `rows` rows."""
    few = few_tokens(kv_heads) * num_heads * max_segments(kv_heads)
    many = _MOST_TOKENS * num_heads * most_of_many(kv_heads)
    return max(few, many, _BUSY * rows)


def most_listed(max_tokens: int) -> int:
    """Return the most numbers of a list in a step of so many tokens."""
    return 1 + max(_BUSY * _BUSY, _MOST_TOKENS * most_of_many(1), max_tokens)


@triton.jit
def visible_range(position, queries, context_len, WINDOW: tl.constexpr, TILE_TOKENS: tl.constexpr):
    """Return the range begin..end of tokens that `queries` query tokens, the first at `position`, may see.

    `begin` is a multiple of TILE_TOKENS: a few tokens before the window may be in it.
    """
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(position - WINDOW + 1, 0) // TILE_TOKENS * TILE_TOKENS
    return begin, tl.minimum(position + queries, context_len)


@triton.jit
def sequence_at(cu_query_lens, place, num_seqs, SIZE: tl.constexpr, ROOM: tl.constexpr):
    """Return the sequence that the tile (of SIZE query tokens) number `place` belongs to.

    Sequence s has the tiles from (cu_query_lens[s] - cu_query_lens[0]) // SIZE + s * ROOM on. A ROOM of 1 is for the
    partly filled tile that each may have; with 0 and tiles of one token, sequences without a token have none. A number
    beyond the last tile is the last sequence's.
    """
    base = tl.load(cu_query_lens)
    low = 0
    high = num_seqs
    while low < high:
        middle = (low + high) // 2
        if (tl.load(cu_query_lens + middle) - base) // SIZE + middle * ROOM <= place:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def segment_size(tokens, rule, AT_A_TIME: tl.constexpr, TILE_TOKENS: tl.constexpr):
    """Return a segment's tokens: whole tiles, at least `least`, and so many that there are at most `most` segments.

    Segments are equally long, but for a tile: programs that share a list take turns, so that short ones between long
    ones would leave half of the programs idle. So a context is cut only if each segment gets `least` tiles, and into
    no more segments than fill whole turns if all of the `shares` contexts are as long.

    The compiler has to see that it is a multiple of TILE_TOKENS: places in blocks then take no division.
    """
    most, least, shares = rule
    tiles = tl.cdiv(tokens, TILE_TOKENS)
    segments = tl.maximum(tl.minimum(tiles // least, most), 1)
    turns = segments * shares // AT_A_TIME
    segments = tl.where(turns > 0, turns * AT_A_TIME // shares, segments)
    return tl.cdiv(tiles, segments) * TILE_TOKENS


@triton.jit
def segment_range(begin, end, segment, rule, AT_A_TIME: tl.constexpr, TILE_TOKENS: tl.constexpr):
    """Return this segment's tokens of begin..end, perhaps none, and whether other segments have tokens too."""
    size = segment_size(end - begin, rule, AT_A_TIME, TILE_TOKENS)
    first = begin + segment * size
    return first, tl.minimum(first + size, end), end - begin > size


@triton.jit
def count_segments(
    cu_query_lens,
    context_lens,
    sequences,
    real,
    rule,
    AT_A_TIME: tl.constexpr,
    WINDOW: tl.constexpr,
    TILE_QUERIES: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
):
    """Return how many segments each `real` sequence has: one without a context, none without a query."""
    first_row = tl.load(cu_query_lens + sequences, mask=real, other=0)
    query_len = tl.load(cu_query_lens + sequences + 1, mask=real, other=0) - first_row
    context_len = tl.load(context_lens + sequences, mask=real, other=0)
    begin, end = visible_range(context_len - query_len, TILE_QUERIES, context_len, WINDOW, TILE_TOKENS)
    tokens = tl.maximum(end - begin, 1)
    return tl.where(query_len > 0, tl.cdiv(tokens, segment_size(tokens, rule, AT_A_TIME, TILE_TOKENS)), 0)


@triton.jit(do_not_specialize=["cu_query_lens", "context_lens", "num_seqs", "most", "least", "shares"])
def list_segments_kernel(
    listed,  # as in ContextSplit
    cu_query_lens,  # [S + 1]
    context_lens,  # [S]
    num_seqs,
    most,
    least,
    shares,
    AT_A_TIME: tl.constexpr,
    WINDOW: tl.constexpr,
    TILE_QUERIES: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    MAX_SEGMENTS: tl.constexpr,
    LANES: tl.constexpr,
):
    """One program lists one sequence's segments, behind those of the sequences before it."""
    sequence, rule = tl.program_id(0), (most, least, shares)
    lanes = tl.arange(0, LANES)
    before = tl.zeros([LANES], dtype=tl.int32)
    for first in range(0, sequence, LANES):
        others = first + lanes
        before += count_segments(
            cu_query_lens, context_lens, others, others < sequence, rule, AT_A_TIME, WINDOW, TILE_QUERIES, TILE_TOKENS
        )
    start = tl.sum(before, axis=0)
    segments = tl.arange(0, MAX_SEGMENTS)
    here = tl.full([MAX_SEGMENTS], 0, dtype=tl.int32) + sequence
    count = count_segments(
        cu_query_lens, context_lens, here, segments >= 0, rule, AT_A_TIME, WINDOW, TILE_QUERIES, TILE_TOKENS
    )
    tl.store(listed + 1 + start + segments, here * MAX_SEGMENTS + segments, mask=segments < count)
    if sequence == num_seqs - 1:
        tl.store(listed, start + tl.max(count, axis=0))


def split_contexts(
    sequences: PagedSequences,
    *,
    kv_heads: int,
    tile_queries: int,
    tile_tokens: int,
    resident: int,
    block_size: int,
    window: int | None,
) -> ContextSplit:
    """Decide how a launch with such tiles cuts contexts; where each sequence has one tile, list the segments.

    No length of a context decides it, only how long the block table lets one be. A multiprocessor runs `resident`
    programs at a time: more would only begin when these have ended, with the bandwidth half used.
    """
    num_seqs, tokens, most = len(sequences.context_lens), sequences.num_tokens, max_segments(kv_heads)
    one_tile, few = sequences.max_query_len <= tile_queries, tokens <= few_tokens(kv_heads)
    shares = at_a_time = resident * _BUSY
    if not one_tile:
        # Tiles of one sequence: a graph has room for many, of which most steps have one or two.
        most, least = min(most, max(1, _BUSY // (-(-tokens // tile_queries) * kv_heads))), _LEAST_OF_CHUNK
    else:
        shares = min(triton.next_power_of_2(tokens) * kv_heads, at_a_time)
        least = min(_LEAST_OF_MANY, _LEAST_OF_A_SHARE * shares)
        if not few:
            most = most_of_many(kv_heads) if tokens <= _MOST_TOKENS else 1
    least = max(1, least // tile_tokens)
    longest = sequences.block_table.shape[1] * block_size
    if window is not None:  # rounded down to a tile at its beginning
        longest = min(longest, window + tile_queries + tile_tokens)
    launched = max(1, min(most, -(-longest // tile_tokens) // least))
    if not one_tile:
        tiles = num_tiles(sequences, tile_queries)
        return ContextSplit(most, least, shares, at_a_time, launched, None, tiles, few=True)
    device = sequences.context_lens.device
    listed = torch.empty(1 + num_seqs * launched, dtype=torch.int32, device=device)
    list_segments_kernel[num_seqs,](
        listed,
        sequences.cu_query_lens,
        sequences.context_lens,
        num_seqs,
        most,
        least,
        shares,
        AT_A_TIME=at_a_time,
        WINDOW=window or 0,
        TILE_QUERIES=tile_queries,
        TILE_TOKENS=tile_tokens,
        MAX_SEGMENTS=max_segments(kv_heads),
        LANES=_LANES,
    )
    programs = min(num_seqs * launched * kv_heads, at_a_time)
    return ContextSplit(most, least, shares, at_a_time, launched, listed, programs, few)


def num_tiles(sequences: PagedSequences, tile_queries: int) -> int:
    """Return the tiles of a launch of chunks at most: every sequence may have one partly filled tile."""
    return sequences.num_tokens // tile_queries + len(sequences.context_lens)
