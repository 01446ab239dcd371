"""Native sidecars: init containers that run beside the engine, as a service mesh injects them. Pure.

The next container starts once a sidecar has started. Whether it is ready then decides, as of any other container,
whether the pod is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def sidecar_statuses(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the statuses of a pod's native sidecars."""
    containers = (pod.get("spec") or {}).get("initContainers") or ()
    names = {each["name"] for each in containers if each.get("restartPolicy") == "Always" and "name" in each}
    statuses: Sequence[Mapping[str, Any]] = (pod.get("status") or {}).get("initContainerStatuses") or ()
    return [each for each in statuses if each["name"] in names]


def has_started(status: Mapping[str, Any]) -> bool:
    """Return True if a sidecar runs, and its startup probe, if it has one, has succeeded."""
    return "running" in (status.get("state") or {}) and bool(status.get("started"))
