"""Causal attention over a paged cache: one kernel for prefill and decode, with a second one where contexts are split.

After vLLM's unified Triton attention (arXiv 2511.11581) with flash attention's online softmax (arXiv 2205.14135):
- the heads that share a KV head are packed with the query tokens into the rows of one tile, so that each key and
  value is read once for all of them;
- the grid needs only numbers of tokens and sequences and bounds of lengths, so that the host never waits for the
  device and a CUDA graph can be replayed with other lengths;
- contexts are cut into segments (`attention_segments`), which `attention_reduce` adds up. A sequence that is too short
  for two segments writes its result itself.

Measured on an H200 in bench/results/2026-11-26-h200.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton

from octavo_engine.kernels.attention.attention_reduce import Partials, reduce_segments
from octavo_engine.kernels.attention.attention_segments import (
    ContextSplit,
    PagedSequences,
    max_segments,
    most_cells,
    most_of_many,
    split_contexts,
)
from octavo_engine.kernels.attention.paged_attention_kernel import paged_attention_kernel
from octavo_engine.kernels.fp8 import for_kernels
from octavo_engine.kernels.gpu_limits import AMPERE_SHARED_MEMORY, HOPPER_SHARED_MEMORY, shared_memory

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
    tile = _tile_of(query, kv_heads, sequences)
    cut = split.launched > 1
    # A list has segments even if no context may be cut, so that one kernel computes all of them.
    partials = Partials.within(scratch, sequences.num_tokens if cut else 0, num_heads, padded(head_dim), split.most)
    given = cut or split.listed is not None
    heads_and_segments = (kv_heads, split.launched) if split.listed is None else (1, 1)
    paged_attention_kernel[split.programs, *heads_and_segments](
        output,
        *((partials.sums, partials.maxima, partials.totals) if given else (None, None, None)),
        query,
        for_kernels(key_cache),
        for_kernels(value_cache),
        sequences.block_table,
        sequences.cu_query_lens,
        sequences.context_lens,
        split.listed,
        sinks,
        alibi,
        len(sequences.context_lens),
        *split.rule,
        scale * key_scale * _LOG2_E if softcap is None else scale * key_scale / softcap,
        value_scale,
        alibi_factor * _LOG2_E,
        *query.stride()[:2],
        *output.stride()[:2],
        sequences.block_table.stride(0),
        **_constants(query, key_cache, tile, window, softcap),
        AT_A_TIME=split.at_a_time,
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
            one_query=sequences.max_query_len <= 1,
            tile_queries=tile.rows * kv_heads // num_heads,
            tile_tokens=tile.tokens,
            least=split.least,
            shares=split.shares,
            at_a_time=split.at_a_time,
            max_segments=max_segments(kv_heads) if split.few else most_of_many(kv_heads),
            window=window,
        )


def split_of(
    sequences: PagedSequences, query: torch.Tensor, key_cache: torch.Tensor, window: int | None, *, alibi: bool = False
) -> ContextSplit:
    """Return how contexts are cut for queries [T, H, D] and a cache [num_blocks, B, K, D] of these shapes and types."""
    (num_heads, head_dim), kv_heads = query.shape[1:], key_cache.shape[2]
    tile = _tile_of(query, kv_heads, sequences)
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
    """Return the kernel's compile-time constants."""
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


def _tile_of(query: torch.Tensor, kv_heads: int, sequences: PagedSequences) -> TileShape:
    """Return the tile sizes of a launch for queries [T, H, D] on their device."""
    num_heads, head_dim = query.shape[1:]
    group, shared = num_heads // kv_heads, shared_memory(query.device)
    return tile_shape(group, head_dim, sequences.max_query_len, query.dtype, shared)


def tile_shape(
    group: int, head_dim: int, max_query_len: int, dtype: torch.dtype, shared_memory: int = HOPPER_SHARED_MEMORY
) -> TileShape:
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

    `shared_memory` is what one program may have, in bytes. Prefill with heads of 256 takes 161 KiB as built for Hopper
    and 137 for others; where there is less than A100 has, it has half the rows and fewer turns on their way.
    """
    least = max(16, triton.next_power_of_2(group))  # the smallest matrix product there is has 16 rows
    one_tile = max_query_len <= least // group
    if dtype == torch.float32 or head_dim > 256:  # for checks and for odd models: what fits
        small = head_dim > 256 or shared_memory < AMPERE_SHARED_MEMORY
        return TileShape(least if one_tile else max(least, 32), 16 if small else 32, 4, 2, one_tile)
    tokens = 64 if head_dim <= 128 else 32
    if one_tile:
        return TileShape(least, tokens, 4, 5, one_tile)
    if head_dim > 128 and shared_memory < AMPERE_SHARED_MEMORY:
        return TileShape(max(least, 64), tokens, 8, 3, one_tile)
    return TileShape(max(least, 128), tokens, 8, 5, one_tile)


def scratch_floats(num_heads: int, kv_heads: int, head_dim: int) -> int:
    """Return the size of scratch memory that is enough for every launch with these heads."""
    rows = max(128, triton.next_power_of_2(num_heads // kv_heads))
    return Partials.size(most_cells(num_heads, kv_heads, rows), padded(head_dim))
