"""Attention by our C kernels: the way it is computed on CPUs that can compile them.

Keys and values are read where they lie in the cache, nothing is gathered or masked. A decoding sequence's context is
cut into parts for the threads; where it is cut depends on its own length alone, so that its company changes no digit.
Long chunks of prompts, where each key meets many queries, are left to PyTorch's flash attention.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_engine.attention.backend import AttentionTask, KVGroupSpec, LayerCache, StepInputs
from octavo_engine.attention.torch_reference import (
    PrefillTile,
    TorchAttention,
    allocate_blocks,
    attend_tiles,
    prefill_tiles,
)
from octavo_engine.kernels.cpu.library import DTYPES, HEAD_DIMS, LANES, CPUKernels

_LONG_CHUNK = 512
"""Chunks above so many tokens are PyTorch's."""
_SHORTEST_PART = 128
_MOST_PARTS = 16


@dataclass(frozen=True, slots=True)
class CPUMetadata:
    """One step of one KV group."""

    slots: Tensor
    table: Tensor
    parts: Tensor
    """[P, 4] int32: query, sequence, first token, end."""
    first_part: Tensor
    """[T + 1] int64; queries of the long chunks have no parts."""
    tiles: tuple[PrefillTile, ...]
    """Of the long chunks."""
    window: int | None


class CPUAttention:
    """Backend `cpu`. Caches are [num_blocks, B, K, D]."""

    name = "cpu"

    def __init__(self, kernels: CPUKernels) -> None:
        self._kernels = kernels

    def allocate(
        self, group: KVGroupSpec, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> dict[int, LayerCache]:
        """The cache of each layer of `group`, zeroed."""
        return allocate_blocks(group, num_blocks, block_size, dtype, device)

    def prepare(self, inputs: StepInputs, group: int, block_size: int, window: int | None) -> CPUMetadata:
        """Cut every query's context into parts."""
        counts = inputs.cu_query_lens.diff()
        sequence = torch.repeat_interleave(counts.long(), output_size=len(inputs.positions))
        tiles = prefill_tiles(inputs, group, block_size, window, longer_than=_LONG_CHUNK)
        ours = (inputs.context_lens > 0) & (counts <= _LONG_CHUNK)
        ends = ours.long()[sequence] * (inputs.positions + 1)
        starts = torch.zeros_like(ends) if window is None else (ends - window).clamp_(min=0)
        sizes = torch.where(counts[sequence] == 1, _part_size(ends), ends.clamp(min=1))
        parts = -((starts - ends) // sizes)
        first_part = torch.nn.functional.pad(parts.cumsum(0), (1, 0))
        query = torch.repeat_interleave(parts)
        begin = starts[query] + (torch.arange(len(query)) - first_part[query]) * sizes[query]
        end = torch.minimum(begin + sizes[query], ends[query])
        return CPUMetadata(
            slots=inputs.slot_mapping[group],
            table=inputs.block_tables[group].contiguous(),
            parts=torch.stack((query, sequence[query], begin, end), dim=1).int(),
            first_part=first_part,
            tiles=tiles,
            window=window,
        )

    def write(self, cache: LayerCache, key: Tensor, value: Tensor, metadata: CPUMetadata) -> None:
        """Put keys and values [T, K, D] into their slots."""
        if key.stride() != value.stride() or key.stride()[1:] != (key.shape[2], 1):
            key, value = key.contiguous(), value.contiguous()
        self._kernels.write_kv(key, value, cache.key, cache.value, metadata.slots)

    def attend(self, query: Tensor, cache: LayerCache, metadata: CPUMetadata, scale: float) -> Tensor:
        """Causal attention of queries [T, H, D] over each one's own sequence in the cache; [T, H, D]."""
        query = query if query.stride()[1:] == (query.shape[2], 1) else query.contiguous()
        output = self._kernels.attend(
            query, cache.key, cache.value, metadata.table, metadata.parts, metadata.first_part, scale
        )
        attend_tiles(output, query, cache, metadata.tiles, metadata.window, scale)
        return output

    def scratch_bytes(
        self, group: KVGroupSpec, num_heads: int, max_tokens: int, max_seqs: int, max_context: int
    ) -> int:
        """The parts' results in float32 and their description, and what PyTorch needs for a long chunk."""
        parts = max_tokens + (_MOST_PARTS - 1) * min(max_seqs, max_tokens)
        own = parts * (num_heads * (group.head_dim + 2) * 4 + 64) + max_tokens * 64
        return own + TorchAttention().scratch_bytes(group, num_heads, max_tokens, max_seqs, max_context)


def computes(task: AttentionTask) -> bool:
    """Whether the kernels can do it."""
    known_heads = all(group.head_dim in HEAD_DIMS for group in task.groups)
    return known_heads and task.block_size % LANES == 0 and task.dtype in DTYPES


def _part_size(contexts: Tensor) -> Tensor:
    """Tokens in each part of a context: whole lanes, at least _SHORTEST_PART, at most _MOST_PARTS parts."""
    return (-(-contexts // (_MOST_PARTS * LANES)) * LANES).clamp(min=_SHORTEST_PART)
