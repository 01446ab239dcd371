"""The PodMonitor, for those who set `spec.monitoring.kind: PodMonitor`: Prometheus finds the pods without a Service."""

from __future__ import annotations

from typing import Any

from octavo_operator.api.names import selector
from octavo_operator.api.resource import LLMService
from octavo_operator.render.container import PORT_NAME
from octavo_operator.render.monitoring import endpoint, monitor

KIND = "PodMonitor"


def pod_monitor(llmservice: LLMService, kinds: frozenset[str]) -> dict[str, Any] | None:
    """Return a PodMonitor named like the LLMService, or None where none is wanted or `kinds` lacks it."""
    endpoints = {"podMetricsEndpoints": [endpoint(llmservice, PORT_NAME, "pod")]}
    return monitor(llmservice, KIND, kinds, selector(llmservice.name), endpoints)
