"""`kubectl octavo why NAME`: the obstacles that keep an LLMService from serving or scaling. Pure over `Facts`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from octavo_operator.api.conditions import BAD_STATUS, ConditionType, Reason
from octavo_operator.api.names import KIND, keda_autoscaler
from octavo_operator.api.quantity import parse_quantity
from octavo_operator.api.resource import InvalidLLMServiceError, parse_stored
from octavo_operator.kubectl.status import condition_of, replicas_sentence
from octavo_operator.reconcile.advice import advice
from octavo_operator.reconcile.pods.placement import placement_of
from octavo_operator.reconcile.pods.pod_view import PodView, view
from octavo_operator.reconcile.problem import Problem
from octavo_operator.render.container import GPU, resources

_MOST_EVENTS = 10
_SIMILAR, _CREATING = "(combined from similar events): ", "Error creating: "
"""What Kubernetes writes before the text of many events of one kind, and before why a pod was refused."""
_GENERATED = "[b-df-hj-np-tv-xz2456789]"
"""A character of the names that Kubernetes makes up, which are no words: they have no vowels, and no 0, 1 and 3."""
_NO_OBSTACLE = (Reason.FIXED_REPLICAS, Reason.NO_ADAPTERS, Reason.AUTOSCALER_PENDING)
"""Reasons of conditions whose status looks bad, although nothing is kept from serving or scaling."""


@dataclass(frozen=True)
class Facts:
    """Objects as `kubectl get -o json` shows them. `unread` says which could not be read, and why."""

    service: Mapping[str, Any]
    pods: Sequence[Mapping[str, Any]] = ()
    deployment: Mapping[str, Any] | None = None
    autoscaler: Mapping[str, Any] | None = None
    quotas: Sequence[Mapping[str, Any]] = ()
    events: Sequence[Mapping[str, Any]] = ()
    unread: Sequence[str] = ()


@dataclass(frozen=True)
class Obstacle:
    """One obstacle: the object that it is about, its reason in one word, and a sentence."""

    about: str
    reason: str
    text: str


def obstacles(facts: Facts) -> list[Obstacle]:
    """Return the obstacles, the most likely cause first; each sentence once, also where it is true of several pods.

    Events are past: they are only shown while there is another obstacle.
    """
    names = _names_of_pods(facts)
    found = _with_news([], _present(facts), names)
    if not found:
        return []
    with_events = _with_news(found, _events(facts, {other.reason for other in found}), names)
    return [*found, *(replace(each, text=advice(each.text)) for each in with_events[len(found) :][-_MOST_EVENTS:])]


def _names_of_pods(facts: Facts) -> re.Pattern[str]:
    """Return what matches the names of the pods that are there, and of those that a ReplicaSet could not create."""
    there = [re.escape(pod["metadata"]["name"]) for pod in facts.pods]
    service = re.escape(facts.service["metadata"]["name"])
    never_made = rf"{service}-{_GENERATED}{{4,10}}-(?:{_GENERATED}{{5}})?(?![0-9a-z-])"
    return re.compile("|".join([*sorted(there, key=len, reverse=True), never_made]))


def _with_news(found: Sequence[Obstacle], more: Iterable[Obstacle], pods: re.Pattern[str]) -> list[Obstacle]:
    """Return `found`, and of `more` those whose sentence is new, whichever of the `pods` it names."""
    kept = {_without_names(each.text, pods): each for each in found}
    for each in more:
        sentence = _without_names(each.text, pods)
        if not any(sentence in other for other in kept):
            kept[sentence] = each
    return list(kept.values())


def _without_names(text: str, pods: re.Pattern[str]) -> str:
    """Return `text` without names of pods, and without its full stop, which advice that follows replaces."""
    return pods.sub("", text.removeprefix(_SIMILAR).removeprefix(_CREATING)).rstrip(".")


def report(facts: Facts, found: Sequence[Obstacle]) -> str:
    """Return the obstacles as numbered lines below a line on the whole service."""
    name, replicas = facts.service["metadata"]["name"], replicas_sentence(facts.service)
    serves = condition_of(facts.service, ConditionType.READY).get("status") == "True"
    head = f"{name} {'serves' if serves else 'does not serve'}: {replicas}"
    if not found:
        head += "; nothing keeps it from serving or scaling" if serves else "; no reason was found"
    lines = [head, *(f"{n}. {each.about}: {each.reason}: {each.text}" for n, each in enumerate(found, 1))]
    return "\n".join([*lines, *(f"not looked at: {each}" for each in facts.unread)]) + "\n"


def _present(facts: Facts) -> Iterator[Obstacle]:
    yield from _service(facts.service)
    yield from _conditions(facts)
    yield from _deployment(facts.deployment or {})
    yield from _pods(facts)
    yield from _autoscaler(facts)
    yield from _quotas(facts)


def _service(service: Mapping[str, Any]) -> Iterator[Obstacle]:
    metadata, status = service["metadata"], service.get("status") or {}
    about = f"LLMService {metadata['name']}"
    if metadata.get("deletionTimestamp"):
        yield Obstacle(about, "Deleted", f"it is being deleted (asked for at {metadata['deletionTimestamp']})")
    seen, generation = status.get("observedGeneration", 0), metadata.get("generation", 1)
    if seen < generation:
        what = "nothing of it" if not seen else f"only generation {seen} of {generation}"
        where = "kubectl get pods -A -l app.kubernetes.io/name=octavo-operator"
        yield Obstacle(about, "NotReconciled", f"the operator has seen {what}; check that it runs: {where}")


def _conditions(facts: Facts) -> Iterator[Obstacle]:
    said_by_pods = Reason.DEPLOYING if any(not _problem_of(pod) for pod in _unready(facts)) else None
    for kind, bad in BAD_STATUS.items():
        condition = condition_of(facts.service, kind)
        if condition.get("status") == bad and condition["reason"] not in (*_NO_OBSTACLE, said_by_pods):
            yield Obstacle(f"condition {kind}={bad}", condition["reason"], condition["message"])


def _deployment(deployment: Mapping[str, Any]) -> Iterator[Obstacle]:
    for condition in _live_conditions(deployment):
        if (condition["type"], condition["status"]) in (("ReplicaFailure", "True"), ("Progressing", "False")):
            about = f"Deployment {deployment['metadata']['name']}"
            yield Obstacle(about, condition.get("reason") or condition["type"], condition.get("message") or "")


def _pods(facts: Facts) -> Iterator[Obstacle]:
    yield from map(_pod, _unready(facts))


def _unready(facts: Facts) -> list[PodView]:
    """Return the pods that are to serve and do not."""
    resource = ((facts.service.get("spec") or {}).get("accelerator") or {}).get("resourceName") or GPU
    return [pod for pod in (view(each, resource) for each in facts.pods) if not pod.ready and not pod.ended]


def _problem_of(pod: PodView) -> Problem | None:
    return pod.problem or pod.waits


def _pod(pod: PodView) -> Obstacle:
    if problem := _problem_of(pod):
        return Obstacle(f"pod {pod.name}", problem.reason, problem.message)
    return Obstacle(f"pod {pod.name}", pod.phase, "the pod is not ready yet")


def _autoscaler(facts: Facts) -> Iterator[Obstacle]:
    """Yield what the HorizontalPodAutoscaler says, unless the LLMService's own condition says it in better words."""
    autoscaler, ours = facts.autoscaler or {}, condition_of(facts.service, ConditionType.SCALING_ACTIVE)
    unwanted = () if ours.get("status") == "False" else (("AbleToScale", "False"), ("ScalingActive", "False"))
    for condition in _live_conditions(autoscaler):
        # TooFewReplicas means that minReplicas holds it up: there is no load that it could not follow.
        limited = condition["type"] == "ScalingLimited" and condition.get("reason") == "TooManyReplicas"
        if (condition["type"], condition["status"]) in unwanted or (limited and condition["status"] == "True"):
            about = f"HorizontalPodAutoscaler {autoscaler['metadata']['name']}"
            message = (
                ours["message"] if limited and "maxReplicas" in ours.get("message", "") else condition.get("message")
            )
            yield Obstacle(about, condition.get("reason") or condition["type"], message or "")


def _quotas(facts: Facts) -> Iterator[Obstacle]:
    """Yield quotas of what a pod takes that are used up, while there are fewer pods than there should be."""
    status = facts.service.get("status") or {}
    if status.get("replicas", 0) >= status.get("desiredReplicas", 0):
        return
    taken = placement_of(_pod_spec(facts))
    for quota in facts.quotas:
        used = (quota.get("status") or {}).get("used") or {}
        for resource, hard in ((quota.get("status") or {}).get("hard") or {}).items():
            full = parse_quantity(str(used.get(resource, "0"))) >= parse_quantity(str(hard))
            if full and taken.of_quota(resource):
                text = f"{used.get(resource, '0')} of {hard} {resource} are used: raise the quota, or end other pods"
                yield Obstacle(f"ResourceQuota {quota['metadata']['name']}", "UsedUp", text)


def _pod_spec(facts: Facts) -> Mapping[str, Any]:
    """Return the spec of the service's pods; if the Deployment cannot be read, what the LLMService says they take."""
    template = ((facts.deployment or {}).get("spec") or {}).get("template") or {}
    if template:
        return template.get("spec") or {}
    try:
        return {"containers": [{"resources": resources(parse_stored(facts.service).service)}]}
    except InvalidLLMServiceError:
        return {}


def _events(facts: Facts, reasons: set[str]) -> Iterator[Obstacle]:
    """Yield the warnings in order, without those of the LLMService that repeat one of the `reasons` of conditions."""
    name = facts.service["metadata"]["name"]
    pods = {pod["metadata"]["name"] for pod in facts.pods}
    claims = {claim for pod in facts.pods for claim in view(pod, GPU).claims}
    related = [
        each
        for each in facts.events
        if _is_of(each.get("involvedObject") or {}, name, pods, claims)
        and not _is_of_a_start(each)
        and not (each["involvedObject"]["kind"] == KIND and each.get("reason") in reasons)
    ]
    for event in sorted(related, key=_when):
        regarding = event["involvedObject"]
        about = f"event of {regarding['kind']} {regarding['name']}"
        yield Obstacle(about, event.get("reason") or "", " ".join((event.get("message") or "").split()))


def _is_of(regarding: Mapping[str, Any], name: str, pods: set[str], claims: set[str]) -> bool:
    kind, whose = regarding.get("kind"), regarding.get("name") or ""
    if kind == "Pod":
        return whose in pods
    if kind == "PersistentVolumeClaim":
        return whose in claims
    if kind == "ReplicaSet":
        return whose.rpartition("-")[0] == name
    if kind == "HorizontalPodAutoscaler":
        return whose in (name, keda_autoscaler(name))
    return kind in ("LLMService", "Deployment") and whose == name


def _is_of_a_start(event: Mapping[str, Any]) -> bool:
    """Return True if it is a startup probe's, which fails at each start until the model is loaded."""
    return event.get("reason") == "Unhealthy" and (event.get("message") or "").startswith("Startup probe failed")


def _when(event: Mapping[str, Any]) -> str:
    last = (event.get("series") or {}).get("lastObservedTime")
    return last or event.get("lastTimestamp") or event.get("eventTime") or ""


def _live_conditions(body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return (body.get("status") or {}).get("conditions") or ()
