"""Gated DeltaNet (arXiv 2412.06464). Each rank has some heads, with the key heads that they share."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo_engine.attention.states import StateStep
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, Piece, Rows, joined, plain, unsharded, write
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.operations.activations import ACTIVATIONS
from octavo_engine.model.layers.operations.delta_rule import CHUNK, DeltaInputs, chunk_bytes, one_token_bytes
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.layers.recurrent.recurrent_mixer import RecurrentMixer
from octavo_engine.model.quantization.unquantized import parameter
from octavo_engine.model.spec import GatedDeltaNetSpec
from octavo_engine.model.tensor_parallel.shard import span

_FLOAT32_BYTES = 4
_PARTS = ("delta_query", "delta_key", "delta_value", "delta_gate", "delta_strength", "delta_decay")
"""The roles, in `TensorNames`, of the parts of the first projection."""
_CONVOLUTIONS = ("delta_query_conv", "delta_key_conv", "delta_value_conv")


class GatedDeltaNet(RecurrentMixer):
    """A projection, a convolution of query, key and value, the gated delta rule, norm and gate, and a projection."""

    def __init__(
        self,
        spec: GatedDeltaNetSpec,
        hidden_size: int,
        layer: int,
        options: LayerOptions,
    ) -> None:
        super().__init__(layer, options)
        self.spec = spec
        shard, hidden = options.ranks.shard, unsharded(hidden_size, "hidden_size")
        self.heads = span(shard.heads(spec), spec.num_heads, "heads of linear attention")
        self.key_heads = span(shard.kv_heads(spec), spec.num_kv_heads, "key heads of linear attention")
        key, value = self.key_heads.times(spec.key_dim), self.heads.times(spec.value_dim)
        self.convolved, layout = (key, key, value), options.names.delta_layout
        parts = (*self.convolved, value, self.heads, self.heads)
        method = options.method(layer, *_PARTS)
        self.input = Linear(hidden, parts, bias=False, options=options, method=method, layout=layout)
        method = options.method(layer, "delta_output")
        self.output = Linear(value, (hidden,), bias=False, options=options, method=method, summed=True)
        dtype, device, channels = options.dtype, options.device, sum(part.size for part in self.convolved)
        self.conv = parameter(channels, 1, spec.width, dtype=dtype, device=device)
        self.a_log, self.step_bias = (parameter(self.heads.size, dtype=dtype, device=device) for _ in range(2))
        self.norm = parameter(spec.value_dim, dtype=dtype, device=device)

    def mix(self, projected: Tensor, state_tensors: tuple[Tensor, ...], step: StateStep) -> Tensor:
        """Return the tokens' input of the last projection [T, columns]; see `RecurrentMixer`."""
        spec, heads = self.spec, self.heads.size
        mixed, gate, strength, steps = torch.split(
            projected, [len(self.conv), heads * spec.value_dim, heads, heads], dim=-1
        )
        past, states = state_tensors
        compute = self.options.compute
        mixed = compute.convolution(mixed, self.conv[:, 0], None, spec.activation, past, step)
        inputs = DeltaInputs(
            *self._heads(mixed),
            (-self.a_log.float().exp() * F.softplus(steps.float() + self.step_bias))[..., None],
            (strength.sigmoid() * spec.most_strength).float(),
        )
        attended = compute.delta_rule(inputs, states.view(-1, heads, spec.key_dim, spec.value_dim), step)
        return self._gated(attended.to(gate.dtype), gate)

    def _heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return query and key [T, key heads, Dk] and value [T, H, Dv], views of `mixed`."""
        spec = self.spec
        query, key, value = torch.split(mixed, [part.size for part in self.convolved], dim=-1)
        query, key = (part.view(len(part), -1, spec.key_dim) for part in (query, key))
        return query, key, value.view(len(value), -1, spec.value_dim)

    def _gated(self, x: Tensor, gate: Tensor) -> Tensor:
        """Return x [T, H, Dv], each head divided by its root mean square, times the activated gate; [T, H * Dv]."""
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.spec.norm_eps)
        normed = (self.norm * normed.to(x.dtype)).view(len(x), -1)
        return (normed * ACTIVATIONS[self.spec.gate_activation](gate.float())).to(x.dtype)

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the layer's tensors in a checkpoint."""
        names, layer = self.options.names, self.layer
        yield from self.input.tensors(*(names.of_layer(role, layer) for role in _PARTS))
        yield from self._conv_tensors([f"{names.of_layer(role, layer)}.weight" for role in _CONVOLUTIONS])
        name = names.of_layer("delta_net", layer)
        yield plain(f"{name}.A_log", self.a_log, self.heads)
        yield plain(f"{name}.dt_bias", self.step_bias, self.heads)
        yield plain(f"{names.of_layer('delta_norm', layer)}.weight", self.norm, unsharded(len(self.norm)))
        yield from self.output.tensors(names.of_layer("delta_output", layer))

    def _conv_tensors(self, stored: list[str]) -> Iterator[CheckpointTensor]:
        """Yield the tensors of the convolution of query, key and value: one, or three."""
        pieces = torch.split(self.conv, [part.size for part in self.convolved])
        if len(set(stored)) == 1:
            parts = zip(stored, pieces, self.convolved, strict=True)
            yield from joined(plain(name, piece, part) for name, piece, part in parts)
            return
        for index, name in enumerate(stored):

            def fill(target: Tensor, rows: Rows, values: Tensor, index: int = index) -> None:  # noqa: ARG001
                self._fill_conv(target, values, index)

            yield CheckpointTensor(name=name, shape=None, pieces=(Piece(self.conv, fill=fill),))

    def _fill_conv(self, target: Tensor, values: Tensor, index: int) -> None:
        """Fill the rows of query, key or value (`index`) from a tensor of its own, or from a third of all rows.

        OLMo Hybrid has three tensors. transformers 5.23 joins them when it reads, and writes thirds of the joined one.
        """
        totals = [part.total for part in self.convolved]
        third = -(-sum(totals) // len(totals))
        ways = {totals[index]: sum(totals[:index]), min(third, sum(totals) - index * third): index * third}
        if len(values) not in ways or values.shape[1:] != target.shape[1:]:
            raise ValueError(f"is {list(values.shape)}, expected {[totals[index], *target.shape[1:]]}")
        start, own, joined_before = ways[len(values)], 0, 0
        for part in self.convolved:
            first = joined_before + part.start
            low, high = max(start, first), min(start + len(values), first + part.size)
            if low < high:
                write(target, slice(own + low - first, own + high - first), values[low - start : high - start])
            own, joined_before = own + part.size, joined_before + part.total

    def step_bytes(self) -> int:
        """Return an upper bound of the bytes that one token needs in this layer during a step, its input included."""
        hidden, size, spec = self.input.columns.size, self.options.dtype.itemsize, self.spec
        value, channels = self.heads.size * spec.value_dim, len(self.conv)
        quantized = self.input.quantized_input_bytes(value)
        projected = sum(self.input.parts)
        # The result, or what the kernel knows of each pair of a chunk's tokens; then the result's norm and its gate.
        rule = (projected + channels + 2 * self.heads.size * CHUNK + 3 * value) * size + _FLOAT32_BYTES * 4 * value
        one_after_another = 2 * projected * size, (projected + 6 * channels) * size, rule
        return hidden * size + max(one_after_another) + 8 * 8 + quantized

    def sequence_bytes(self) -> int:
        """Return an upper bound of one sequence's bytes besides its tokens: its state while it is computed."""
        spec = self.spec
        past = (spec.width - 1) * len(self.conv)
        return one_token_bytes(self.heads.size, spec.key_dim, spec.value_dim) + 3 * past * _FLOAT32_BYTES

    @property
    def scratch_bytes(self) -> int:
        """The bytes of a chunk of a prompt, of which PyTorch computes one at a time."""
        return chunk_bytes(self.heads.size, self.spec.key_dim, self.spec.value_dim, fine=False)
