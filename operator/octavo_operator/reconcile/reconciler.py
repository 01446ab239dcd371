"""One pass over one LLMService: observe, render, apply, prune, summarize, report."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Protocol

from octavo_operator.api.conditions import Reason
from octavo_operator.api.names import API_VERSION, KIND
from octavo_operator.api.resource import InvalidLLMServiceError, LLMService, parse
from octavo_operator.reconcile.apply import ApiError
from octavo_operator.reconcile.kinds import BY_NAME, Kind
from octavo_operator.reconcile.observe import Index, Key, Observation, belongs_to, observe
from octavo_operator.reconcile.pods import Finding
from octavo_operator.reconcile.summarize import invalid_status, summarize
from octavo_operator.render import RenderConfig, not_yet_acted_on, render

Object = dict[str, Any]
logger = logging.getLogger(__name__)


class Writer(Protocol):
    """What reconciling needs of a cluster."""

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """The live object, or None."""

    async def apply(self, manifest: Object, subresource: str = "") -> Object:
        """Server-side apply; the live object."""

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Deletes the object of that uid."""


NAME_TAKEN = "NameTaken"
"""Reason of an ApiError: an object of the child's name belongs to somebody else."""


class Reconciler:
    """Brings each LLMService's children and status to what they should be. Keeps only what was last applied."""

    def __init__(self, cluster: Writer, indexes: Mapping[str, Index], config: RenderConfig) -> None:
        self._cluster = cluster
        self._indexes = indexes
        self._config = config
        self._applied: dict[Key, dict[tuple[str, str], tuple[str, str]]] = {}
        self._clock: Callable[[], str] = lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def forget(self) -> None:
        """Applies everything again at the next pass; the API server drops what changes nothing."""
        self._applied.clear()

    async def reconcile(self, key: Key) -> None:
        """One pass over `key`; raises ApiError to be called again later."""
        observed = observe(key, self._indexes)
        if observed.service is None:
            self._applied.pop(key, None)
            return
        if observed.service["metadata"].get("deletionTimestamp"):
            return  # the garbage collector's work, by owner references
        try:
            service = parse(observed.service)
        except InvalidLLMServiceError as error:
            await self._write_status(observed.service, invalid_status(observed.service, str(error), self._clock()))
            return
        await self._reconcile(key, service, observed)

    async def _reconcile(self, key: Key, service: LLMService, observed: Observation) -> None:
        image = (service.status or {}).get("engineImage")
        if not image:  # pinned before anything is made, so that no restart of ours can come between
            image = self._config.engine_image
            await self._report(service, observed, image, None)
        blocking = [row for row in not_yet_acted_on(service.spec) if row.blocks]
        if blocking:
            problem = Finding(Reason.FIELDS_NOT_YET_ACTED_ON, "; ".join(map(str, blocking)))
            await self._report(service, observed, image, problem)
            return
        observed, failures = await self._apply_children(key, service, observed, image)
        refusals = [failure for failure in failures if not failure.transient]
        if failures and not refusals:  # no reason to call a model that serves anything but Ready
            raise failures[0]
        await self._report(service, observed, image, _finding(refusals[0]) if refusals else None)
        if refusals:
            raise refusals[0]

    async def _apply_children(
        self, key: Key, service: LLMService, observed: Observation, image: str
    ) -> tuple[Observation, list[ApiError]]:
        """Applies and prunes each child for itself: a claim that cannot grow must not keep a Deployment from stopping.

        Returns what was observed with the children as they are now, ahead of the watches (a Deployment as it was before
        would be rolled out still, and be reported so for the new generation), and what was refused, in order.
        """
        children: dict[tuple[str, str], Mapping[str, Any]] = {}
        failures: list[ApiError] = []
        wanted = {
            (manifest["kind"], manifest["metadata"]["name"]): manifest
            for manifest in render(service, replace(self._config, engine_image=image))
        }
        for identity, manifest in wanted.items():
            live = observed.children.get(identity)
            try:
                children[identity] = await self._apply_child(key, service, live, manifest)
            except ApiError as error:
                failures.append(error)
                if live is not None:
                    children[identity] = live
        for identity, child in observed.children.items():
            if identity in wanted or not belongs_to(child, service.name, service.metadata.uid or ""):
                continue
            logger.info("%s/%s: deletes %s %s, no longer wanted", *key, *identity)
            kind = BY_NAME[identity[0]]
            try:
                await self._cluster.delete(kind, service.namespace, identity[1], child["metadata"]["uid"])
            except ApiError as error:
                failures.append(error)
        return replace(observed, children=children), failures

    async def _apply_child(
        self, key: Key, service: LLMService, live: Mapping[str, Any] | None, manifest: Object
    ) -> Mapping[str, Any]:
        identity = (manifest["kind"], manifest["metadata"]["name"])
        digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
        applied = self._applied.setdefault(key, {})
        if live is not None and applied.get(identity) == (digest, _version(live)):
            return live
        if live is None:  # perhaps not ours to see: the watches select by our label
            live = await self._cluster.get(BY_NAME[identity[0]], service.namespace, identity[1])
        if live is not None and not belongs_to(live, service.name, service.metadata.uid or ""):
            raise ApiError(
                409,
                NAME_TAKEN,
                f"{identity[0]} {identity[1]} exists and is not this LLMService's; "
                "rename the LLMService, or delete that object",
            )
        live = await self._cluster.apply(manifest)
        applied[identity] = (digest, _version(live))
        logger.info("%s/%s: applied %s %s", *key, *identity)
        return live

    async def _report(self, service: LLMService, observed: Observation, image: str, problem: Finding | None) -> None:
        status = summarize(service, observed, image, problem, self._clock())
        await self._write_status(observed.service or {}, status.as_object())

    async def _write_status(self, live: Mapping[str, Any], status: Object) -> None:
        if live.get("status") == status:
            return
        metadata = {name: live["metadata"][name] for name in ("name", "namespace", "uid")}
        manifest = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "status": status}
        try:
            await self._cluster.apply(manifest, "/status")
        except ApiError as error:
            if error.status not in (404, 409):  # deleted meanwhile, and perhaps made again: another event follows
                raise


def _finding(refusal: ApiError) -> Finding:
    reason = Reason.NAME_TAKEN if refusal.reason == NAME_TAKEN else Reason.APPLY_FAILED
    return Finding(reason, refusal.message)


def _version(live: Mapping[str, Any]) -> str:
    """What changes when somebody changes the object's spec: its generation, where the kind counts one."""
    metadata = live["metadata"]
    return str(metadata.get("generation") or metadata["resourceVersion"])
