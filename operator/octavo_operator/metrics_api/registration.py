"""Adds the authority of this replica to those that the APIService of external metrics trusts.

Each replica has an authority of its own, whose key never leaves its memory; the APIService holds those of the last few.
It is only changed where it names our Service: a cluster has one server for external metrics, and if it is KEDA's or
prometheus-adapter's, it stays so, and that is reported.
"""

from __future__ import annotations

import base64
import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from octavo_operator.api.names import METRICS_API, METRICS_API_NAME, METRICS_API_SERVICE, NAME_LABEL
from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.kinds import API_SERVICE, Kind
from octavo_operator.reconcile.pods.pod_view import condition_of

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 10.0
SOON_SECONDS = 1.0  # until it is trusted: two replicas that start together write at the same time
FAILED_SECONDS = 120.0
RETURN_SECONDS = 300.0
"""A replica that ran while the API server could not reach it lets it try again after this time."""
MOST_AUTHORITIES = 8
"""The number of authorities, some of former replicas, that are kept: it is not known here which replicas run."""


class Registry(Protocol):
    """The API calls that registration makes."""

    async def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        """Return the live object, or None."""

    async def merge(self, kind: Kind, namespace: str, name: str, patch: Mapping[str, Any]) -> Any:
        """Merge `patch` into the object."""

    async def apply_cluster_wide(self, kind: Kind, manifest: dict[str, Any]) -> None:
        """Create an object without a namespace, or take its fields over."""


class Registration:
    """Keeps the APIService's trust in `authority` (PEM), whose Service is `namespace`/`service`.

    `creates`: an APIService that is not there is created.
    """

    def __init__(
        self,
        cluster: Registry,
        namespace: str,
        service: str,
        authority: bytes,
        creates: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._service = {"namespace": namespace, "name": service}
        self._authority = authority.strip() + b"\n"
        self._creates = creates
        self._seen_at: float | None = None
        """When the APIService was last there, once this replica had a chance to answer for it."""
        self._state = ""
        self._clock = clock
        self._checked_at = self._succeeded_at = clock()
        self._registered = False
        self._created = False
        """Whether the last check created the APIService."""

    async def check(self) -> str:
        """Correct the APIService if needed; return its state as a sentence, and log the sentence when it changes."""
        try:
            state = await self._check()
            self._succeeded_at = self._clock()
            # Another replica may have created it too, at the same time: the next check tells whose authority it has.
            self._registered = self._registered or not self._created
        except ApiError as error:
            state = f"cannot register for {METRICS_API}: {error.message}"
        if state != self._state:
            logger.info("%s", state)
            self._state = state
        self._checked_at = self._clock()
        return state

    def not_trusted(self) -> str:
        """Return a sentence while the API server does not trust this replica yet; empty if it does or asks another.

        What fails later keeps no replica from answering.
        """
        return "" if self._registered else self._state or "has not looked at its APIService yet"

    def problem(self) -> str:
        """Return the problem, as a sentence, once it has lasted for `FAILED_SECONDS`; empty if there is none."""
        failed = self._clock() - self._succeeded_at
        return f"for {failed:.0f} s: {self._state or 'it has not been checked yet'}" if failed > FAILED_SECONDS else ""

    def standstill(self) -> str:
        """Return a sentence if no attempt to read the APIService was made for `FAILED_SECONDS`; empty otherwise."""
        silent = self._clock() - self._checked_at
        return f"has not looked at its APIService for {silent:.0f} s" if silent > FAILED_SECONDS else ""

    async def _check(self) -> str:
        live = await self._cluster.get(API_SERVICE, "", METRICS_API_SERVICE)
        self._created = False
        if live is None:
            return await self._create()
        service = live["spec"].get("service") or {}
        if any(service.get(part) != name for part, name in self._service.items()):
            self._seen_at = None
            return f"{METRICS_API} is served by {service.get('namespace')}/{service.get('name')}; this is not changed"
        # One that was unavailable before this replica is about to be deleted, for which this replica is not to blame.
        if self._seen_at is not None or condition_of(live, "Available").get("status") != "False":
            self._seen_at = self._clock()
        trusted = _certificates(live["spec"].get("caBundle") or "")
        if self._authority not in trusted:
            bundle = _encoded([*trusted[1 - MOST_AUTHORITIES :], self._authority])
            # As it was read: another replica that writes at the same time is not overwritten.
            metadata = {"resourceVersion": live["metadata"].get("resourceVersion")}
            patch = {"metadata": metadata, "spec": {"caBundle": bundle}}
            await self._cluster.merge(API_SERVICE, "", METRICS_API_SERVICE, patch)
        return f"serves {METRICS_API}"

    async def _create(self) -> str:
        """Create the APIService if that is wanted.

        The operator deletes it while the API server reaches no replica; one that ran meanwhile waits for a while.
        """
        if not self._creates:
            return f"there is no APIService {METRICS_API_SERVICE}: no server is registered for external metrics"
        if self._seen_at is not None and self._clock() - self._seen_at < RETURN_SECONDS:
            return f"APIService {METRICS_API_SERVICE} was deleted; it is created again after {RETURN_SECONDS:.0f} s"
        group, _, version = METRICS_API.partition("/")
        spec = {
            "group": group,
            "version": version,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "service": {**self._service, "port": 443},
            "caBundle": _encoded([self._authority]),
        }
        metadata = {"name": METRICS_API_SERVICE, "labels": {NAME_LABEL: METRICS_API_NAME}}
        manifest = {"apiVersion": API_SERVICE.api_version, "kind": API_SERVICE.name, "metadata": metadata, "spec": spec}
        await self._cluster.apply_cluster_wide(API_SERVICE, manifest)
        self._created, self._seen_at = True, self._clock()
        return f"created APIService {METRICS_API_SERVICE}; checking whether it trusts this replica"


def _certificates(bundle: str) -> list[bytes]:
    """Return the certificates of a caBundle, each as PEM; none of one that cannot be read."""
    try:
        text = base64.b64decode(bundle, validate=True)
    except ValueError:
        return []
    return [found + b"\n" for found in re.findall(rb"-----BEGIN [^-]+-----.*?-----END [^-]+-----", text, re.DOTALL)]


def _encoded(certificates: list[bytes]) -> str:
    return base64.b64encode(b"".join(certificates)).decode()
