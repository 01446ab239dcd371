"""Whether a rollout can go on. Pure; falling back from surge to in-place will be decided here too."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_operator.api.conditions import Reason
from octavo_operator.reconcile.pods import Finding, PodView


def blocked(pods: Sequence[PodView]) -> Finding | None:
    """The surge pod that waits for a GPU held by the pods that it is to replace, if there is one."""
    serving = {pod.revision for pod in pods if pod.ready}
    for pod in pods:
        if pod.waits and pod.waits.reason == Reason.WAITING_FOR_GPU and serving - {pod.revision}:
            message = f"{pod.waits.message}; free a GPU, or set rollout.strategy to InPlace to stop old pods first"
            return Finding(Reason.NO_GPU_FOR_SURGE, message)
    return None
