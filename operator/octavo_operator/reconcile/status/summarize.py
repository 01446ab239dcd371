"""Makes a status from an observation. Pure: the time is given, the earlier status decides what counts as a change."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from octavo_operator.api.conditions import ConditionState, ConditionType, LoadingPhase, Reason
from octavo_operator.api.names import selector
from octavo_operator.api.resource import LLMService
from octavo_operator.api.status import (
    Condition,
    LLMServiceStatus,
    LoadingStatus,
    MemoryStatus,
    ModelStatus,
    from_status,
)
from octavo_operator.reconcile.apply.claims import resize_error
from octavo_operator.reconcile.apply.handover import leaving
from octavo_operator.reconcile.kinds import BY_NAME, POD
from octavo_operator.reconcile.observation.observe import Observation
from octavo_operator.reconcile.pods.endpoints import foreign_route, reachable_pods, settling_seconds
from octavo_operator.reconcile.pods.failed_pods import failing_again, newest_revision
from octavo_operator.reconcile.pods.load_report import LoadReport, ModelReport
from octavo_operator.reconcile.pods.pod_view import PodView, is_stuck, usual_wait_seconds, views
from octavo_operator.reconcile.pods.stuck_ends import stuck_ends
from octavo_operator.reconcile.problem import Problem
from octavo_operator.reconcile.rollout.rollout import count_of, revisions
from octavo_operator.reconcile.status.adapter_states import adapter_problem, adapter_statuses, adapters_ready
from octavo_operator.reconcile.status.autoscaling import scaling
from octavo_operator.reconcile.status.facts import PATIENCE_SECONDS, Facts, Result
from octavo_operator.reconcile.status.load_time import last_load_seconds
from octavo_operator.reconcile.status.memory_fit import memory_fit, subject
from octavo_operator.reconcile.status.removed_fields import removed_fields
from octavo_operator.reconcile.status.stalled import reconciling, stalled
from octavo_operator.reconcile.status.unobserved import unobserved
from octavo_operator.render.deployment import desired_replicas
from octavo_operator.render.scaler import bounds_in_force
from octavo_operator.render.service import url
from octavo_operator.render.unsupported_fields import unsupported_fields

_PHASES = list(LoadingPhase)
_LOADED = (LoadingPhase.NOT_READY, LoadingPhase.SERVING)
_WITHOUT_REPORT = (*_LOADED, LoadingPhase.FAILED)
"""Phases in which a pod's last report says nothing any more."""
_OF_WHAT_RUNS = (ConditionType.AVAILABLE, ConditionType.MODEL_LOADED, ConditionType.SCALING_ACTIVE)


def summarize(
    service: LLMService,
    observed: Observation,
    engine_image: str,
    result: Result,
    now: str,
    node_wait: float = PATIENCE_SECONDS,
) -> LLMServiceStatus:
    """The status of `service` after a pass with this `result`; `now` is RFC 3339.

    `node_wait`: for how many seconds a pod may find no node before it is stalled.
    """
    facts = replace(_facts(service, observed, result, now), node_wait=node_wait)
    memory = _memory(facts)
    states = _condition_states(facts, memory, now)
    return LLMServiceStatus(
        observed_generation=service.metadata.generation,
        conditions=_conditions(states, service.status or {}, service.metadata.generation, now),
        replicas=facts.count("replicas"),
        desired_replicas=facts.desired,
        ready_replicas=facts.count("readyReplicas"),
        available_replicas=facts.count("availableReplicas"),
        updated_replicas=facts.count("updatedReplicas"),
        selector=",".join(f"{name}={value}" for name, value in selector(service.name).items()),
        url=url(service),
        engine_image=engine_image,
        model=_model(facts, memory),
        revision=revisions(facts.deployment, facts.pods, facts.newest),
        loading=_loading(facts).model_copy(update={"last_load_seconds": _load_seconds(service, observed)}),
        autoscaling=facts.scaled.status() if facts.scaled else None,
        adapters=list(facts.adapters) or None,
    )


def _facts(service: LLMService, observed: Observation, result: Result, now: str) -> Facts:
    wanted, in_force = desired_replicas(service.spec), bounds_in_force(service.spec, datetime.fromisoformat(now))
    deployment = observed.children.get(("Deployment", service.name), {})
    ready = count_of(deployment, "readyReplicas")
    scaled = scaling(service, in_force, observed.children, ready, result.no_scaler) if in_force else None
    all_pods = views(service, observed.pods)
    pods = [_settled(pod, now) for pod in all_pods if not pod.ended]
    newest = newest_revision([pod for pod in all_pods if not pod.ended or pod.failure])
    return Facts(
        service=service,
        desired=scaled.replicas if scaled else wanted or 0,
        scaled=scaled,
        deployment=deployment,
        pods=_in_order(pods, newest, now),
        newest=newest,
        unreached=_unreached(service, pods, observed, result, now) or _without_service(service, observed, result),
        unobserved=unobserved(deployment, now),
        lost_claim=_lost_claim(observed),
        failing=failing_again(all_pods, now),
        outside=_beside(service, deployment, observed, result, now),
        result=result,
        reports=observed.reports,
        adapters=adapter_statuses(service, pods, observed.adapter_reports, result.missing_claims),
        unknown=observed.unknown,
        leaving=None if in_force else leaving(observed.children),
        unwatched=result.unwatched,
    )


def _beside(
    service: LLMService, deployment: Mapping[str, Any], observed: Observation, result: Result, now: str
) -> Sequence[Problem]:
    """Return the problems that keep no pod from serving."""
    removed, claims = _removed_fields(service, deployment, result), _stuck_claims(observed)
    return *removed, *claims, *stuck_ends(observed.pods, now), *observed.outside


def _removed_fields(service: LLMService, deployment: Mapping[str, Any], result: Result) -> Sequence[Problem]:
    """Return the removed fields of a Deployment that this pass has written; another one may lack what is new."""
    unwritten = result.problem or result.unserved or result.refused or result.conflict
    return () if unwritten else removed_fields(service, deployment)


def _condition_states(facts: Facts, memory: MemoryStatus | None, now: str) -> dict[ConditionType, ConditionState]:
    """Return each condition's status, reason and message."""
    return {
        ConditionType.READY: _ready(facts),
        ConditionType.AVAILABLE: _available(facts),
        ConditionType.PROGRESSING: _progressing(facts),
        ConditionType.DEGRADED: _degraded(facts),
        ConditionType.MODEL_LOADED: _model_loaded(facts),
        ConditionType.SCALING_ACTIVE: _scaling_active(facts),
        ConditionType.ROLLOUT_BLOCKED: _rollout_blocked(facts),
        ConditionType.MEMORY_FITS: memory_fit(facts.service.spec, memory),
        ConditionType.ADAPTERS_READY: _adapters_ready(facts),
        ConditionType.RECONCILING: reconciling(facts, now),
        ConditionType.STALLED: stalled(facts, now),
    }


def _unreached(
    service: LLMService, pods: Sequence[PodView], observed: Observation, result: Result, now: str
) -> Problem | None:
    """Return the problem that no client reaches the pods though some are ready; None if there is no such problem."""
    ready = [pod for pod in pods if pod.ready]
    if not ready or observed.slices is None or reachable_pods(observed.slices, ready):
        return None
    if not result.route_conflict and settling_seconds(ready, service.status or {}, now):
        return Problem(Reason.DEPLOYING, f"{len(ready)} replicas are ready, and the Service does not route to them yet")
    what = f"{len(ready)} replicas are ready, and Service {service.name} routes to none of them"
    return Problem(Reason.NO_ENDPOINTS, f"{what}: {_why_unreached(service, observed, result)}")


def _why_unreached(service: LLMService, observed: Observation, result: Result) -> str:
    if result.route_conflict:
        return result.route_conflict
    if foreign := foreign_route(observed.children.get(("Service", service.name), {}), service.name):
        return (
            f"{foreign}, which the operator has not set: an admission webhook or policy, or another client, changes "
            f"it; kubectl get service {service.name} -o yaml --show-managed-fields"
        )
    return (
        "something other than the operator makes its endpoints, or the pods have other labels or ports than it "
        f"selects, or a quota is full (kubectl describe service {service.name}); kubectl get endpointslices -l "
        f"kubernetes.io/service-name={service.name}"
    )


def _without_service(service: LLMService, observed: Observation, result: Result) -> Problem | None:
    """Return why there is no Service, where no EndpointSlices would show that; None: there may be one."""
    is_known = observed.slices is None and BY_NAME["Service"] not in observed.unwatched
    return result.unserved if is_known and ("Service", service.name) not in observed.children else None


def _lost_claim(observed: Observation) -> Problem | None:
    """Return the problem of a cache's claim whose volume was deleted: running pods go on, and no other pod starts."""
    for (kind, name), child in observed.children.items():
        if kind == "PersistentVolumeClaim" and child["status"].get("phase") == "Lost":
            what = f"PersistentVolumeClaim {name} is Lost: its PersistentVolume was deleted"
            help_ = f"restore that, or kubectl delete pvc {name}: it is created again, and filled again"
            return Problem(Reason.VOLUME_LOST, f"{what}; {help_}")
    return None


def _stuck_claims(observed: Observation) -> list[Problem]:
    """Return the problems of claims whose volumes are to grow and cannot."""
    claims = ((name, child) for (kind, name), child in observed.children.items() if kind == "PersistentVolumeClaim")
    failed = ((name, said) for name, child in claims if (said := resize_error(child)))
    return [
        Problem(
            Reason.RESIZE_FAILED,
            f"PersistentVolumeClaim {name} cannot grow: {said}; running pods keep its present size; "
            f"kubectl describe pvc {name} shows the events of its storage",
        )
        for name, said in failed
    ]


def _in_order(pods: Sequence[PodView], newest: str, now: str) -> Sequence[PodView]:
    """Return the pods in the order of `Facts.pods`, so that all conditions name the same one of several that fail."""
    youngest = sorted(pods, key=lambda pod: pod.created, reverse=True)
    return sorted(youngest, key=lambda pod: (pod.revision != newest, not is_stuck(pod, now)))


def _settled(pod: PodView, now: str) -> PodView:
    """Return the pod without a wait that is normal for every starting pod."""
    return replace(pod, waits=None) if usual_wait_seconds(pod, now) else pod


def invalid_status(raw: Mapping[str, Any], message: str, now: str) -> dict[str, Any]:
    """The status of an object that is no valid LLMService (made under another CRD): the rest is left as it was.

    So are the conditions that tell of the pods: what serves still serves, and is only not looked after.
    """
    generation, before = raw["metadata"].get("generation", 1), raw.get("status") or {}
    states = dict.fromkeys(ConditionType, ("False", Reason.INVALID, message))
    for kind in (ConditionType.DEGRADED, ConditionType.STALLED):
        states[kind] = ("True", Reason.INVALID, message)
    kept = {each["type"]: each for each in before.get("conditions") or () if each["type"] in _OF_WHAT_RUNS}
    conditions = [
        kept.get(condition.type, condition.as_object()) for condition in _conditions(states, before, generation, now)
    ]
    return {**before, "observedGeneration": generation, "conditions": conditions}


_LOAD = ("queueDepth", "concurrencyPercent")


def without_load(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return a status, as the API has it, without the numbers that change at each sync of an autoscaler."""
    autoscaling = from_status(status, dict, "autoscaling") or {}
    return {**status, "autoscaling": {name: value for name, value in autoscaling.items() if name not in _LOAD}}


def _conditions(
    states: Mapping[ConditionType, ConditionState], before: Mapping[str, Any], generation: int, now: str
) -> list[Condition]:
    previous = {condition["type"]: condition for condition in before.get("conditions") or ()}
    conditions = []
    for kind, (status, reason, message) in states.items():
        old = previous.get(kind, {})
        since = old["lastTransitionTime"] if old.get("status") == status else now
        conditions.append(
            Condition.model_validate(
                {
                    "type": kind,
                    "status": status,
                    "reason": reason,
                    "message": message,
                    "observedGeneration": generation,
                    "lastTransitionTime": since,
                }
            )
        )
    return conditions


def _stopped(facts: Facts) -> ConditionState | None:
    if facts.service.spec.suspend:
        return "False", Reason.SUSPENDED, "spec.suspend is true: no pod runs"
    if facts.desired == 0:
        return "False", Reason.SCALED_TO_ZERO, "spec.replicas is 0: no pod runs"
    return None


def _ready(facts: Facts) -> ConditionState:
    ready, stopped, result = facts.ready, _stopped(facts), facts.result
    if refused := result.problem or (result.unserved if ready == 0 or stopped else None):
        return "False", refused.reason, refused.message
    if stopped:
        return stopped
    if facts.unreached:
        return "False", facts.unreached.reason, facts.unreached.message
    cause = facts.trouble or facts.waits
    if cause and (ready == 0 or facts.out_of_time):
        return "False", cause.reason, cause.message
    if ready == 0:
        return "False", Reason.DEPLOYING, f"no replica is ready yet; the furthest is {_loading(facts).phase}"
    return "True", *_serving(facts, ready)


def _serving(facts: Facts, ready: int) -> tuple[Reason, str]:
    reason, said = _served_by(facts, ready)
    return (facts.misled.reason, f"{said}; {facts.misled.message}") if facts.misled else (reason, said)


def _served_by(facts: Facts, ready: int) -> tuple[Reason, str]:
    if facts.replaced or facts.only_scales:
        if ready >= facts.desired:
            return Reason.SERVING, f"{facts.desired} of {facts.desired} replicas serve {facts.service.served_name}"
        return Reason.FEWER_REPLICAS, f"{ready} of {facts.desired} replicas serve"
    return Reason.ROLLING_OUT, f"{ready} replicas serve while {_progress(facts)}"


def _progress(facts: Facts) -> str:
    ready = sum(pod.ready and pod.revision == facts.newest for pod in facts.pods)
    serving = min(ready, facts.count("updatedReplicas"))
    return f"{serving} of {facts.desired} replicas of the newest revision are ready"


def _available(facts: Facts) -> ConditionState:
    if stopped := _stopped(facts):
        return stopped
    available = facts.count("availableReplicas")
    if available and facts.unreached:
        return "False", facts.unreached.reason, facts.unreached.message
    if available == 0:
        return "False", Reason.NO_READY_REPLICA, "no replica answers requests"
    return "True", Reason.SERVING, f"{available} of {facts.desired} replicas answer requests"


def _progressing(facts: Facts) -> ConditionState:
    if refused := facts.result.problem or facts.result.unserved:
        return "False", refused.reason, refused.message
    if facts.service.spec.rollout.paused:
        return "False", Reason.PAUSED, "spec.rollout.paused is true: changes are held back"
    if facts.rolled_out:
        return "False", Reason.DEPLOYED, f"{facts.desired} of {facts.desired} replicas are of the newest revision"
    if facts.out_of_time:
        late = facts.late
        return "False", late.reason, late.message
    if facts.waits:
        return "True", facts.waits.reason, facts.waits.message
    return "True", Reason.DEPLOYING, f"{_progress(facts)}; the furthest replica is {_loading(facts).phase}"


def _degraded(facts: Facts) -> ConditionState:
    result, pending = facts.result, unsupported_fields(facts.service.spec)
    adapters = None if _stopped(facts) else adapter_problem(facts.adapters)
    unwatched = [Problem(Reason.RIGHTS_MISSING, f"not watched: {why}") for why in facts.unwatched.values()]
    said = facts.unrouted and result.conflict and result.conflict.message in facts.unrouted.message
    conflict = None if said else result.conflict
    kinds = (  # the worst first: it gives the reason
        *(result.problem, result.unserved, facts.unrouted, facts.trouble, result.refused, *unwatched, conflict),
        *(facts.overruled, adapters, *facts.outside),
    )
    found = list(dict.fromkeys(filter(None, kinds)))
    sentences = [each.message for each in found]
    if pending:
        sentences.append("accepted but not acted on by this version: " + "; ".join(map(str, pending)))
    wrong = bool(sentences)
    if facts.unknown:  # no fault: while an upgrade is under way every object has such fields, by their defaults
        sentences.append(f"ignored, since this version of the operator does not know it: {', '.join(facts.unknown)}")
    if wrong:
        return "True", found[0].reason if found else Reason.FIELDS_NOT_YET_ACTED_ON, "; ".join(sentences)
    nothing = f"nothing has failed; {facts.waits.message}" if facts.waits else "nothing is wrong"
    return "False", Reason.AS_EXPECTED, "; ".join([nothing, *sentences])


def _model_loaded(facts: Facts) -> ConditionState:
    if why := facts.unwatched.get(POD):
        return "Unknown", Reason.RIGHTS_MISSING, why
    loaded = sum(pod.phase in _LOADED for pod in facts.pods)
    if loaded:
        return "True", Reason.LOADED, f"{loaded} of {len(facts.pods)} pods have loaded the model"
    return "False", Reason.NOT_LOADED, f"no pod has loaded the model; the furthest is {_loading(facts).phase}"


def _adapters_ready(facts: Facts) -> ConditionState:
    if facts.adapters and (stopped := _stopped(facts)):
        return stopped
    return adapters_ready(facts.adapters, max(facts.desired, len(facts.pods)))


def _scaling_active(facts: Facts) -> ConditionState:
    if facts.service.spec.suspend:
        return "False", Reason.SUSPENDED, "spec.suspend is true"
    if facts.scaled:
        return facts.scaled.scaling_active()
    if facts.leaving and facts.desired:
        kind, name = facts.leaving
        shows = f"kubectl get {kind.lower()} {name} -o yaml shows what keeps it"
        return (
            "False",
            Reason.AUTOSCALER_PENDING,
            f"waits until {kind} {name} is deleted, then sets {facts.desired} replicas; {shows}",
        )
    return "False", Reason.FIXED_REPLICAS, f"the number of replicas is fixed at {facts.desired} (spec.replicas)"


def _rollout_blocked(facts: Facts) -> ConditionState:
    state = facts.result.rollout
    return "True" if state.blocked else "False", state.problem.reason, state.problem.message


def _load_seconds(service: LLMService, observed: Observation) -> int | None:
    known = from_status(service.status, int, "loading", "lastLoadSeconds")
    return last_load_seconds(observed.pods, service.spec.rollout.startup_timeout_seconds, known)


def _of_present_spec(facts: Facts) -> list[LoadReport]:
    """The pods' reports, if all of them are of the present spec."""
    if not facts.replaced or facts.service.spec.rollout.paused:
        return []
    return [facts.reports[pod.uid] for pod in facts.pods if pod.uid in facts.reports]


def _memory(facts: Facts) -> MemoryStatus | None:
    """Return the memory that a pod of the present spec reports for the model, else what was known before."""
    if numbers := next((report.memory for report in _of_present_spec(facts) if report.memory), None):
        return MemoryStatus(subject=subject(facts.service.spec), **numbers.model_dump())
    known = from_status(facts.service.status, dict, "model", "memory")
    with contextlib.suppress(ValidationError):  # another version of the operator may have written it
        return MemoryStatus.model_validate(known) if known else None
    return None


def _model(facts: Facts, memory: MemoryStatus | None) -> ModelStatus:
    """Return the model that a pod of the present spec reports, else what was known before of the same model."""
    found = next((report.model for report in _of_present_spec(facts) if report.model), None)
    if found is None and memory and memory.subject == subject(facts.service.spec):
        with contextlib.suppress(ValidationError):
            found = ModelReport.model_validate(from_status(facts.service.status, dict, "model") or {})
    known = found.model_dump() if found else {}
    return ModelStatus(name=facts.service.served_name, memory=memory, **known)


def _loading(facts: Facts) -> LoadingStatus:
    if facts.service.spec.suspend:
        return LoadingStatus(phase=LoadingPhase.SUSPENDED, message="")
    furthest = max(facts.pods, key=lambda pod: _PHASES.index(pod.phase), default=None)
    if furthest is None:
        return LoadingStatus(phase=LoadingPhase.PENDING, message="")
    cause, report = furthest.trouble or furthest.waits, facts.reports.get(furthest.uid)
    message = cause.message if cause else ""
    if report is None or furthest.phase in _WITHOUT_REPORT:
        return LoadingStatus(phase=furthest.phase, message=message)
    return LoadingStatus(
        phase=report.loading_phase or furthest.phase,
        message=message or report.detail,
        bytes_loaded=report.bytes_loaded,
        bytes_total=report.bytes_total,
    )
