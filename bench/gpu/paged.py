"""Measures the decode attention of one layer alone, the kernel that dominates with long contexts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle

import torch

from bench.gpu import floors
from bench.gpu.clock import graphed_seconds_of
from bench.gpu.context import Context
from bench.gpu.result import Figure, missing, timed
from octavo_engine.attention.backend import AttentionVariant, KVGroupSpec, StepInputs
from octavo_engine.attention.select import select_backend

_BLOCK = 16
_MOST_BYTES = 24 << 30
_LEAST_BYTES = 512 << 20
"""Caches of this many bytes are used in turn: several times the L2 cache."""


def paged_decode(context: Context) -> Iterator[Figure]:
    """Measure Octavo's kernels at each batch and context, with blocks scattered over the cache."""
    for length in context.scale.paged_contexts:
        for batch in context.scale.paged_batches:
            yield _one(context, batch, length)


def _one(context: Context, batch: int, length: int) -> Figure:
    shape, device = context.scale.llama, context.device
    case = f"batch {batch}, context {length}"
    size = batch * floors.kv_bytes(shape, length) // shape.layers
    if size > _MOST_BYTES:
        return missing(shape.name, "paged decode", f"{size / 1e9:.0f} GB for one layer's cache", case)
    layers = -(-_LEAST_BYTES // size) if device.type == "cuda" else 1
    group = KVGroupSpec("full", tuple(range(layers)), shape.kv_heads, shape.head_dim)
    backend = select_backend("triton" if device.type == "cuda" else "torch", device)
    inputs = step_inputs(batch, length, device)
    blocks = batch * -(-length // _BLOCK)
    caches = backend.allocate(group, blocks, _BLOCK, torch.bfloat16, device)
    for cache in caches.values():
        cache.key.normal_()
        cache.value.normal_()
    metadata = backend.prepare(inputs, 0, _BLOCK, None)
    query = torch.randn(batch, shape.heads, shape.head_dim, dtype=torch.bfloat16, device=device)
    turns = cycle(caches.values())
    variant = AttentionVariant(shape.head_dim**-0.5)
    with torch.inference_mode():
        # All caches in one graph: fewer would stay in the L2 cache from one replay to the next.
        work, calls = (lambda _: backend.attend(query, next(turns), metadata, variant)), max(16, layers)
        seconds = graphed_seconds_of(work, device, calls=calls)
    floor = floors.paged_decode(shape, batch, length, context.rates)
    note = f"{floor.bytes / sorted(seconds)[len(seconds) // 2] / 1e12:.2f} TB/s; backend {backend.name}"
    return timed(shape.name, "paged decode", case, seconds, floor.seconds, note)


def step_inputs(batch: int, length: int, device: torch.device) -> StepInputs:
    """One token for each of `batch` sequences, whose blocks are a random permutation of all blocks."""
    per_sequence = -(-length // _BLOCK)
    tables = torch.randperm(batch * per_sequence, device=device).int().view(batch, per_sequence)
    last = length - 1
    return StepInputs(
        token_ids=torch.zeros(batch, dtype=torch.int32, device=device),
        positions=torch.full((batch,), last, dtype=torch.int64, device=device),
        cu_query_lens=torch.arange(batch + 1, dtype=torch.int32, device=device),
        context_lens=torch.full((batch,), length, dtype=torch.int32, device=device),
        block_tables=(tables,),
        slot_mapping=(tables[:, last // _BLOCK].long() * _BLOCK + last % _BLOCK,),
        token_indices=torch.arange(batch, device=device),
        query_lens_host=(1,) * batch,
        context_lens_host=(length,) * batch,
    )
