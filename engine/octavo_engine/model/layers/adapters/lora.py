"""The adapters of one linear layer, many of them in one batch: y[t] += B A x[t], each token by its own adapter.

Adapters are beside the method by which a layer's weights are multiplied (quantization/linear_method.py): they read the
same input, and add to its result. A slot holds one adapter; its scale is multiplied into B when it is put there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from octavo_engine.kernels.cpu.adapters import CPUAdapters
from octavo_engine.kernels.cpu.library import CPUKernels
from octavo_engine.kernels.cpu.pages import HugePages
from octavo_engine.kernels.triton_support import triton_runs_on

NO_SLOT = -1
"""The slot of tokens without an adapter."""
_FEW_TOKENS = 64
"""Up to so many tokens of one adapter are multiplied faster by the C kernels, more by PyTorch. Tokens of several
adapters are always multiplied by the C kernels."""


@dataclass(frozen=True, slots=True)
class SlotTokens:
    """The tokens of a step that have one adapter."""

    slot: int
    tokens: Tensor | None
    """[N] int64; None: all of the step's."""


@dataclass(slots=True)
class LoraBatch:
    """The adapters of the current step's tokens, in one of three forms; the same for all layers."""

    kernels: CPUKernels | None = None
    """The C kernels, which compute tokens of several adapters on a CPU, and few tokens of one."""
    slots: Tensor | None = None
    """[T] int32, the slot of each token where the C kernels compute."""
    by_slot: Sequence[SlotTokens] = ()
    """The tokens of each adapter where PyTorch computes one adapter after another."""
    groups: Any = None
    """kernels.grouping.RowGroups where Triton's kernels compute."""
    slot_of_token: Tensor | None = None
    """[T] int32 on the device, for what brings tokens into another order (experts); None: no token has an adapter."""
    of_heads: dict[int, LoraBatch] = field(default_factory=dict)
    """The same of rows that are each token's heads, by the number of heads: made by the first layer that needs it."""

    def use(self, slots: Sequence[int]) -> None:
        """Set the slot of each token of the next step, `NO_SLOT` for none; not for Triton's kernels."""
        self.slots, self.by_slot, self.groups, self.slot_of_token = None, (), None, None
        self.of_heads.clear()
        if not slots or max(slots) == NO_SLOT:
            return
        self.slot_of_token = torch.tensor(slots, dtype=torch.int32)
        if self.kernels is not None and (len(slots) <= _FEW_TOKENS or len(set(slots)) > 1):
            self.slots = self.slot_of_token
        else:
            self.by_slot = tokens_by_slot(slots)

    def use_device(self, slots: Tensor, num_slots: int) -> None:
        """Set the slots [T] int32 of the next step for Triton's kernels: on the device, where a graph reads them."""
        from octavo_engine.kernels.lora import group_by_adapter

        self.slot_of_token, self.groups = slots, group_by_adapter(slots, num_slots)
        self.of_heads.clear()


def tokens_by_slot(slots: Sequence[int]) -> list[SlotTokens]:
    """Return the tokens of each slot, from each token's slot."""
    found: dict[int, list[int]] = {}
    for token, slot in enumerate(slots):
        if slot != NO_SLOT:
            found.setdefault(slot, []).append(token)
    if len(found) == 1 and len(next(iter(found.values()))) == len(slots):
        return [SlotTokens(next(iter(found)), None)]
    return [SlotTokens(slot, torch.tensor(tokens)) for slot, tokens in sorted(found.items())]


def batch_of_rows(step: LoraBatch, slots: Tensor, num_slots: int) -> LoraBatch:
    """Return the adapters of rows that are not the step's tokens, in so many slots; `slots` [N] int32 on the device."""
    batch = LoraBatch(step.kernels, slot_of_token=slots)
    if step.groups is not None:
        batch.use_device(slots, num_slots)
    elif step.kernels is not None:
        batch.slots = slots
    else:
        batch.use(slots.tolist())
    return batch


class LoraLayer:
    """The slots of one linear layer."""

    def __init__(
        self,
        batch: LoraBatch,
        parts: Sequence[int],
        columns: int,
        *,
        slots: int,
        rank: int,
        dtype: torch.dtype,
        device: torch.device,
        pages: HugePages | None = None,
    ) -> None:
        """Create empty slots for a rank's rows of each projection and its columns.

        `rank` is `slot_rank` of the largest adapter. `pages`: where the slots lie; None: in memory of their own.
        """
        self.batch, self.parts, self.rank = batch, tuple(parts), rank
        zeros = partial(torch.zeros, dtype=dtype, device=device) if pages is None else partial(pages.zeros, dtype=dtype)
        self.a = zeros((slots, len(parts) * rank, columns))
        """[slots, parts * rank, columns]: part after part; smaller ranks are padded by zeros."""
        rows = slot_rows(parts, device)
        # On a CPU the rows of B^T are read as vectors.
        of_slot = (rank, rows) if batch.kernels is not None else (rows, rank)
        stored = zeros((slots, *of_slot))
        self.b = stored.mT if batch.kernels is not None else stored
        """[slots, rows, rank]"""
        self.on_cpu = None if batch.kernels is None else CPUAdapters(batch.kernels, self.a, stored, parts)
        """The adapters' weights for the C kernels."""
        self.ranks = [[0] * len(parts) for _ in range(slots)]
        """The rank of each part of the adapter in each slot; 0: there is none."""
        self.weights: Any = None
        """kernels.lora.LoraWeights where Triton's kernels compute."""
        if triton_runs_on(device):
            from octavo_engine.kernels.lora import LoraWeights

            ones = torch.ones(slots, dtype=torch.float32, device=device)
            self.weights = LoraWeights(self.a, self.b, ones, self.parts if rows == sum(parts) else (rows,))

    def clear(self, first: int, count: int = 1) -> None:
        """Empty `count` slots."""
        slots = slice(first, first + count)
        if any(map(any, self.ranks[slots])):
            if self.weights is not None:  # Triton's kernels read every slot up to the largest rank
                self.a[slots].zero_()
                self.b[slots].zero_()
            for part in range(len(self.parts)):
                self._set_ranks(slots, part, 0)

    def put_a(self, slot: int, part: int, a: Tensor, begin: int = 0) -> None:
        """Put `a` [r, columns] of one part into a slot, at the ranks from `begin` on; further ranks stay zeros."""
        first, end = part * self.rank, begin + len(a)
        self.a[slot, first + begin : first + end].copy_(a)
        self._set_ranks(slice(slot, slot + 1), part, end)

    def put_many(self, first: int, part: int, a: Tensor, b: Tensor, begin: int = 0) -> None:
        """Put `a` [N, r, columns] and `b` [N, rows, r], scaled, of one part into N slots, at ranks from `begin` on."""
        slots, end, start = slice(first, first + len(a)), begin + a.shape[1], sum(self.parts[:part])
        self.a[slots, part * self.rank + begin : part * self.rank + end].copy_(a)
        self.b[slots, start : start + self.parts[part], begin:end] = b.to(self.b.device, self.b.dtype)
        self._set_ranks(slots, part, end)

    def _set_ranks(self, slots: slice, part: int, rank: int) -> None:
        for ranks in self.ranks[slots]:
            ranks[part] = rank
        if self.on_cpu is not None:
            self.on_cpu.ranks[slots, part] = rank

    def put_b(self, slot: int, rows: slice | Tensor, b: Tensor, begin: int = 0) -> None:
        """Put `b` [N, r], scaled, of these rows of the layer into a slot, at the ranks from `begin` on."""
        self.b[slot][rows, begin : begin + b.shape[1]] = b.to(self.b.device, self.b.dtype)

    def add_to(self, y: Tensor, x: Tensor, batch: LoraBatch | None = None) -> Tensor:
        """Add to y [T, rows], in place, what each token's adapter makes of x [T, columns]; returns y.

        y is contiguous; the rows of x may lie apart, as those of a part of a larger tensor.
        `batch`: the adapters of these rows, if they are not the step's tokens.
        """
        batch = batch or self.batch
        if batch.groups is not None:
            from octavo_engine.kernels.lora import add_lora

            rows, known = y.shape[1], self.b.shape[1]
            wide = y if rows == known else y.new_zeros(len(y), known)
            add_lora(wide, x, self.weights, batch.groups)
            return y if wide is y else y.add_(wide[:, :rows])
        if batch.slots is not None and self.on_cpu is not None:
            self.on_cpu.add_to(y, x.contiguous(), batch.slots)
        for each in batch.by_slot:
            self._add_slot(y, x, each)
        return y

    def _add_slot(self, y: Tensor, x: Tensor, each: SlotTokens) -> None:
        ranks, tokens = self.ranks[each.slot], each.tokens
        if not any(ranks):
            return
        rows = x if tokens is None else x.index_select(0, tokens)
        hidden = rows @ self.a[each.slot].t()
        end = 0
        for part, (width, rank) in enumerate(zip(self.parts, ranks, strict=True)):
            start, end = end, end + width
            if not rank:
                continue
            first = part * self.rank
            added = hidden[:, first : first + rank] @ self.b[each.slot, start:end, :rank].t()
            if tokens is None:
                y[:, start:end].add_(added)
            else:
                y[:, start:end].index_add_(0, tokens, added)


def slot_rank(max_rank: int, device: torch.device) -> int:
    """Return the rank that slots are padded to: kernels on a GPU need a power of two, 16 or more."""
    return max(16, 1 << (max_rank - 1).bit_length()) if _pads(device) else max_rank


def slot_rows(parts: Sequence[int], device: torch.device) -> int:
    """Return the rows of B in a slot: those of each part are padded to the multiple that kernels on a GPU need."""
    rows = sum(parts)
    return -(-rows // 16) * 16 if len(parts) == 1 and _pads(device) else rows


def _pads(device: torch.device) -> bool:
    return device.type != "cpu" or triton_runs_on(device)
