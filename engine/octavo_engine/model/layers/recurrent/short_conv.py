"""LFM2's mixer: a gated causal convolution (arXiv 2511.23404). Each rank has some channels."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from octavo_engine.attention.states import StateStep
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, unsharded
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.layers.recurrent.channel_conv import ChannelConv
from octavo_engine.model.layers.recurrent.recurrent_mixer import RecurrentMixer
from octavo_engine.model.spec import ShortConvSpec
from octavo_engine.model.tensor_parallel.shard import span


class ShortConv(RecurrentMixer):
    """A projection to b, c and x, the convolution of b * x, and the projection of c times that."""

    def __init__(
        self,
        spec: ShortConvSpec,
        hidden_size: int,
        layer: int,
        options: LayerOptions,
    ) -> None:
        super().__init__(layer, options)
        self.spec = spec
        self.channels = span(options.ranks.shard.intermediate(spec.channels), spec.channels, "channels")
        hidden = unsharded(hidden_size, "hidden_size")
        into, out = (options.method(layer, role) for role in ("conv_input", "conv_output"))
        self.input = Linear(hidden, (self.channels,) * 3, bias=spec.bias, options=options, method=into)
        self.conv = ChannelConv(self.channels, spec.width, options, bias=spec.bias)
        self.output = Linear(self.channels, (hidden,), bias=spec.bias, options=options, method=out, summed=True)

    def mix(self, projected: Tensor, state_tensors: tuple[Tensor, ...], step: StateStep) -> Tensor:
        """Return the tokens' input of the last projection [T, columns]; see `RecurrentMixer`."""
        before, after, inner = projected.chunk(3, dim=-1)
        (past,) = state_tensors
        convolved: Tensor = self.conv(before * inner, None, past, step)
        return after * convolved

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
