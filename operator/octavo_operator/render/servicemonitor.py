"""The ServiceMonitor: which Service the Prometheus Operator has Prometheus scrape, by the metrics Service's labels."""

from __future__ import annotations

from typing import Any

from octavo_operator.api.names import METRICS, selector_of_component
from octavo_operator.api.resource import LLMService
from octavo_operator.render.monitoring import endpoint, monitor

KIND = "ServiceMonitor"


def service_monitor(llmservice: LLMService, kinds: frozenset[str]) -> dict[str, Any] | None:
    """Return a ServiceMonitor named like the LLMService, or None where none is wanted or `kinds` lacks it."""
    endpoints = {"endpoints": [endpoint(llmservice, METRICS, "service")]}
    return monitor(llmservice, KIND, kinds, selector_of_component(llmservice.name, METRICS), endpoints)
