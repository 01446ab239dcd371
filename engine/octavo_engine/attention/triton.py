"""The attention backend `triton`: our Triton kernels, for GPUs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor

from octavo_engine.attention.alibi import ALiBi
from octavo_engine.attention.backend import AttentionTask, AttentionVariant, KVGroupSpec, LayerCache, StepInputs
from octavo_engine.attention.qk_norm import QKNorm
from octavo_engine.attention.rope import Rope
from octavo_engine.attention.torch_reference import allocate_blocks
from octavo_engine.kernels.attention.attention_segments import ContextSplit, PagedSequences, most_listed
from octavo_engine.kernels.attention.kv_write import write_heads, write_kv
from octavo_engine.kernels.attention.latent_attention import has_tiles_for, latent_attention, latent_scratch_floats
from octavo_engine.kernels.attention.paged_attention import paged_attention, scratch_floats, split_of
from octavo_engine.kernels.attention.paged_attention_kernel import paged_attention_kernel


@dataclass(slots=True)
class TritonMetadata:
    """A step's data for one KV group."""

    slots: Tensor
    """[T] int64, as in StepInputs."""
    launches: tuple[PagedSequences, ...]
    """The launches: decodes and chunks of prompts, whose tiles differ."""
    window: int | None
    no_padding: bool
    """Whether each of the step's tokens belongs to a sequence."""
    splits: dict[int, tuple[ContextSplit, ...]] = field(default_factory=dict)
    """How each launch splits contexts, by a layer's number of query heads, in which layers of a group may differ."""

    def splits_for(self, query: Tensor, key_cache: Tensor, *, alibi: bool) -> tuple[ContextSplit, ...]:
        """Return the splits for a layer's queries; the step's first layer with as many heads makes them."""
        heads = query.shape[1]
        if heads not in self.splits:
            cut = partial(split_of, query=query, key_cache=key_cache, window=self.window, alibi=alibi)
            self.splits[heads] = tuple(cut(sequences) for sequences in self.launches)
        return self.splits[heads]


class TritonAttention:
    """Backend `triton`. Caches are [num_blocks, B, K, D]."""

    name = "triton"
    graph_safe = True
    mixed_graph_safe = True

    def __init__(self) -> None:
        self._scratch: dict[tuple[int, torch.device], Tensor] = {}

    def allocate(
        self, group: KVGroupSpec, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> dict[int, LayerCache]:
        """Allocate the cache of each layer of `group`, zeroed."""
        return allocate_blocks(group, num_blocks, block_size, dtype, device)

    def prepare(self, inputs: StepInputs, group: int, block_size: int, window: int | None) -> TritonMetadata:
        """Return the step's tensors in the order of launches, without computing anything.

        Launches depend on the host's query lengths and the block table's width, but not on context lengths, so that a
        CUDA graph can be replayed with any contexts that fit into its table.
        """
        query_lens, decodes = inputs.query_lens_host, inputs.num_decodes
        parts = (slice(0, decodes), slice(decodes, len(query_lens)))
        return TritonMetadata(
            slots=inputs.slot_mapping[group],
            launches=tuple(
                PagedSequences(
                    block_table=inputs.block_tables[group][part],
                    cu_query_lens=inputs.cu_query_lens[part.start : part.stop + 1],
                    context_lens=inputs.context_lens[part],
                    num_tokens=sum(query_lens[part]),
                    max_query_len=max(query_lens[part]),
                )
                for part in parts
                if part.stop > part.start
            ),
            window=window,
            no_padding=sum(query_lens) >= len(inputs.positions),
        )

    def write(self, cache: LayerCache, key: Tensor, value: Tensor, metadata: Any) -> None:
        """Write keys and values [T, K, D] into their slots."""
        scales = cache.key_scale, cache.value_scale
        values = (value, cache.value) if cache.latent is None else (None, None)
        write_kv(key, values[0], cache.key, values[1], metadata.slots, *scales)

    def fused_write(
        self, cache: LayerCache, heads: Tensor, rope: Rope | None, qk_norm: QKNorm | None, metadata: Any
    ) -> Tensor | None:
        """Run one kernel if RoPE rotates whole heads, after a plain RMS norm of each head or after no norm."""
        if rope is None or rope.rotary_dim != heads.shape[2] or not (qk_norm is None or qk_norm.is_plain_rms):
            return None
        return write_heads(
            heads,
            cache.key,
            cache.value,
            metadata.slots,
            rope.cos,
            rope.sin,
            norms=None if qk_norm is None else (qk_norm.query.weight, qk_norm.key.weight),
            eps=0.0 if qk_norm is None else qk_norm.query.eps,
            key_scale=cache.key_scale,
            value_scale=cache.value_scale,
        )

    def attend(self, query: Tensor, cache: LayerCache, metadata: TritonMetadata, variant: AttentionVariant) -> Tensor:
        """Compute causal attention of queries [T, H, D] over their own sequences in the cache.

        The result is [T, H, D]; with a latent cache [T, H, latent].
        """
        query = query if query.stride(2) == 1 else query.contiguous()
        allocate = torch.empty if metadata.no_padding else torch.zeros
        shape = (*query.shape[:2], cache.latent or query.shape[2])
        output = allocate(shape, dtype=query.dtype, device=query.device)
        if cache.latent is not None:
            self._attend_latents(output, query, cache, cache.latent, metadata, variant)
            return output
        scratch = self._scratch_for(query, scratch_floats(query.shape[1], cache.key.shape[2], query.shape[2]))
        splits = metadata.splits_for(query, cache.key, alibi=variant.alibi is not None)
        for sequences, split in zip(metadata.launches, splits, strict=True):
            paged_attention(
                output,
                query,
                cache.key,
                cache.value,
                sequences,
                split,
                scratch,
                scale=variant.scale,
                softcap=variant.softcap,
                sinks=variant.sinks,
                **{} if variant.alibi is None else _alibi_arguments(variant.alibi),
                window=metadata.window,
                key_scale=cache.key_scale,
                value_scale=cache.value_scale,
            )
        return output

    def _attend_latents(
        self,
        output: Tensor,
        query: Tensor,
        cache: LayerCache,
        latent: int,
        metadata: TritonMetadata,
        variant: AttentionVariant,
    ) -> None:
        scratch = self._scratch_for(query, latent_scratch_floats(latent))
        for sequences in metadata.launches:
            latent_attention(
                output,
                query,
                cache.key[:, :, 0],
                sequences,
                scratch,
                latent=latent,
                scale=variant.scale,
                sinks=variant.sinks,
                window=metadata.window,
            )

    def scratch_bytes(
        self, task: AttentionTask, group: KVGroupSpec, max_tokens: int, max_seqs: int, max_context: int
    ) -> int:
        """Return the bytes of the kept segments' results, of their list and of a contiguous copy of the queries."""
        if group.latent is not None:
            kept = 4 * latent_scratch_floats(group.latent)
        else:
            kept = 4 * scratch_floats(task.num_heads, group.num_kv_heads, group.head_dim) + 4 * most_listed(max_tokens)
        return kept + max_tokens * task.num_heads * group.head_dim * task.dtype.itemsize

    def _scratch_for(self, query: Tensor, size: int) -> Tensor:
        """Return memory for `size` numbers at a fixed address, as CUDA graphs need; layers use it in turn."""
        key = (size, query.device)
        if key not in self._scratch:
            self._scratch[key] = torch.empty(size, dtype=torch.float32, device=query.device)
        return self._scratch[key]


def _alibi_arguments(alibi: ALiBi) -> dict[str, Any]:
    return {"alibi": alibi.slopes, "alibi_factor": alibi.factor, "alibi_rounded": alibi.rounded}


def why_not(device: torch.device, task: AttentionTask | None) -> str | None:
    """Return why this backend cannot be used on `device`; None if it can. `computes` says which tasks it computes."""
    if device.type == "cuda" or interpreted():
        return None
    return f"needs a GPU, and the device is {device.type} (TRITON_INTERPRET=1 runs the kernels slowly, for tests)"


def computes(task: AttentionTask) -> bool:
    """Return True if the kernels compute the task: no chunked windows, and tiles for all its latent caches."""
    latents = [group for group in task.groups if group.latent is not None]
    return not any(group.chunked for group in task.groups) and all(
        has_tiles_for(group.latent or 0, group.head_dim - (group.latent or 0)) for group in latents
    )


def interpreted() -> bool:
    """Return True if the kernels run in Triton's interpreter (TRITON_INTERPRET=1 when they were imported)."""
    return not isinstance(paged_attention_kernel, triton.JITFunction)
