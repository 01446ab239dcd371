"""The HorizontalPodAutoscaler: replicas follow the requests that wait and those in flight.

Both are External metrics with a target per replica (AverageValue): wanted = ceil(sum / target), whatever share of the
replicas is ready. A replica that loads for minutes neither dilutes nor multiplies the load, and the queue of one that
drains still counts. The queue alone would swing: it is empty as soon as there are enough replicas.
"""

from __future__ import annotations

from typing import Any

from octavo_operator.api.llmservice import LLMServiceSpec
from octavo_operator.api.names import IN_FLIGHT_METRIC, METRIC_LABEL, WAITING_METRIC
from octavo_operator.api.resource import LLMService
from octavo_operator.api.value_at import value_at
from octavo_operator.render.metadata import child_metadata
from octavo_operator.render.schedules import Bounds

KIND = "HorizontalPodAutoscaler"
_QUICK_LOAD_SECONDS = 60
_MOST_REPLICAS = 1000  # as many as an LLMService can have
_SHRINK_AFTER_SECONDS = 600  # until a load was measured
_SHRINK_AFTER_AT_LEAST = 300
_SHRINK_AFTER_AT_MOST = 3600  # the most that autoscaling/v2 takes
_LOADS = 3  # a replica that is given up must not be missed before it could have been loaded three times


def horizontal_pod_autoscaler(llmservice: LLMService, bounds: Bounds) -> dict[str, Any]:
    """Return an autoscaler named like the LLMService, between `bounds`."""
    autoscaling = llmservice.spec.autoscaling
    if autoscaling is None:
        raise ValueError("no target to scale by is set")
    return {
        "apiVersion": "autoscaling/v2",
        "kind": KIND,
        "metadata": child_metadata(llmservice),
        "spec": {
            "scaleTargetRef": scale_target(llmservice),
            "minReplicas": bounds.floor,
            "maxReplicas": bounds.max_replicas,
            "metrics": [
                _metric(llmservice, WAITING_METRIC, autoscaling.target_queue_depth),
                _metric(llmservice, IN_FLIGHT_METRIC, target_in_flight(llmservice.spec)),
            ],
            "behavior": behavior(llmservice),
        },
    }


def _metric(llmservice: LLMService, name: str, target: int) -> dict[str, Any]:
    return {
        "type": "External",
        "external": {
            "metric": {"name": name, "selector": {"matchLabels": {METRIC_LABEL: llmservice.name}}},
            "target": {"type": "AverageValue", "averageValue": str(target)},
        },
    }


def scale_target(llmservice: LLMService) -> dict[str, str]:
    """Return the Deployment, as autoscalers name it."""
    return {"apiVersion": "apps/v1", "kind": "Deployment", "name": llmservice.name}


def target_in_flight(spec: LLMServiceSpec) -> int:
    """Return the requests per replica, running and waiting, to aim for."""
    percent = spec.autoscaling.target_concurrency_percent if spec.autoscaling else 100
    return max(1, spec.engine.max_concurrent_requests * percent // 100)


def behavior(llmservice: LLMService) -> dict[str, Any]:
    """Return how fast to scale: the spec's fields over defaults that depend on how long replicas take to load."""
    quick = loads_quickly(llmservice)
    careful = [_policy("Pods", 1, 60), _policy("Percent", 100, 120)]
    up: dict[str, Any] = {
        "stabilizationWindowSeconds": 0 if quick else 30,
        "selectPolicy": "Max",
        "policies": [_policy("Pods", _MOST_REPLICAS, 15)] if quick else careful,
    }
    down: dict[str, Any] = {
        "stabilizationWindowSeconds": shrink_after_seconds(llmservice),
        "selectPolicy": "Min",
        "policies": [_policy("Pods", 1, 120)],
    }
    given = llmservice.spec.autoscaling.behavior if llmservice.spec.autoscaling else None
    if given and given.scale_up:
        up |= given.scale_up.as_object()
    if given and given.scale_down:
        down |= given.scale_down.as_object()
    return {"scaleUp": up, "scaleDown": down}


def _policy(kind: str, value: int, period_seconds: int) -> dict[str, Any]:
    return {"type": kind, "value": value, "periodSeconds": period_seconds}


def loads_quickly(llmservice: LLMService) -> bool:
    """Return True if a replica serves so soon after its start that all lacking ones are added at once.

    Replicas that take minutes may serve when the queue that asked for them is gone: of those fewer are added, and
    later.
    """
    seconds = load_seconds(llmservice)
    return seconds is not None and seconds <= _QUICK_LOAD_SECONDS


def load_seconds(llmservice: LLMService) -> int | None:
    """Return how long the last replica took from its start until it served; None: not known yet."""
    return value_at(llmservice.status, int, "loading", "lastLoadSeconds")


def shrink_after_seconds(llmservice: LLMService) -> int:
    """Return for how long fewer replicas must have been enough: several loads, in whole minutes.

    Whole minutes keep the manifest stable while loads vary a little.
    """
    seconds = load_seconds(llmservice)
    if seconds is None:
        return _SHRINK_AFTER_SECONDS
    minutes = -(-_LOADS * seconds // 60)
    return min(_SHRINK_AFTER_AT_MOST, max(_SHRINK_AFTER_AT_LEAST, 60 * minutes))
