"""Resources that a pod requests, and nodes that it may use: whether the end of one pod makes room for another. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from octavo_operator.api.quantity import parse_quantity

Amounts = Mapping[str, Decimal]
"""Amounts of resources by their names: cores, bytes, devices."""

_KEPT = (
    "nodeSelector",
    "affinity",
    "tolerations",
    "resourceClaims",
    "overhead",
    "schedulingGates",
    "nodeName",
    "schedulerName",
)
_CONTAINERS = ("containers", "initContainers")


@dataclass(frozen=True)
class Placement:
    """The resources that a pod takes (`requests`, `claims`) of a node, up to `limits`, and its demands on the node."""

    requests: Amounts = field(default_factory=dict)
    limits: Amounts = field(default_factory=dict)
    claims: Sequence[Any] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    node_affinity: Any = None
    tolerations: Sequence[Any] = ()

    def makes_room_for(self, other: Placement, lacking: frozenset[str]) -> bool:
        """Return True if a pod that lacks these resources surely finds them on this pod's node once this one has ended.

        The scheduler names all that a node lacks: what it does not name, this one's node has already. Whether it is
        cordoned by now is not known here (`cordoned_nodes`).
        """
        return (
            other.node_selector.items() <= self.node_selector.items()
            and other.node_affinity in (None, self.node_affinity)
            and all(each in other.tolerations for each in self.tolerations)
            and other.claims == self.claims
            and all(self._amount(name) >= other._amount(name) for name in lacking)
        )

    def holds(self, quota: Amounts) -> bool:
        """Return True if the end of this pod surely frees these amounts, named as in a ResourceQuota."""
        return bool(quota) and all(self.of_quota(name) >= amount for name, amount in quota.items())

    def of_quota(self, name: str) -> Decimal:
        """Return how much the pod takes of a resource that is named as in a ResourceQuota."""
        if name in ("pods", "count/pods"):
            return Decimal(1)
        kind, _, resource = name.partition(".")
        if kind == "limits":
            return self.limits.get(resource, Decimal(0))
        return self._amount(resource if kind == "requests" else name)

    def _amount(self, resource: str) -> Decimal:
        return self.requests.get(resource, Decimal(0))


def placement_of(spec: Mapping[str, Any]) -> Placement:
    """Return the place of a pod with this spec, whole or as `kept_spec` leaves it."""
    node_affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    return Placement(
        requests=_taken(spec, "requests"),
        limits=_taken(spec, "limits"),
        claims=spec.get("resourceClaims") or (),
        node_selector=spec.get("nodeSelector") or {},
        node_affinity=node_affinity,
        tolerations=spec.get("tolerations") or (),
    )


def kept_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a pod's spec to keep: what `placement_of` reads, scheduler, node, and names and ports."""
    kept: dict[str, Any] = {name: spec[name] for name in _KEPT if name in spec}
    for name in _CONTAINERS:
        if name in spec:
            kept[name] = [
                {field: each[field] for field in ("name", "resources", "restartPolicy", "ports") if field in each}
                for each in spec[name]
            ]
    return kept


def lacking(message: str) -> frozenset[str]:
    """Return the resources that are insufficient on some node, in the scheduler's words."""
    return frozenset(name.rstrip(".") for name in re.findall(r"Insufficient ([\w./-]+)", message))


def _taken(spec: Mapping[str, Any], field: str) -> Amounts:
    """Return the pod's requests or limits as the scheduler and quotas count them.

    Containers and sidecars run together, each init container beside earlier sidecars. A missing request is set to the
    limit by the API server, in pods but not in the pod template of a Deployment.
    """
    running: dict[str, Decimal] = {}
    peak: dict[str, Decimal] = {}
    for container in spec.get("initContainers") or ():
        amounts = _of_container(container, field)
        if container.get("restartPolicy") == "Always":
            running = _sum(running, amounts)
        else:
            peak = _most(peak, _sum(running, amounts))
    for container in spec.get("containers") or ():
        running = _sum(running, _of_container(container, field))
    return _sum(_most(peak, running), _amounts(spec.get("overhead")))


def _of_container(container: Mapping[str, Any], field: str) -> Amounts:
    """Return a container's limits, or its requests, which are its limits where they are missing."""
    resources = container.get("resources") or {}
    limits = _amounts(resources.get("limits"))
    return limits if field == "limits" else {**limits, **_amounts(resources.get("requests"))}


def _amounts(quantities: Mapping[str, str] | None) -> Amounts:
    return {name: parse_quantity(quantity) for name, quantity in (quantities or {}).items()}


def _sum(one: Amounts, other: Amounts) -> dict[str, Decimal]:
    return {name: one.get(name, Decimal(0)) + other.get(name, Decimal(0)) for name in one.keys() | other.keys()}


def _most(one: Amounts, other: Amounts) -> dict[str, Decimal]:
    return {name: max(one.get(name, Decimal(0)), other.get(name, Decimal(0))) for name in one.keys() | other.keys()}
