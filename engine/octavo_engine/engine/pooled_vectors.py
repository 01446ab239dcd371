"""Arithmetic on pooled vectors: from the engine's bytes to embeddings, probabilities and similarities."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]
_LITTLE_ENDIAN = np.dtype("<f4")


def to_vector(pooled: bytes, dimensions: int | None = None, *, normalize: bool) -> Vector:
    """Return the first `dimensions` numbers of an embedding (None: all), normalized to length 1 for `normalize`."""
    vector = np.frombuffer(pooled, np.float32)[:dimensions]
    if not normalize:
        return vector
    length = float(np.linalg.norm(vector.astype(np.float64)))
    return (vector / max(length, 1e-12)).astype(np.float32)


def probabilities(pooled: bytes, activation: str) -> Vector:
    """Apply an activation to a model's logits: `softmax` over all, `sigmoid` of each, or `identity` (no change)."""
    logits = np.frombuffer(pooled, np.float32)
    if activation == "identity":
        return logits
    wide = logits.astype(np.float64)
    if activation == "sigmoid":
        return (0.5 * (1 + np.tanh(wide / 2))).astype(np.float32)  # equals sigmoid, and cannot overflow
    powers = np.exp(wide - wide.max())
    shares: Vector = (powers / powers.sum()).astype(np.float32)
    return shares


def to_bytes(vector: Vector) -> bytes:
    """Return the vector as little-endian float32, the encoding of OpenAI's API."""
    return vector.astype(_LITTLE_ENDIAN).tobytes()


def similarity(first: Vector, second: Vector) -> float:
    """Return the cosine similarity of two vectors of length 1."""
    return float(np.dot(first.astype(np.float64), second.astype(np.float64)))
