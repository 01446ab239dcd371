"""The adapter slot of each row of the state table, which gives the slot of each token of a step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from octavo_engine.core.step import StepPlan
from octavo_engine.model.layers.adapters.lora import NO_SLOT
from octavo_engine.model.lora.adapter import AdapterWrite
from octavo_engine.model.lora.slots import LoraSlots


class RowAdapters:
    """The adapters on the device by their digests, and the slots of rows. Only the device thread uses it."""

    def __init__(self, slots: LoraSlots, rows: int, graph_tokens: int, device: torch.device) -> None:
        """Start without adapters, for `rows` of the state table, and CUDA graphs of at most `graph_tokens` tokens."""
        self._slots = slots
        self._digests = [""] * slots.num_slots
        self._slot_of_row = [NO_SLOT] * rows
        self._graph_slots = torch.full((graph_tokens,), NO_SLOT, dtype=torch.int32, device=device)
        """The slots of the tokens of a step that a CUDA graph computes."""

    def write(self, write: AdapterWrite) -> None:
        """Write a part of an adapter into its slot, which holds the adapter once the last part is written."""
        self._slots.write(write)
        self._digests[write.slot] = write.digest if write.last else ""

    def begin(self, plan: StepPlan) -> list[int]:
        """Note a plan's new rows; return the slot of each token of the step, or [] if none has an adapter.

        KeyError if an adapter is not on the device: its request was planned too early.
        """
        for new in plan.new_rows:
            self._slot_of_row[new.row] = self._slot(new.adapter) if new.adapter else NO_SLOT
        of_row, slots = self._slot_of_row, list[int]()
        for index, row in enumerate(plan.decode_rows):
            slots += [of_row[row]] * (1 + len(plan.drafts.get(index, ())))
        for chunk in plan.chunks:
            slots += [of_row[chunk.row]] * chunk.num_tokens
        return slots if slots and max(slots) != NO_SLOT else []

    def _slot(self, digest: str) -> int:
        if digest not in self._digests:
            raise KeyError(f"the adapter {digest} is not on the device")
        return self._digests.index(digest)

    def use(self, slots: Sequence[int]) -> None:
        """Set the slots of the tokens of the next forward pass, which runs eagerly."""
        self._slots.use(slots)

    def use_in_graph(self, tokens: int) -> None:
        """Let the forward pass that is captured next read the slots of its `tokens` tokens from a fixed buffer."""
        self._slots.use_device(self._graph_slots[:tokens])

    def fill_graph(self, slots: Sequence[int]) -> None:
        """Write the slots of the next replay's tokens into the fixed buffer; its other rows are padding."""
        values = torch.tensor(slots, dtype=torch.int32)
        self._graph_slots[: len(slots)].copy_(values, non_blocking=True)
        self._graph_slots[len(slots) :].fill_(NO_SLOT)
