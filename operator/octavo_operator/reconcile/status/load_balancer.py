"""Notices Services of type LoadBalancer that get no address, as where nothing makes load balancers.

Nothing else tells: the API server accepts such a Service, and its pods serve within the cluster.
"""

from __future__ import annotations

from octavo_operator.api.conditions import Reason
from octavo_operator.api.resource import LLMService
from octavo_operator.api.value_at import value_at
from octavo_operator.reconcile.observation.observe import Key, Observation, is_terminating
from octavo_operator.reconcile.problem import Problem
from octavo_operator.reconcile.timestamps import patience_left

ADDRESS_PATIENCE_SECONDS = 180.0
"""A cloud takes a minute or two to make a load balancer."""


class MissingAddresses:
    """Remembers since when a Service has been seen without the address that it should get."""

    def __init__(self) -> None:
        self._since: dict[Key, str] = {}

    def note(self, key: Key, service: LLMService, observed: Observation, now: str) -> str:
        """Return since when its Service waits for an address (RFC 3339); empty: it has one, or needs none."""
        live = observed.children.get(("Service", service.name))
        addresses = value_at(live, list, "status", "loadBalancer", "ingress")
        waits = live is not None and not is_terminating(live) and not addresses
        if not waits or service.spec.service.type != "LoadBalancer":
            self.forget(key)
            return ""
        return self._since.setdefault(key, now)

    def forget(self, key: Key) -> None:
        """Forget an LLMService that is gone."""
        self._since.pop(key, None)


def address_problems(service: str, since: str, now: str) -> list[Problem]:
    """Return the problem of a Service that has waited for an address `since` (RFC 3339; empty: it has not)."""
    if not since or patience_left(since, now, ADDRESS_PATIENCE_SECONDS):
        return []
    return [
        Problem(
            Reason.NO_LOAD_BALANCER,
            f"Service {service} has had no address outside of the cluster since {since}, though it is of type "
            f"LoadBalancer: kubectl describe service {service} shows the events of what should give it one; in a "
            "cluster that has nothing that does, such as a cloud's controller or MetalLB, set spec.service.type to "
            "NodePort or ClusterIP. Within the cluster it is reached as usual",
        )
    ]
