"""The weights of a layer's experts, and the activation between their two products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_engine.kernels.cpu.quantized import QuantizedWeight


@dataclass(frozen=True, slots=True)
class ExpertCodes:
    """One of the two weights of all experts, in codes of 4 or 8 bits or in e4m3."""

    every: QuantizedWeight
    """The rows of all experts, each one's after another's, which Triton kernels multiply."""
    count: int
    """The number of experts."""
    each: Sequence[QuantizedWeight]
    """Each expert's weight, which C kernels multiply; empty where these do not compute."""


@dataclass(frozen=True, slots=True)
class Experts:
    """E feed-forwards, gated (arXiv 2002.05202) or not, of one shape, all tensors contiguous and of one dtype."""

    gate_up: Tensor
    """[E, 2 * intermediate, hidden], gate first; without a gate [E, intermediate, hidden]."""
    down: Tensor
    """[E, hidden, intermediate]"""
    gate_up_bias: Tensor | None = None
    """[E, 2 * intermediate]"""
    down_bias: Tensor | None = None
    """[E, hidden]"""
    limit: float | None = None
    """None: silu(gate) * up. Else gpt-oss's form (arXiv 2508.10925): gate is cut off above the limit, up at both sides,
    and what follows is gate * sigmoid(alpha * gate) * (up + up_offset)."""
    alpha: float = 1.0
    up_offset: float = 1.0
    activation: Callable[[Tensor], Tensor] | None = None
    """The activation of the gate, or of experts without a gate; None: SiLU, or as `limit` says."""
    activated_limit: float | None = None
    """If given, the activated gate is cut off above it, and up at both sides (Step 3.7); only with `activation`."""
    gated: bool = True
    gate_up_scales: Tensor | None = None
    """[E, 2 * intermediate, hidden / 32] uint8: weights are MXFP4's codes then, uint8 [E, rows, columns / 2], which
    kernels/experts/moe.py alone multiplies."""
    down_scales: Tensor | None = None
    """[E, hidden, intermediate / 32]"""
    quantized: tuple[ExpertCodes, ExpertCodes] | None = None
    """The experts' two weights where they are in codes, of which `gate_up` and `down` then are the memory; None: they
    are numbers, or MXFP4."""

    @property
    def in_numbers(self) -> bool:
        """True if the weights are of the activations' type, and neither codes nor MXFP4."""
        return self.quantized is None and self.gate_up_scales is None

    @property
    def count(self) -> int:
        """The number of experts."""
        return len(self.down) if self.quantized is None else self.quantized[1].count

    @property
    def hidden(self) -> int:
        """The size of an expert's input and output."""
        return self.down.shape[1] if self.quantized is None else self.quantized[1].every.rows // self.count

    @property
    def intermediate(self) -> int:
        """The intermediate size: how many numbers an expert's first product gives and its second one reads."""
        if self.quantized is not None:
            return self.quantized[1].every.columns
        return self.down.shape[2] * (1 if self.down_scales is None else 2)

    def activate(self, gate_up: Tensor) -> Tensor:
        """Return [..., intermediate] from [gate up] [..., 2 * intermediate], or from up alone, in their dtype."""
        if not self.gated:
            return self._activated(gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        if self.activated_limit is not None:
            up = up.clamp(-self.activated_limit, self.activated_limit)
            return self._activated(gate).clamp(max=self.activated_limit) * up
        if self.limit is None:
            return self._activated(gate) * up
        return cut_off(gate, up, self.limit, self.alpha, self.up_offset)

    def _activated(self, x: Tensor) -> Tensor:
        return torch.nn.functional.silu(x) if self.activation is None else self.activation(x)


def cut_off(gate: Tensor, up: Tensor, limit: float, alpha: float, up_offset: float = 1.0) -> Tensor:
    """Return gpt-oss's gated up, with numbers limited as `Experts.limit` says."""
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (up + up_offset) * (gate * torch.sigmoid(gate * alpha))
