"""Attention by our Triton kernels: the way it is computed on GPUs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from octavo_engine.attention.backend import KVGroupSpec, LayerCache, StepInputs
from octavo_engine.attention.rotation import Rotation
from octavo_engine.attention.torch_reference import allocate_blocks
from octavo_engine.kernels.kv_write import write_heads
from octavo_engine.kernels.paged_attention import paged_attention, paged_attention_kernel


@dataclass(frozen=True, slots=True)
class TritonMetadata:
    """One step of one KV group; tensors as in StepInputs."""

    slots: Tensor
    block_table: Tensor
    cu_query_lens: Tensor
    context_lens: Tensor
    max_query_len: int
    window: int | None


class TritonAttention:
    """Backend `triton`. Caches are [num_blocks, B, K, D]."""

    name = "triton"

    def allocate(
        self, group: KVGroupSpec, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> dict[int, LayerCache]:
        """The cache of each layer of `group`, zeroed."""
        return allocate_blocks(group, num_blocks, block_size, dtype, device)

    def prepare(self, inputs: StepInputs, group: int, block_size: int, window: int | None) -> TritonMetadata:
        """Nothing to compute: the kernels read the step's tensors as they are."""
        return TritonMetadata(
            slots=inputs.slot_mapping[group],
            block_table=inputs.block_tables[group],
            cu_query_lens=inputs.cu_query_lens,
            context_lens=inputs.context_lens,
            max_query_len=max(inputs.query_lens_host, default=1),
            window=window,
        )

    def write(self, cache: LayerCache, heads: Tensor, rotation: Rotation, metadata: TritonMetadata) -> Tensor:
        """Turn query and key of `heads` [T, H + 2 K, D], put keys and values into their slots; queries [T, H, D]."""
        norms = rotation.norms
        return write_heads(
            heads,
            cache.key,
            cache.value,
            metadata.slots,
            rotation.cos,
            rotation.sin,
            norms=None if norms is None else (norms.query, norms.key),
            eps=0.0 if norms is None else norms.eps,
            key_scale=cache.key_scale,
            value_scale=cache.value_scale,
        )

    def attend(self, query: Tensor, cache: LayerCache, metadata: TritonMetadata, scale: float) -> Tensor:
        """Causal attention of queries [T, H, D] over each one's own sequence in the cache; [T, H, D]."""
        return paged_attention(
            query,
            cache.key,
            cache.value,
            metadata.block_table,
            metadata.cu_query_lens,
            metadata.context_lens,
            max_query_len=metadata.max_query_len,
            scale=scale,
            window=metadata.window,
        )

    def scratch_bytes(
        self, group: KVGroupSpec, num_heads: int, max_tokens: int, max_seqs: int, max_context: int
    ) -> int:
        """At most a contiguous copy of the queries; the kernels work in registers and shared memory."""
        return max_tokens * num_heads * group.head_dim * 4


def interpreted() -> bool:
    """Whether the kernels run in Triton's interpreter (TRITON_INTERPRET=1 when they were imported)."""
    return not isinstance(paged_attention_kernel, triton.JITFunction)
