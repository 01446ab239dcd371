"""The experts of one layer in a checkpoint: one tensor for each projection of each expert, or few tensors for all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from octavo_engine.kernels.experts.experts import Experts
from octavo_engine.model.checkpoint.names import ExpertLayout
from octavo_engine.model.checkpoint.tensors import (
    CheckpointTensor,
    Piece,
    Span,
    check_finite,
    ignored,
    joined,
    plain,
    unsharded,
    vector_of_first_rank,
)
from octavo_engine.model.layers.experts.quantized_experts import QuantizedPair
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.quantization.dequantized import dequantized_tensors
from octavo_engine.model.spec import MoESpec


@dataclass(frozen=True, slots=True)
class StoredExperts:
    """The tensors that a checkpoint has for a layer's experts, and the memory that each of them fills."""

    spec: MoESpec
    options: LayerOptions
    memory: Experts
    quantized: QuantizedPair | None
    """The memory of experts whose weights stay in codes; None: `memory` has all weights."""
    hidden: Span
    width: Span
    """The experts' input and output: `hidden`, or the latent size."""
    inner: Span
    """The experts' intermediate size."""

    def tensors(self, gate: str, up: str, down: str) -> Iterator[CheckpointTensor]:
        """Yield the experts' tensors, given the projections' names, in which `{expert}` stands for a number."""
        if "{expert}" in gate:
            for expert in range(self.spec.num_experts):
                number = str(expert)
                yield from self._numbered(expert, *(name.replace("{expert}", number) for name in (gate, up, down)))
            for expert in range(self.spec.num_experts, self.spec.num_experts + self.spec.zero_experts):
                stored = (name.replace("{expert}", str(expert)) for name in (gate, up))  # transformers has them
                yield from (ignored(f"{name}.weight") for name in stored)
        elif gate == up:
            yield from self._bundled(gate, down)
        else:
            apart = self.options.names.expert_layout == "apart"
            yield from self._apart(gate, up, down) if apart else self._stacked(gate, up, down)

    def _numbered(self, expert: int, gate: str, up: str, down: str) -> Iterator[CheckpointTensor]:
        size, names = self.inner.size, (gate, up) if self.spec.gated else (up,)
        if self.quantized is not None:
            yield from self.quantized[0].tensors(expert, names)
            yield from self.quantized[1].tensors(expert, [down])
        else:
            stored_by, targets = self.options.stored_by, torch.split(self.memory.gate_up[expert], size)
            pairs = zip(names, targets, strict=True)
            parts = (
                dequantized_tensors(stored_by(name), name, target, self.inner, self.width) for name, target in pairs
            )
            yield from joined(chain(*parts))
            yield from dequantized_tensors(stored_by(down), down, self.memory.down[expert], self.width, self.inner)
        if self.memory.gate_up_bias is not None:
            for name, bias in zip(names, torch.split(self.memory.gate_up_bias[expert], size), strict=True):
                yield plain(f"{name}.bias", bias, self.inner)
            bias_of_down = None if self.memory.down_bias is None else self.memory.down_bias[expert]
            yield vector_of_first_rank(f"{down}.bias", bias_of_down, self.hidden)

    def _apart(self, gate: str, up: str, down: str) -> Iterator[CheckpointTensor]:
        """Yield one tensor each of all experts' gates, ups and downs, each expert's laid out like a linear's weight."""
        every, size = unsharded(self.spec.num_experts), self.inner.size
        yield plain(gate, self.memory.gate_up[:, :size], every, self.inner, self.hidden)
        yield plain(up, self.memory.gate_up[:, size:], every, self.inner, self.hidden)
        yield plain(down, self.memory.down, every, self.hidden, self.inner)

    def _stacked(self, gate: str, up: str, down: str) -> Iterator[CheckpointTensor]:
        """Yield the tensors that hold all experts' rows, each expert's after another's; down is transposed (DBRX)."""
        size, inner = self.inner.size, self.inner
        shape = (self.spec.num_experts * inner.total, self.hidden.total)
        for name, targets in (
            (gate, self.memory.gate_up[:, :size]),
            (up, self.memory.gate_up[:, size:]),
            (down, self.memory.down.transpose(1, 2)),
        ):
            firsts = (expert * inner.total + inner.start for expert in range(len(targets)))
            parts = [(slice(first, first + size), self.hidden.slice) for first in firsts]
            pieces = tuple(Piece(target, part) for target, part in zip(targets, parts, strict=True))
            yield CheckpointTensor(name=name, shape=shape, pieces=pieces)

    def _bundled(self, gate_up: str, down: str) -> Iterator[CheckpointTensor]:
        """Yield the tensors that hold all experts, with gate and up in one tensor."""
        count, size, method = self.spec.num_experts, self.inner.size, self.spec.quantization
        every, both = unsharded(count), self.inner.times(2)
        gates = self.memory.gate_up.view(count, 2, size, -1).transpose(1, 2)  # [E, intermediate, 2, hidden]
        if method is not None and self.memory.gate_up_scales is not None and self.memory.down_scales is not None:
            scales = self.memory.gate_up_scales.view(count, 2, size, -1).transpose(1, 2)
            yield from method.codes(gate_up, gates, scales, both, self.hidden)
            yield from method.codes(down, self.memory.down, self.memory.down_scales, self.hidden, self.inner)
        elif method is not None:
            yield from method.tensors(gate_up, gates, both, self.hidden)
            yield from method.tensors(down, self.memory.down, self.hidden, self.inner)
        elif self.options.names.expert_layout == "interleaved columns":
            yield _viewed(f"{gate_up}", gates.movedim(-1, 1), every, self.hidden, both)
            yield plain(down, self.memory.down.movedim(-1, 1), every, self.inner, self.hidden)
        else:
            yield from self._halves(gate_up, down, self.options.names.expert_layout)
        if self.memory.gate_up_bias is not None:
            yield _viewed(f"{gate_up}_bias", self.memory.gate_up_bias.view(count, 2, size).transpose(1, 2), every, both)
        if self.memory.down_bias is not None:
            yield plain(f"{down}_bias", self.memory.down_bias, every, self.hidden)
        elif self.spec.bias:
            yield CheckpointTensor(name=f"{down}_bias", shape=(count, self.hidden.total), pieces=())

    def _halves(self, gate_up: str, down: str, layout: ExpertLayout) -> Iterator[CheckpointTensor]:
        """Yield tensors of all experts in which gate precedes up, as rows or as columns."""
        every, inner, hidden = unsharded(self.spec.num_experts), self.inner, self.hidden
        by_columns = layout == "columns"
        spans = (hidden, inner) if by_columns else (inner, hidden)
        pieces = []
        for half, first in zip(self.memory.gate_up.chunk(2, dim=1), (0, inner.total), strict=True):
            rows = slice(first + inner.start, first + inner.start + inner.size)
            part = (every.slice, hidden.slice, rows) if by_columns else (every.slice, rows)
            pieces.append(Piece(half.transpose(1, 2) if by_columns else half, part))
        shape = tuple(2 * span.total if span is inner else span.total for span in spans)
        yield CheckpointTensor(name=gate_up, shape=(every.total, *shape), pieces=tuple(pieces))
        yield plain(down, self.memory.down.transpose(1, 2) if by_columns else self.memory.down, every, *reversed(spans))


def _viewed(name: str, target: Tensor, *spans: Span) -> CheckpointTensor:
    """Return a tensor whose last dimension is split in two in the target."""
    part = tuple(span.slice for span in spans)
    piece = Piece(target, part, _write_viewed)
    return CheckpointTensor(name=name, shape=tuple(span.total for span in spans), pieces=(piece,))


def _write_viewed(target: Tensor, rows: slice | Tensor, values: Tensor) -> None:
    place = target[rows]
    check_finite(place.copy_(values.reshape(place.shape)), values)
