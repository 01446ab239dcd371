"""Kimi Delta Attention (arXiv 2510.26692). Each rank has some heads."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo_engine.attention.states import StateStep
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, Piece, Rows, plain, unsharded, write
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.operations.delta_rule import DeltaInputs, chunk_bytes, one_token_bytes
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.layers.recurrent.recurrent_mixer import RecurrentMixer
from octavo_engine.model.quantization.unquantized import parameter
from octavo_engine.model.spec import KimiDeltaAttentionSpec
from octavo_engine.model.tensor_parallel.shard import span

_FLOAT32_BYTES = 4
_ROLES = ("query", "key", "value")


class KimiDeltaAttention(RecurrentMixer):
    """Projections, convolutions of query, key and value, the delta rule, norm and gate, and a projection."""

    def __init__(
        self,
        spec: KimiDeltaAttentionSpec,
        hidden_size: int,
        layer: int,
        options: LayerOptions,
    ) -> None:
        super().__init__(layer, options)
        self.spec = spec
        hidden, rank = unsharded(hidden_size, "hidden_size"), unsharded(spec.head_dim)
        self.heads = span(options.ranks.shard.heads(spec), spec.num_heads, "heads of linear attention")
        self.inner = inner = self.heads.times(spec.head_dim)
        low = rank if spec.low_rank else inner
        self._inputs = self._input_names()
        method = options.method_of(*self._inputs)
        self.input = Linear(
            hidden, (inner, inner, inner, self.heads, low, low), bias=False, options=options, method=method
        )
        self.decay, self.gate = (
            Linear(rank, (inner,), bias=False, options=options) if spec.low_rank else None for _ in range(2)
        )
        method = options.method(layer, "output")
        self.output = Linear(inner, (hidden,), bias=False, options=options, method=method, summed=True)
        dtype, device = options.dtype, options.device
        self.conv = parameter(3 * inner.size, 1, spec.width, dtype=dtype, device=device)
        self.a_log = parameter(self.heads.size, dtype=dtype, device=device)
        self.step_bias = parameter(inner.size, dtype=dtype, device=device)
        self.norm = parameter(spec.head_dim, dtype=dtype, device=device)

    def _input_names(self) -> tuple[str, ...]:
        names = self.options.names
        module = names.of_layer("attention", self.layer)
        decay, gate = ("f_a_proj", "g_a_proj") if self.spec.low_rank else ("f_proj", "g_proj")
        others = (f"{module}.{part}" for part in ("b_proj", decay, gate))
        return *(names.of_layer(role, self.layer) for role in _ROLES), *others

    def mix(self, projected: Tensor, state_tensors: tuple[Tensor, ...], step: StateStep) -> Tensor:
        """Return the tokens' input of the last projection [T, columns]; see `RecurrentMixer`."""
        heads, size = self.heads.size, self.spec.head_dim
        low = size if self.spec.low_rank else self.inner.size
        mixed, strength, decay, gate = torch.split(projected, [3 * self.inner.size, heads, low, low], dim=-1)
        if self.decay is not None and self.gate is not None:
            decay, gate = self.decay(decay.contiguous()), self.gate(gate.contiguous())
        past, states = state_tensors
        compute = self.options.compute
        mixed = compute.convolution(mixed, self.conv[:, 0], None, self.spec.activation, past, step)
        query, key, value = mixed.view(-1, 3, heads, size).unbind(1)
        inputs = DeltaInputs(
            query,
            key,
            value,
            self._log_decay((decay.float() + self.step_bias).view(-1, heads, size)),
            strength.sigmoid().float(),
        )
        attended = compute.delta_rule(inputs, states.view(-1, heads, size, size), step)
        return self._gated(attended, gate)

    def _log_decay(self, steps: Tensor) -> Tensor:
        """Return the decay of each number of a key as a logarithm, [T, H, D] in float32."""
        rate, bound = self.a_log.float().exp()[:, None], self.spec.lower_bound
        return -rate * F.softplus(steps) if bound is None else bound * torch.sigmoid(rate * steps)

    def _gated(self, x: Tensor, gate: Tensor) -> Tensor:
        """Return x [T, H, D], float32, each head divided by its root mean square, times sigmoid(gate); [T, H * D]."""
        normed = x.to(gate.dtype).float()
        normed = self.norm.float() * normed * torch.rsqrt(normed.square().mean(-1, keepdim=True) + self.spec.norm_eps)
        return (normed.view(len(x), -1) * gate.float().sigmoid()).to(gate.dtype)

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the layer's tensors in a checkpoint."""
        names, layer = self.options.names, self.layer
        module = names.of_layer("attention", layer)
        yield from self.input.tensors(*self._inputs)
        if self.decay is not None and self.gate is not None:
            yield from self.decay.tensors(f"{module}.f_b_proj")
            yield from self.gate.tensors(f"{module}.g_b_proj")
        for role, part in zip("qkv", self.conv.chunk(3), strict=True):
            yield plain(f"{module}.{role}_conv1d.weight", part, self.inner)
        yield CheckpointTensor(name=f"{module}.A_log", shape=None, pieces=(Piece(self.a_log, fill=self._fill_a_log),))
        yield plain(f"{module}.dt_bias", self.step_bias, self.inner)
        yield plain(f"{module}.o_norm.weight", self.norm, unsharded(len(self.norm)))
        yield from self.output.tensors(names.of_layer("output", layer))

    def _fill_a_log(self, target: Tensor, rows: Rows, values: Tensor) -> None:  # noqa: ARG002
        """Fill this rank's heads from a number for each head, stored as [1, 1, heads, 1]."""
        if values.numel() != self.heads.total:
            raise ValueError(f"is {list(values.shape)}, expected [1, 1, {self.heads.total}, 1]")
        write(target, slice(None), values.flatten()[self.heads.slice])

    def step_bytes(self) -> int:
        """Return an upper bound of the bytes that one token needs in this layer during a step, its input included."""
        hidden, size, inner = self.input.columns.size, self.options.dtype.itemsize, self.inner.size
        quantized = self.input.quantized_input_bytes(inner)
        past, projected = 3 * (self.spec.width - 1) * inner, sum(self.input.parts) + 2 * inner
        rule = (projected + 3 * inner) * size + _FLOAT32_BYTES * 8 * inner
        one_after_another = 2 * projected * size, (projected + 18 * inner + past) * size, rule
        return hidden * size + max(one_after_another) + 8 * 8 + quantized

    def sequence_bytes(self) -> int:
        """Return an upper bound of one sequence's bytes besides its tokens: its state while it is computed."""
        past = 3 * (self.spec.width - 1) * self.inner.size
        size = self.spec.head_dim
        return one_token_bytes(self.heads.size, size, size) + 3 * past * _FLOAT32_BYTES

    @property
    def scratch_bytes(self) -> int:
        """The bytes of a chunk of a prompt, of which one at a time is computed."""
        return chunk_bytes(self.heads.size, self.spec.head_dim, self.spec.head_dim, fine=True)
