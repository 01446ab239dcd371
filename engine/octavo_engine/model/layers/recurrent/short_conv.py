"""LFM2's mixer: a gated causal convolution, of which each rank has some channels."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from octavo_engine.attention.context import AttentionContext
from octavo_engine.attention.rope import Rope
from octavo_engine.kernels.fp8_activations import Quantized, Scaling
from octavo_engine.model.checkpoint import CheckpointTensor, unsharded
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.layers.recurrent.channel_conv import ChannelConv
from octavo_engine.model.layers.residual import ResidualStream
from octavo_engine.model.shard import span
from octavo_engine.model.spec import ShortConvSpec


class ShortConv(nn.Module):
    """A projection to b, c and x, the convolution of b * x, and the projection of c times that."""

    def __init__(
        self,
        spec: ShortConvSpec,
        hidden_size: int,
        layer: int,
        options: LayerOptions,
    ) -> None:
        super().__init__()
        self.spec, self.layer, self.options = spec, layer, options
        self.channels = span(options.ranks.shard.intermediate(spec.channels), spec.channels, "channels")
        hidden = unsharded(hidden_size, "hidden_size")
        into, out = (options.method(layer, role) for role in ("conv_input", "conv_output"))
        self.input = Linear(hidden, (self.channels,) * 3, bias=spec.bias, options=options, method=into)
        self.conv = ChannelConv(self.channels, spec.width, options, bias=spec.bias)
        self.output = Linear(self.channels, (hidden,), bias=spec.bias, options=options, method=out, summed=True)

    @property
    def input_scaling(self) -> Scaling | None:
        """How the layer's input has to be quantized; None: not at all."""
        return self.input.input_scaling

    def forward(
        self,
        x: Tensor | Quantized,
        residual: Tensor | None,
        rope: Rope | None,  # noqa: ARG002 (all mixers have the same arguments; this one has no positions)
        attention: AttentionContext,
    ) -> ResidualStream:
        """Map x [T, hidden] to [T, hidden], added to `residual`, which may be overwritten."""
        before, after, inner = self.input(x).chunk(3, dim=-1)
        (states,), step = attention.state(self.layer)
        convolved = self.conv(before * inner, None, states, step)
        return self.output.add_to(residual, after * convolved)

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the layer's tensors in a checkpoint."""
        names = self.options.names
        yield from self.input.tensors(*(names.of_layer("conv_input", self.layer),) * 3)
        yield from self.conv.tensors(names.of_layer("conv", self.layer))
        yield from self.output.tensors(names.of_layer("conv_output", self.layer))

    def sequence_bytes(self) -> int:
        """Return 0: a sequence needs no memory in this layer besides its cached tokens."""
        return 0

    def step_bytes(self) -> int:
        """Return an upper bound of one token's bytes, its input included: a decode also reads and writes a state."""
        hidden, inner, size = self.input.columns.size, self.channels.size, self.options.dtype.itemsize
        quantized = self.input.quantized_input_bytes(inner)
        past = 3 * (self.spec.width - 1)
        return (hidden + (8 + past) * inner) * size + 8 * (8 + past) + quantized
