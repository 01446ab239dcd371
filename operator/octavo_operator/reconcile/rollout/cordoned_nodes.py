"""Finds the nodes of running pods that are cordoned: the end of a pod there makes no room for the one in its place.

The scheduler counts such nodes in its message and does not name them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.kinds import NODE, Kind
from octavo_operator.reconcile.pods.pod_view import PodView

_CORDONED = "node(s) were unschedulable"
_FORBIDDEN = 403
_MOST = 20
"""Nodes that are asked for. Where so many pods run, the end of one is no outage."""


class NodeReader(Protocol):
    """The API calls that this file makes."""

    async def may(self, verb: str, kind: Kind, namespace: str) -> bool:
        """Return True if this operator may do so."""

    async def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        """Return the live object, or None; ApiError."""


async def cordoned_nodes(cluster: NodeReader, pods: Sequence[PodView]) -> frozenset[str]:
    """Return the cordoned nodes of `pods`, if the scheduler has found cordoned ones for a pod that waits, or if some
    pods are spared for such a node.

    Empty where the operator may not read nodes, as with Roles in some namespaces alone.
    """
    if not any(pod.is_spared or (pod.waits and _CORDONED in pod.waits.message) for pod in pods):
        return frozenset()
    names = sorted({pod.node for pod in pods if pod.node and not pod.ended})[:_MOST]
    if not names or not await cluster.may("get", NODE, ""):
        return frozenset()
    return frozenset([name for name in names if await _is_cordoned(cluster, name)])


async def _is_cordoned(cluster: NodeReader, name: str) -> bool:
    try:
        node = await cluster.get(NODE, "", name)
    except ApiError as error:
        if error.status != _FORBIDDEN:
            raise
        return False  # the API server had not answered whether the operator may
    return bool(node and (node.get("spec") or {}).get("unschedulable"))
