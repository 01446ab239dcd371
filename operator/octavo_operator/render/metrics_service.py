"""The headless Service by which Prometheus finds the pods, also while they load and drain.

A pod's figures count from its start to its end. The Service for requests leads to ready pods only; this one publishes
all addresses. No client connects to its name.
"""

from __future__ import annotations

from typing import Any

from octavo_operator.api.names import COMPONENT_LABEL, METRICS, metrics_service_name, selector
from octavo_operator.api.resource import LLMService
from octavo_operator.render.container import PORT, PORT_NAME
from octavo_operator.render.metadata import child_metadata
from octavo_operator.render.monitoring import is_monitored_by
from octavo_operator.render.servicemonitor import KIND as SERVICE_MONITOR


def metrics_service(llmservice: LLMService, kinds: frozenset[str]) -> dict[str, Any] | None:
    """Return a Service named `<name>-metrics`, or None where no ServiceMonitor is made."""
    if not is_monitored_by(llmservice, SERVICE_MONITOR, kinds):
        return None
    metadata = child_metadata(llmservice, metrics_service_name(llmservice.name))
    metadata["labels"] = {**metadata["labels"], COMPONENT_LABEL: METRICS}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": selector(llmservice.name),
            "ports": [{"name": METRICS, "port": PORT, "protocol": "TCP", "targetPort": PORT_NAME}],
        },
    }
