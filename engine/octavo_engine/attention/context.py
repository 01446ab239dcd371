"""What a decoder layer needs to attend: everything but its queries, keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from octavo_engine.attention.backend import AttentionBackend, AttentionVariant, LayerCache


@dataclass(frozen=True, slots=True)
class AttentionContext:
    """One step's attention, the same object for all layers."""

    backend: AttentionBackend
    caches: Mapping[int, LayerCache]
    """By layer index."""
    metadata: tuple[Any, ...]
    """By KV group, as `backend.prepare` gave it."""
    group_of_layer: tuple[int, ...]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, variant: AttentionVariant) -> Tensor:
        """Write [T, K, D] keys and values of this step, then attend with queries [T, H, D]; [T, H, D]."""
        cache, metadata = self.caches[layer], self.metadata[self.group_of_layer[layer]]
        self.backend.write(cache, key, value, metadata)
        return self.backend.attend(query, cache, metadata, variant)
