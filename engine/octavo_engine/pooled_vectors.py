"""Vectors that stand for texts: from the engine's bytes to numbers, cut and brought to length 1."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]
_LITTLE_ENDIAN = np.dtype("<f4")


def to_vector(pooled: bytes, dimensions: int | None = None, *, normalize: bool) -> Vector:
    """The first `dimensions` numbers, all for None; divided by their length where `normalize` says so."""
    vector = np.frombuffer(pooled, np.float32)[:dimensions]
    if not normalize:
        return vector
    length = float(np.linalg.norm(vector.astype(np.float64)))
    return (vector / max(length, 1e-12)).astype(np.float32)


def probabilities(pooled: bytes, activation: str) -> Vector:
    """Apply an activation to a model's logits: `softmax`, `sigmoid` of each, or `identity`, which leaves them."""
    logits = np.frombuffer(pooled, np.float32)
    if activation == "identity":
        return logits
    wide = logits.astype(np.float64)
    if activation == "sigmoid":
        return (0.5 * (1 + np.tanh(wide / 2))).astype(np.float32)  # which cannot overflow
    powers = np.exp(wide - wide.max())
    shares: Vector = (powers / powers.sum()).astype(np.float32)
    return shares


def to_bytes(vector: Vector) -> bytes:
    """Little-endian float32, as OpenAI's API encodes them."""
    return vector.astype(_LITTLE_ENDIAN).tobytes()


def similarity(first: Vector, second: Vector) -> float:
    """The cosine of the angle between two vectors of length 1."""
    return float(np.dot(first.astype(np.float64), second.astype(np.float64)))
