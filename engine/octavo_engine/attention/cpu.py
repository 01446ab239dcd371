"""The attention backend `cpu`: our C kernels, for machines that can compile them.

The kernels read keys and values in the cache itself, without gathering or masks. A decoding sequence's context is split
into parts for the threads; the split depends on its own length alone, so that the other sequences of a step change no
digit of the result. The queries of a chunk of a prompt are computed together, as each key meets many of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_engine.attention.backend import AttentionTask, AttentionVariant, KVGroupSpec, LayerCache, StepInputs
from octavo_engine.attention.qk_norm import QKNorm, normalise
from octavo_engine.attention.rope import Rope, split_heads
from octavo_engine.attention.torch_reference import allocate_blocks
from octavo_engine.kernels.cpu.library import DTYPES, HEAD_DIMS, LANES, MOST_PARTS, AttentionStep, CPUKernels

_CHUNK = 8
"""A sequence with at least so many tokens in a step is computed as a chunk (gather.c has the same number)."""


class CPUAttention:
    """Backend `cpu`. Caches are [num_blocks, B, K, D]."""

    name = "cpu"
    graph_safe = False
    mixed_graph_safe = False

    def __init__(self, kernels: CPUKernels) -> None:
        self._kernels = kernels

    def allocate(
        self, group: KVGroupSpec, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> dict[int, LayerCache]:
        """Allocate the cache of each layer of `group`, zeroed.

        Huge pages are quicker for weights, but not here: attention to 16 sequences of 4,000 tokens took 1.05 times as
        long with them.
        """
        return allocate_blocks(group, num_blocks, block_size, dtype, device)

    def prepare(self, inputs: StepInputs, group: int, block_size: int, window: int | None) -> AttentionStep:
        """Split the context of every query that is not part of a chunk into parts."""
        tokens = len(inputs.positions)
        parts, first_part = self._kernels.attention_parts(inputs.cu_query_lens, inputs.context_lens, tokens, window)
        return AttentionStep(
            slots=inputs.slot_mapping[group],
            table=inputs.block_tables[group].contiguous(),
            parts=parts,
            first_part=first_part,
            chunks=_chunks(inputs),
            window=window,
        )

    def write(self, cache: LayerCache, key: Tensor, value: Tensor, metadata: AttentionStep) -> None:
        """Write keys and values [T, K, D] into their slots."""
        # The kernel needs contiguous heads, and the same stride between tokens in keys and values.
        self._kernels.write_kv(key.contiguous(), value.contiguous(), cache.key, cache.value, metadata.slots)

    def fused_write(
        self, cache: LayerCache, heads: Tensor, rope: Rope | None, qk_norm: QKNorm | None, metadata: AttentionStep
    ) -> Tensor | None:
        """If RoPE rotates whole heads: compute norms in PyTorch, then rotate in place and write by C kernels."""
        if rope is None or rope.rotary_dim != heads.shape[2]:
            return None
        kv_heads = cache.key.shape[2]
        heads = normalise(heads, kv_heads, qk_norm)
        self._kernels.rotate(heads[:, :-kv_heads], rope.cos, rope.sin)
        query, key, value = split_heads(heads, kv_heads)
        self._kernels.write_kv(key, value, cache.key, cache.value, metadata.slots)
        return query

    def attend(self, query: Tensor, cache: LayerCache, metadata: AttentionStep, variant: AttentionVariant) -> Tensor:
        """Compute causal attention of queries [T, H, D] over their own sequences in the cache; return [T, H, D]."""
        if not variant.plain:
            raise ValueError(f"the CPU kernels have no softcap, sinks or ALiBi: {variant}")
        scale = variant.scale
        query = query if query.stride()[1:] == (query.shape[2], 1) else query.contiguous()
        table, window = metadata.table, metadata.window
        output = self._kernels.attend(query, cache.key, cache.value, table, metadata.parts, metadata.first_part, scale)
        if len(metadata.chunks):
            self._kernels.attend_chunks(query, cache.key, cache.value, output, table, metadata.chunks, window, scale)
        return output

    def scratch_bytes(
        self, task: AttentionTask, group: KVGroupSpec, max_tokens: int, max_seqs: int, max_context: int
    ) -> int:
        """Return the bytes of the parts' results in float32 and of their descriptions."""
        alone = min(max_tokens, (_CHUNK - 1) * max_seqs)
        parts = alone + (MOST_PARTS - 1) * min(max_seqs, max_tokens)
        return parts * (task.num_heads * (group.head_dim + 2) * 4 + 64) + max_tokens * 64


def computes(task: AttentionTask) -> bool:
    """Return True if the kernels can compute the task."""
    known_heads = all(group.head_dim in HEAD_DIMS and group.latent is None for group in task.groups)
    known_types = task.kv_dtype == task.dtype in DTYPES
    return task.plain and known_heads and known_types and task.block_size % LANES == 0


def _chunks(inputs: StepInputs) -> Tensor:
    """Return the sequences with at least _CHUNK tokens in the step, as `attend_chunks` expects them."""
    chunks: list[tuple[int, int, int, int]] = []
    first = 0
    for sequence, (count, context) in enumerate(zip(inputs.query_lens_host, inputs.context_lens_host, strict=True)):
        if count >= _CHUNK and context > 0:
            chunks.append((first, sequence, context - count, count))
        first += count
    return torch.tensor(chunks, dtype=torch.int32).view(-1, 4)
