"""The PodMonitor: which pods the Prometheus Operator has Prometheus scrape.

Of pods and not of a Service, since a pod's figures count from its start to its end: while it loads and while it drains
it is in no Service.
"""

from __future__ import annotations

from typing import Any

from octavo_operator.api.names import SERVICE_LABEL, selector
from octavo_operator.api.resource import LLMService
from octavo_operator.render.container import PORT_NAME
from octavo_operator.render.metadata import child_metadata

KIND = "PodMonitor"
LABEL = "llmservice"
"""The label of each series that names its LLMService."""


def pod_monitor(llmservice: LLMService, kinds: frozenset[str]) -> dict[str, Any] | None:
    """A PodMonitor named like the LLMService, or None where none is wanted or `kinds` lacks it."""
    if not is_wanted(llmservice, KIND, kinds):
        return None
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": KIND,
        "metadata": monitoring_metadata(llmservice),
        "spec": {
            "selector": {"matchLabels": selector(llmservice.name)},
            "jobLabel": "app.kubernetes.io/name",
            "podMetricsEndpoints": [
                {
                    "port": PORT_NAME,
                    "path": "/metrics",
                    "interval": llmservice.spec.monitoring.interval,
                    "relabelings": [{"sourceLabels": [_POD_LABEL], "targetLabel": LABEL}],
                }
            ],
        },
    }


_POD_LABEL = "__meta_kubernetes_pod_label_" + "".join(c if c.isalnum() else "_" for c in SERVICE_LABEL)


def is_wanted(llmservice: LLMService, kind: str, kinds: frozenset[str]) -> bool:
    """Whether spec.monitoring asks for `kind` where the cluster has the optional `kinds`."""
    enabled = llmservice.spec.monitoring.enabled
    return enabled == "Always" or (enabled == "Auto" and kind in kinds)


def monitoring_metadata(llmservice: LLMService) -> dict[str, Any]:
    """A child's metadata with the labels by which the user's Prometheus selects."""
    metadata = child_metadata(llmservice)
    return {**metadata, "labels": {**llmservice.spec.monitoring.labels, **metadata["labels"]}}
