"""Attention with linear biases (ALiBi, arXiv 2108.12409): biases added to scores, instead of RoPE."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class ALiBi:
    """The parameters of ALiBi: slopes[h] * p * factor is added to head h's scores with the key at position p."""

    slopes: Tensor
    """[H] float32"""
    factor: float = 1.0
    rounded: bool = False
    """Whether slopes, positions and their products are rounded to bfloat16 first."""

    def bias(self, length: int) -> Tensor:
        """Return the biases of keys at the positions 0 ... length - 1, float32 [H, length].

        Positions may be counted from any key: the softmax does not change if the same number is added to all scores.
        """
        positions = torch.arange(length, device=self.slopes.device)
        if self.rounded:
            return (self.slopes.bfloat16()[:, None] * positions.bfloat16()).float() * self.factor
        return self.slopes[:, None] * positions.float() * self.factor

    def by_distance(self, longest: int) -> Tensor:
        """Return the biases of keys by their distance to the query, 1 - longest ... longest - 1, to both sides alike.

        float32 [H, 2 longest - 1]; the terms of bidirectional attention.
        """
        return -self.bias(longest)[:, torch.arange(1 - longest, longest, device=self.slopes.device).abs()]


def alibi_slopes(heads: int, max_bias: float) -> Tensor:
    """Return the slope of each head, float32 [heads], on the CPU: 2 ** (-max_bias * i / n) for a power of two n."""
    closest = 1 << (heads.bit_length() - 1)
    slopes = _geometric(closest, max_bias)
    return torch.cat((slopes, _geometric(2 * closest, max_bias)[::2]))[:heads]


def _geometric(count: int, max_bias: float) -> Tensor:
    steps = torch.arange(1, count + 1, dtype=torch.float32, device="cpu")
    return torch.pow(2.0, -max_bias / count * steps)
