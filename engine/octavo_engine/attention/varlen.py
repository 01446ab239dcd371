"""Attention by PyTorch's own `varlen_attn` over the paged cache: an alternative on GPUs that gets newer kernels.

Block tables came with torch 2.12. PyTorch chooses the kernel: cuDNN 9.24 or later, or FlashAttention-3 where its wheel
(`flash_attn_interface`) is installed; FlashAttention-2, which is built in, refuses blocks as small as ours.
"""

from __future__ import annotations

import importlib.util
import inspect
from dataclasses import dataclass
from typing import Any

import torch.nn.attention
from torch import Tensor

from octavo_engine.attention.backend import AttentionTask, AttentionVariant, KVGroupSpec, LayerCache, StepInputs
from octavo_engine.attention.triton import TritonAttention


@dataclass(frozen=True, slots=True)
class VarlenMetadata:
    """One step of one KV group; tensors as in StepInputs."""

    slots: Tensor
    block_table: Tensor
    cu_query_lens: Tensor
    context_lens: Tensor
    max_query_len: int
    window: int | None


def why_not(device: torch.device, task: AttentionTask | None) -> str | None:
    """Return why this backend cannot be used on `device`, for `task` if it is given; None if it can."""
    if device.type != "cuda":
        return f"needs a GPU, and the device is {device.type}"
    if task is not None and (task.latent or not task.plain):
        return "it has neither latent attention nor softcap nor sinks nor ALiBi"
    try:
        varlen: Any = importlib.import_module("torch.nn.attention.varlen")
    except ImportError:
        return f"torch {torch.__version__} has no torch.nn.attention.varlen"
    if "block_table" not in inspect.signature(varlen.varlen_attn).parameters:
        return f"varlen_attn of torch {torch.__version__} knows no block tables, which came with 2.12"
    return None


class VarlenAttention(TritonAttention):
    """Backend `varlen`. Caches are [num_blocks, B, K, D], written as the Triton backend does."""

    name = "varlen"

    def __init__(self) -> None:
        super().__init__()
        if importlib.util.find_spec("flash_attn_interface") is not None:
            torch.nn.attention.activate_flash_attention_impl("FA3")

    def prepare(self, inputs: StepInputs, group: int, block_size: int, window: int | None) -> Any:
        """Return the step's tensors; the host knows of contexts only the block table's width."""
        return VarlenMetadata(
            slots=inputs.slot_mapping[group],
            block_table=inputs.block_tables[group],
            cu_query_lens=inputs.cu_query_lens,
            context_lens=inputs.context_lens,
            max_query_len=max(inputs.query_lens_host, default=1),
            window=window,
        )

    def attend(self, query: Tensor, cache: LayerCache, metadata: Any, variant: AttentionVariant) -> Tensor:
        """Causal attention of queries [T, H, D] over each one's own sequence in the cache; [T, H, D].

        Of variants only the plain one.
        """
        from torch.nn.attention.varlen import varlen_attn

        attend: Any = varlen_attn  # whose arguments depend on torch's version
        block_size, kv_heads = cache.key.shape[1:3]
        output: Tensor = attend(
            query,
            cache.key,
            cache.value,
            metadata.cu_query_lens,
            None,
            metadata.max_query_len,
            metadata.block_table.shape[1] * block_size,
            scale=variant.scale,
            window_size=(-1 if metadata.window is None else metadata.window - 1, 0),
            enable_gqa=query.shape[1] != kv_heads,
            seqused_k=metadata.context_lens,
            block_table=metadata.block_table,
        )
        return output

    def scratch_bytes(
        self, group: KVGroupSpec, num_heads: int, max_tokens: int, max_seqs: int, max_context: int
    ) -> int:
        """Results in float32 with their sums, of a context in two parts: a guess, not measured on a GPU yet."""
        return 2 * max_tokens * num_heads * (group.head_dim + 1) * 4
