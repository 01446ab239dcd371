"""Finds the ready pods that the Service's EndpointSlices contain, so that clients reach them. Pure.

A ready pod gets no requests if the Service selects other pods, or forwards to another port.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from octavo_operator.api.conditions import ConditionType, Reason
from octavo_operator.api.names import SERVICE_LABEL, selector
from octavo_operator.reconcile.pods.pod_view import PodView
from octavo_operator.render.container import PORT_NAME

_SETTLE_SECONDS = 10.0  # the controller of EndpointSlices is quicker, also on a busy cluster


def summary_of_slice(endpoint_slice: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of an EndpointSlice to keep: the names of its ready pods, and the engine's port, if any.

    An endpoint that does not say whether it is ready is, by Kubernetes' API.
    """
    pods = [
        name
        for endpoint in endpoint_slice.get("endpoints") or ()
        if (endpoint.get("conditions") or {}).get("ready") is not False
        and (name := (endpoint.get("targetRef") or {}).get("name"))
    ]
    ports = [port.get("port") for port in endpoint_slice.get("ports") or () if port.get("name") == PORT_NAME]
    return {"pods": pods, "port": next(iter(ports), None)}


def reachable_pods(slices: Iterable[Mapping[str, Any]], pods: Iterable[PodView]) -> list[PodView]:
    """Return the ready pods to which one of the `slices`, as `summary_of_slice` leaves them, leads."""
    found = {(pod, each["port"]) for each in slices for pod in each["pods"]}
    return [pod for pod in pods if pod.ready and (pod.name, pod.port) in found]


def settling_seconds(pods: Iterable[PodView], status: Mapping[str, Any], now: str) -> float:
    """Return the seconds from `now` (RFC 3339) for which ready `pods` without an EndpointSlice are still usual.

    They are for a moment after pods have become ready, and after the Service or its EndpointSlices were created again
    because another client had deleted them: Ready in the LLMService's last `status` says since when none is reached.
    """
    ready = [datetime.fromisoformat(pod.ready_since) for pod in pods if pod.ready and pod.ready_since]
    if not ready:
        return 0.0
    since, moment = min(ready), datetime.fromisoformat(now)
    for known in status.get("conditions") or ():
        if known["type"] == ConditionType.READY and known["status"] == "True":
            since = moment
        elif known["type"] == ConditionType.READY and known["reason"] == Reason.DEPLOYING:
            since = max(since, datetime.fromisoformat(known["lastTransitionTime"]))
    return max(0.0, _SETTLE_SECONDS - (moment - since).total_seconds())


def foreign_route(service: Mapping[str, Any], name: str) -> str:
    """Return what the `service` (as `trimmed` leaves it) of the LLMService `name` has that others have set, in words.

    Empty: it routes as the operator has applied it.
    """
    spec = service.get("spec") or {}
    if service and (label := (service["metadata"].get("labels") or {}).get(SERVICE_LABEL)) != name:
        return f"its label {SERVICE_LABEL}, by which its EndpointSlices are known, is {label or 'missing'}"
    selects, ports = spec.get("selector") or {}, spec.get("ports") or ()
    targets = [port.get("targetPort") for port in ports if port.get("name") == PORT_NAME]
    if service and selects != selector(name):
        return "its selector is " + (", ".join(f"{label}={value}" for label, value in selects.items()) or "empty")
    if service and targets != [PORT_NAME]:
        return f"its port {PORT_NAME} leads to {targets[0]}" if targets else f"it has no port {PORT_NAME}"
    return ""
