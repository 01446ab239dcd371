"""RecurrentGemma's mixer (Griffin, arXiv 2402.19427). Each rank has some blocks of channels."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo_engine.attention.states import StateStep
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, plain, unsharded
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.operations.activations import ACTIVATIONS
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.layers.recurrent.channel_conv import ChannelConv
from octavo_engine.model.layers.recurrent.linear_scan import first_tokens, linear_scan
from octavo_engine.model.layers.recurrent.recurrent_mixer import RecurrentMixer
from octavo_engine.model.quantization.unquantized import parameter
from octavo_engine.model.spec import GatedRecurrenceSpec
from octavo_engine.model.tensor_parallel.shard import span

_FLOAT32_BYTES = 4
_RATE = -8.0
"""The factor of a decay's rate: `c` of the paper."""


class GatedRecurrence(RecurrentMixer):
    """Two projections, one with a convolution and the recurrence, the other with an activation, and their product's."""

    def __init__(
        self,
        spec: GatedRecurrenceSpec,
        hidden_size: int,
        layer: int,
        options: LayerOptions,
    ) -> None:
        super().__init__(layer, options)
        self.spec = spec
        self.name = options.names.of_layer("mamba", layer)
        self._inputs = (f"{self.name}.linear_y", f"{self.name}.linear_x")
        self.heads = span(options.ranks.shard.heads(spec), spec.num_heads, "blocks of channels")
        self.channels = channels = self.heads.times(spec.head_dim)
        hidden, dtype, device = unsharded(hidden_size, "hidden_size"), options.dtype, options.device
        method = options.method_of(*self._inputs)
        self.input = Linear(hidden, (channels, channels), bias=True, options=options, method=method)
        method = options.method_of(f"{self.name}.linear_out")
        self.output = Linear(channels, (hidden,), bias=True, options=options, method=method, summed=True)
        self.conv = ChannelConv(channels, spec.width, options, bias=True)
        self.gates = parameter(2, self.heads.size, spec.head_dim, spec.head_dim, dtype=dtype, device=device)
        """Weights of the input gate and of the recurrence gate; stored as [in, out]."""
        self.gate_biases = parameter(2, self.heads.size, spec.head_dim, dtype=dtype, device=device)
        self.rate = parameter(channels.size, dtype=dtype, device=device)

    def mix(self, projected: Tensor, state_tensors: tuple[Tensor, ...], step: StateStep) -> Tensor:
        """Return the tokens' input of the last projection [T, columns]; see `RecurrentMixer`."""
        gate, inner = projected.chunk(2, dim=-1)
        past, states = state_tensors
        convolved = self.conv(inner, None, past, step)
        recurrent = self._recurrence(convolved, states, step).to(gate.dtype)
        return ACTIVATIONS[self.spec.activation](gate) * recurrent

    def _recurrence(self, x: Tensor, states: Tensor, step: StateStep) -> Tensor:
        """Return the channels' states after each token, [T, C] in float32."""
        blocks = x.view(len(x), self.heads.size, self.spec.head_dim).transpose(0, 1)
        incoming, fading = (
            torch.baddbmm(bias[:, None], blocks, weight).transpose(0, 1).flatten(1).sigmoid()
            for bias, weight in zip(self.gate_biases, self.gates, strict=True)
        )
        logs = _RATE * fading * F.softplus(self.rate)
        normaliser = torch.sqrt(1 - torch.exp(2 * logs))
        firsts = first_tokens(step)
        # A sequence's first token is not scaled.
        normaliser[firsts] = torch.where(step.fresh[:, None], 1, normaliser[firsts])
        values = x * incoming * normaliser
        return linear_scan(values.float(), torch.exp(logs).float(), states, step)

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the layer's tensors in a checkpoint."""
        name = self.name
        yield from self.input.tensors(*self._inputs)
        yield from self.conv.tensors(f"{name}.conv_1d")
        for index, role in enumerate(("input", "recurrent")):
            yield plain(f"{name}.rg_lru.{role}_gate_weight", self.gates[index], self.heads)
            yield plain(f"{name}.rg_lru.{role}_gate_bias", self.gate_biases[index], self.heads)
        yield plain(f"{name}.rg_lru.recurrent_param", self.rate, self.channels)
        yield from self.output.tensors(f"{name}.linear_out")

    def step_bytes(self) -> int:
        """Return an upper bound of the bytes that one token needs in this layer during a step, its input included."""
        hidden, inner, size = self.input.columns.size, self.channels.size, self.options.dtype.itemsize
        quantized = self.input.quantized_input_bytes(inner)
        past = (self.spec.width - 1) * inner
        return (hidden + 14 * inner + past) * size + 6 * inner * _FLOAT32_BYTES + quantized

    def sequence_bytes(self) -> int:
        """Return an upper bound of one sequence's bytes besides its tokens: its state while it is computed."""
        past = (self.spec.width - 1) * self.channels.size
        return 4 * _FLOAT32_BYTES * self.channels.size + 4 * past * self.options.dtype.itemsize
