"""The NetworkPolicy in front of the engine's pods, where the spec says who may reach them."""

from __future__ import annotations

from typing import Any

from octavo_operator.api.names import selector
from octavo_operator.api.resource import LLMService
from octavo_operator.render.container import PORT
from octavo_operator.render.metadata import child_metadata

_OWN_PODS = ("octavo-operator", "octavo-metrics-api")


def network_policy(llmservice: LLMService, operator_namespace: str) -> dict[str, Any] | None:
    """Return a policy named like the LLMService, or None where the spec has no `networkPolicy`.

    Beside the spec's peers only Octavo's own pods come in: they ask how far loading is and how long queues are.
    """
    wanted = llmservice.spec.network_policy
    if wanted is None:
        return None
    own = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": operator_namespace}},
        "podSelector": {
            "matchExpressions": [{"key": "app.kubernetes.io/name", "operator": "In", "values": list(_OWN_PODS)}]
        },
    }
    ingress = {
        "from": [*(peer.as_object() for peer in wanted.peers), own],
        "ports": [{"port": PORT, "protocol": "TCP"}],
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": child_metadata(llmservice),
        "spec": {
            "podSelector": {"matchLabels": selector(llmservice.name)},
            "policyTypes": ["Ingress"],
            "ingress": [ingress],
        },
    }
