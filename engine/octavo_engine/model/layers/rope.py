"""Rotary position embedding (arXiv 2104.09864): pairs of dimensions (i, i + D/2) are rotated by the position."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from octavo_engine.attention.rope import Rope
from octavo_engine.model.spec import RopeSpec


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> Tensor:
    """Radians per position of each pair, float32 [head_dim / 2], on the CPU."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu") / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        return _llama3(frequencies, rope)
    if rope.kind == "yarn":
        return _yarn(frequencies, rope, head_dim)
    if rope.kind == "factors":
        return frequencies / torch.tensor(rope.factors, dtype=torch.float32, device="cpu")
    return frequencies


def _llama3(frequencies: Tensor, rope: RopeSpec) -> Tensor:
    """Llama 3.1 (its reference code): long waves are stretched by `factor`, short ones stay, others are in between."""
    wavelengths = 2 * math.pi / frequencies
    longest, shortest = (rope.original_max_position / f for f in (rope.low_freq_factor, rope.high_freq_factor))
    stretched = torch.where(wavelengths > longest, frequencies / rope.factor, frequencies)
    smooth = (rope.original_max_position / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - smooth) * stretched / rope.factor + smooth * stretched
    between = (wavelengths >= shortest) & (wavelengths <= longest)
    return torch.where(between, blended, stretched)


def _yarn(frequencies: Tensor, rope: RopeSpec, head_dim: int) -> Tensor:
    """YaRN (arXiv 2309.00071): pairs that turn often stay, those that turn seldom are slower, a ramp lies between."""

    def pair_that_turns(times: float) -> float:
        """The number of the pair, a fraction, that turns so often within the original context."""
        return head_dim * math.log(rope.original_max_position / (times * 2 * math.pi)) / (2 * math.log(rope.theta))

    first, last = pair_that_turns(rope.beta_fast), pair_that_turns(rope.beta_slow)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    if first == last:
        last += 0.001
    pairs = torch.arange(head_dim // 2, dtype=torch.float32, device="cpu")
    slower = ((pairs - first) / (last - first)).clamp(0, 1)
    return frequencies / rope.factor * slower + frequencies * (1 - slower)


class RotaryEmbedding(nn.Module):
    """The angles of a step's positions, computed once for all layers."""

    inv_freq: Tensor

    def __init__(self, rope: RopeSpec, head_dim: int, device: torch.device) -> None:
        super().__init__()
        self.factor = rope.attention_factor
        self.register_buffer("inv_freq", inverse_frequencies(rope, head_dim).to(device), persistent=False)

    def forward(self, positions: Tensor) -> Rope:
        """Positions [T] to cosines and sines, float32 [T, 1, head_dim / 2], times the attention factor."""
        angles = positions.to(torch.float32)[:, None, None] * self.inv_freq
        if self.factor == 1:
            return Rope(angles.cos(), angles.sin())
        return Rope(angles.cos().mul_(self.factor), angles.sin().mul_(self.factor))
