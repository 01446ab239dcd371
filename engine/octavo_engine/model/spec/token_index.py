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
    """The most tokens that are chosen by their scores."""
    eps: float = 1e-6
    """The epsilon of the LayerNorm of keys."""
    interleaved: bool = False
    """Whether RoPE rotates neighbouring dimensions; otherwise dimension i and the one half of them later."""
    rotates_last: bool = False
    """Whether RoPE rotates the last dimensions of a head; otherwise the first."""
    pool: int = 1
    """The number of neighbouring tokens that are chosen together, by the weighted mean of their keys; the weights are
    learnt. The tokens after the last complete pool are always chosen, beside `kept` others (GLM-5.3)."""
    of_layer: int | None = None
    """The earlier layer whose choice is used; None: the layer has its own."""

    @property
    def row_size(self) -> int:
        """The numbers that are cached for a token: its key, and the logits of its weights in a pool."""
        return self.size * (1 + (self.pool > 1))

    @property
    def most(self) -> int:
        """The most tokens that a query attends to."""
        return self.kept + self.pool - 1
