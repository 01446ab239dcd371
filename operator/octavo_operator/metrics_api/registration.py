"""Has the API server trust us: our authority goes into the APIService that the chart made.

Only where the APIService names our Service: a cluster has one server for external metrics, and if it is KEDA's or
prometheus-adapter's, it stays so.
"""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from octavo_operator.api.names import METRICS_API, METRICS_API_SERVICE
from octavo_operator.reconcile.apply import ApiError
from octavo_operator.reconcile.kinds import API_SERVICE, Kind

logger = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
FAILED_SECONDS = 120.0


class Registry(Protocol):
    """What registration needs of a cluster."""

    async def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        """The live object, or None."""

    async def merge(self, kind: Kind, namespace: str, name: str, patch: Mapping[str, Any]) -> None:
        """Merges `patch` into the object."""


class Registration:
    """Keeps the APIService's trust in `authority` (PEM), whose Service is `namespace`/`service`."""

    def __init__(
        self,
        cluster: Registry,
        namespace: str,
        service: str,
        authority: bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._service = {"namespace": namespace, "name": service}
        self._bundle = base64.b64encode(authority).decode()
        self._told = ""
        self._clock = clock
        self._looked_at = self._succeeded_at = clock()

    async def look(self) -> str:
        """Writes if something is to be written; returns how it stands, in a sentence, and logs it when that changes."""
        try:
            state = await self._look()
            self._succeeded_at = self._clock()
        except ApiError as error:
            state = f"cannot register for {METRICS_API}: {error.message}"
        if state != self._told:
            logger.info("%s", state)
            self._told = state
        self._looked_at = self._clock()
        return state

    def trouble(self) -> str:
        """What is wrong, in a sentence, once it has been so for `FAILED_SECONDS`; empty: nothing."""
        failed = self._clock() - self._succeeded_at
        return f"for {failed:.0f} s: {self._told or 'has not looked yet'}" if failed > FAILED_SECONDS else ""

    def standstill(self) -> str:
        """That the APIService was not read for `FAILED_SECONDS`, with or without success; empty: it was."""
        silent = self._clock() - self._looked_at
        return f"has not looked at its APIService for {silent:.0f} s" if silent > FAILED_SECONDS else ""

    async def _look(self) -> str:
        live = await self._cluster.get(API_SERVICE, "", METRICS_API_SERVICE)
        if live is None:
            return f"there is no APIService {METRICS_API_SERVICE}: no server is registered for external metrics"
        service = live["spec"].get("service") or {}
        if any(service.get(part) != name for part, name in self._service.items()):
            return f"{METRICS_API} is answered by {service.get('namespace')}/{service.get('name')}, and left to it"
        if live["spec"].get("caBundle") != self._bundle:
            await self._cluster.merge(API_SERVICE, "", METRICS_API_SERVICE, {"spec": {"caBundle": self._bundle}})
        return f"answers {METRICS_API}"
