"""The phases of a pod that has ended: it failed, a node evicted or refused it, or all of its containers ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ENDED_PHASES = ("Failed", "Succeeded")


def has_ended(pod: Mapping[str, Any]) -> bool:
    """Return whether no container of a pod runs any more, or ever will again; the pod itself may stay."""
    return (pod.get("status") or {}).get("phase") in ENDED_PHASES
