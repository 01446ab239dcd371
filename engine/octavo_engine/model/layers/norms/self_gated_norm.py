"""A norm whose result is gated by a projection of itself (A.X K2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from torch import Tensor, nn

from octavo_engine.kernels.fp8_activations import Quantized, Scaling
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, Span, unsharded
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.norms.norm import Norm
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.layers.residual import ResidualStream
from octavo_engine.model.spec import NormSpec

_FLOAT32_BYTES = 4


class SelfGatedNorm(Norm):
    """A norm with a gate: y * sigmoid(up(silu(down(y)))) for the normalised y; every rank computes all of it."""

    def __init__(self, size: int, spec: NormSpec, rank: int, options: LayerOptions) -> None:
        super().__init__(size, spec, options)
        full, middle = unsharded(size), unsharded(rank)
        self.rank, self.options = rank, options
        self.down = Linear(full, (middle,), bias=False, options=options)
        self.up = Linear(middle, (full,), bias=False, options=options)

    def forward(
        self,
        stream: ResidualStream,
        scaling: Scaling | None = None,  # noqa: ARG002
    ) -> tuple[Tensor | Quantized, Tensor]:
        """Return `stream` [T, size] normalised and gated, never quantized; and the stream itself."""
        normed, x = super().forward(stream)
        y = cast("Tensor", normed)
        gate = self.up(nn.functional.silu(self.down(y))).float().sigmoid()
        return (y * gate).to(y.dtype), x

    def tensors(self, name: str, rows: Span | None = None, order: Tensor | None = None) -> Iterator[CheckpointTensor]:
        """Yield the vector and both projections in a checkpoint."""
        yield from super().tensors(f"{name}.norm", rows, order)
        yield from self.down.tensors(f"{name}.W_down")
        yield from self.up.tensors(f"{name}.W_up")

    def gate_bytes(self) -> int:
        """Return an upper bound of what one token takes in the gate."""
        size = self.options.dtype.itemsize
        return 3 * self.weight.numel() * (size + _FLOAT32_BYTES) + 2 * self.rank * size
