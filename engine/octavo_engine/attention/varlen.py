"""The attention backend `varlen` for GPUs: PyTorch's `varlen_attn` over the paged cache.

It supports block tables since torch 2.12. PyTorch chooses the kernel: cuDNN 9.24 or later, or FlashAttention-3 if its
wheel (`flash_attn_interface`) is installed; the built-in FlashAttention-2 refuses blocks as small as ours.
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
    """A step's data for one KV group; the tensors are those of StepInputs."""

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
        return f"varlen_attn of torch {torch.__version__} has no block tables, which came with 2.12"
    return None


class VarlenAttention(TritonAttention):
    """Backend `varlen`. Caches are [num_blocks, B, K, D], written as the Triton backend does."""

    name = "varlen"
    mixed_graph_safe = False

    def __init__(self) -> None:
        super().__init__()
        if importlib.util.find_spec("flash_attn_interface") is not None:
            torch.nn.attention.activate_flash_attention_impl("FA3")

    def prepare(self, inputs: StepInputs, group: int, block_size: int, window: int | None) -> Any:
        """Return the step's tensors; of contexts only the block table's width is read on the host."""
        return VarlenMetadata(
            slots=inputs.slot_mapping[group],
            block_table=inputs.block_tables[group],
            cu_query_lens=inputs.cu_query_lens,
            context_lens=inputs.context_lens,
            max_query_len=max(inputs.query_lens_host, default=1),
            window=window,
        )

    def attend(self, query: Tensor, cache: LayerCache, metadata: Any, variant: AttentionVariant) -> Tensor:
        """Compute causal attention of queries [T, H, D] over their own sequences in the cache; return [T, H, D].

        The backend computes plain variants only.
        """
        from torch.nn.attention.varlen import varlen_attn

        attend: Any = varlen_attn  # its arguments depend on torch's version
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
        self, task: AttentionTask, group: KVGroupSpec, max_tokens: int, max_seqs: int, max_context: int
    ) -> int:
        """Return an estimate, not yet measured on a GPU: float32 results and sums of a context in two parts."""
        return 2 * max_tokens * task.num_heads * (group.head_dim + 1) * 4
