"""A residual stream of several vectors for each token (AltUp, arXiv 2301.13310). Every rank computes all of it.

The vectors of a token lie side by side, so that the stream is [T, count * hidden].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import torch
from torch import Tensor, nn

from octavo_engine.model.checkpoint.tensors import CheckpointTensor, plain, unsharded
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.norms.norm import Norm
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.quantization.unquantized import parameter
from octavo_engine.model.spec import AlternatingUpdatesSpec

_FLOAT32_BYTES = 4
_LEAST_SQUARE = 1e-5


class TokenVectors(nn.Module):
    """Makes a token's further vectors from its first one before the layers, and one vector of all after them."""

    def __init__(self, spec: AlternatingUpdatesSpec, hidden_size: int, options: LayerOptions) -> None:
        super().__init__()
        self.spec, self.options = spec, options
        hidden, others = unsharded(hidden_size), range(1, spec.count)
        self.projections, self.unprojections = (
            nn.ModuleList(Linear(hidden, (hidden,), bias=False, options=options) for _ in others) for _ in range(2)
        )

    @property
    def merging(self) -> nn.Module:
        """The linear layers that `merged` applies."""
        return self.unprojections

    def spread(self, x: Tensor) -> Tensor:
        """Return all vectors [T, count * hidden] of the first ones [T, hidden]."""
        return torch.cat([x, *(_as_long_as(x, projection(x)) for projection in self.projections)], dim=-1)

    def merged(self, x: Tensor) -> Tensor:
        """Return one vector for each row, [R, hidden], of all vectors [R, count * hidden]."""
        first, *others = x.chunk(self.spec.count, dim=-1)
        pairs = zip(self.unprojections, others, strict=True)
        vectors = [first, *(_as_long_as(first, projection(other.contiguous())) for projection, other in pairs)]
        return torch.stack(vectors).mean(dim=0)

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the layer's tensors in a checkpoint."""
        names = self.options.names
        for name, linears in (
            (names.stream_projection, self.projections),
            (names.stream_unprojection, self.unprojections),
        ):
            for number, linear in enumerate(linears):
                yield from cast("Linear", linear).tensors(f"{name}.{number}")


def _as_long_as(x: Tensor, other: Tensor) -> Tensor:
    """Return `other` scaled to the root mean square of x."""
    square = other.square().mean(dim=-1, keepdim=True).clamp(min=_LEAST_SQUARE)
    return other * x.square().mean(dim=-1, keepdim=True).sqrt() / square.sqrt()


class AlternatingUpdates(nn.Module):
    """One layer's predictions of a token's vectors, and their correction by what the layer computed of one of them."""

    def __init__(self, spec: AlternatingUpdatesSpec, hidden_size: int, layer: int, options: LayerOptions) -> None:
        super().__init__()
        self.spec, self.layer, self.options, self.hidden_size = spec, layer, options, hidden_size
        hidden, count = unsharded(hidden_size), unsharded(spec.count)
        self.router = Linear(hidden, (count,), bias=False, options=options)
        self.norm = Norm(hidden_size, spec.norm, options)
        self.prediction = Linear(count, (unsharded(spec.count**2),), bias=False, options=options)
        self.correction = Linear(count, (count,), bias=False, options=options)
        self.scale = parameter(hidden_size, dtype=options.dtype, device=options.device)

    def forward(self, x: Tensor, compute: Callable[[Tensor], Tensor], addend: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the stream [T, count * hidden] after the layer.

        `compute`: mixer and feed-forward, which may overwrite their input. `addend` computes from the corrected vector
        what is added to all vectors but the first.
        """
        active = self.spec.active
        predicted = self._predicted(x.view(len(x), self.spec.count, -1))
        computed = compute(predicted[:, active].clone())
        weights = self.correction(self._weights(computed)) + 1
        corrected: Tensor = predicted + (computed - predicted[:, active])[:, None] * weights[..., None]
        chosen = corrected[:, active]
        corrected[:, 1:] += addend(chosen * self.scale if self.spec.scaled else chosen.clone())[:, None]
        return corrected.flatten(1)

    def _weights(self, x: Tensor) -> Tensor:
        """Return a weight for each vector, [T, count], computed from x [T, hidden]."""
        normed = cast("Tensor", self.norm(x)[0]) / self.hidden_size
        routed: Tensor = self.router(normed)
        return torch.tanh(routed.float()).to(x.dtype)

    def _predicted(self, vectors: Tensor) -> Tensor:
        """Return predictions of the vectors [T, count, hidden]: each one plus a mixture of all."""
        weights = self.prediction(self._weights(vectors[:, self.spec.active].contiguous()))
        return torch.baddbmm(vectors, weights.view(-1, self.spec.count, self.spec.count), vectors)

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the layer's tensors in a checkpoint."""
        name = self.options.names.of_layer("alternating_updates", self.layer)
        yield from self.router.tensors(f"{name}.modality_router")
        yield from self.norm.tensors(f"{name}.router_norm")
        yield from self.prediction.tensors(f"{name}.prediction_coefs")
        yield from self.correction.tensors(f"{name}.correction_coefs")
        yield plain(f"{name}.correct_output_scale", self.scale, unsharded(self.hidden_size))

    def step_bytes(self) -> int:
        """Return an upper bound of one token's bytes in this module during a step, without the layer's parts."""
        count, hidden, size = self.spec.count, self.hidden_size, self.options.dtype.itemsize
        return 5 * count * hidden * size + 3 * hidden * (size + _FLOAT32_BYTES) + 4 * count**2 * size
