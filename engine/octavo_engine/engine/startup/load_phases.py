"""The phases of loading a model, and their places on the scale from 0 to 1 that probes and metrics show."""

from __future__ import annotations

PHASES = {"sizing": (0.0, 0.02), "pulling": (0.02, 0.5), "loading": (0.5, 0.97), "warmup": (0.97, 1.0)}


def overall(phase: str, ratio: float) -> float:
    """Convert a phase's own ratio to the scale over all phases."""
    first, last = PHASES[phase]
    return first + (last - first) * min(1.0, max(0.0, ratio))


def within(phase: str, ratio: float) -> float:
    """Convert a ratio over all phases back to the phase's own ratio, 0 to 1; 0 before the phase begins."""
    first, last = PHASES.get(phase, (0.0, 1.0))
    return min(1.0, max(0.0, (ratio - first) / (last - first)))
