"""Activations in FP8, as kernels pass them to a linear that multiplies in 8 bits. Needs no Triton."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Scaling:
    """The scaling that a linear needs of its input [T, N] in e4m3."""

    group: int | None = None
    """The number of columns of a token that share a scale, a power of two that divides N; None: all of them."""
    given: Tensor | None = None
    """The one scale of all tokens, float32 [1]; None: such that the largest of what shares a scale becomes 448."""


@dataclass(frozen=True, slots=True)
class Quantized:
    """Activations are values times scales."""

    values: Tensor
    """float8_e4m3fn [T, N]."""
    scales: Tensor
    """float32 [T, N / group]."""
