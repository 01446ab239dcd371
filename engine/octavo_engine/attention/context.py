"""What a decoder layer needs to attend: everything but its own projection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from octavo_engine.attention.backend import AttentionBackend, AttentionVariant, LayerCache
from octavo_engine.attention.rotation import Rotation


@dataclass(frozen=True, slots=True)
class AttentionContext:
    """One step's attention, the same object for all layers."""

    backend: AttentionBackend
    caches: Mapping[int, LayerCache]
    """By layer index."""
    metadata: tuple[Any, ...]
    """By KV group, as `backend.prepare` gave it."""
    group_of_layer: tuple[int, ...]

    def attend(self, layer: int, heads: Tensor, rotation: Rotation, variant: AttentionVariant) -> Tensor:
        """Attention [T, H, D] of this step's fused projection [T, H + 2 K, D], which may be overwritten.

        Query and key are turned, keys and values written into the cache, then the queries attend.
        """
        cache, metadata = self.caches[layer], self.metadata[self.group_of_layer[layer]]
        query = self.backend.write(cache, heads, rotation, metadata)
        return self.backend.attend(query, cache, metadata, variant)
