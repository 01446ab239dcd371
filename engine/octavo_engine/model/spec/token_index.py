"""The spec of a choice of the tokens that each query attends to (DeepSeek Sparse Attention)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenIndexSpec:
    """A choice of the tokens that a query attends to, by scores of small heads (arXiv 2512.02556)."""

    num_heads: int
    size: int
    """The size of a head, and of a token's key, which all heads read."""
    kept: int
    """The most tokens that are chosen."""
    eps: float = 1e-6
    """The epsilon of the LayerNorm of keys."""
    interleaved: bool = False
    """Whether RoPE rotates neighbouring dimensions; otherwise dimension i and the one half of them later."""
    rotates_last: bool = False
    """Whether RoPE rotates the last dimensions of a head; otherwise the first."""
    of_layer: int | None = None
    """The earlier layer whose choice is used; None: the layer has its own."""
