"""Manifold-constrained hyper-connections (arXiv 2512.24880). Every rank computes all of it.

The vectors of a token lie side by side, so that the stream is [T, count * hidden].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from octavo_engine.model.checkpoint.tensors import CheckpointTensor, plain, unsharded
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.quantization.unquantized import parameter
from octavo_engine.model.spec import MixedConnectionsSpec

_FLOAT32_BYTES = 4


class MixedConnections(nn.Module):
    """The weights with which a part reads a token's vectors, mixes them, and adds its result to each mixture."""

    def __init__(self, spec: MixedConnectionsSpec, hidden_size: int, options: LayerOptions, *, adds: bool) -> None:
        """`adds`: whether a result is added to the vectors; false for the head, which only reads them."""
        super().__init__()
        self.spec, self.hidden_size, self.size, self.adds = spec, hidden_size, options.dtype.itemsize, adds
        rows = spec.count * (2 + spec.count) if adds else spec.count
        single: Any = {"dtype": torch.float32, "device": options.device}
        self.projection = parameter(rows, spec.count * hidden_size, **single)
        self.base, self.scales = parameter(rows, **single), parameter(3 if adds else 1, **single)

    def read(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return one vector [T, hidden] of x [T, count * hidden], and the logits of all weights, [T, rows]."""
        count, wide = self.spec.count, x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.spec.norm_eps)
        kinds = (count, count, count**2) if self.adds else (count,)
        scales = torch.cat([scale.expand(size) for scale, size in zip(self.scales, kinds, strict=True)])
        logits = torch.nn.functional.linear(normed, self.projection) * scales + self.base
        reading = logits[:, :count].sigmoid() + self.spec.eps
        return (reading[..., None] * wide.view(len(x), count, self.hidden_size)).sum(dim=1).to(x.dtype), logits

    def forward(self, x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply `part` to one vector of each token of x [T, count * hidden], and add its result to mixtures of all."""
        count = self.spec.count
        vector, logits = self.read(x)
        adding = 2 * logits[:, count : 2 * count].sigmoid()
        mixing = self._doubly_stochastic(logits[:, 2 * count :].view(-1, count, count))
        added = adding.to(x.dtype)[..., None] * part(vector)[:, None]
        mixed = mixing.to(x.dtype).transpose(1, 2) @ x.view(len(x), count, self.hidden_size)
        return torch.add(added, mixed).flatten(1)

    def _doubly_stochastic(self, logits: Tensor) -> Tensor:
        """Return weights [T, count, count] whose rows and columns sum to nearly 1 (Sinkhorn and Knopp)."""
        eps = self.spec.eps
        weights = logits.softmax(dim=-1) + eps
        weights = weights / (weights.sum(dim=-2, keepdim=True) + eps)
        for _ in range(self.spec.iterations - 1):
            weights = weights / (weights.sum(dim=-1, keepdim=True) + eps)
            weights = weights / (weights.sum(dim=-2, keepdim=True) + eps)
        return weights

    def tensors(self, name: str) -> Iterator[CheckpointTensor]:
        """Yield the module's tensors in a checkpoint, where the head's names have a prefix."""
        prefix = f"{name}." if self.adds else f"{name}.hc_"
        named = {"fn": self.projection, "base": self.base, "scale": self.scales}
        yield from (plain(prefix + end, values, unsharded(len(values))) for end, values in named.items())

    def step_bytes(self) -> int:
        """Return an upper bound of one token's bytes in this module during a step, without the layer's parts."""
        stream, weights = self.spec.count * self.hidden_size, (2 + self.spec.count) * self.spec.count
        return 4 * stream * self.size + (3 * stream + 6 * weights) * _FLOAT32_BYTES
