"""Names the HorizontalPodAutoscalers that have set a Deployment's replicas, and tells when none is left.

The managed fields name only kube-controller-manager, and no watch reports the autoscalers of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.kinds import BY_NAME, Kind

AUTOSCALER = "HorizontalPodAutoscaler"
CONTROLLER = "kube-controller-manager"
"""The manager that changes replicas for HorizontalPodAutoscalers; which of them it was is not said."""
DELETED = f"a {AUTOSCALER} that was deleted"
_FORBIDDEN = 403


class AutoscalerReader(Protocol):
    """The API calls that this file makes."""

    async def list_selected(self, kind: Kind, namespace: str, selector: str) -> Sequence[Mapping[str, Any]]:
        """Return the objects of the kind that the label selector selects; "": all of the namespace."""


async def autoscalers_of(cluster: AutoscalerReader, namespace: str, deployment: str) -> list[str] | None:
    """Return the names of what scales a Deployment; None: the operator may not list them. ApiError."""
    try:
        found = await cluster.list_selected(BY_NAME[AUTOSCALER], namespace, "")
    except ApiError as error:
        if error.status != _FORBIDDEN:
            raise
        return None
    return sorted(each["metadata"]["name"] for each in found if _scales(each, deployment))


async def who_scales(cluster: AutoscalerReader, live: Mapping[str, Any]) -> str:
    """Return in words which autoscalers have set the replicas of a live Deployment. ApiError."""
    metadata = live["metadata"]
    names = await autoscalers_of(cluster, metadata["namespace"], metadata["name"])
    return CONTROLLER if names is None else in_words(names) or DELETED


def in_words(names: Iterable[str]) -> str:
    """Return the autoscalers of these names as part of a sentence; empty: there are none."""
    return ", ".join(f"{AUTOSCALER} {name}" for name in names)


def is_autoscaler(who: str) -> bool:
    """Return True if what `who_scales` returned is an autoscaler that is still there, or may be."""
    return who == CONTROLLER or who.startswith(f"{AUTOSCALER} ")


def _scales(autoscaler: Mapping[str, Any], deployment: str) -> bool:
    target = (autoscaler.get("spec") or {}).get("scaleTargetRef") or {}
    return target.get("kind") == "Deployment" and target.get("name") == deployment
