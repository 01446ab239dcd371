"""The metadata that all children share."""

from __future__ import annotations

from typing import Any

from octavo_operator.api.names import API_VERSION, KIND, labels
from octavo_operator.api.resource import LLMService


def child_metadata(llmservice: LLMService, name: str | None = None) -> dict[str, Any]:
    """Return name, namespace, labels and, if the LLMService is in a cluster, its owner, with which it is deleted."""
    metadata: dict[str, Any] = {
        "name": name or llmservice.name,
        "namespace": llmservice.namespace,
        "labels": labels(llmservice.name),
    }
    if llmservice.metadata.uid:
        metadata["ownerReferences"] = [
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": llmservice.name,
                "uid": llmservice.metadata.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]
    return metadata
