"""Hyper-connections: a residual stream of several vectors for each token. Every rank computes all of it.

The vectors of a token lie side by side, so that the stream is [T, count * hidden].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from octavo_engine.model.checkpoint.tensors import CheckpointTensor, plain, unsharded
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.norms.norm import Norm
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.layers.residual_streams.mixed_connections import MixedConnections
from octavo_engine.model.quantization.unquantized import parameter
from octavo_engine.model.spec import (
    ConnectionsSpec,
    GatedConnectionsSpec,
    MixedConnectionsSpec,
    WeightedConnectionsSpec,
)

_FLOAT32_BYTES = 4


class WeightedConnections(nn.Module):
    """The weights by which a part reads a token's vectors and its result is added to them, all in float32."""

    def __init__(self, spec: WeightedConnectionsSpec, hidden_size: int, options: LayerOptions, *, adds: bool) -> None:
        """`adds`: whether a result is added to the vectors; false for the head, which only reads them."""
        super().__init__()
        self.spec, self.hidden_size, self.size, self.adds = spec, hidden_size, options.dtype.itemsize, adds
        kinds = 1 + adds
        single: Any = {"dtype": torch.float32, "device": options.device}
        self.projection = parameter(kinds * spec.count, spec.count * hidden_size, **single)
        self.base, self.scales = parameter(kinds * spec.count, **single), parameter(kinds, **single)

    def read(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return one vector [T, hidden] of x [T, count * hidden], and the weights of the result, [T, count] if any."""
        wide, spec = x.float(), self.spec
        inverse_rms = torch.rsqrt(wide.square().mean(-1, keepdim=True) + spec.eps)
        projected = torch.nn.functional.linear(wide, self.projection) * inverse_rms
        scales = self.scales.repeat_interleave(spec.count)
        weights = torch.sigmoid(projected * scales + self.base)
        reading, adding = weights[:, : spec.count], weights[:, spec.count :]
        vectors = wide.view(len(x), spec.count, self.hidden_size) * (reading + spec.weight_offset)[..., None]
        return vectors.sum(dim=1).to(x.dtype), spec.magnitude * adding + spec.weight_offset

    def forward(self, x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply `part` to one vector of each token of x [T, count * hidden], and add its result to all vectors."""
        vector, weights = self.read(x)
        result = part(vector).float()
        vectors = x.view(len(x), self.spec.count, self.hidden_size)
        return (weights[..., None] * result[:, None] + vectors).to(x.dtype).flatten(1)

    def tensors(self, name: str) -> Iterator[CheckpointTensor]:
        """Yield the module's tensors in a checkpoint, where the head's names have a prefix."""
        prefix = f"{name}." if self.adds else f"{name}.hc_"
        named = {"fn": self.projection, "base": self.base, "scale": self.scales}
        yield from (plain(prefix + end, values, unsharded(len(values))) for end, values in named.items())

    def step_bytes(self) -> int:
        """Return an upper bound of one token's bytes in this module during a step, without the layer's parts."""
        stream = self.spec.count * self.hidden_size
        return 2 * stream * self.size + (3 * stream + 8 * self.spec.count + 2 * self.hidden_size) * _FLOAT32_BYTES


class GatedConnections(nn.Module):
    """The gates by which a part reads a token's vectors, and the weights by which its result is added to them."""

    def __init__(self, spec: GatedConnectionsSpec, hidden_size: int, options: LayerOptions, *, adds: bool) -> None:
        """`adds`: whether a result is added to the vectors; false for the head, which only reads them."""
        super().__init__()
        self.spec, self.hidden_size, self.size = spec, hidden_size, options.dtype.itemsize
        stream, rank, count = unsharded(spec.count * hidden_size), unsharded(spec.rank), unsharded(spec.count)
        self.norm = Norm((spec.count, hidden_size), spec.norm, options)
        self.down = Linear(stream, (rank,), bias=False, options=options)
        self.up = Linear(rank, (stream,), bias=False, options=options)
        self.adding = Linear(stream, (count,), bias=False, options=options) if adds else None

    def read(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return one vector [T, hidden] of x [T, count * hidden], and x normalised."""
        shape = (len(x), self.spec.count, self.hidden_size)
        normed = self.norm.weights.apply(x.view(shape)).flatten(1)
        gates = self.up(torch.nn.functional.silu(self.down(normed) / self.spec.count)).sigmoid()
        return (gates * normed).view(shape).mean(dim=1), normed

    def forward(self, x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply `part` to one vector of each token of x [T, count * hidden], and add its result to all vectors."""
        vector, normed = self.read(x)
        weights = 2 * (cast("Linear", self.adding)(normed) / self.spec.count).sigmoid()
        added: Tensor = x + (part(vector)[:, None] * weights[..., None]).flatten(1)
        return added

    def tensors(self, name: str) -> Iterator[CheckpointTensor]:
        """Yield the module's tensors in a checkpoint."""
        yield from self.norm.tensors(f"{name}.hc_norm")
        yield from self.down.tensors(f"{name}.input_mix_weight_down")
        yield from self.up.tensors(f"{name}.input_mix_weight_up")
        if self.adding is not None:
            yield from self.adding.tensors(f"{name}.block_inject_weight")

    def step_bytes(self) -> int:
        """Return an upper bound of one token's bytes in this module during a step, without the layer's parts."""
        stream = self.spec.count * self.hidden_size
        small = 4 * (self.spec.rank + self.spec.count) + self.hidden_size
        return (5 * stream + small) * self.size + 3 * stream * _FLOAT32_BYTES


class MeanOfVectors(nn.Module):
    """The mean of a token's vectors, which the head reads."""

    def __init__(self, spec: ConnectionsSpec, hidden_size: int, options: LayerOptions) -> None:
        super().__init__()
        self.stream_bytes = spec.count * hidden_size * options.dtype.itemsize
        self.count, self.hidden_size = spec.count, hidden_size

    def read(self, x: Tensor) -> tuple[Tensor, None]:
        """Return the mean [T, hidden] of the vectors x [T, count * hidden], and None: nothing is added to them."""
        return x.view(len(x), self.count, self.hidden_size).mean(dim=1), None

    def tensors(self, name: str) -> Iterator[CheckpointTensor]:  # noqa: ARG002
        """Yield nothing: a mean has no weights."""
        yield from ()

    def step_bytes(self) -> int:
        """Return an upper bound of one token's bytes in this module during a step."""
        return 2 * self.stream_bytes


Connections = WeightedConnections | GatedConnections | MixedConnections


def connections(spec: ConnectionsSpec, hidden_size: int, options: LayerOptions, *, adds: bool = True) -> Connections:
    """Return the module that computes `spec`; `adds`: whether a result is added to the vectors, as in all layers."""
    match spec:
        case WeightedConnectionsSpec():
            return WeightedConnections(spec, hidden_size, options, adds=adds)
        case GatedConnectionsSpec():
            return GatedConnections(spec, hidden_size, options, adds=adds)
        case MixedConnectionsSpec():
            return MixedConnections(spec, hidden_size, options, adds=adds)


class ConnectedVectors(nn.Module):
    """Copies a token's embedding into all of its vectors before the layers, and makes one vector of all after them."""

    def __init__(self, spec: ConnectionsSpec, hidden_size: int, options: LayerOptions) -> None:
        super().__init__()
        self.count, self.names = spec.count, options.names
        ends_in_mean = isinstance(spec, MixedConnectionsSpec) and spec.ends_in_mean
        self.last = (
            MeanOfVectors(spec, hidden_size, options)
            if ends_in_mean
            else connections(spec, hidden_size, options, adds=False)
        )

    @property
    def merging(self) -> nn.Module:
        """The connections that `merged` applies."""
        return self.last

    def spread(self, x: Tensor) -> Tensor:
        """Return all vectors [T, count * hidden] of the embeddings [T, hidden]."""
        return x.repeat(1, self.count)

    def merged(self, x: Tensor) -> Tensor:
        """Return one vector for each row, [R, hidden], of all vectors [R, count * hidden]."""
        vector: Tensor = self.last.read(x)[0]
        return vector

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the layer's tensors in a checkpoint."""
        yield from self.last.tensors(self.names.head_connections)
