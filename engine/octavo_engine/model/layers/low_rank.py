"""A product of two weights beside a larger weight, which another layer may share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from octavo_engine.model.checkpoint.tensors import CheckpointTensor, Span, unsharded
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.options import LayerOptions


class LowRank(nn.Module):
    """Projections of one input, each by way of `rank` numbers that every rank computes."""

    def __init__(self, columns: Span, parts: Sequence[tuple[Span, ...]], rank: int, options: LayerOptions) -> None:
        """`parts`: for each projection the rows that this rank has of what it consists of."""
        super().__init__()
        middle = unsharded(rank)
        self.rank = rank
        self.down = Linear(columns, (middle,) * len(parts), bias=False, options=options)
        self.up = nn.ModuleList(Linear(middle, rows, bias=False, options=options) for rows in parts)

    def forward(self, x: Tensor) -> Tensor:
        """Return the projections [T, sum of all parts] of x [T, in]."""
        low = self.down(x).chunk(len(self.up), dim=-1)
        return torch.cat([up(each.contiguous()) for up, each in zip(self.up, low, strict=True)], dim=-1)

    def tensors(self, *names: str) -> Iterator[CheckpointTensor]:
        """Yield the tensors in a checkpoint: each projection has the names `<name>.0` and `<name>.1`."""
        yield from self.down.tensors(*(f"{name}.0" for name in names))
        for name, module in zip(names, self.up, strict=True):
            up = cast("Linear", module)
            yield from up.tensors(*(f"{name}.1",) * len(up.parts))

    def step_bytes(self) -> int:
        """Return an upper bound of the bytes that one token needs in this module during a step, without its input."""
        rows = sum(sum(cast("Linear", up).parts) for up in self.up)
        return (2 * len(self.up) * self.rank + 2 * rows) * self.down.options.dtype.itemsize
