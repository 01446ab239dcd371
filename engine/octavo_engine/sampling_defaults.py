"""The sampling parameters of requests that do not say: the model's own, or neutral ones."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Defaults of the SamplingParams that a request leaves open: the model's own, or neutral."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
