"""Mamba's mixer (arXiv 2312.00752). Each rank has some channels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from octavo_engine.attention.states import StateStep
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, plain, unsharded
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.norms.norm import Norm
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.layers.recurrent.channel_conv import ChannelConv
from octavo_engine.model.layers.recurrent.recurrent_mixer import RecurrentMixer
from octavo_engine.model.layers.recurrent.selective_scan import Inputs, selective_scan
from octavo_engine.model.layers.residual import summed
from octavo_engine.model.quantization.unquantized import parameter
from octavo_engine.model.spec import MambaSpec
from octavo_engine.model.tensor_parallel.shard import span

_FLOAT32_BYTES = 4


class Mamba(RecurrentMixer):
    """A projection to x and gate, a convolution of x, the state space model, the gate, a projection.

    Time steps, b and c are projected from all ranks' channels, so ranks sum these projections.
    """

    def __init__(
        self,
        spec: MambaSpec,
        hidden_size: int,
        layer: int,
        options: LayerOptions,
    ) -> None:
        super().__init__(layer, options)
        self.spec = spec
        self.name = options.names.of_layer("mamba", layer)
        into, out = (options.method_of(f"{self.name}.{part}") for part in ("in_proj", "out_proj"))
        self.channels = span(options.ranks.shard.intermediate(spec.channels), spec.channels, "channels of states")
        hidden, channels = unsharded(hidden_size, "hidden_size"), self.channels
        self.input = Linear(hidden, (channels, channels), bias=spec.bias, options=options, method=into)
        selected = tuple(unsharded(size) for size in (spec.step_rank, spec.state, spec.state))
        self.selection = Linear(channels, selected, bias=False, options=options, summed=True)
        self.steps = Linear(unsharded(spec.step_rank), (channels,), bias=True, options=options)
        self.output = Linear(channels, (hidden,), bias=spec.bias, options=options, method=out, summed=True)
        device = options.device
        self.conv = ChannelConv(channels, spec.width, options, bias=spec.conv_bias)
        self.a_log = parameter(channels.size, spec.state, dtype=torch.float32, device=device)
        self.skip = parameter(channels.size, dtype=torch.float32, device=device)
        norms = () if spec.norm is None else (Norm(part.size, spec.norm, options) for part in selected)
        self.norms = nn.ModuleList(norms)

    def mix(self, projected: Tensor, state_tensors: tuple[Tensor, ...], step: StateStep) -> Tensor:
        """Return the tokens' input of the last projection [T, columns]; see `RecurrentMixer`."""
        inputs, gate = projected.chunk(2, dim=-1)
        past, states = state_tensors
        convolved = self.conv(inputs, self.spec.activation, past, step)
        selected = summed(self.selection.add_to(None, convolved))
        latent, keys, queries = torch.split(selected, list(self.selection.parts), dim=-1)
        if self.norms:
            latent, keys, queries = (
                norm(each.contiguous())[0] for norm, each in zip(self.norms, (latent, keys, queries), strict=True)
            )
        values = convolved.float()
        steps = F.softplus(self.steps(latent).float())
        scanned = selective_scan(
            Inputs(values, steps, keys.float(), queries.float()), -torch.exp(self.a_log), states, step
        )
        gated = scanned.addcmul_(values, self.skip).mul_(F.silu(gate.float()))
        return gated.to(gate.dtype)

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the layer's tensors in a checkpoint."""
        name = self.name
        yield from self.input.tensors(*(f"{name}.in_proj",) * 2)
        yield from self.conv.tensors(f"{name}.conv1d")
        yield from self.selection.tensors(*(f"{name}.x_proj",) * 3)
        yield from self.steps.tensors(f"{name}.dt_proj")
        yield plain(f"{name}.A_log", self.a_log, self.channels)
        yield plain(f"{name}.D", self.skip, self.channels)
        for kind, norm in zip(("dt", "b", "c"), cast("list[Norm]", list(self.norms)), strict=False):
            yield from norm.tensors(f"{name}.{kind}_layernorm")
        yield from self.output.tensors(f"{name}.out_proj")

    def step_bytes(self) -> int:
        """Return an upper bound of the bytes that one token needs in this layer during a step, its input included."""
        hidden, inner, size = self.input.columns.size, self.channels.size, self.options.dtype.itemsize
        quantized = self.input.quantized_input_bytes(inner)
        in_float32 = 6 * inner + 4 * sum(self.selection.parts)
        return (hidden + 11 * inner) * size + quantized + _FLOAT32_BYTES * in_float32

    def sequence_bytes(self) -> int:
        """Return an upper bound of one sequence's bytes besides its tokens: its state while it is computed."""
        state, past = self.channels.size * self.spec.state, (self.spec.width - 1) * self.channels.size
        return 4 * _FLOAT32_BYTES * state + 4 * past * self.options.dtype.itemsize
