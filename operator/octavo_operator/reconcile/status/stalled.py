"""The conditions Reconciling and Stalled, by which kstatus (Flux) and Argo CD judge any object. Pure.

Stalled means that the desired state is not reached unless a person changes something. It is reported within a minute,
long before the Deployment's own deadline, which allows for the time that a model takes to load.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from octavo_operator.api.conditions import ConditionState, Reason
from octavo_operator.reconcile.pods.pod_view import PodView, is_stuck, start_patience_seconds
from octavo_operator.reconcile.problem import Problem
from octavo_operator.reconcile.status.facts import PATIENCE_SECONDS, Facts
from octavo_operator.reconcile.timestamps import seconds_between

_FOR_A_NODE = (Reason.WAITING_FOR_GPU, Reason.UNSCHEDULABLE)
_WAITS = (
    *_FOR_A_NODE,
    Reason.NO_SCHEDULER,
    Reason.WAITING_FOR_VOLUMES,
    Reason.NO_SANDBOX,
)
"""Not scheduling gates: whatever holds a pod back by a gate lets it go when its turn comes."""


def stalled(facts: Facts, now: str) -> ConditionState:
    """Return whether something keeps the desired state from being reached; `now` is RFC 3339."""
    if problem := _obstacle(facts, now):
        return "True", problem.reason, problem.message
    if not facts.result.ends and (held := held_back(facts)):  # what is being deleted is about to be gone, as desired
        return held
    return "False", Reason.AS_EXPECTED, "nothing keeps the desired state from being reached"


def reconciling(facts: Facts, now: str) -> ConditionState:
    """Return whether the desired state is about to be reached.

    False while it is stalled: kstatus reads this one first.
    """
    if problem := _obstacle(facts, now):
        return "False", problem.reason, f"stalled: {problem.message}"
    if held := held_back(facts):
        return held
    if facts.rolled_out and facts.ready >= facts.desired:
        return "False", Reason.DEPLOYED, f"{facts.desired} of {facts.desired} replicas are as they should be"
    newest, ready = min(facts.count("updatedReplicas"), facts.desired), facts.newest_ready
    text = f"{newest} of {facts.desired} replicas are of the newest revision, {ready} of these are ready"
    return "True", Reason.DEPLOYING, text


def held_back(facts: Facts) -> ConditionState | None:
    """Return the state of a condition about changes where a person wants none to be made; None: they are made."""
    if facts.result.ends:
        return "False", Reason.BEING_DELETED, facts.result.ends
    if facts.service.spec.rollout.paused:
        return "False", Reason.PAUSED, "spec.rollout.paused is true: changes are held back"
    return None


def patience_seconds(pods: Iterable[PodView], now: str, node_wait: float = PATIENCE_SECONDS) -> list[float]:
    """Return in how many seconds waiting pods will count as stalled, for those that do not yet.

    `node_wait`: for how many seconds a pod may find no node.
    """
    left = [seconds for pod in pods for seconds in _patience_with(pod, now, node_wait)]
    return [seconds for seconds in left if seconds > 0]


def _obstacle(facts: Facts, now: str) -> Problem | None:
    """Return the problem that a person must solve before the desired state can be reached; None if there is none."""
    result = facts.result
    if problem := result.problem or result.unserved or result.refused or facts.contested_pods or facts.unrouted:
        return problem
    if result.ends or (facts.rolled_out and not facts.unobserved):
        return None
    if facts.service.spec.rollout.paused:  # the pods that there are should serve all the same
        return _of_pods(facts, now) if facts.ready < facts.desired else None
    return facts.late if facts.out_of_time else facts.unobserved or _of_rollout(facts, now)


def _of_rollout(facts: Facts, now: str) -> Problem | None:
    """Return the problem that keeps a rollout from ending."""
    result = facts.result
    if not facts.desired:  # all pods are about to end
        return None
    # A pod that fails has a problem of its own.
    blocked = result.rollout.blocked and result.rollout.problem.reason != Reason.NEW_POD_FAILS
    if blocked:  # perhaps it continues in place, at a known time, or the new pod only starts late
        lasts = result.rollout.again is None and not _has_just_begun(facts, now)
        return result.rollout.problem if lasts else None
    return _of_pods(facts, now)


def _of_pods(facts: Facts, now: str) -> Problem | None:
    """Return the problem that keeps the pods of the newest revision from starting."""
    pods = _newest(facts)
    found = [pod.problem for pod in pods if is_stuck(pod, now) and pod.problem]
    found += [facts.failing] if facts.failing else []
    if not facts.result.rollout.in_place:  # else old pods are about to make room
        found += [facts.refused_pods] if facts.refused_pods else []
        found += [pod.waits for pod in pods if pod.waits and _waits(pod) and _has_waited_long(pod, now, facts)]
    found += [facts.vanishing] if facts.vanishing else []
    return next(iter(found), None)


def _has_just_begun(facts: Facts, now: str) -> bool:
    """Return True if pods of the newest revision wait, none of them for so long that it counts as stalled, and none is
    stuck.
    """
    newest = _newest(facts)
    if any(is_stuck(pod, now) for pod in newest):
        return False
    waiting = [pod for pod in newest if _waits(pod)]
    return bool(waiting) and not any(_has_waited_long(pod, now, facts) for pod in waiting)


def _newest(facts: Facts) -> list[PodView]:
    """Return the pods of the newest revision: the others go."""
    return [pod for pod in facts.pods if pod.revision == facts.newest]


def _patience_with(pod: PodView, now: str, node_wait: float) -> Sequence[float]:
    left = (_longest_wait(pod, node_wait) - seconds_between(pod.waits_since, now),) if _waits(pod) else ()
    return start_patience_seconds(pod, now), *left


def _has_waited_long(pod: PodView, now: str, facts: Facts) -> bool:
    return seconds_between(pod.waits_since, now) >= _longest_wait(pod, facts.node_wait)


def _longest_wait(pod: PodView, node_wait: float) -> float:
    return node_wait if pod.waits is not None and pod.waits.reason in _FOR_A_NODE else PATIENCE_SECONDS


def _waits(pod: PodView) -> bool:
    return pod.waits is not None and pod.waits.reason in _WAITS and bool(pod.waits_since)
