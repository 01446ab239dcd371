"""Finds the cluster's one server for external metrics, which decides `metricsSource: Auto`."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol
from urllib.parse import urlsplit

from octavo_operator.api.names import METRICS_API_NAME, METRICS_API_SERVICE, NAME_LABEL
from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.kinds import API_SERVICE, Kind
from octavo_operator.reconcile.watching.discovery import POLL_SECONDS, KindsChangedError

logger = logging.getLogger(__name__)


class Reader(Protocol):
    """The API calls that this file makes."""

    async def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        """Return the live object, or None."""


async def others_answer(cluster: Reader, metrics_url: str) -> bool | None:
    """Return True if the server is another than Octavo's at `metrics_url`; None: there is none, or no right to know.

    Not asked without a URL: whichever server answers then, KEDA could not ask Octavo's.
    """
    if not metrics_url:
        return None
    try:
        found = await cluster.get(API_SERVICE, "", METRICS_API_SERVICE)
    except ApiError as error:
        if error.status != 403:
            raise
        logger.warning("not allowed to read the APIService of external metrics: %s", error)
        return None
    return None if found is None else not _is_octavos(found, metrics_url)


def _is_octavos(api_service: dict[str, Any], metrics_url: str) -> bool:
    """Return True if the APIService is Octavo's: by the chart's label, or because it names the Service of KEDA's URL.

    Another release's APIService has the label too.
    """
    service = api_service["spec"].get("service") or {}
    labels = api_service["metadata"].get("labels") or {}
    host = (urlsplit(metrics_url).hostname or "").split(".")
    return labels.get(NAME_LABEL) == METRICS_API_NAME or host[:2] == [service.get("name"), service.get("namespace")]


async def watch_answerer(cluster: Reader, metrics_url: str, known: bool) -> None:
    """Check again and again; raises KindsChangedError once the answer of `others_answer` is not `known` any more.

    While there is no server, as when one is being replaced, nothing changes.
    """
    while True:
        await asyncio.sleep(POLL_SECONDS)
        try:
            found = await others_answer(cluster, metrics_url)
        except ApiError as error:
            logger.warning("cannot read the APIService of external metrics: %s", error)
            continue
        if found is not None and found != known:
            raise KindsChangedError(f"external metrics are served by {'others' if found else 'Octavo'} now")
