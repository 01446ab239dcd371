"""Decides who sets the number of replicas: the spec itself, a HorizontalPodAutoscaler, or KEDA."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from octavo_operator.api.llmservice import LLMServiceSpec
from octavo_operator.api.resource import LLMService
from octavo_operator.render import hpa, scaledobject
from octavo_operator.render.schedules import Bounds, bounds

_OWN_NUMBERS = ("Auto", "Builtin")


def is_autoscaled(spec: LLMServiceSpec) -> bool:
    """Return True if an autoscaler sets the number of replicas. Suspension takes precedence."""
    return spec.autoscaling is not None and not spec.suspend


def uses_keda(spec: LLMServiceSpec, keda_answers: bool) -> bool:
    """Return True if KEDA scales. `Auto` means KEDA if that serves external metrics: then only KEDA can scale."""
    source = spec.autoscaling.metrics_source if spec.autoscaling else ""
    return source == "KEDA" or (source == "Auto" and keda_answers)


def is_scaled_directly(spec: LLMServiceSpec) -> bool:
    """Return True if an operator that scales by itself does so here: if the metrics source is Octavo's own."""
    return is_autoscaled(spec) and spec.autoscaling is not None and spec.autoscaling.metrics_source in _OWN_NUMBERS


def why_no_scaler(spec: LLMServiceSpec, metrics_url: str) -> str:
    """Return a sentence why there is no autoscaler though the spec asks for one; empty if there is no such problem."""
    if metrics_url or not is_autoscaled(spec) or not uses_keda(spec, keda_answers=False):
        return ""
    return (
        "KEDA needs Octavo's metrics API, and the operator knows none (--metrics-url; the chart's"
        " metricsApi.enabled): run one, or use metricsSource Prometheus"
    )


def bounds_in_force(spec: LLMServiceSpec, now: datetime | None) -> Bounds | None:
    """Return the bounds at `now` (None: outside of all schedules); None where nothing is scaled."""
    if spec.autoscaling is None or spec.suspend:
        return None
    if now is None:
        return Bounds(spec.autoscaling.min_replicas, spec.autoscaling.max_replicas)
    return bounds(spec.autoscaling, now)


def scaler(
    llmservice: LLMService, keda_answers: bool, metrics_url: str, now: datetime | None, directly: bool = False
) -> dict[str, Any] | None:
    """Return the autoscaler, or None where the spec itself says how many replicas there are, or there can be none.

    Without a `metrics_url` there is nothing that KEDA could ask, and `Auto` means a HorizontalPodAutoscaler.
    `directly`: the operator scales by itself, so that none is needed for Octavo's own numbers.
    """
    in_force = bounds_in_force(llmservice.spec, now)
    if in_force is None or why_no_scaler(llmservice.spec, metrics_url):
        return None
    if directly and is_scaled_directly(llmservice.spec):
        return None
    if uses_keda(llmservice.spec, keda_answers and bool(metrics_url)):
        return scaledobject.scaled_object(llmservice, in_force, metrics_url)
    return hpa.horizontal_pod_autoscaler(llmservice, in_force)
