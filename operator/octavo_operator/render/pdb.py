"""The PodDisruptionBudget: what a node's drain may take away at the same time."""

from __future__ import annotations

from typing import Any

from octavo_operator.api.names import selector
from octavo_operator.api.resource import LLMService
from octavo_operator.render.metadata import child_metadata


def pod_disruption_budget(llmservice: LLMService) -> dict[str, Any] | None:
    """Return a budget named like the LLMService, or None where `disruption` is null."""
    disruption = llmservice.spec.disruption
    if disruption is None:
        return None
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": child_metadata(llmservice),
        "spec": {
            "maxUnavailable": disruption.max_unavailable,
            # By default a pod that crashes or loads could not be evicted while others do, and no node be drained.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": selector(llmservice.name)},
        },
    }
