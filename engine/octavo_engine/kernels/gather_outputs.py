"""The tensors that a step's inputs are gathered into, by a Triton kernel (gather.py) or a C kernel (cpu/gather.c)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class GatherOutputs:
    """The tensors that a step of S sequences and T tokens is written to; they may be longer than the step needs.

    Integers are int32 unless said otherwise.
    """

    token_ids: torch.Tensor
    """[T]"""
    positions: torch.Tensor
    """[T] int64"""
    cu_query_lens: torch.Tensor
    """[S + 1]"""
    context_lens: torch.Tensor
    """[S]"""
    block_tables: Sequence[torch.Tensor]
    """The block table of each KV group, [S, at least as wide as asked]."""
    slot_mapping: Sequence[torch.Tensor]
    """The slots of each KV group, [T] int64."""
    token_indices: torch.Tensor
    """[R] int64, the last token of each sequence that samples."""
    state_rows: torch.Tensor
    """[R] int64, the row of the state table it is gathered from."""
    sample_positions: torch.Tensor
    """[R] int64, the place of the token that it will sample."""
