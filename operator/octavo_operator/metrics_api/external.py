"""The shapes of external.metrics.k8s.io/v1beta1: discovery, values, refusals, label selectors. Pure.

After k8s.io/metrics/pkg/apis/external_metrics/v1beta1 and the meta/v1 kinds that every aggregated API answers with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from octavo_operator.api.names import IN_FLIGHT_METRIC, METRIC_LABEL, METRICS_API, WAITING_METRIC
from octavo_operator.metrics_api.load import Load

METRICS: Mapping[str, Callable[[Load], int]] = {
    WAITING_METRIC: lambda load: load.waiting,
    IN_FLIGHT_METRIC: lambda load: load.in_flight,
}
"""The metrics that are served, and the field of `Load` for each."""

_GROUP, _, _VERSION = METRICS_API.partition("/")
_VALUE = r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
_EQUALS = re.compile(rf"{METRIC_LABEL}\s*==?\s*(?P<name>{_VALUE})")
_AMONG = re.compile(rf"{METRIC_LABEL}\s+in\s+\((?P<names>\s*{_VALUE}(\s*,\s*{_VALUE})*\s*)\)")

Object = dict[str, Any]


class SelectorError(ValueError):
    """A label selector that is not supported; the message says which are."""


def groups() -> Object:
    """Return the answer of /apis."""
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group()]}


def group() -> Object:
    """Return the answer of /apis/external.metrics.k8s.io."""
    version = {"groupVersion": METRICS_API, "version": _VERSION}
    return {"kind": "APIGroup", "apiVersion": "v1", "name": _GROUP, "versions": [version], "preferredVersion": version}


def resources() -> Object:
    """Return the answer of /apis/external.metrics.k8s.io/v1beta1: each metric is a resource."""
    known = [
        {"name": name, "singularName": "", "namespaced": True, "kind": "ExternalMetricValueList", "verbs": ["get"]}
        for name in METRICS
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": METRICS_API, "resources": known}


def value_list(metric: str, loads: Mapping[str, Load], timestamp: str) -> Object:
    """Return the values of one metric for LLMServices by name; `timestamp` is RFC 3339."""
    items = [
        {
            "metricName": metric,
            "metricLabels": {METRIC_LABEL: name},
            "timestamp": timestamp,
            "value": str(METRICS[metric](load)),
        }
        for name, load in loads.items()
    ]
    return {"kind": "ExternalMetricValueList", "apiVersion": METRICS_API, "metadata": {}, "items": items}


def refusal(code: int, reason: str, message: str) -> Object:
    """Return a Status, as Kubernetes refuses."""
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
            "reason": reason, "code": code}  # fmt: skip


def selected(selector: str) -> list[str] | None:
    """Return the LLMServices that a label selector asks for; None: all. SelectorError for what is not understood."""
    text = selector.strip()
    if not text:
        return None
    if match := _EQUALS.fullmatch(text):
        return [match["name"]]
    if match := _AMONG.fullmatch(text):
        return sorted({name.strip() for name in match["names"].split(",")})
    raise SelectorError(
        f"the selector {selector!r} is not supported; use {METRIC_LABEL}=NAME or {METRIC_LABEL} in (NAME, NAME)"
    )
