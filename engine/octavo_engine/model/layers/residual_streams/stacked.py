"""Two stacks of layers that run in turn, several times (HRM-Text, arXiv 2506.21734). Every rank computes all of it.

The stream is [T, 3 * hidden]: what the layers of a stack pass on, and the two vectors of a token, `high` and `low`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn

from octavo_engine.model.checkpoint.tensors import CheckpointTensor, plain, unsharded
from octavo_engine.model.layers.norms.norm import Norm
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.quantization.unquantized import parameter
from octavo_engine.model.spec import StackSpec


class LevelVectors(nn.Module):
    """Makes both vectors of a token before the layers; after them the head reads `high`."""

    def __init__(self, hidden_size: int, options: LayerOptions) -> None:
        super().__init__()
        self.hidden_size, self.names = hidden_size, options.names
        self.low = parameter(hidden_size, dtype=options.dtype, device=options.device)

    @property
    def merging(self) -> None:
        """No module: `merged` chooses one of the vectors."""

    def spread(self, x: Tensor) -> Tensor:
        """Return the stream [T, 3 * hidden] of the embeddings [T, hidden]."""
        return torch.cat((x, x, self.low.expand_as(x)), dim=-1)

    def merged(self, x: Tensor) -> Tensor:
        """Return `high` [R, hidden] of the stream's rows [R, 3 * hidden]."""
        return x[:, self.hidden_size : 2 * self.hidden_size].contiguous()

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the layer's tensors in a checkpoint."""
        yield plain(self.names.low_vector, self.low, unsharded(self.hidden_size))


class Stacked(nn.Module):
    """Reads the input of one layer from the stream, and puts the layer's result into it."""

    def __init__(self, spec: StackSpec, hidden_size: int, options: LayerOptions) -> None:
        super().__init__()
        self.spec, self.hidden_size, self.size = spec, hidden_size, options.dtype.itemsize
        self.norm = None if spec.norm is None else Norm(hidden_size, spec.norm, options)

    def read(self, x: Tensor) -> Tensor:
        """Return the layer's input [T, hidden], which it may overwrite, from the stream x [T, 3 * hidden]."""
        passed, high, low = x.chunk(3, dim=-1)
        return torch.add(high, low) if self.spec.first else passed.contiguous()

    def changed(self, x: Tensor, given: Tensor) -> Tensor:
        """Return the stream x [T, 3 * hidden] with the layer's result `given` [T, hidden]."""
        passed, high, low = x.chunk(3, dim=-1)
        if self.norm is None:
            return torch.cat((given, high, low), dim=-1)
        normed = cast("Tensor", self.norm(given)[0])
        parts = (passed, high, normed) if self.spec.gives_low else (passed, normed, low)
        return torch.cat(parts, dim=-1)

    def step_bytes(self) -> int:
        """Return an upper bound of one token's bytes in this module during a step, without the layer's parts."""
        return 8 * self.hidden_size * self.size
