"""Measures the time from a replica's start until it serves, on replicas that serve. Pure.

How fast replicas may be removed depends on it (`render.hpa`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from octavo_operator.reconcile.pods.engine_container import engine_status
from octavo_operator.reconcile.pods.pod_view import condition_of


def last_load_seconds(pods: Sequence[Mapping[str, Any]], startup_timeout: int, before: int | None) -> int | None:
    """Return the seconds that the pod took that became ready last; `before`, the earlier value, if no pod shows it.

    A pod that was not ready for a while does not count: it became ready again, and had loaded long before. Within its
    `startup_timeout` (seconds) a pod loads.
    """
    loads = [load for pod in pods if (load := _load(pod, startup_timeout))]
    return max(loads)[1] if loads else before


def _load(pod: Mapping[str, Any], startup_timeout: int) -> tuple[datetime, int] | None:
    """Return when the pod became ready, and after how many seconds; None if it is not ready.

    The seconds include the fetch of the model. If the container was restarted, they count from its last start.
    """
    status, ready = pod.get("status") or {}, condition_of(pod, "Ready")
    engine = engine_status(pod) or {}
    started = ((engine.get("state") or {}).get("running") or {}).get("startedAt")
    became = ready.get("lastTransitionTime")
    if ready.get("status") != "True" or not became or not started or not status.get("startTime"):
        return None
    at, since = datetime.fromisoformat(became), datetime.fromisoformat(started)
    if not 0 <= (at - since).total_seconds() <= startup_timeout:
        return None
    begin = since if engine.get("restartCount") else datetime.fromisoformat(status["startTime"])
    return at, round((at - begin).total_seconds())
