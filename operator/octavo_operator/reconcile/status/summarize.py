"""Makes a status from an observation. Pure: the time is given, the earlier status decides what counts as a change."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from octavo_operator.api.conditions import ConditionState, ConditionType, Reason
from octavo_operator.api.names import selector
from octavo_operator.api.resource import LLMService
from octavo_operator.api.status import (
    Condition,
    LLMServiceStatus,
    MemoryStatus,
    ModelStatus,
)
from octavo_operator.api.value_at import value_at
from octavo_operator.reconcile.apply.handover import stale_scaler
from octavo_operator.reconcile.apply.volume_claims import resize_error
from octavo_operator.reconcile.kinds import BY_NAME, POD
from octavo_operator.reconcile.observation.observe import Observation
from octavo_operator.reconcile.pods.endpoints import foreign_route, reachable_pods, settling_seconds
from octavo_operator.reconcile.pods.failed_pods import failing_again, newest_revision
from octavo_operator.reconcile.pods.load_report import LoadReport, ModelReport
from octavo_operator.reconcile.pods.pod_view import PodView, is_stuck, usual_wait_seconds, views
from octavo_operator.reconcile.pods.stuck_terminating import stuck_terminating
from octavo_operator.reconcile.problem import Problem, counted
from octavo_operator.reconcile.rollout.rollout import count_of, revisions
from octavo_operator.reconcile.status.adapter_states import adapter_statuses
from octavo_operator.reconcile.status.autoscaling import scaling
from octavo_operator.reconcile.status.changed_templates import changed_template
from octavo_operator.reconcile.status.condition_states import condition_states
from octavo_operator.reconcile.status.deleted_pods import deleted_problem
from octavo_operator.reconcile.status.disruptions import ended_problems
from octavo_operator.reconcile.status.facts import PATIENCE_SECONDS, Facts, Result
from octavo_operator.reconcile.status.load_balancer import address_problems
from octavo_operator.reconcile.status.load_time import last_load_seconds
from octavo_operator.reconcile.status.loading_status import loading_status
from octavo_operator.reconcile.status.memory_fit import subject
from octavo_operator.reconcile.status.removed_fields import removed_fields
from octavo_operator.reconcile.status.stripped_children import stripped_children
from octavo_operator.reconcile.status.unobserved import unobserved
from octavo_operator.render.deployment import desired_replicas
from octavo_operator.render.scaler import bounds_in_force
from octavo_operator.render.service import url

_OF_WHAT_RUNS = (ConditionType.AVAILABLE, ConditionType.MODEL_LOADED, ConditionType.SCALING_ACTIVE)


def summarize(
    service: LLMService,
    observed: Observation,
    engine_image: str,
    result: Result,
    now: str,
    node_wait: float = PATIENCE_SECONDS,
) -> LLMServiceStatus:
    """Return the status of `service` after a reconcile with this `result`; `now` is RFC 3339.

    `node_wait`: for how many seconds a pod may find no node before it is stalled.
    """
    facts = replace(_facts(service, observed, result, now), node_wait=node_wait)
    memory = _memory(facts)
    states = condition_states(facts, memory, now)
    return LLMServiceStatus(
        observed_generation=service.metadata.generation,
        conditions=_conditions(states, service.status or {}, service.metadata.generation, now),
        replicas=facts.count("replicas"),
        desired_replicas=facts.desired,
        ready_replicas=facts.ready_replicas,
        available_replicas=facts.available_replicas,
        updated_replicas=facts.count("updatedReplicas"),
        selector=",".join(f"{name}={value}" for name, value in selector(service.name).items()),
        url=url(service),
        engine_image=engine_image,
        model=_model(facts, memory),
        revision=revisions(facts.deployment, facts.pods, facts.newest),
        loading=loading_status(facts).model_copy(update={"last_load_seconds": _load_seconds(service, observed)}),
        autoscaling=facts.scaled.status() if facts.scaled else None,
        adapters=list(facts.adapters) or None,
        disruptions=observed.disruptions,
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
        unreached=_without_service(service, observed, result) or _unreached(service, all_pods, observed, result, now),
        unobserved=unobserved(deployment, observed.unobserved_since, now),
        changed_template=changed_template(service.name, observed.template_changes_since),
        same_template=bool(deployment) and deployment.get("template") == observed.observed_template,
        vanishing=_vanishing(observed),
        lost_claim=_lost_claim(observed),
        failing=failing_again(all_pods, now),
        other_problems=_beside(service, deployment, observed, result, now),
        result=result,
        reports=observed.reports,
        adapters=adapter_statuses(service, pods, observed.adapter_reports, result.missing_claims),
        unknown=observed.unknown,
        stale_scaler=None if in_force else stale_scaler(observed.children),
        unwatched=result.unwatched,
        pods_known=POD not in observed.unwatched,
        unanswered=next((observed.unanswered[pod.uid] for pod in pods if pod.uid in observed.unanswered), ""),
    )


def _beside(
    service: LLMService, deployment: Mapping[str, Any], observed: Observation, result: Result, now: str
) -> Sequence[Problem]:
    """Return the problems that keep no pod from serving."""
    removed, claims = _removed_fields(service, deployment, result), _stuck_claims(observed)
    ending = stuck_terminating(observed.pods, now)
    without_address = address_problems(service.name, observed.unaddressed_since, now)
    ended = ended_problems(observed.disruptions.ended_pods or ()) if observed.disruptions else ()
    stripped = () if _is_unwritten(result) or result.ends else stripped_children(observed.children)
    return *ended, *removed, *claims, *ending, *without_address, *stripped, *observed.foreign_problems


def _vanishing(observed: Observation) -> Problem | None:
    """Return the problem that pods go again and again, and do not say why; None: they do not.

    They are deleted, or their labels are changed, so that their ReplicaSet makes others.
    """
    since = observed.disruptions.pods_deleted_since if observed.disruptions else None
    if not since:
        return None
    released = (each for each in observed.foreign_problems if each.reason == Reason.RELEASED_POD)
    return next(released, deleted_problem(since))


def _removed_fields(service: LLMService, deployment: Mapping[str, Any], result: Result) -> Sequence[Problem]:
    """Return the removed fields of a Deployment that this reconcile has written; another one may lack what is new."""
    return () if _is_unwritten(result) else removed_fields(service, deployment)


def _is_unwritten(result: Result) -> bool:
    return bool(result.problem or result.unserved or result.refused or result.conflicts)


def _unreached(
    service: LLMService, pods: Sequence[PodView], observed: Observation, result: Result, now: str
) -> Problem | None:
    """Return the problem that no client reaches the pods though some are ready; None if there is no such problem.

    A pod that is about to end still answers: where EndpointSlices lead to it, they have yet to lead to the new ones.
    """
    ready = [pod for pod in pods if pod.ready and not pod.ended]
    if not ready or observed.slices is None or reachable_pods(observed.slices, pods):
        return None
    there = counted(len(ready), "replica is ready", "replicas are ready")
    them = "it" if len(ready) == 1 else "any of them"
    if settling_seconds(ready, service.status or {}, now):
        return Problem(Reason.DEPLOYING, f"{there}, and the Service does not route to {them} yet")
    what = f"{there}, and Service {service.name} does not route to {them}"
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
        f"selects, or their node was deleted, or a quota is full (kubectl describe service {service.name}; kubectl get "
        f"nodes); kubectl get endpointslices -l kubernetes.io/service-name={service.name}"
    )


def _without_service(service: LLMService, observed: Observation, result: Result) -> Problem | None:
    """Return why there is no Service; None: there may be one."""
    is_known = BY_NAME["Service"] not in observed.unwatched
    return result.unserved if is_known and ("Service", service.name) not in observed.children else None


def _lost_claim(observed: Observation) -> Problem | None:
    """Return the problem of a cache's claim whose volume was deleted: running pods continue, and no new pod starts."""
    for (kind, name), child in observed.children.items():
        if kind == "PersistentVolumeClaim" and child["status"].get("phase") == "Lost":
            what = f"PersistentVolumeClaim {name} is Lost: its PersistentVolume was deleted"
            help_ = f"restore that, or kubectl delete pvc {name}: it is created again, and filled again"
            return Problem(Reason.VOLUME_LOST, f"{what}; {help_}")
    return None


def _stuck_claims(observed: Observation) -> list[Problem]:
    """Return the problems of claims whose volumes are to grow and cannot."""
    claims = ((name, child) for (kind, name), child in observed.children.items() if kind == "PersistentVolumeClaim")
    failed = ((name, error) for name, child in claims if (error := resize_error(child)))
    return [
        Problem(
            Reason.RESIZE_FAILED,
            f"PersistentVolumeClaim {name} cannot grow: {error}; running pods keep its present size; "
            f"kubectl describe pvc {name} shows the events of its storage",
        )
        for name, error in failed
    ]


def _in_order(pods: Sequence[PodView], newest: str, now: str) -> Sequence[PodView]:
    """Return the pods in the order of `Facts.pods`, so that all conditions name the same one of several that fail."""
    youngest = sorted(pods, key=lambda pod: pod.created, reverse=True)
    return sorted(youngest, key=lambda pod: (pod.revision != newest, not is_stuck(pod, now)))


def _settled(pod: PodView, now: str) -> PodView:
    """Return the pod without a wait that is normal for every starting pod."""
    return replace(pod, waits=None) if usual_wait_seconds(pod, now) else pod


def invalid_status(raw: Mapping[str, Any], message: str, now: str) -> dict[str, Any]:
    """Return the status of an object that is no valid LLMService (made under another CRD); other fields are kept.

    So are the conditions about the pods: pods that serve continue to serve, but the operator does not manage them.
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
    autoscaling = value_at(status, dict, "autoscaling") or {}
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


def _load_seconds(service: LLMService, observed: Observation) -> int | None:
    known = value_at(service.status, int, "loading", "lastLoadSeconds")
    return last_load_seconds(observed.pods, service.spec.rollout.startup_timeout_seconds, known)


def _of_present_spec(facts: Facts) -> list[LoadReport]:
    """Return the pods' reports, if all of them are of the present spec."""
    if not facts.replaced or facts.service.spec.rollout.paused:
        return []
    return [facts.reports[pod.uid] for pod in facts.pods if pod.uid in facts.reports]


def _memory(facts: Facts) -> MemoryStatus | None:
    """Return the memory that a pod of the present spec reports for the model, else what was known before."""
    if numbers := next((report.memory for report in _of_present_spec(facts) if report.memory), None):
        return MemoryStatus(subject=subject(facts.service.spec), **numbers.model_dump())
    known = value_at(facts.service.status, dict, "model", "memory")
    with contextlib.suppress(ValidationError):  # another version of the operator may have written it
        return MemoryStatus.model_validate(known) if known else None
    return None


def _model(facts: Facts, memory: MemoryStatus | None) -> ModelStatus:
    """Return the model that a pod of the present spec reports, else what was known before of the same model."""
    found = next((report.model for report in _of_present_spec(facts) if report.model), None)
    if found is None and memory and memory.subject == subject(facts.service.spec):
        with contextlib.suppress(ValidationError):
            found = ModelReport.model_validate(value_at(facts.service.status, dict, "model") or {})
    known = found.model_dump() if found else {}
    return ModelStatus(name=facts.service.served_name, memory=memory, **known)
