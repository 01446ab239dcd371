"""Mamba-2's mixer (arXiv 2405.21060). Each rank has some heads, with their groups."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo_engine.attention.states import StateStep
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, joined, plain, unsharded
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.norms.gated_norm import GatedNorm
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.layers.recurrent.recurrent_mixer import RecurrentMixer
from octavo_engine.model.layers.recurrent.state_space_scan import CHUNK, Inputs, state_space_scan
from octavo_engine.model.quantization.unquantized import parameter
from octavo_engine.model.spec import Mamba2Spec
from octavo_engine.model.tensor_parallel.shard import span

_FLOAT32_BYTES = 4


class Mamba2(RecurrentMixer):
    """A projection to gate, x, b, c and time steps, a convolution, the state space model, gate and norm, and a
    projection."""

    scales: Tensor

    def __init__(
        self,
        spec: Mamba2Spec,
        hidden_size: int,
        layer: int,
        options: LayerOptions,
    ) -> None:
        super().__init__(layer, options)
        self.spec = spec
        self.name = options.names.of_layer("mamba", layer)
        into, out = (options.method_of(f"{self.name}.{part}") for part in ("in_proj", "out_proj"))
        shard, hidden = options.ranks.shard, unsharded(hidden_size, "hidden_size")
        self.heads = span(shard.heads(spec), spec.num_heads, "Mamba heads")
        self.groups = span(shard.kv_heads(spec), spec.num_groups, "groups of Mamba heads")
        self.inner, shared = self.heads.times(spec.head_dim), self.groups.times(spec.state)
        self.convolved = (self.inner, shared, shared)
        self.input = Linear(
            hidden, (self.inner, *self.convolved, self.heads), bias=spec.bias, options=options, method=into
        )
        self.output = Linear(self.inner, (hidden,), bias=spec.output_bias, options=options, method=out, summed=True)
        channels, dtype, device = sum(part.size for part in self.convolved), options.dtype, options.device
        self.conv = parameter(channels, 1, spec.width, dtype=dtype, device=device)
        self.conv_bias = parameter(channels, dtype=dtype, device=device) if spec.conv_bias else None
        self.a_log, self.skip, self.step_bias = (
            parameter(self.heads.size, dtype=torch.float32, device=device) for _ in range(3)
        )
        self.norm = None if spec.norm is None else GatedNorm(spec.norm, spec, options)
        parts = (self.inner, *self.convolved, self.heads)
        scales = [torch.full((part.size,), scale) for part, scale in zip(parts, spec.scales, strict=True)]
        self.register_buffer("scales", torch.cat(scales).to(device, dtype), persistent=False)

    def mix(self, projected: Tensor, state_tensors: tuple[Tensor, ...], step: StateStep) -> Tensor:
        """Return the tokens' input of the last projection [T, columns]; see `RecurrentMixer`."""
        spec, heads, groups = self.spec, self.heads.size, self.groups.size
        if set(spec.scales) != {1.0}:
            projected = projected * self.scales
        gate, inputs, steps = torch.split(projected, [self.inner.size, len(self.conv), heads], dim=-1)
        past, states = state_tensors
        convolved = self.options.compute.convolution(
            inputs, self.conv[:, 0], self.conv_bias, spec.activation, past, step
        )
        values, keys, queries = torch.split(convolved.float(), [part.size for part in self.convolved], dim=-1)
        scanned = state_space_scan(
            Inputs(
                values.view(-1, heads, spec.head_dim),
                F.softplus(steps.float() + self.step_bias).clamp(min=spec.least_step),
                keys.view(-1, groups, spec.state),
                queries.view(-1, groups, spec.state),
            ),
            -torch.exp(self.a_log),
            states,
            step,
        )
        scanned = scanned.addcmul_(values.view(scanned.shape), self.skip[:, None]).view(len(gate), -1)
        gated = scanned * F.silu(gate.float()) if self.norm is None else self.norm(scanned, gate)
        return gated.to(gate.dtype)

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the layer's tensors in a checkpoint."""
        name = self.name
        yield from self.input.tensors(*(f"{name}.in_proj",) * 5)
        sizes = [part.size for part in self.convolved]
        for kind, own in (("weight", self.conv), ("bias", self.conv_bias)):
            if own is not None:
                pieces = zip(torch.split(own, sizes), self.convolved, strict=True)
                yield from joined(plain(f"{name}.conv1d.{kind}", piece, part) for piece, part in pieces)
        for kind, own in (("A_log", self.a_log), ("D", self.skip), ("dt_bias", self.step_bias)):
            yield plain(f"{name}.{kind}", own, self.heads)
        if self.norm is not None:
            yield from self.norm.tensors(f"{name}.norm")
        yield from self.output.tensors(f"{name}.out_proj")

    def step_bytes(self) -> int:
        """Return an upper bound of the bytes that one token needs in this layer during a step, its input included."""
        hidden, inner, size = self.input.columns.size, self.inner.size, self.options.dtype.itemsize
        projected = sum(self.input.parts)
        quantized = self.input.quantized_input_bytes(inner)
        in_float32 = len(self.conv) + 6 * inner + 4 * self.heads.size * (self.spec.state + 4)
        scores = 4 * self.heads.size * CHUNK // 2  # of a chunk of one sequence
        return (hidden + 2 * projected + 6 * len(self.conv)) * size + quantized + _FLOAT32_BYTES * (in_float32 + scores)

    def sequence_bytes(self) -> int:
        """Return an upper bound of one sequence's bytes besides its tokens: its state while it is computed."""
        state, past = self.inner.size * self.spec.state, (self.spec.width - 1) * len(self.conv)
        return 4 * _FLOAT32_BYTES * state + 4 * past * self.options.dtype.itemsize
