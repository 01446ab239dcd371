"""Zamba's mixer: Mamba in heads (arXiv 2405.16712). Each rank has some of them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo_engine.attention.states import StateStep
from octavo_engine.model.checkpoint.names import QKVLayout
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, plain, unsharded
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.layers.recurrent.channel_conv import ChannelConv
from octavo_engine.model.layers.recurrent.recurrent_mixer import RecurrentMixer
from octavo_engine.model.layers.recurrent.selective_scan import Inputs, selective_scan
from octavo_engine.model.quantization.unquantized import parameter
from octavo_engine.model.spec import MambaHeadsSpec
from octavo_engine.model.tensor_parallel.shard import span

_FLOAT32_BYTES = 4


class MambaHeads(RecurrentMixer):
    """Mamba whose heads each select by themselves, unlike `Mamba`: no rank needs another's channels."""

    def __init__(
        self,
        spec: MambaHeadsSpec,
        hidden_size: int,
        layer: int,
        options: LayerOptions,
    ) -> None:
        super().__init__(layer, options)
        self.spec = spec
        self.name = options.names.of_layer("mamba", layer)
        into, out = (options.method_of(f"{self.name}.{part}") for part in ("in_proj", "out_proj"))
        self.heads = span(options.ranks.shard.heads(spec), spec.num_heads, "Mamba heads")
        self.channels = channels = self.heads.times(spec.head_dim)
        hidden, dtype, device = unsharded(hidden_size, "hidden_size"), options.dtype, options.device
        # The rows of x and gate alternate.
        self.input = Linear(
            hidden,
            (channels, channels),
            bias=spec.bias,
            options=options,
            method=into,
            layout=QKVLayout(groups=channels.total),
        )
        self.output = Linear(channels, (hidden,), bias=spec.bias, options=options, method=out, summed=True)
        count, size, selected = self.heads.size, spec.head_dim, spec.step_rank + 2 * spec.state
        self.conv = ChannelConv(channels, spec.width, options, bias=spec.conv_bias)
        self.selection = parameter(count, selected, size, dtype=dtype, device=device)
        self.steps = parameter(count, size, spec.step_rank, dtype=dtype, device=device)
        self.step_bias = parameter(count, size, dtype=dtype, device=device)
        self.a_log = parameter(count, size, spec.state, dtype=torch.float32, device=device)
        self.skip = parameter(count, size, dtype=torch.float32, device=device)

    def mix(self, projected: Tensor, state_tensors: tuple[Tensor, ...], step: StateStep) -> Tensor:
        """Return the tokens' input of the last projection [T, columns]; see `RecurrentMixer`."""
        inputs, gate = projected.chunk(2, dim=-1)
        past, states = state_tensors
        convolved: Tensor = self.conv(inputs, self.spec.activation, past, step)
        heads = convolved.view(len(inputs), -1, self.spec.head_dim)
        scanned = [self._scanned(head, heads[:, head], states, step) for head in range(self.heads.size)]
        gated = (torch.stack(scanned, dim=1) + heads.float() * self.skip).flatten(1).mul_(F.silu(gate.float()))
        return gated.to(gate.dtype)

    def _scanned(self, head: int, x: Tensor, states: Tensor, step: StateStep) -> Tensor:
        """Return what one head's tokens read of its state, float32 [T, head_dim]."""
        sizes = [self.spec.step_rank, self.spec.state, self.spec.state]
        latent, keys, queries = torch.split(x @ self.selection[head].t(), sizes, dim=-1)
        steps = F.softplus((latent @ self.steps[head].t()).float() + self.step_bias[head].float())
        inputs = Inputs(x.float(), steps, keys.float(), queries.float())
        size = self.spec.head_dim * self.spec.state
        own = states[:, head * size : (head + 1) * size]
        return selective_scan(inputs, -torch.exp(self.a_log[head]), own, step)

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the layer's tensors in a checkpoint."""
        name = self.name
        yield from self.input.tensors(*(f"{name}.in_proj",) * 2)
        yield from self.conv.tensors(f"{name}.conv1d")
        yield plain(f"{name}.x_proj_weight", self.selection, self.heads)
        yield plain(f"{name}.dt_proj_weight", self.steps, self.heads)
        yield plain(f"{name}.dt_proj_bias", self.step_bias, self.heads)
        yield plain(f"{name}.A_log", self.a_log, self.heads)
        yield plain(f"{name}.D", self.skip, self.heads)
        yield from self.output.tensors(f"{name}.out_proj")

    def step_bytes(self) -> int:
        """Return an upper bound of the bytes that one token needs in this layer during a step, its input included."""
        hidden, inner, size = self.input.columns.size, self.channels.size, self.options.dtype.itemsize
        quantized = self.input.quantized_input_bytes(inner)
        in_float32 = 7 * inner + 4 * self.selection.shape[1]
        return (hidden + 11 * inner) * size + quantized + _FLOAT32_BYTES * in_float32

    def sequence_bytes(self) -> int:
        """Return an upper bound of one sequence's bytes besides its tokens: its state while it is computed."""
        state, past = self.channels.size * self.spec.state, (self.spec.width - 1) * self.channels.size
        return 4 * _FLOAT32_BYTES * state + 4 * past * self.options.dtype.itemsize
