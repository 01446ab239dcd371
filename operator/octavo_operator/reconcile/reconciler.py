"""One pass over one LLMService: observe, render, apply, prune, summarize, report."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from octavo_operator.api.conditions import Reason
from octavo_operator.api.names import API_VERSION, KIND
from octavo_operator.api.resource import InvalidLLMServiceError, LLMService, parse_stored
from octavo_operator.reconcile.apply import ApiError
from octavo_operator.reconcile.children import Applied, Children, Identity, NameTakenError, Object, Writer
from octavo_operator.reconcile.events import EventWriter, Recorder, transitions
from octavo_operator.reconcile.fights import Fights
from octavo_operator.reconcile.finding import Finding
from octavo_operator.reconcile.kinds import LLMSERVICE
from octavo_operator.reconcile.load_report import LoadReport
from octavo_operator.reconcile.observe import Index, Key, Observation, observe, trimmed
from octavo_operator.reconcile.pods import mounting_seconds, views
from octavo_operator.reconcile.rollout import Course, course
from octavo_operator.reconcile.summarize import Outcome, invalid_status, summarize
from octavo_operator.render import RenderConfig, blocking, render
from octavo_operator.render.scaler import bounds_in_force, why_no_scaler

logger = logging.getLogger(__name__)

_SERVING = ("Deployment", "Service")
"""Kinds of the children without which nothing serves."""
_LASTING = timedelta(minutes=1)
"""What should pass and has not for so long is told, such as the failure of an admission webhook that is gone."""


class ReconcileCluster(Writer, EventWriter, Protocol):
    """What reconciling needs of a cluster."""


class Reconciler:
    """Brings each LLMService's children and status to what they should be. Keeps only what it last wrote."""

    def __init__(
        self,
        cluster: ReconcileCluster,
        indexes: Mapping[str, Index],
        config: RenderConfig,
        reports: Mapping[str, LoadReport] | None = None,
    ) -> None:
        self._cluster = cluster
        self._reports = {} if reports is None else reports
        self._indexes = indexes
        self._config = config
        self._children = Children(cluster, Fights())
        self._recorder = Recorder(cluster)
        self._written: dict[Key, Object] = {}
        self._failing: dict[Key, datetime] = {}
        self._clock: Callable[[], str] = lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    async def reconcile(self, key: Key) -> float | None:
        """One pass over `key`; raises ApiError to be called again later, or says in how many seconds it wants to be."""
        observed = replace(observe(key, self._indexes), reports=self._reports)
        if observed.service is None:
            self._children.forget(key)
            self._written.pop(key, None)
            self._failing.pop(key, None)
            return None
        live = self._newest(key, observed.service)
        if live is observed.service:  # the watch has caught up
            self._written.pop(key, None)
        if live["metadata"].get("deletionTimestamp"):
            return None  # the garbage collector's work, by owner references
        try:
            reading = parse_stored(live)
        except InvalidLLMServiceError as error:
            await self._write_status(live, invalid_status(live, str(error), self._clock()))
            return None
        return await self._reconcile(key, reading.service, replace(observed, service=live, unknown=reading.unknown))

    async def _reconcile(self, key: Key, service: LLMService, observed: Observation) -> float | None:
        image = (service.status or {}).get("engineImage")
        if not image:  # pinned before anything is made, so that no restart of ours can come between
            image = self._config.engine_image
            await self._report(service, observed, image, Outcome())
        if rows := blocking(service.spec):
            problem = Finding(Reason.FIELDS_NOT_YET_ACTED_ON, "; ".join(map(str, rows)))
            await self._report(service, observed, image, Outcome(problem))
            return None
        now = self._course(service, observed)
        moment = datetime.fromisoformat(self._clock())
        config = replace(self._config, engine_image=image, in_place=now.in_place, now=moment)
        applied = await self._children.apply(key, service, observed, render(service, config))
        pauses = _pauses(service, observed, self._clock())
        again, told = _again(service, applied, now, moment, pauses), self._told(key, applied, moment)
        try:
            if told or not applied.failures:  # else what there is to say is as old as what was applied
                no_scaler = why_no_scaler(service.spec, config.metrics_url)
                outcome = replace(_outcome(told, applied, now), no_scaler=no_scaler)
                await self._report(service, replace(observed, children=applied.children), image, outcome)
            for failure in (*applied.refusals.values(), *applied.failures.values()):
                raise failure
        except ApiError as error:
            error.within = again
            raise
        return again

    def _told(self, key: Key, applied: Applied, moment: datetime) -> Mapping[Identity, ApiError]:
        """The failures that are told: refusals at once, others once they have lasted."""
        if not applied.failures:
            self._failing.pop(key, None)
            return {}
        since = self._failing.setdefault(key, moment)
        return applied.failures if moment - since >= _LASTING else applied.refusals

    def _newest(self, key: Key, seen: Mapping[str, Any]) -> Mapping[str, Any]:
        """The LLMService as the watch told of it, or as it was after our own last write if that is newer."""
        written = self._written.get(key)
        return written if written and _version(written) > _version(seen) else seen

    def _course(self, service: LLMService, observed: Observation) -> Course:
        deployment = observed.children.get(("Deployment", service.name), {})
        return course(service.spec.rollout, deployment, views(service, observed.pods), self._clock())

    async def _report(self, service: LLMService, observed: Observation, image: str, outcome: Outcome) -> None:
        status = summarize(service, observed, image, outcome, self._clock())
        await self._write_status(observed.service or {}, status.as_object())

    async def _write_status(self, live: Mapping[str, Any], status: Object) -> None:
        metadata = {name: live["metadata"][name] for name in ("name", "namespace", "uid")}
        key = metadata["namespace"], metadata["name"]
        before = self._newest(key, live).get("status") or {}
        if before == status:
            return
        manifest = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "status": status}
        try:
            written = await self._cluster.apply(manifest, "/status")
        except ApiError as error:
            if error.status not in (404, 409):  # deleted meanwhile, and perhaps made again: another event follows
                raise
            return
        self._written[key] = dict(trimmed(LLMSERVICE, written))
        await self._recorder.record(metadata, transitions(before, status))


def _version(live: Mapping[str, Any]) -> int:
    return int(live["metadata"]["resourceVersion"])


def _pauses(service: LLMService, observed: Observation, now: str) -> list[float]:
    """In how many seconds a pod may have waited too long for its volumes; the clock is read in whole seconds."""
    left = (mounting_seconds(pod, now) for pod in views(service, observed.pods))
    return [seconds + 1 for seconds in left if seconds]


def _again(service: LLMService, applied: Applied, now: Course, moment: datetime, mounting: list[float]) -> float | None:
    """In how many seconds there will be something to do though nothing changes; None: never."""
    pauses = (
        mounting + [conflict.seconds for conflict in applied.conflicts] + ([now.again] if now.again is not None else [])
    )
    in_force = bounds_in_force(service.spec, moment)
    if in_force and in_force.until:  # other bounds then; the clock is read in whole seconds
        pauses.append((in_force.until - moment).total_seconds() + 1)
    return min(pauses, default=None)


def _outcome(told: Mapping[Identity, ApiError], applied: Applied, now: Course) -> Outcome:
    fought = "; ".join(conflict.message for conflict in applied.conflicts)
    refused = {identity: _finding(failure) for identity, failure in told.items()}
    unserved = next((found for (kind, _), found in refused.items() if kind in _SERVING), None)
    return Outcome(
        unserved=unserved,
        refused=next((found for found in refused.values() if found is not unserved), None),
        conflict=Finding(Reason.FIELD_CONFLICT, fought) if fought else None,
        course=now,
    )


def _finding(failure: ApiError) -> Finding:
    taken = isinstance(failure, NameTakenError)
    return Finding(Reason.NAME_TAKEN if taken else Reason.APPLY_FAILED, failure.message)
