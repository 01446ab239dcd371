"""Residual streams of several vectors for each token (hyper-connections, arXiv 2409.19606).

Mixer and feed-forward (`a part of a layer`) each read one vector that is computed from all vectors of a token, and add
their result to all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo_engine.model.spec.norms import NormSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedConnectionsSpec:
    """A part reads the weighted sum of a token's vectors, and its result is added to each, times another weight (Hy4).

    All weights are sigmoids of one projection of all vectors, which is divided by their root mean square; in float32.
    """

    count: int
    """The number of vectors of each token."""
    eps: float
    """The epsilon of the root mean square."""
    weight_offset: float
    """A number that is added to each weight."""
    magnitude: float
    """A factor of the sigmoids that results are multiplied with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedConnectionsSpec:
    """A part reads the mean of a token's vectors, each normalised by itself and multiplied with gates (Qwen4 Exp).

    There is a gate for each number, made of all vectors by two projections. The result is added to each vector, times a
    weight between 0 and 2. After the last layer such a mean is what the head reads, without a norm.
    """

    count: int
    """The number of vectors of each token."""
    rank: int
    """The numbers between the two projections."""
    norm: NormSpec
    """The norm of each vector, which has weights of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedConnectionsSpec:
    """A part reads the weighted sum of a token's vectors; its result, weighted, is added to mixtures of them.

    All weights are made of one projection of all vectors, which are divided by their root mean square; in float32. The
    weights of mixtures are divided by the sums of rows and of columns in turn, so that both become 1
    (manifold-constrained hyper-connections, arXiv 2512.24880; DeepSeek V4, GLM-5.3).
    """

    count: int
    """The number of vectors of each token."""
    norm_eps: float
    """The epsilon of the root mean square."""
    iterations: int
    """How often columns are divided by their sums, and one time less rows."""
    eps: float
    """A number that is added to weights and to sums."""
    ends_in_mean: bool = False
    """Whether the head reads the mean of a token's vectors, not a weighted sum (GLM-5.3)."""


ConnectionsSpec = WeightedConnectionsSpec | GatedConnectionsSpec | MixedConnectionsSpec
