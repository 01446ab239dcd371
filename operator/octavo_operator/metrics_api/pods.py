"""Selects the pods that are asked for their metrics: only those of LLMServices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo_operator.api.names import SERVICE_LABEL, is_engine_pod, other_controller
from octavo_operator.reconcile.api_requests.cluster import Cluster
from octavo_operator.reconcile.kinds import POD
from octavo_operator.reconcile.pods.engine_container import running_engine
from octavo_operator.reconcile.pods.pod_phase import ENDED_PHASES
from octavo_operator.reconcile.pods.pod_view import condition_of
from octavo_operator.reconcile.pods.unready import is_on_lost_node
from octavo_operator.render.container import PORT

_NOT_ENDED = ",".join(f"status.phase!={phase}" for phase in ENDED_PHASES)
"""A node with a broken device refuses pods by the thousand; these stay, and would be listed every second."""


@dataclass(frozen=True)
class EnginePod:
    """One pod of an LLMService."""

    uid: str
    name: str
    service: str
    """The name of its LLMService."""
    url: str
    """The URL of its metrics."""
    ready: bool
    """Whether it takes requests: then it must answer when it is asked for its load."""
    ending: bool = False
    """Whether it was deleted and ends once it has answered its requests, or its node is lost, and they with it."""


async def list_engine_pods(cluster: Cluster, namespace: str) -> Sequence[EnginePod]:
    """Return the pods of all LLMServices in a namespace in which an engine runs; ApiError: they cannot be listed."""
    pods = await cluster.list_selected(POD, namespace, fields=_NOT_ENDED)
    return [found for pod in pods if (found := engine_pod(pod))]


def engine_pod(pod: Mapping[str, Any]) -> EnginePod | None:
    """Return the pod, or None if it is another workload's, or no engine runs in it (any more): nothing waits there."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    labels, address = metadata.get("labels") or {}, status.get("podIP")
    if not is_engine_pod(labels) or other_controller(metadata) or not address or not running_engine(pod):
        return None
    host = f"[{address}]" if ":" in address else address
    ready, containers = condition_of(pod, "Ready"), condition_of(pod, "ContainersReady")
    return EnginePod(
        metadata["uid"],
        metadata["name"],
        labels[SERVICE_LABEL],
        f"http://{host}:{PORT}/metrics",
        ready.get("status") == "True",
        bool(metadata.get("deletionTimestamp")) or is_on_lost_node(ready, containers),
    )
