"""Writes an LLMService's status when it changes, and removes fields that other clients put there.

Conditions of other types than ours are left alone: other controllers may add theirs. Fields that the cluster's CRD does
not have, since it is older than the operator, are left out: the rest is worth more than none.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from octavo_operator.api.conditions import ConditionType
from octavo_operator.api.names import API_VERSION, FIELD_MANAGER, KIND
from octavo_operator.api.value_at import value_at
from octavo_operator.reconcile.advice import advice
from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.kinds import LLMSERVICE, Kind
from octavo_operator.reconcile.observation.observe import Key
from octavo_operator.reconcile.observation.trimmed import trimmed
from octavo_operator.reconcile.rate_limit import RateLimit
from octavo_operator.reconcile.status.events import EventWriter, Recorder, Transition, transitions
from octavo_operator.reconcile.status.summarize import without_load

Object = dict[str, Any]
logger = logging.getLogger(__name__)

LOAD_PAUSE = timedelta(minutes=1)
"""The pause between two writes of a status in which only the load differs: autoscalers measure it every few seconds."""
SCALING_PAUSE = timedelta(seconds=20)
"""The pause after a write of the status of a service that serves and scales by its load, before one in which only
numbers, reasons and messages differ: one change of its replicas changes them several times.
"""
BURST, PACE_SECONDS = 20, 10.0
"""A status is written so often at once, and then once in so many seconds, as while a node of its pods is ready and not
ready in turns; of a new generation of the spec it is written at once.
"""
UNKNOWN_SECONDS = 600.0
"""The time for which a field that the CRD does not have is left out; then the CRD may have been upgraded."""
CONFLICT_SECONDS = 180.0
"""The time in which three writes of a status by another manager, between our own, count as a conflict."""
CONFLICT_PAUSE_SECONDS = 60.0
"""Seconds between two of our writes while another client (such as a second operator) overwrites the status."""
UNWRITTEN_SECONDS = 30.0
"""The time after which an event reports that a status cannot be written, unless the API server refuses it at once."""
_CONFLICT_REWRITES = 3
_UNKNOWN = re.compile(r"\.status((?:\.\w+)+)[^:\s]*: field not declared in schema")
_MOST_UNKNOWN = 8
_DELAYED = {
    *("replicas", "desiredReplicas", "readyReplicas", "availableReplicas", "updatedReplicas"),
    *("autoscaling", "loading"),
}
"""Fields of a scaled service's status that change together with the number of its replicas."""


class StatusCluster(EventWriter, Protocol):
    """The API calls that writing a status makes."""

    async def apply(
        self,
        manifest: Object,
        subresource: str = "",
        dry_run: bool = False,
        manager: str = FIELD_MANAGER,
        force: bool = True,
    ) -> Object:
        """Apply the object by server-side apply, and return the live one."""

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """Return the live object, or None."""

    async def merge(
        self, kind: Kind, namespace: str, name: str, patch: Mapping[str, Any], subresource: str = ""
    ) -> Object:
        """Merge `patch` into an object that exists; the live object."""


class NoStatusError(ApiError):
    """The cluster's CRD has no subresource status, as after an edit by hand: nothing can be reported."""

    def __init__(self) -> None:
        what = "the CRD of LLMServices has no subresource status, so that no status can be written"
        super().__init__(404, "NoStatus", f"{what}: apply manifests/crd.yaml, or upgrade the chart with crd.install")


@dataclass
class _Last:
    """Our last write of a status: what it was, when, and when others wrote theirs over it (by resourceVersion).

    `asked`: what we sent; an admission webhook may have made another `status` of it.
    """

    asked: Object
    status: Object
    when: float
    rewrites: dict[str, float] = field(default_factory=dict)


class StatusWriter:
    """Remembers its own last writes: a watch may be behind. `clock`: seconds of no particular origin."""

    def __init__(self, cluster: StatusCluster, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._recorder = Recorder(cluster)
        self._clock = clock
        self._written: dict[Key, Object] = {}
        self._written_at: dict[Key, datetime] = {}
        self._last: dict[Key, _Last] = {}
        self._unwritten: dict[Key, float] = {}
        self._unknown: dict[tuple[str, ...], float] = {}
        self._rate_limit = RateLimit[Key](BURST, PACE_SECONDS, clock)

    def forget(self, key: Key) -> None:
        """Forget an LLMService that is gone."""
        self._written.pop(key, None)
        self._written_at.pop(key, None)
        self._last.pop(key, None)
        self._unwritten.pop(key, None)

    def newest(self, key: Key, seen: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the LLMService as the watch reported it, or as it was after our own last write if that is newer."""
        written = self._written.get(key)
        if written and _version(written) > _version(seen):
            return written
        if written is not seen:  # the watch has caught up
            self._written.pop(key, None)
        return seen

    async def write(self, live: Mapping[str, Any], status: Object, now: str) -> float | None:
        """Write the status if it has changed; return the seconds until a delayed write is due, or None."""
        metadata = {name: live["metadata"][name] for name in ("name", "namespace", "uid")}
        key = metadata["namespace"], metadata["name"]
        before, status = self.newest(key, live).get("status") or {}, self._known(status)
        there = self._before_admission(key, before)
        if status in (there, _own(before)):
            self._unwritten.pop(key, None)
            return None
        moment = datetime.fromisoformat(now)
        if key in self._written_at:
            pause = _pause(there, status)
            remaining = self._written_at[key] + pause - moment
            if timedelta() < remaining <= pause:  # more than that remains only where the clock was put back
                return remaining.total_seconds()
        if (left := self._backoff_seconds(key, self.newest(key, live))) > 0:
            return left
        answered = before.get("observedGeneration") == status.get("observedGeneration")
        if answered and (left := self._rate_limit.seconds_left(key)) > 0:
            return left
        self._rate_limit.note(key)
        began = self._clock()
        try:
            written = await self._put(metadata, status, before)
        except ApiError as error:
            if error.status in (404, 409) and await self._is_gone(metadata):
                return None  # deleted meanwhile, and perhaps created again: another event follows
            failure = NoStatusError() if error.status == 404 else error
            await self._report_unwritten(metadata, failure, began, now)
            raise failure from None
        self._unwritten.pop(key, None)
        self._written[key], self._written_at[key] = dict(trimmed(LLMSERVICE, written)), moment
        rewrites = self._last[key].rewrites if key in self._last else {}
        self._last[key] = _Last(self._known(status), _own(written.get("status") or {}), self._clock(), rewrites)
        await self._recorder.record(metadata, transitions(before, status), now)
        return None

    async def _report_unwritten(self, metadata: Mapping[str, Any], error: ApiError, began: float, now: str) -> None:
        """Record a Warning event that says that the status cannot be written.

        The status itself would say so, if it could be written. A transient error is reported once writes have failed
        for UNWRITTEN_SECONDS, any other at once. `began`: when this write began, by the clock of the writer.
        """
        key = metadata["namespace"], metadata["name"]
        since = self._unwritten.setdefault(key, began)
        if error.transient and self._clock() - since < UNWRITTEN_SECONDS:
            return
        note = f"the status is out of date, because it cannot be written: {advice(error.message)}"
        await self._recorder.record(metadata, [Transition("Warning", "StatusNotWritten", note)], now)

    def _before_admission(self, key: Key, before: Mapping[str, Any]) -> Object:
        """Return our last write if admission made `before` of it, else `before`: rewrites would never end."""
        last, own = self._last.get(key), _own(before)
        return last.asked if last is not None and last.status == own else own

    def _backoff_seconds(self, key: Key, live: Mapping[str, Any]) -> float:
        """Return the seconds still to wait before a write, since another client keeps overwriting this status."""
        last, now = self._last.get(key), self._clock()
        if last is None or _own(live.get("status") or {}) == last.status:
            return 0.0
        recent = {version: when for version, when in last.rewrites.items() if now - when < CONFLICT_SECONDS}
        begun = len(recent) >= _CONFLICT_REWRITES
        last.rewrites = {**recent, live["metadata"]["resourceVersion"]: now}
        if len(last.rewrites) < _CONFLICT_REWRITES:
            return 0.0
        if not begun:
            logger.warning(
                "%s/%s: another program writes its status too, such as a second operator; stop one of them", *key
            )
        return last.when + CONFLICT_PAUSE_SECONDS - now

    async def _put(self, metadata: Mapping[str, Any], status: Object, before: Mapping[str, Any]) -> Object:
        """Write `status`, but for fields that the CRD turns out not to have, and remove what others have added.

        `before` is the status that is there.
        """
        for _ in range(_MOST_UNKNOWN):
            status = self._known(status)
            manifest = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "status": status}
            try:
                written = await self._cluster.apply(manifest, "/status")
                break
            except ApiError as error:
                if error.is_of_what_is_stored:
                    return await self._replace(metadata, status, before)
                if not self._learn(error):
                    raise
        else:
            written = await self._cluster.apply({**manifest, "status": self._known(status)}, "/status")
        if superfluous := _superfluous(_own(written.get("status") or {}), status):
            patch = {"metadata": {"uid": metadata["uid"]}, "status": superfluous}
            return await self._cluster.merge(LLMSERVICE, metadata["namespace"], metadata["name"], patch, "/status")
        return written

    async def _replace(self, metadata: Mapping[str, Any], status: Object, before: Mapping[str, Any]) -> Object:
        """Write `status` by a merge patch, also where server-side apply refuses what another schema has let in."""
        theirs = [each for each in before.get("conditions") or () if each["type"] not in set(ConditionType)]
        conditions = [*status.get("conditions", ()), *theirs]
        whole = {**_superfluous(_own(before), status), **status, "conditions": conditions}
        patch = {"metadata": {"uid": metadata["uid"]}, "status": whole}
        return await self._cluster.merge(LLMSERVICE, metadata["namespace"], metadata["name"], patch, "/status")

    async def _is_gone(self, metadata: Mapping[str, Any]) -> bool:
        """Return True if the LLMService of that uid has been deleted."""
        live = await self._cluster.get(LLMSERVICE, metadata["namespace"], metadata["name"])
        return live is None or live["metadata"]["uid"] != metadata["uid"]

    def _learn(self, error: ApiError) -> bool:
        """Note the fields that the API server says the CRD does not have, and omit them from now on; True if any."""
        found = {tuple(path.split(".")[1:]) for path in _UNKNOWN.findall(error.message)}
        for path in found:
            logger.warning(
                "the CRD has no field status.%s: the CRD is older than this operator, so the field is left out; apply "
                "manifests/crd.yaml, or upgrade the chart with crd.install",
                ".".join(path),
            )
            self._unknown[path] = self._clock()
        return bool(found)

    def _known(self, status: Object) -> Object:
        """Return `status` without the fields that the CRD was lately found not to have."""
        for path, since in self._unknown.items():
            if self._clock() - since < UNKNOWN_SECONDS:
                status = _without(status, path)
        return status


def _pause(before: Mapping[str, Any], status: Mapping[str, Any]) -> timedelta:
    """Return how long after the last write `status` may be written over `before`."""
    if without_load(before) == without_load(status):
        return LOAD_PAUSE
    if status.get("autoscaling") and status.get("readyReplicas") and _states(before) == _states(status):
        return SCALING_PAUSE
    return timedelta()


def _states(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is written at once of a status, as the status of each condition; numbers and sentences may wait."""
    shown = {name: value for name, value in status.items() if name not in _DELAYED}
    conditions = [(each["type"], each["status"]) for each in status.get("conditions") or ()]
    return {**shown, "conditions": conditions, "phase": (value_at(status, dict, "loading") or {}).get("phase")}


def _version(live: Mapping[str, Any]) -> int:
    return int(live["metadata"]["resourceVersion"])


def _without(content: Object, path: tuple[str, ...]) -> Object:
    """Return `content` without the field at `path`."""
    first, *rest = path
    if not rest:
        return {name: value for name, value in content.items() if name != first}
    inner = content.get(first)
    if isinstance(inner, dict):
        left = _without(inner, tuple(rest))
        return {**content, first: left} if left else _without(content, (first,))
    return content


def _own(status: Mapping[str, Any]) -> Object:
    """Return `status` without conditions of other controllers, which add types of their own."""
    if "conditions" not in status:
        return dict(status)
    ours = [each for each in status["conditions"] if each["type"] in set(ConditionType)]
    return {**status, "conditions": ours}


def _superfluous(there: Mapping[str, Any], wanted: Any) -> Object:
    """Return a merge patch that removes the fields of `there` that are not `wanted`, such as those written by hand."""
    patch: Object = {}
    if not isinstance(wanted, Mapping):  # after that write it is no longer a mapping
        return patch
    for name, value in there.items():
        if name not in wanted:
            patch[name] = None
        elif isinstance(value, Mapping) and (inner := _superfluous(value, wanted[name])):
            patch[name] = inner
    return patch
