"""Makes a spec with a sliding window in some layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from octavo_engine.model.spec import ModelSpec

LAYERS = ("sliding_attention", "full_attention", "sliding_attention")
"""As transformers names them."""
WINDOW = 10


def windowed(spec: ModelSpec, window: int, **changes: Any) -> ModelSpec:
    """Return `spec`, of three layers, with LAYERS and with `changes` of each one's attention."""
    windows = (window if kind == "sliding_attention" else None for kind in LAYERS)
    mixers = (replace(layer.mixer, window=own, **changes) for layer, own in zip(spec.layers, windows, strict=True))
    layers = tuple(replace(layer, mixer=mixer) for layer, mixer in zip(spec.layers, mixers, strict=True))
    return replace(spec, layers=layers)
