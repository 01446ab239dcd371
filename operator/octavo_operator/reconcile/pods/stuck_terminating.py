"""Pods that are still there long after they should have ended: their node is lost, or a finalizer holds them. Pure.

Their Deployment has others in their place already, which may wait for what they hold: a volume, or devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from octavo_operator.api.conditions import Reason
from octavo_operator.reconcile.problem import Problem, counted
from octavo_operator.reconcile.timestamps import seconds_between

_PATIENCE_SECONDS = 60.0
"""A node kills a pod at its deletionTimestamp, and removes it within moments."""
_SHOWN = 3


def stuck_terminating(pods: Iterable[Mapping[str, Any]], now: str) -> list[Problem]:
    """Return a problem for each of the pods that should have ended a while before `now` (RFC 3339), the first in full.

    A lost node may have had dozens of them.
    """
    late = [pod for pod in pods if (left := _patience_left(pod, now)) is not None and left <= 0]
    late.sort(key=lambda pod: (pod["metadata"]["deletionTimestamp"], pod["metadata"]["name"]))
    sentences = [_sentence(pod) for pod in late[:_SHOWN]]
    if (more := len(late) - _SHOWN) > 0:
        sentences.append(f"{counted(more, 'more pod', 'more pods')} should have ended by now (kubectl get pods)")
    return [Problem(Reason.POD_STUCK_TERMINATING, sentence) for sentence in sentences]


def end_patience(pods: Iterable[Mapping[str, Any]], now: str) -> list[float]:
    """Return in how many seconds pods that are ending will count as stuck, for those that do not yet."""
    left = [_patience_left(pod, now) for pod in pods]
    return [seconds for seconds in left if seconds is not None and seconds > 0]


def _patience_left(pod: Mapping[str, Any], now: str) -> float | None:
    """Return the seconds until the pod counts as stuck; None: it is not asked to end.

    `deletionTimestamp` has the grace period in it.
    """
    end = pod["metadata"].get("deletionTimestamp")
    if not end:
        return None
    return _PATIENCE_SECONDS - seconds_between(end, now)


def _sentence(pod: Mapping[str, Any]) -> str:
    metadata, node = pod["metadata"], (pod.get("spec") or {}).get("nodeName")
    name = metadata["name"]
    begin = f"pod {name} should have ended at {metadata['deletionTimestamp']}, and until it is gone its volumes "
    begin += "and devices are not free for others"
    if held := ", ".join(metadata.get("finalizers") or ()):
        return f"{begin}: {held} holds it; remove the finalizer if what set it is gone"
    return (
        f"{begin}: node {node} has not ended it, and may be lost (kubectl get node {node}); if it is gone for good, "
        f"kubectl delete pod {name} --force --grace-period=0, or kubectl delete node {node} where it is still listed"
    )
