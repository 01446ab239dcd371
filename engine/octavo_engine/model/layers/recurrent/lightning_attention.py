"""Lightning Attention (arXiv 2401.04658) in PyTorch. Each rank has some heads.

Of each head with slope s, token by token: state = exp(-s) * state + k v^T, and the result is state^T q. Sequences of
one token are computed by these formulas, all at once; longer ones in chunks of 64 tokens, which read the earlier tokens
from the state.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from octavo_engine.attention.states import StateStep
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, ignored, unsharded
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.norms.sharded_norm import ShardedNorm
from octavo_engine.model.layers.operations.activations import ACTIVATIONS
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.layers.recurrent.recurrent_mixer import RecurrentMixer
from octavo_engine.model.spec import LightningAttentionSpec
from octavo_engine.model.tensor_parallel.shard import span

_CHUNK = 64
_FLOAT32_BYTES = 4
_PARTS = ("lightning_query", "lightning_key", "lightning_value", "lightning_gate")
"""The roles, in `TensorNames`, of the parts of the first projection."""
_BUFFERS = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
"""Buffers that transformers saves although they follow from the slopes."""


class LightningAttention(RecurrentMixer):
    """A projection to query, key, value and gate, linear attention, a norm over all heads, the gate, a projection."""

    slopes: Tensor

    def __init__(
        self,
        spec: LightningAttentionSpec,
        hidden_size: int,
        layer: int,
        options: LayerOptions,
    ) -> None:
        super().__init__(layer, options)
        self.spec = spec
        self.heads = span(options.ranks.shard.heads(spec), spec.num_heads, "heads of linear attention")
        hidden, width = unsharded(hidden_size, "hidden_size"), self.heads.times(spec.head_dim)
        parts, layout = (width,) * len(_PARTS), options.names.qkv_layout
        method = options.method(layer, *_PARTS)
        self.input = Linear(hidden, parts, bias=False, options=options, method=method, layout=layout)
        self.norm = ShardedNorm(width, spec.norm_eps, options)
        method = options.method(layer, "lightning_output")
        self.output = Linear(width, (hidden,), bias=False, options=options, method=method, summed=True)
        slopes = torch.tensor(spec.slopes[self.heads.slice], dtype=torch.float32, device=options.device)
        self.register_buffer("slopes", slopes, persistent=False)

    def mix(self, projected: Tensor, state_tensors: tuple[Tensor, ...], step: StateStep) -> Tensor:
        """Return the tokens' input of the last projection [T, columns]; see `RecurrentMixer`."""
        heads, size = self.heads.size, self.spec.head_dim
        mixed, gate = torch.split(projected, [3 * heads * size, heads * size], dim=-1)
        mixed = ACTIVATIONS[self.spec.activation](mixed).float().view(-1, 3, heads, size)
        (states,) = state_tensors
        attended = self._attend(mixed, states.view(-1, heads, size, size), step).to(gate.dtype)
        normed: Tensor = self.norm(attended.view(len(gate), -1))
        return gate.sigmoid() * normed

    def _attend(self, mixed: Tensor, states: Tensor, step: StateStep) -> Tensor:
        """Return [T, H, D] of query, key, value [T, 3, H, D], float32; reads and writes `states` [slots, H, D, D]."""
        slopes, alone = self.slopes, [number for number, length in enumerate(step.lens) if length == 1]
        if len(alone) == len(step.lens):  # as in CUDA graphs, which nothing may be copied to from the host
            return _one_token_each(mixed, slopes, states, step.slots, step.fresh)
        output = torch.empty_like(mixed[:, 0])
        if alone:
            numbers = torch.tensor(alone, device=mixed.device)
            rows = step.ends[numbers] - 1
            slots, fresh = step.slots[numbers], step.fresh[numbers]
            output[rows] = _one_token_each(mixed[rows], slopes, states, slots, fresh)
        first = 0
        for number, length in enumerate(step.lens):
            if length > 1:
                slot = step.slots[number]
                state = states[slot].masked_fill(step.fresh[number], 0)
                for start in range(first, first + length, _CHUNK):
                    rows_of_chunk = slice(start, min(start + _CHUNK, first + length))
                    output[rows_of_chunk], state = _chunk(mixed[rows_of_chunk], slopes, state)
                states[slot] = state
            first += length
        return output

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the layer's tensors in a checkpoint."""
        names, layer = self.options.names, self.layer
        yield from self.input.tensors(*(names.of_layer(role, layer) for role in _PARTS))
        yield from self.norm.tensors(names.of_layer("lightning_norm", layer))
        yield from self.output.tensors(names.of_layer("lightning_output", layer))
        yield from (ignored(f"{names.of_layer('attention', layer)}.{name}") for name in _BUFFERS)

    def step_bytes(self) -> int:
        """Return an upper bound of the bytes that one token needs in this layer during a step, its input included."""
        hidden, size = self.input.columns.size, self.options.dtype.itemsize
        width = self.heads.size * self.spec.head_dim
        quantized = self.input.quantized_input_bytes(width)
        scores = 4 * self.heads.size * _CHUNK  # of a chunk of one sequence
        return (hidden + 13 * width) * size + quantized + _FLOAT32_BYTES * (12 * width + scores)

    def sequence_bytes(self) -> int:
        """Return an upper bound of one sequence's bytes besides its tokens: its state while it is computed."""
        return 3 * _FLOAT32_BYTES * self.heads.size * self.spec.head_dim**2


def _one_token_each(mixed: Tensor, slopes: Tensor, states: Tensor, slots: Tensor, fresh: Tensor) -> Tensor:
    """Return the result [S, H, D] of one token of each sequence."""
    query, key, value = mixed.unbind(1)
    state = states[slots].masked_fill_(fresh[:, None, None, None], 0)
    state.mul_((-slopes).exp()[:, None, None])
    state.view(-1, *state.shape[2:]).baddbmm_(key.flatten(0, 1)[..., None], value.flatten(0, 1)[:, None])
    states[slots] = state
    return (query[..., None, :] @ state)[..., 0, :]


def _chunk(mixed: Tensor, slopes: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the result [C, H, D] of some tokens of one sequence, and the state [H, D, D] after them."""
    query, key, value = (part.transpose(0, 1) for part in mixed.unbind(1))
    steps, slope = torch.arange(len(mixed), device=mixed.device), slopes[:, None, None]
    distance = (steps[:, None] - steps).float()
    fades = (-slope * distance).masked_fill(distance < 0, float("-inf")).exp()
    result = (query * (-slope * (steps[:, None] + 1)).exp()) @ state
    result = result + ((query @ key.transpose(1, 2)) * fades) @ value
    until_end = (-slope * (len(mixed) - 1 - steps[:, None])).exp()
    state = state * (-slope * len(mixed)).exp() + (key * until_end).transpose(1, 2) @ value
    return result.transpose(0, 1), state
