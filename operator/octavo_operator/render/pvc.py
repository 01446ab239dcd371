"""The PersistentVolumeClaim that keeps downloads over the life of pods."""

from __future__ import annotations

from typing import Any

from octavo_operator.api.names import cache_claim
from octavo_operator.api.resource import LLMService
from octavo_operator.render.metadata import child_metadata


def persistent_volume_claim(llmservice: LLMService) -> dict[str, Any] | None:
    """Return the cache's claim, or None if the cache is of another type."""
    cache = llmservice.spec.cache
    if cache.type != "PersistentVolumeClaim":
        return None
    spec: dict[str, Any] = {
        "accessModes": [cache.access_mode or "ReadWriteMany"],
        "resources": {"requests": {"storage": cache.size}},
    }
    if cache.storage_class_name is not None:
        spec["storageClassName"] = cache.storage_class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": child_metadata(llmservice, cache_claim(llmservice.name)),
        "spec": spec,
    }
