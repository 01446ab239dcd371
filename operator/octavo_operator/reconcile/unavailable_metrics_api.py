"""Deletes the APIService of external metrics while Octavo's metrics API does not answer.

A cluster has one APIService for external metrics. While its server is unavailable, API discovery fails, and with it the
deletion of every namespace in the cluster. The metrics API creates it again when it starts, or later
(`metrics_api.registration`). An APIService without a Service would not do: discovery goes on to count it as stale.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Protocol
from urllib.parse import urlsplit

from octavo_operator.api.names import METRICS_API_NAME, METRICS_API_SERVICE
from octavo_operator.reconcile.api_requests.api_error import ApiError, NotLeadingError
from octavo_operator.reconcile.kinds import API_SERVICE, Kind
from octavo_operator.reconcile.pods.pod_view import condition_of

logger = logging.getLogger(__name__)

POLL_SECONDS = 10.0
UNAVAILABLE_SECONDS = 30.0
"""A rollout of the metrics API, or a node that ends, takes less: it has two replicas."""


class Deleter(Protocol):
    """The API calls that this file makes."""

    async def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        """Return the live object, or None."""

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Delete the object of that uid."""


async def watch_metrics_api(cluster: Deleter, metrics_url: str, clock: Callable[[], str]) -> None:
    """Check again and again, until the task is cancelled. `clock`: the API server's (RFC 3339), as the condition's."""
    while True:
        await asyncio.sleep(POLL_SECONDS)
        try:
            await delete_if_unavailable(cluster, metrics_url, datetime.fromisoformat(clock()))
        except (ApiError, NotLeadingError) as error:
            logger.warning("cannot read whether the metrics API is available: %s", error)


async def delete_if_unavailable(cluster: Deleter, metrics_url: str, now: datetime) -> bool:
    """Delete the APIService if the server at `metrics_url` has been unavailable for too long; True if deleted."""
    live = await cluster.get(API_SERVICE, "", METRICS_API_SERVICE)
    if live is None or not _is_unavailable(live, metrics_url, now):
        return False
    await cluster.delete(API_SERVICE, "", METRICS_API_SERVICE, live["metadata"]["uid"])
    logger.warning(
        "deleted APIService %s, because Octavo's metrics API has not answered for more than %.0f s, and meanwhile no "
        "namespace of the cluster could be deleted. The metrics API creates it again as soon as it runs; until then "
        "autoscalers leave the numbers of replicas as they are. To see why it does not run: kubectl describe pods "
        "--selector app.kubernetes.io/name=%s --namespace %s",
        *(METRICS_API_SERVICE, UNAVAILABLE_SECONDS, METRICS_API_NAME, live["spec"]["service"]["namespace"]),
    )
    return True


def _is_unavailable(live: Mapping[str, Any], metrics_url: str, now: datetime) -> bool:
    service, available = live["spec"].get("service") or {}, condition_of(live, "Available")
    ours = (urlsplit(metrics_url).hostname or "").split(".")[:2] == [service.get("name"), service.get("namespace")]
    since = available.get("lastTransitionTime")
    if not ours or available.get("status") != "False" or not since:  # its server may not have written that yet
        return False
    return (now - datetime.fromisoformat(since)).total_seconds() >= UNAVAILABLE_SECONDS
