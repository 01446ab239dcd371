"""Random batches over a paged cache, and plainly written attention with which every backend is compared."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_engine.attention.backend import (
    AttentionBackend,
    AttentionVariant,
    KVGroupSpec,
    LayerCache,
    StepInputs,
)
from octavo_engine.attention.context import write_heads
from octavo_engine.attention.rope import Rope

BATCHES = {
    "one_token": [(1, 1)],
    "decodes": [(1, 1), (1, 15), (1, 16), (1, 17), (1, 100), (1, 33)],
    "block_boundaries": [(16, 16), (15, 15), (17, 17), (32, 32)],
    "chunks": [(5, 50), (16, 32), (1, 2), (33, 64)],
    "mixed": [(1, 40), (7, 7), (1, 1), (20, 45), (1, 129), (3, 3)],
}


@dataclass(frozen=True)
class Batch:
    """A ragged batch with all that was ever written for each of its sequences."""

    inputs: StepInputs
    group: KVGroupSpec
    block_size: int
    query: Tensor
    keys: list[Tensor]
    """For each sequence [context, K, D], those of this step included."""
    values: list[Tensor]
    step_key: Tensor
    step_value: Tensor


def make_batch(
    lens: list[tuple[int, int]],
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int = 16,
    window: int | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Batch:
    """Return a batch of (query length, context length), with shuffled blocks and unused table entries set to 0."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    blocks_of = [-(-context // block_size) for _, context in lens]
    free = (1 + torch.randperm(sum(blocks_of) + 3, generator=generator)).tolist()
    tables = [[free.pop() for _ in range(count)] for count in blocks_of]
    width = max(blocks_of) + 2
    positions = [p for query_len, context in lens for p in range(context - query_len, context)]
    owners = [s for s, (query_len, _) in enumerate(lens) for _ in range(query_len)]
    slots = [tables[s][p // block_size] * block_size + p % block_size for s, p in zip(owners, positions, strict=True)]
    query_lens, contexts = tuple(q for q, _ in lens), tuple(c for _, c in lens)
    inputs = StepInputs(
        token_ids=torch.zeros(len(positions), dtype=torch.int32),
        positions=torch.tensor(positions),
        cu_query_lens=torch.tensor([0, *query_lens]).cumsum(0).int(),
        context_lens=torch.tensor(contexts, dtype=torch.int32),
        block_tables=(torch.tensor([t + [0] * (width - len(t)) for t in tables], dtype=torch.int32),),
        slot_mapping=(torch.tensor(slots),),
        token_indices=torch.arange(len(lens)),
        query_lens_host=query_lens,
        context_lens_host=contexts,
    )
    keys = [draw(context, kv_heads, head_dim) for context in contexts]
    values = [draw(context, kv_heads, head_dim) for context in contexts]
    return Batch(
        inputs=inputs,
        group=KVGroupSpec("full" if window is None else "sliding", (0,), kv_heads, head_dim, window),
        block_size=block_size,
        query=draw(len(positions), heads, head_dim),
        keys=keys,
        values=values,
        step_key=torch.cat([key[context - q :] for key, (q, context) in zip(keys, lens, strict=True)]),
        step_value=torch.cat([value[context - q :] for value, (q, context) in zip(values, lens, strict=True)]),
    )


def poisoned_cache(backend: AttentionBackend, batch: Batch) -> LayerCache:
    """Return a cache that holds what earlier steps wrote, and NaN wherever no request of this batch has written."""
    total = int(max(table.max() for table in batch.inputs.block_tables)) + 4
    cache = backend.allocate(batch.group, total, batch.block_size, batch.query.dtype, batch.query.device)[0]
    assert not cache.key.any() and not cache.value.any(), "allocate gives zeroed caches"
    cache.key.fill_(float("nan"))
    cache.value.fill_(float("nan"))
    for s, (query_len, context) in enumerate(
        zip(batch.inputs.query_lens_host, batch.inputs.context_lens_host, strict=True)
    ):
        table = batch.inputs.block_tables[0][s].tolist()
        for position in range(context - query_len):
            block, offset = table[position // batch.block_size], position % batch.block_size
            if offset == 0:  # a backend zeroes a block when its first token is written
                cache.key[block], cache.value[block] = 0, 0
            cache.key[block, offset] = batch.keys[s][position]
            cache.value[block, offset] = batch.values[s][position]
    return cache


def run(backend: AttentionBackend, batch: Batch) -> Tensor:
    """Return the attention [T, H, D] of one step of one layer, computed by `backend`."""
    cache = poisoned_cache(backend, batch)
    metadata = backend.prepare(batch.inputs, 0, batch.block_size, batch.group.window)
    query = write_heads(backend, cache, projection(batch), unrotated(batch.query), None, metadata)
    return backend.attend(query, cache, metadata, AttentionVariant(batch.group.head_dim**-0.5))


def projection(batch: Batch) -> Tensor:
    """Return queries, keys and values of the step as a layer's fused projection gives them, [T, H + 2 K, D]."""
    return torch.cat((batch.query, batch.step_key, batch.step_value), dim=1)


def unrotated(query: Tensor) -> Rope:
    """Return angles that leave heads [T, H, D] as they are."""
    angles = torch.zeros(len(query), 1, query.shape[2] // 2, device=query.device)
    return Rope(angles.cos(), angles)


def plain_attention(batch: Batch) -> Tensor:
    """Return the attention [T, H, D] in float64, sequence by sequence and with all scores at once.

    Query heads that share a key head get copies of it.
    """
    outputs = []
    group = batch.query.shape[1] // batch.group.num_kv_heads
    queries = batch.query.double().split(batch.inputs.query_lens_host)
    for query, keys, values in zip(queries, batch.keys, batch.values, strict=True):
        position = torch.arange(len(keys) - len(query), len(keys))[:, None]
        visible = torch.arange(len(keys)) <= position
        if batch.group.window is not None:
            visible &= torch.arange(len(keys)) > position - batch.group.window
        key, value = (heads.double().repeat_interleave(group, dim=1) for heads in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", query, key) * batch.group.head_dim**-0.5
        probabilities = scores.masked_fill(~visible, -torch.inf).softmax(dim=-1)
        outputs.append(torch.einsum("hqk,khd->qhd", probabilities, value))
    return torch.cat(outputs)
