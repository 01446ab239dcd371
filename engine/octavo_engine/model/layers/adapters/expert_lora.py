"""LoRA adapters of a layer's experts, many adapters in one batch.

Each expert of an adapter has a slot of its own, as in a linear layer (lora.py): the slot of a routed row is its token's
slot times the number of experts, plus the expert.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from octavo_engine.model.layers.adapters.lora import NO_SLOT, LoraBatch, LoraLayer, batch_of_rows


@dataclass(frozen=True, slots=True)
class ExpertLora:
    """The slots of one layer's experts: of the projections to the intermediate size, and of those from it."""

    gate_up: LoraLayer
    down: LoraLayer
    num_experts: int

    def of_step(self) -> ExpertAdapters | None:
        """Return the adapters of the current step's tokens; None: none has one."""
        slots = self.gate_up.batch.slot_of_token
        return None if slots is None else ExpertAdapters(self, slots)

    def clear(self, slot: int) -> None:
        """Empty a slot."""
        for layer in (self.gate_up, self.down):
            layer.clear(slot * self.num_experts, self.num_experts)


@dataclass(frozen=True, slots=True)
class ExpertAdapters:
    """The adapters of rows that go through experts."""

    lora: ExpertLora
    slots: Tensor
    """[T] int32"""

    def repeated(self, times: int) -> ExpertAdapters:
        """Return the adapters of rows that are each repeated `times` times, one copy after the other."""
        return replace(self, slots=self.slots.repeat_interleave(times))

    def add_to_inner(self, inner: Tensor, x: Tensor, tokens: Tensor, expert: int) -> None:
        """Add to `inner` [N, gate and up] what an expert's adapters make of x [N, hidden], the rows of `tokens`."""
        self.lora.gate_up.add_to(inner, x, self._batch(tokens, expert))

    def add_to_output(self, output: Tensor, inner: Tensor, tokens: Tensor, expert: int) -> None:
        """Add to `output` [N, hidden] what the expert's adapters make of `inner` [N, intermediate], activated."""
        self.lora.down.add_to(output, inner, self._batch(tokens, expert))

    def _batch(self, tokens: Tensor, expert: int) -> LoraBatch:
        own, layer = self.slots[tokens], self.lora.gate_up
        slots = torch.where(own == NO_SLOT, NO_SLOT, own * self.lora.num_experts + expert)
        return batch_of_rows(layer.batch, slots, len(layer.ranks))

    @property
    def for_kernels(self) -> tuple[Any, Any, Tensor]:
        """Return the weights of both projections and the slots, as kernels/experts/moe_lora.py reads them."""
        return self.lora.gate_up.weights, self.lora.down.weights, self.slots
