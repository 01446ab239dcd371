"""The causal convolution of a mixer's channels, with a weight for each channel and perhaps a bias."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from octavo_engine.attention.states import StateStep
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, Span, plain
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.quantization.unquantized import parameter


class ChannelConv(nn.Module):
    """A causal convolution over the last `width` tokens, of the channels that this rank has."""

    def __init__(self, channels: Span, width: int, options: LayerOptions, *, bias: bool) -> None:
        super().__init__()
        self.channels, self.compute = channels, options.compute
        self.weight = parameter(channels.size, 1, width, dtype=options.dtype, device=options.device)
        self.bias = parameter(channels.size, dtype=options.dtype, device=options.device) if bias else None

    def forward(self, x: Tensor, activation: str | None, past: Tensor, step: StateStep) -> Tensor:
        """Return the activated convolution [T, C] of x [T, C] and of the inputs before it, which `past` keeps."""
        return self.compute.convolution(x, self.weight[:, 0], self.bias, activation, past, step)

    def tensors(self, name: str) -> Iterator[CheckpointTensor]:
        """Yield the tensors of the convolution called `name` in a checkpoint."""
        yield plain(f"{name}.weight", self.weight, self.channels)
        if self.bias is not None:
            yield plain(f"{name}.bias", self.bias, self.channels)
