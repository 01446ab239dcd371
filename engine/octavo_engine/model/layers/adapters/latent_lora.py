"""LoRA adapters of latent attention's projection from a latent to each head's key and value, which it absorbs.

What an adapter adds to a key is added to its query instead: q (B A c) = (A^T B^T q) c. So each head has two small
linear layers, from the query's part without rotation to a latent, and from a latent to the value. A head's slot is its
token's slot times the number of heads, plus the head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_engine.model.layers.adapters.lora import NO_SLOT, LoraBatch, LoraLayer, batch_of_rows


@dataclass(frozen=True, slots=True)
class LatentLora:
    """The slots of one layer's heads."""

    query: LoraLayer
    """[latent, plain] of each head: A^T B^T."""
    value: LoraLayer
    """[value, latent] of each head: B A."""
    heads: int

    def of_step(self) -> LoraBatch | None:
        """Return the adapters of the current step's tokens, each head a row; None: no token has one."""
        batch = self.query.batch
        if batch.slot_of_token is None:
            return None
        if self.heads not in batch.of_heads:
            batch.of_heads[self.heads] = self._of_heads(batch, batch.slot_of_token)
        return batch.of_heads[self.heads]

    def _of_heads(self, batch: LoraBatch, slots: Tensor) -> LoraBatch:
        heads = torch.arange(self.heads, dtype=slots.dtype, device=slots.device)
        rows = torch.where(slots[:, None] == NO_SLOT, NO_SLOT, slots[:, None] * self.heads + heads)
        return batch_of_rows(batch, rows.flatten(), len(self.query.ranks))

    def clear(self, slot: int) -> None:
        """Empty a slot."""
        for layer in (self.query, self.value):
            layer.clear(slot * self.heads, self.heads)

    def put(self, slot: int, a: Tensor, b: Tensor, begin: int) -> None:
        """Put `a` [r, latent] and `b` [heads, plain + value, r], scaled, into a slot: its ranks from `begin` on."""
        first, plain = slot * self.heads, self.query.a.shape[2]
        keys, values = b[:, :plain], b[:, plain:]
        self.query.put_many(first, 0, keys.transpose(1, 2), a.t().expand(self.heads, -1, -1).float(), begin)
        self.value.put_many(first, 0, a.expand(self.heads, -1, -1), values, begin)


def added(layer: LoraLayer, y: Tensor, x: Tensor, batch: LoraBatch) -> Tensor:
    """Return y [T, heads, rows] plus what adapters make of x [T, heads, columns]."""
    rows = layer.add_to(y.flatten(0, 1).contiguous(), x.flatten(0, 1).contiguous(), batch)
    return rows.view(y.shape)
