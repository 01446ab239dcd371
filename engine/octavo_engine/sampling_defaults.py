"""Default values of the sampling parameters that a request may leave out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Values for the fields of `SamplingParams` that a request does not set: the model's own, or neutral ones."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
