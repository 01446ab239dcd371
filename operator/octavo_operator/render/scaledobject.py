"""The ScaledObject: the same autoscaling where KEDA answers for external metrics.

A cluster has one server for external metrics. KEDA's asks Octavo's metrics API for the same two numbers, so that what
counts and when no number is given is decided in one place.
"""

from __future__ import annotations

from typing import Any

from octavo_operator.api.resource import LLMService
from octavo_operator.render.hpa import behavior, scale_target, target_in_flight
from octavo_operator.render.metadata import child_metadata
from octavo_operator.render.schedules import Bounds

KIND = "ScaledObject"
WAITING = "waiting"
IN_FLIGHT = "inFlight"
"""The keys of the metrics API's answer to KEDA about a service."""


def scaled_object(llmservice: LLMService, bounds: Bounds, metrics_url: str) -> dict[str, Any]:
    """Return a ScaledObject named like the LLMService, between `bounds`; `metrics_url` is Octavo's metrics API."""
    autoscaling = llmservice.spec.autoscaling
    if autoscaling is None:
        raise ValueError("no target to scale by is set")
    url = f"{metrics_url.rstrip('/')}{path(llmservice.namespace, llmservice.name)}"
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": KIND,
        "metadata": child_metadata(llmservice),
        "spec": {
            "scaleTargetRef": scale_target(llmservice),
            "minReplicaCount": bounds.floor,
            "maxReplicaCount": bounds.max_replicas,
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": behavior(llmservice)}},
            "triggers": [
                _trigger(url, WAITING, autoscaling.target_queue_depth),
                _trigger(url, IN_FLIGHT, target_in_flight(llmservice.spec)),
            ],
        },
    }


def path(namespace: str, name: str) -> str:
    """Return the path at which the metrics API has the numbers of one LLMService."""
    return f"/namespaces/{namespace}/llmservices/{name}"


def _trigger(url: str, number: str, target: int) -> dict[str, Any]:
    return {
        "type": "metrics-api",
        "name": number,
        "metricType": "AverageValue",
        "metadata": {"url": url, "format": "json", "valueLocation": number, "targetValue": str(target)},
    }
