"""Finds the nodes of running pods that are cordoned: the end of a pod there makes no room for the one in its place.

The scheduler counts such nodes in its message and does not name them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from octavo_operator.reconcile.kinds import NODE, Kind
from octavo_operator.reconcile.pods.pod_view import PodView

_CORDONED = "node(s) were unschedulable"
_MOST = 20
"""Nodes that are asked for. Where so many pods run, the end of one is no outage."""


class NodeReader(Protocol):
    """The API calls that this file makes."""

    async def may(self, verb: str, kind: Kind, namespace: str) -> bool:
        """Return True if this operator may do so."""

    async def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        """Return the live object, or None."""


async def cordoned_nodes(cluster: NodeReader, pods: Sequence[PodView]) -> frozenset[str]:
    """Return the cordoned nodes of `pods`, if one of these waits and the scheduler has found cordoned nodes.

    Empty where the operator may not read nodes, as with Roles in some namespaces alone.
    """
    if not any(pod.waits and _CORDONED in pod.waits.message for pod in pods):
        return frozenset()
    names = sorted({pod.node for pod in pods if pod.node and not pod.ended})[:_MOST]
    if not names or not await cluster.may("get", NODE, ""):
        return frozenset()
    found = {name: await cluster.get(NODE, "", name) for name in names}
    return frozenset(name for name, node in found.items() if node and (node.get("spec") or {}).get("unschedulable"))
