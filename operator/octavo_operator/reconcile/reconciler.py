"""Reconciles one LLMService: observe, render, apply, prune, summarize, report."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from octavo_operator.api.conditions import Reason
from octavo_operator.api.resource import InvalidLLMServiceError, LLMService, parse_stored
from octavo_operator.api.status import DisruptionsStatus
from octavo_operator.api.value_at import value_at
from octavo_operator.reconcile.advice import advice
from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.api_requests.rights import refused_right
from octavo_operator.reconcile.api_requests.server_clock import ServerClock
from octavo_operator.reconcile.apply.adapter_lists import PodWriter, write_adapter_lists
from octavo_operator.reconcile.apply.child_writer import ChildCluster
from octavo_operator.reconcile.apply.children import Applied, Children
from octavo_operator.reconcile.apply.dependencies import Identity
from octavo_operator.reconcile.apply.field_conflicts import FieldConflicts
from octavo_operator.reconcile.apply.name_conflicts import NameTakenError
from octavo_operator.reconcile.kinds import BY_NAME, OBSERVED, Kind
from octavo_operator.reconcile.observation.observe import FOREGROUND, Key, Object, Observation
from octavo_operator.reconcile.observation.sources import Sources
from octavo_operator.reconcile.pods.endpoints import reachable_pods, settling_seconds
from octavo_operator.reconcile.pods.pod_view import usual_wait_seconds, views
from octavo_operator.reconcile.pods.stuck_terminating import end_patience
from octavo_operator.reconcile.problem import Problem
from octavo_operator.reconcile.rollout.cordoned_nodes import NodeReader, cordoned_nodes
from octavo_operator.reconcile.rollout.deletion_costs import spare_pods_on
from octavo_operator.reconcile.rollout.rollout import RolloutState, count_of, rollout_state
from octavo_operator.reconcile.status.autoscaling import NOT_MEASURED
from octavo_operator.reconcile.status.blocked_deletion import deletion_patience_seconds, holders
from octavo_operator.reconcile.status.disruptions import EventReader
from octavo_operator.reconcile.status.facts import PATIENCE_SECONDS, Result
from octavo_operator.reconcile.status.load_balancer import ADDRESS_PATIENCE_SECONDS
from octavo_operator.reconcile.status.remembered import Remembered
from octavo_operator.reconcile.status.stalled import patience_seconds
from octavo_operator.reconcile.status.status_writer import StatusCluster, StatusWriter
from octavo_operator.reconcile.status.summarize import invalid_status, summarize
from octavo_operator.reconcile.status.unobserved import CONTROLLER_PATIENCE_SECONDS
from octavo_operator.reconcile.timestamps import patience_left
from octavo_operator.reconcile.watching.unwatched import UNWATCHED_SECONDS, with_unwatched_children
from octavo_operator.render import RenderConfig, blocking, render
from octavo_operator.render.adapters import claim_of, without_claims
from octavo_operator.render.scaler import bounds_in_force, is_scaled_directly, why_no_scaler

logger = logging.getLogger(__name__)

_SERVING = ("Deployment", "Service")
"""Kinds of the children, called like the LLMService, without which nothing serves."""
_FORBIDDEN = 403
_OF_THE_API_SERVER = (0, 401, 429, 503)
"""Errors that say something about the API server as a whole, and not about the object of the request."""
_SHARED = {"ReadWriteMany", "ReadOnlyMany"}
"""Access modes of claims that pods on several nodes may have at the same time."""
_LASTING = timedelta(seconds=30)
"""The time after which a failure that should pass is reported, such as that of an admission webhook that is missing or
hangs."""
_CLAIM_SECONDS = 10.0
"""The pause between two looks for a claim that is not there."""
_CLAIM_TRUST = timedelta(minutes=1)
"""The time for which a claim that was there is not asked for again."""


class ReconcileCluster(EventReader, ChildCluster, StatusCluster, PodWriter, NodeReader, Protocol):
    """The API calls that reconciling makes."""


class Reconciler:
    """Makes each LLMService's children and status match its spec. Remembers only its own last writes."""

    def __init__(
        self,
        cluster: ReconcileCluster,
        sources: Sources,
        config: RenderConfig,
        clock: Callable[[], str] | None = None,
        node_wait: float = PATIENCE_SECONDS,
        remembered: Remembered | None = None,
    ) -> None:
        self._cluster = cluster
        self._sources = sources
        self._config = config
        self._children = Children(cluster, FieldConflicts())
        self._statuses = StatusWriter(cluster)
        self._remembered = remembered or Remembered()
        self._failing: dict[Key, datetime] = {}
        self._claims_seen: dict[Key, datetime] = {}
        self._clock = clock or ServerClock().now
        self._node_wait = node_wait

    async def reconcile(self, key: Key) -> float | None:
        """Reconcile `key`, and return in how many seconds to do so again; ApiError: it is to be repeated."""
        observed = self._sources.observe(key)
        uid = observed.service["metadata"]["uid"] if observed.service else ""
        if uid != self._remembered.uids.get(key, ""):  # it is gone, or it was deleted and created again meanwhile
            self._forget(key)
        if observed.service is None:
            return None
        self._remembered.uids[key] = uid
        live = self._statuses.newest(key, observed.service)
        if live["metadata"].get("deletionTimestamp"):  # its children are the garbage collector's, by owner references
            return await self._report_held(live, observed)
        try:
            reading = parse_stored(live)
        except InvalidLLMServiceError as error:
            now = self._clock()
            return await self._statuses.write(live, invalid_status(live, str(error), now), now)
        since = self._remembered.unobserved.note(key, observed, self._clock())
        template = self._remembered.unobserved.observed_template(key)
        observed = replace(observed, service=live, unknown=reading.unknown)
        changes = self._remembered.templates.note(key, observed, self._clock())
        observed = replace(observed, template_changes_since=changes)
        disruptions = await self._disruptions(key, live, observed)
        observed = replace(observed, unobserved_since=since, observed_template=template, disruptions=disruptions)
        waits = self._remembered.addresses.note(key, reading.service, observed, self._clock())
        observed = replace(observed, unaddressed_since=waits)
        return await self._reconcile(key, reading.service, observed)

    def _forget(self, key: Key) -> None:
        self._children.forget(key)
        self._statuses.forget(key)
        self._remembered.forget(key)
        self._failing.pop(key, None)

    async def _disruptions(self, key: Key, live: Object, observed: Observation) -> DisruptionsStatus | None:
        """Return what others have done to pods before there are all replicas; None: nothing."""
        deployment = observed.children.get(("Deployment", key[1]), {})
        complete, now, known = _has_all_replicas(deployment), self._clock(), self._remembered
        known.begin(key, live, observed, now)
        ended = await known.disruptions.note(self._cluster, key, observed.pods, complete, now)
        since = known.deleted.note(key, deployment, observed.pods, complete, now)
        if not ended and not since:
            return None
        return DisruptionsStatus(ended_pods=ended or None, pods_deleted_since=since or None)

    async def _reconcile(self, key: Key, service: LLMService, observed: Observation) -> float | None:
        refusal = _not_acted_on(service) or self._forbidden(service)
        try:
            if not (refusal and value_at(service.status, str, "engineImage")):
                observed = await with_unwatched_children(self._cluster, key, observed)
            if not refusal:
                rollout = await self._rollout_state(service, observed)
                now = datetime.fromisoformat(self._clock())
                missing = await self._missing_claims(service, observed)
        except ApiError as error:
            if not service.status:
                await self._report_unread(service, observed, refusal, error)
            raise
        if refusal:
            return await self._report(service, observed, self._pinned_image(service, observed), Result(refusal))
        return await self._act(key, service, observed, rollout, now, missing)

    async def _act(
        self,
        key: Key,
        service: LLMService,
        observed: Observation,
        rollout: RolloutState,
        now: datetime,
        missing: frozenset[str],
    ) -> float | None:
        """Make the children match as of `now`, and report; `missing`: the claims of adapters that are not there."""
        image = self._pinned_image(service, observed)
        config = replace(self._config, engine_image=image, in_place=rollout.in_place, tried=rollout.tried, now=now)
        observed = self._with_direct_scaling(key, service, observed)
        wanted = render(without_claims(service, missing), config)
        applied = await self._children.apply(key, service, observed, wanted)
        applied.failures |= await write_adapter_lists(self._cluster, service, observed.pods)
        pauses = _pauses(service, observed, self._clock(), self._node_wait) + [_CLAIM_SECONDS] * bool(missing)
        unwatched = _needed(observed.unwatched, wanted)
        pauses += [UNWATCHED_SECONDS] * bool(unwatched)
        applied_at = datetime.fromisoformat(self._clock())  # requests that got no answer have taken long
        reported = self._reported(key, applied, now, applied_at)
        if len(reported) < len(applied.failures):  # what else there is will be reported then, if it lasts
            pauses.append((self._failing[key] + _LASTING - applied_at).total_seconds())
        again = _again(service, applied, rollout, now, pauses)
        try:
            if reported or not applied.failures or not service.status:  # a report would be as old as the last apply
                no_scaler = why_no_scaler(service.spec, config.metrics_url)
                result = _result(service, reported, applied, rollout)
                result = replace(result, no_scaler=no_scaler, missing_claims=missing, unwatched=unwatched)
                later = await self._report(service, replace(observed, children=applied.children), image, result)
                again = min((each for each in (again, later) if each is not None), default=None)
            for failure in (*applied.refusals.values(), *applied.failures.values()):
                if not failure.namespace_ends:  # else trying again is of no use
                    raise failure
        except ApiError as error:
            within = [again, error.longest_pause, *(each.longest_pause for each in applied.failures.values())]
            error.within = min((each for each in within if each is not None), default=None)
            raise
        return again

    def _with_direct_scaling(self, key: Key, service: LLMService, observed: Observation) -> Observation:
        """Return what was observed with a report on direct scaling, if the service is scaled directly.

        It is in the place of a HorizontalPodAutoscaler, which is not made then; and it is never written.
        """
        if not (self._config.scales_directly and is_scaled_directly(service.spec)):
            return observed
        report = self._sources.scaling.get(key, NOT_MEASURED)
        return replace(observed, children={**observed.children, ("HorizontalPodAutoscaler", service.name): report})

    def _pinned_image(self, service: LLMService, observed: Observation) -> str:
        """Return the image of the engine's pods, which stays the same when the operator is upgraded.

        Until the status that ends the first reconcile says which it is, the Deployment does.
        """
        pinned = value_at(service.status, str, "engineImage")
        return pinned or _running_image(service, observed) or self._config.engine_image

    async def _report_unread(
        self, service: LLMService, observed: Observation, refusal: Problem | None, error: ApiError
    ) -> None:
        """Report on an LLMService that has no status and could not be read completely.

        No image is pinned: which one the pods run may be what could not be read. `error` counts, not another one here.
        """
        problem = None if refusal or error.transient else _problem(error)
        with contextlib.suppress(ApiError):
            await self._report(service, observed, "", Result(refusal, refused=problem))

    async def _report_held(self, live: Mapping[str, Any], observed: Observation) -> float | None:
        """Report that the LLMService is being deleted, which of its pods still run, and what finalizers hold it up.

        Return in how many seconds there may be more to report.
        """
        now = self._clock()
        again, metadata = deletion_patience_seconds(live, observed, now), live["metadata"]
        names = holders(live, observed, now)
        if not names and FOREGROUND not in (metadata.get("finalizers") or ()):
            return again
        since = metadata["deletionTimestamp"]
        what = f"the LLMService is being deleted (asked for at {since}), and nothing of it is changed any more"
        help_ = f"{', '.join(names)} holds it: end what uses it, or remove the finalizer if what set it is gone"
        held = Problem(Reason.BEING_DELETED, f"{what}; {help_}") if names else None
        with contextlib.suppress(InvalidLLMServiceError):
            service = parse_stored(live).service
            image = value_at(service.status, str, "engineImage") or ""
            result = Result(unserved=held, ends=f"{what}; its pods end before it")
            await self._report(service, replace(observed, service=live), image, result)
        return again

    def _forbidden(self, service: LLMService) -> Problem | None:
        """Return the problem of a spec that the administrator does not allow. Existing pods stay as they are."""
        wanted, allowed = service.spec.cache.host_path, self._config.host_paths
        if wanted is None or allowed is None or service.spec.suspend or wanted.rstrip("/") in allowed:
            return None
        folders = ", ".join(sorted(allowed)) or "none"
        return Problem(
            Reason.POLICY_DENIED,
            f"spec.cache.hostPath {wanted} is not one of the folders that the operator's administrator allows "
            f"({folders}): choose one of these, another type of cache, or have it added to the "
            "chart's value engine.hostPaths",
        )

    def _reported(self, key: Key, applied: Applied, began: datetime, ended: datetime) -> Mapping[Identity, ApiError]:
        """Return the failures of a reconcile that are reported: refusals at once, others once they have lasted.

        So is a child whose CRD is being removed: the watches are opened again, without that kind, within seconds.
        """
        if not applied.failures:
            self._failing.pop(key, None)
            return {}
        since = self._failing.setdefault(key, began)
        if ended - since >= _LASTING:
            return applied.failures
        gone = {each for each, why in applied.refusals.items() if why.kind_ends and each[0] in self._config.kinds}
        return {each: why for each, why in applied.refusals.items() if each not in gone}

    async def _rollout_state(self, service: LLMService, observed: Observation) -> RolloutState:
        deployment = observed.children.get(("Deployment", service.name), {})
        pods, now = views(service, observed.pods), self._clock()
        waiting = [pod for pod in pods if pod.waits and pod.waits.reason == Reason.WAITING_FOR_VOLUMES]
        names = frozenset[str]().union(*(pod.claims for pod in waiting if not usual_wait_seconds(pod, now)))
        claims = {name: await self._claim(service, observed, name) for name in sorted(names)}
        exclusive = frozenset(name for name, claim in claims.items() if claim and _is_exclusive(claim))
        cordoned = await cordoned_nodes(self._cluster, pods)
        state = rollout_state(service.spec.rollout, deployment, pods, now, exclusive, cordoned)
        if state.in_place:
            await spare_pods_on(cordoned, self._cluster, observed.pods)
        return state

    async def _missing_claims(self, service: LLMService, observed: Observation) -> frozenset[str]:
        """Return the claims of adapters that are not there. Users make them, and no watch reports them."""
        now, missing = datetime.fromisoformat(self._clock()), set()
        self._claims_seen = {each: when for each, when in self._claims_seen.items() if now - when < _CLAIM_TRUST}
        for name in sorted({claim for adapter in service.spec.adapters if (claim := claim_of(adapter))}):
            key = service.namespace, name
            if key in self._claims_seen:
                continue
            if await self._claim(service, observed, name) is None:
                missing.add(name)
            else:
                self._claims_seen[key] = now
        return frozenset(missing)

    async def _claim(self, service: LLMService, observed: Observation, name: str) -> Mapping[str, Any] | None:
        """Return a PersistentVolumeClaim, which may be the user's own."""
        identity = ("PersistentVolumeClaim", name)
        if own := observed.children.get(identity):
            return own
        try:
            return await self._cluster.get(BY_NAME[identity[0]], service.namespace, name)
        except ApiError as error:
            if error.status != _FORBIDDEN:
                raise
            return {}  # as if it were there: the scheduler says so if it is not

    async def _report(self, service: LLMService, observed: Observation, image: str, result: Result) -> float | None:
        now = self._clock()
        status = summarize(service, observed, image, result, now, self._node_wait)
        return await self._statuses.write(observed.service or {}, status.as_object(), now)


def _needed(unwatched: Mapping[Kind, str], wanted: Sequence[Mapping[str, Any]]) -> Mapping[Kind, str]:
    """Return the unwatched kinds that a reconcile must read: of wanted children, and of objects made from them."""
    names = {manifest["kind"] for manifest in wanted} | {kind.name for kind in OBSERVED}
    return {kind: why for kind, why in unwatched.items() if kind.name in names}


def _has_all_replicas(deployment: Mapping[str, Any]) -> bool:
    """Return True if as many replicas are available as the Deployment should have."""
    return count_of(deployment, "availableReplicas") >= int((deployment.get("spec") or {}).get("replicas") or 0)


def _not_acted_on(service: LLMService) -> Problem | None:
    """Return the problem of a spec with fields that this version of the operator does not act on yet."""
    rows = blocking(service.spec)
    return Problem(Reason.FIELDS_NOT_YET_ACTED_ON, "; ".join(map(str, rows))) if rows else None


def _running_image(service: LLMService, observed: Observation) -> str:
    """Return the image that the engine of a service without a status runs, as where the first reconcile was cut short.

    It is empty where there is no such image.
    """
    deployment = observed.children.get(("Deployment", service.name), {})
    return "" if service.spec.engine.image else str(deployment.get("engineImage") or "")


def _is_exclusive(claim: Mapping[str, Any]) -> bool:
    """Return True if only one node, or one pod, may use the PersistentVolumeClaim at a time."""
    return not _SHARED & set((claim.get("status") or {}).get("accessModes") or _SHARED)


def _pauses(service: LLMService, observed: Observation, now: str, node_wait: float) -> list[float]:
    """Return in how many seconds something may have waited too long.

    A pod may wait for a node, for its volumes or for the Service to lead to it, and may not end; a Deployment may wait
    for its controller. The clock is read in whole seconds.
    """
    pods = views(service, observed.pods)
    left = [*(usual_wait_seconds(pod, now) for pod in pods), *patience_seconds(pods, now, node_wait)]
    left += end_patience(observed.pods, now)
    left += patience_left(observed.unobserved_since, now, CONTROLLER_PATIENCE_SECONDS)
    left += patience_left(observed.unaddressed_since, now, ADDRESS_PATIENCE_SECONDS)
    if observed.slices is not None and not reachable_pods(observed.slices, pods):
        left.append(settling_seconds(pods, service.status or {}, now))
    return [seconds + 1 for seconds in left if seconds]


def _again(
    service: LLMService, applied: Applied, rollout: RolloutState, now: datetime, pauses: list[float]
) -> float | None:
    """Return in how many seconds the next reconcile is due even if no event arrives; None: never."""
    pauses = pauses + [conflict.seconds for conflict in applied.conflicts]
    pauses += [seconds for seconds in (rollout.again, rollout.retry, applied.retry) if seconds is not None]
    in_force = bounds_in_force(service.spec, now)
    if in_force and in_force.until:  # other bounds then; the clock is read in whole seconds
        pauses.append((in_force.until - now).total_seconds() + 1)
    return min(pauses, default=None)


def _result(
    service: LLMService, reported: Mapping[Identity, ApiError], applied: Applied, rollout: RolloutState
) -> Result:
    first: dict[int, Identity] = {}  # a child that names one that failed has the failure of that one, which comes first
    refused = {each: _problem(failure, first.setdefault(id(failure), each)) for each, failure in reported.items()}
    serving = [(kind, service.name) for kind in _SERVING]
    of_pods = (each.message for each in applied.conflicts if each.of_pods)
    of_service = (each.message for each in applied.conflicts if each.child == ("Service", service.name))
    unserved = next((found for identity, found in refused.items() if identity in serving), None)
    return Result(
        unserved=unserved,
        refused=_joined([found for found in refused.values() if found != unserved]),
        conflicts=tuple(Problem(Reason.FIELD_CONFLICT, conflict.message) for conflict in applied.conflicts),
        conflict_of_pods=next((Problem(Reason.FIELD_CONFLICT, message) for message in of_pods), None),
        route_conflict=next(of_service, ""),
        rollout=rollout,
    )


def _joined(problems: Sequence[Problem]) -> Problem | None:
    """Merge problems into one, under the reason of the first."""
    sentences = dict.fromkeys(problem.message for problem in problems)
    return Problem(problems[0].reason, "; ".join(sentences)) if problems else None


def _problem(failure: ApiError, child: Identity | None = None) -> Problem:
    """Return the problem of a request that failed; of a `child`, the sentence names it."""
    if isinstance(failure, NameTakenError):
        return Problem(Reason.NAME_TAKEN, failure.message)
    if failure.namespace_ends:
        what = "the namespace is being deleted, and with it this LLMService: Kubernetes creates nothing in it any more"
        help_ = "to keep the model, create the LLMService in another namespace"
        return Problem(Reason.BEING_DELETED, f"{what}; {help_}")
    reason = Reason.RIGHTS_MISSING if refused_right(failure.message) else Reason.APPLY_FAILED
    message = advice(failure.message)
    if child is None or failure.status in _OF_THE_API_SERVER or _names(failure.message, *child):
        return Problem(reason, message)
    return Problem(reason, f"{child[0]} {child[1]}: {message}")


def _names(message: str, kind: str, name: str) -> bool:
    """Return True if the API server, or the operator, says in `message` which object it is about."""
    return re.search(rf'"{re.escape(name)}"|({kind} |/){re.escape(name)}(?![\w.-])', message) is not None
