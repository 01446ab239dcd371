"""The ServiceMonitor: which Service the Prometheus Operator has Prometheus scrape, by the metrics Service's labels."""

from __future__ import annotations

from typing import Any

from octavo_operator.api.names import METRICS, selector_of_component
from octavo_operator.api.resource import LLMService
from octavo_operator.render.monitoring import endpoint, is_monitored_by, monitoring_metadata

KIND = "ServiceMonitor"


def service_monitor(llmservice: LLMService, kinds: frozenset[str]) -> dict[str, Any] | None:
    """Return a ServiceMonitor named like the LLMService, or None where none is wanted or `kinds` lacks it."""
    if not is_monitored_by(llmservice, KIND, kinds):
        return None
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": KIND,
        "metadata": monitoring_metadata(llmservice),
        "spec": {
            "selector": {"matchLabels": selector_of_component(llmservice.name, METRICS)},
            "jobLabel": "app.kubernetes.io/name",
            "endpoints": [endpoint(llmservice, METRICS, "service")],
        },
    }
