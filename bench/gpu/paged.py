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
            yield _one(context, "paged decode", (length,) * batch, f"batch {batch}, context {length}")
    one, *others = context.scale.paged_ragged
    case = f"batch {1 + len(others)}, one context of {one} among {others[0]}"
    yield _one(context, "ragged paged decode", (one, *others), case)


def _one(context: Context, name: str, lengths: tuple[int, ...], case: str) -> Figure:
    shape, device = context.scale.llama, context.device
    batch, total = len(lengths), sum(lengths)
    size = floors.kv_bytes(shape, total) // shape.layers
    if size > _MOST_BYTES:
        return missing(shape.name, name, f"{size / 1e9:.0f} GB for one layer's cache", case)
    layers = -(-_LEAST_BYTES // size) if device.type == "cuda" else 1
    group = KVGroupSpec("full", tuple(range(layers)), shape.kv_heads, shape.head_dim)
    backend = select_backend("triton" if device.type == "cuda" else "torch", device)
    inputs = step_inputs(lengths, device)
    blocks = sum(-(-length // _BLOCK) for length in lengths)
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
    floor = floors.paged_decode(shape, batch, total / batch, context.rates)
    note = f"{floor.bytes / sorted(seconds)[len(seconds) // 2] / 1e12:.2f} TB/s; backend {backend.name}"
    return timed(shape.name, name, case, seconds, floor.seconds, note)


def step_inputs(lengths: tuple[int, ...], device: torch.device) -> StepInputs:
    """Return the inputs of one token for each sequence, whose blocks are a random permutation of all blocks."""
    batch, counts = len(lengths), [-(-length // _BLOCK) for length in lengths]
    blocks = torch.randperm(sum(counts)).int().split(counts)
    tables = torch.nn.utils.rnn.pad_sequence(list(blocks), batch_first=True).to(device)
    contexts = torch.tensor(lengths, device=device)
    last = contexts - 1
    return StepInputs(
        token_ids=torch.zeros(batch, dtype=torch.int32, device=device),
        positions=last,
        cu_query_lens=torch.arange(batch + 1, dtype=torch.int32, device=device),
        context_lens=contexts.int(),
        block_tables=(tables,),
        slot_mapping=(tables.gather(1, (last // _BLOCK)[:, None])[:, 0].long() * _BLOCK + last % _BLOCK,),
        token_indices=torch.arange(batch, device=device),
        query_lens_host=(1,) * batch,
        context_lens_host=lengths,
    )
