"""A spec some of whose layers see a sliding window."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from octavo_engine.model.spec import ModelSpec

LAYERS = ("sliding_attention", "full_attention", "sliding_attention")
"""As transformers names them."""
WINDOW = 10


def windowed(spec: ModelSpec, window: int, **changes: Any) -> ModelSpec:
    """`spec`, of three layers, with LAYERS."""
    (group,) = spec.kv_groups
    of_kind = {kind: tuple(i for i, name in enumerate(LAYERS) if name == kind) for kind in set(LAYERS)}
    sliding = replace(group, kind="sliding", layers=of_kind["sliding_attention"], window=window)
    return replace(spec, kv_groups=(replace(group, layers=of_kind["full_attention"]), sliding), **changes)
