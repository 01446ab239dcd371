"""The states of a step's sequences, for recurrent layers, which keep one state of a sequence instead of its tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_engine.attention.backend import KVGroupSpec, StepInputs


@dataclass(frozen=True, slots=True)
class StateStep:
    """A step's inputs for the layers with states, shared by all layers of a group, without any device sync."""

    slots: Tensor
    """[S] int64, the slot of each sequence's state; padding has the last slot, which no sequence holds."""
    fresh: Tensor
    """[S] bool, whether a sequence begins in this step: then its slot's content is not its state, and is ignored."""
    sequence: Tensor
    """[T] int64, the sequence of each token."""
    ends: Tensor
    """[S] int64, where each sequence's tokens end in T."""
    cu_query_lens: Tensor
    """[S + 1] int32, where each sequence's tokens begin in T."""
    context_lens: Tensor
    """[S] int32, the tokens of each sequence after this step; 0 for padding."""
    lens: tuple[int, ...]
    """The number of tokens of each sequence in this step, on the host."""


def prepare_states(inputs: StepInputs, group: int, spare: int) -> StateStep:
    """Return the step's inputs: entry 0 of a sequence's block table is its slot; `spare` is the slot for padding."""
    bounds = inputs.cu_query_lens.long()
    counts = bounds.diff()
    slots = torch.where(inputs.context_lens > 0, inputs.block_tables[group][:, 0].long(), spare)
    sequence = torch.repeat_interleave(counts, output_size=len(inputs.positions))
    return StateStep(
        slots,
        inputs.context_lens <= counts,
        sequence,
        bounds[1:],
        inputs.cu_query_lens,
        inputs.context_lens,
        inputs.query_lens_host,
    )


def allocate_states(
    group: KVGroupSpec, num_slots: int, dtype: torch.dtype, device: torch.device
) -> dict[int, tuple[Tensor, ...]]:
    """Allocate the tensors of each layer's states, [num_slots + 1, size], zeroed; the last slot is for padding.

    `dtype` is the dtype of the model.
    """

    def tensors() -> tuple[Tensor, ...]:
        return tuple(
            torch.zeros(num_slots + 1, state.size, dtype=state.dtype or dtype, device=device) for state in group.states
        )

    return {layer: tensors() for layer in group.layers}
