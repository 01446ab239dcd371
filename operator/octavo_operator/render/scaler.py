"""Who sets the number of replicas: the spec itself, a HorizontalPodAutoscaler, or KEDA."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from octavo_operator.api.llmservice import LLMServiceSpec
from octavo_operator.api.resource import LLMService
from octavo_operator.render import hpa, scaledobject
from octavo_operator.render.schedules import Bounds, bounds


def is_autoscaled(spec: LLMServiceSpec) -> bool:
    """Whether the number of replicas is an autoscaler's. Suspension wins over it."""
    return spec.autoscaling is not None and not spec.suspend


def uses_keda(spec: LLMServiceSpec, kinds: frozenset[str]) -> bool:
    """Whether KEDA scales; `Auto` leaves it to KEDA where the cluster has it, as nobody else can answer there."""
    source = spec.autoscaling.metrics_source if spec.autoscaling else ""
    return source == "KEDA" or (source == "Auto" and scaledobject.KIND in kinds)


def bounds_in_force(spec: LLMServiceSpec, now: datetime | None) -> Bounds | None:
    """The bounds at `now` (None: outside of all schedules); None where nothing is scaled."""
    if spec.autoscaling is None or spec.suspend:
        return None
    if now is None:
        return Bounds(spec.autoscaling.min_replicas, spec.autoscaling.max_replicas)
    return bounds(spec.autoscaling, now)


def scaler(
    llmservice: LLMService, kinds: frozenset[str], metrics_url: str, now: datetime | None
) -> dict[str, Any] | None:
    """The autoscaler, or None where the spec itself says how many replicas there are."""
    in_force = bounds_in_force(llmservice.spec, now)
    if in_force is None:
        return None
    if uses_keda(llmservice.spec, kinds):
        return scaledobject.scaled_object(llmservice, in_force, metrics_url)
    return hpa.horizontal_pod_autoscaler(llmservice, in_force)
