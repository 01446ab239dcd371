"""Decides how a rollout continues: with a surge, or, if there is no room for one, in place. Pure.

All state is in the cluster. A surge pod starts before the pod that it replaces ends. Where there is no GPU, quota or
volume for both, it would wait forever for what the old pod holds. Strategy Auto then continues in place: it stops old
pods first, but only where that surely helps, since it would otherwise end serving pods for nothing. The strategy is not
part of the pod template, so this begins no new rollout; once it has ended the Deployment surges again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from octavo_operator.api.conditions import Reason
from octavo_operator.api.llmservice import Rollout
from octavo_operator.api.status import RevisionStatus
from octavo_operator.api.value_at import value_at
from octavo_operator.reconcile.pods.failed_pods import failing_again, newest_revision
from octavo_operator.reconcile.pods.pod_view import PodView, condition_of, is_stuck
from octavo_operator.reconcile.pods.refused_pods import refusal_of
from octavo_operator.reconcile.problem import Problem
from octavo_operator.reconcile.rollout.surge import Obstacle, obstacles
from octavo_operator.reconcile.timestamps import seconds_between
from octavo_operator.render.deployment import grace_period, strategy

_NOTHING = Problem(Reason.NOT_BLOCKED, "nothing holds a rollout back")
_NO_ROOM = (
    "ending an old pod would not make room for it (another resource, more of it, or another node), so they go on "
    "serving: free what is lacking, or set spec.rollout.strategy to InPlace"
)
_NO_WAY = "ending an old pod would not help, so they go on serving until the cause is fixed"
_ROOM_TAKEN = (
    "no further old pod ends before it runs: either one has ended for it, and its room cannot be used (something else "
    "has taken it, or its node takes no new pods), or more replicas are asked for than there is room for: free what is "
    "lacking, or ask for fewer replicas"
)
_TOO_MANY = (
    "{} replicas are asked for and {} run, so that a rollout in place would end no old pod either: free what is "
    "lacking, or ask for fewer replicas"
)
_FOR_A_NODE = (Reason.WAITING_FOR_GPU, Reason.UNSCHEDULABLE)
_SCHEDULED_SECONDS = 45.0
"""Seconds after which a pod for which there is room has a node: the scheduler tries again within ten."""
_NONE_STARTS = "no pod of this revision starts until the cause is fixed"
_COMPLETE = "NewReplicaSetAvailable"
"""The reason of a Deployment's condition Progressing from the end of a rollout to the beginning of the next one."""
_NOTICE_SECONDS = 1.0  # times in the API are whole seconds: looked at a moment later, the time is surely over
_RETRY_SECONDS, _RETRY_LATER_SECONDS = 10.0, 60.0
_SOON = 300.0
"""The pauses between two tries to make pods that the API server refused: in the first minutes and while
an old pod makes room for them, and otherwise.

A ReplicaSet whose pods were refused waits for up to 16 minutes before it tries again, though a quota may be larger by
then, and a Deployment whose ReplicaSet was refused gives up after a few. Both try at once when they change, and a
Deployment hands annotations down to its ReplicaSet.
"""


@dataclass(frozen=True)
class RolloutState:
    """The state of a rollout."""

    in_place: bool = False
    tried: str | None = None
    """When refused pods were last to be tried again (RFC 3339); None: none are refused."""
    blocked: bool = False
    problem: Problem = _NOTHING
    again: float | None = None
    """In how many seconds to decide once more, although nothing has changed."""
    retry: float | None = None
    """In how many seconds refused pods are tried again the next time."""


def rollout_state(
    rollout: Rollout,
    deployment: Mapping[str, Any],
    pods: Sequence[PodView],
    now: str,
    exclusive: frozenset[str] = frozenset(),
    cordoned: frozenset[str] = frozenset(),
) -> RolloutState:
    """Return the state of the Deployment's rollout; `now` is RFC 3339.

    `exclusive`: the claims that are known to be for one node or one pod at a time. `cordoned`: the nodes of its pods
    that are known to take no new one.
    """
    waiting = obstacles(deployment, pods, exclusive, now, cordoned)
    if not waiting and _all_old_pods_are_on(cordoned, pods):  # in place, the next one would end for nothing
        state = RolloutState()
    else:
        state = _state(rollout, deployment, pods, waiting, now)
    if state.in_place:
        state = _with_lack_of_room(state, rollout, deployment, pods, now)
    none_wanted = (deployment.get("spec") or {}).get("replicas") == 0
    if not (state.blocked or rollout.paused or none_wanted) and (failing := _failing(deployment, pods, now)):
        state = replace(state, blocked=True, problem=failing)
    refusal = refusal_of(deployment)
    if none_wanted or refusal is None:
        return state
    moment, refused_for = datetime.fromisoformat(now), seconds_between(refusal.since, now)
    seconds = _RETRY_SECONDS if state.in_place or refused_for < _SOON else _RETRY_LATER_SECONDS
    since = moment.timestamp() % seconds
    return replace(state, tried=(moment - timedelta(seconds=since)).isoformat(), retry=seconds - since)


def _state(
    rollout: Rollout, deployment: Mapping[str, Any], pods: Sequence[PodView], waiting: Sequence[Obstacle], now: str
) -> RolloutState:
    too_many = _too_many(rollout, deployment, pods)
    if not falls_back(rollout):
        return _fixed(rollout, waiting, too_many)
    helped = [each for each in waiting if each.helped]
    if is_in_place(deployment) and not _has_ended(deployment) and (helped or not waiting):
        return RolloutState(in_place=True, problem=_went_in_place(rollout))
    if not waiting or rollout.paused:
        return RolloutState()
    if helped and not too_many:
        return _soon_in_place(rollout, helped, now)
    return _blocked(waiting[0], (too_many or _NO_ROOM) if waiting[0].of_room else _NO_WAY)


def _too_many(rollout: Rollout, deployment: Mapping[str, Any], pods: Sequence[PodView]) -> str:
    """Return that a rollout in place would end no old pod, since too few run already; empty: it would end some.

    As after the number of replicas was raised. The Deployment's controller keeps all but maxUnavailable available, and
    counts each old pod as if it were.
    """
    there = [pod for pod in pods if not pod.ended]
    newest = newest_revision(there) if count_of(deployment, "updatedReplicas") else None  # else all are old
    counted = sum(pod.revision != newest or pod.ready for pod in there)
    wanted = value_at(deployment, int, "spec", "replicas")
    most = strategy(rollout, in_place=True)["rollingUpdate"]["maxUnavailable"]
    if wanted is None or counted > wanted - most:
        return ""
    return _TOO_MANY.format(wanted, sum(pod.ready for pod in there))


def _with_lack_of_room(
    state: RolloutState, rollout: Rollout, deployment: Mapping[str, Any], pods: Sequence[PodView], now: str
) -> RolloutState:
    """Return the `state` of a rollout in place as blocked if a new pod has found no room since old pods ended for it.

    By then the old pods are gone: their grace period is over, counted from the Deployment's last step.
    """
    waits = (pod.waits for pod in pods if pod.waits and not pod.ended and pod.waits.reason in _FOR_A_NODE)
    found, since = next(waits, None), condition_of(deployment, "Progressing").get("lastUpdateTime")
    has_acted = count_of(deployment, "replicas") <= int((deployment.get("spec") or {}).get("replicas") or 0)
    if found is None or not since or not (is_in_place(deployment) and has_acted):
        return state
    left = grace_period(rollout) + _SCHEDULED_SECONDS - seconds_between(since, now)
    if left > 0:
        return replace(state, again=left + _NOTICE_SECONDS)
    return replace(state, blocked=True, problem=Problem(found.reason, f"{found.message}; {_ROOM_TAKEN}"))


def _all_old_pods_are_on(nodes: frozenset[str], pods: Sequence[PodView]) -> bool:
    """Return True if there are pods of older revisions, and all of them run on one of these nodes."""
    there = [pod for pod in pods if not pod.ended]
    newest = newest_revision(there)
    old = {pod.node for pod in there if pod.revision != newest and pod.scheduled}
    return bool(old) and old <= nodes


def _failing(deployment: Mapping[str, Any], pods: Sequence[PodView], now: str) -> Problem | None:
    """Return the problem that pods of the newest revision fail at each start; None: none does, or no rollout runs.

    Degraded gives the cause.
    """
    known = [pod for pod in pods if not pod.ended or pod.failure]
    if not known or condition_of(deployment, "Progressing").get("reason") == _COMPLETE:
        return None
    there, newest = [pod for pod in known if not pod.ended], newest_revision(known)
    fails = _what_fails([pod for pod in there if pod.revision == newest], failing_again(pods, now), now)
    if not fails:
        return None
    what_helps = _NO_WAY if any(pod.revision != newest and pod.scheduled for pod in there) else _NONE_STARTS
    return Problem(Reason.NEW_POD_FAILS, f"{fails}, see condition Degraded); {what_helps}")


def _what_fails(newest: Sequence[PodView], again: Problem | None, now: str) -> str:
    """Return the beginning of a sentence, which ends with a reason; empty: none fails."""
    failing = next((pod for pod in newest if pod.problem and is_stuck(pod, now)), None)
    if failing is not None and failing.problem is not None:
        return f"pod {failing.name} keeps failing ({failing.problem.reason}"
    return f"one pod after another fails ({again.reason}" if again else ""


def _soon_in_place(rollout: Rollout, waiting: Sequence[Obstacle], now: str) -> RolloutState:
    left = rollout.surge_timeout_seconds - max(seconds_between(each.since, now) for each in waiting)
    if left <= 0:
        return RolloutState(in_place=True, problem=_went_in_place(rollout))
    after = f"the rollout continues in place after spec.rollout.surgeTimeoutSeconds ({rollout.surge_timeout_seconds})"
    return _blocked(waiting[0], after, again=left + _NOTICE_SECONDS)


def _blocked(obstacle: Obstacle, what_helps: str, again: float | None = None) -> RolloutState:
    return RolloutState(
        blocked=True, problem=Problem(obstacle.reason, f"{obstacle.message}; {what_helps}"), again=again
    )


def revisions(deployment: Mapping[str, Any], pods: Sequence[PodView], newest: str) -> RevisionStatus | None:
    """Return the revision that serves (the older one while two do), and the newest; None without pods."""
    there = sorted((pod for pod in pods if not pod.ended), key=lambda pod: pod.created)
    if not there:
        return None
    ready = [pod.revision for pod in there if pod.ready]
    return RevisionStatus(
        current=ready[0] if ready else None,
        updated=newest,
        collision_count=(deployment.get("status") or {}).get("collisionCount"),
    )


def falls_back(rollout: Rollout) -> bool:
    """Return True if a surge without room is followed by a rollout in place; with maxSurge 0 it is always in place."""
    return rollout.strategy == "Auto" and rollout.max_surge > 0


def is_in_place(deployment: Mapping[str, Any]) -> bool:
    """Return True if the live Deployment stops old pods first."""
    strategy = (deployment.get("spec") or {}).get("strategy") or {}
    return (strategy.get("rollingUpdate") or {}).get("maxSurge") == 0


def count_of(deployment: Mapping[str, Any], name: str) -> int:
    """Return a counter of a Deployment's status, which omits zeros."""
    return int((deployment.get("status") or {}).get(name) or 0)


def is_replaced(deployment: Mapping[str, Any], wanted: int) -> bool:
    """Return True if there are `wanted` pods, all of the newest revision."""
    metadata, status = deployment.get("metadata") or {}, deployment.get("status") or {}
    return (
        bool(metadata)
        and status.get("observedGeneration") == metadata.get("generation")
        and count_of(deployment, "updatedReplicas") == count_of(deployment, "replicas") == wanted
    )


def is_rolled_out(deployment: Mapping[str, Any], wanted: int) -> bool:
    """Return True if there are `wanted` pods, all of the newest revision and available."""
    return is_replaced(deployment, wanted) and count_of(deployment, "availableReplicas") == wanted


def _has_ended(deployment: Mapping[str, Any]) -> bool:
    """Return True if all pods are of the newest revision, however many are wanted now.

    Without pods it is true only if none are wanted.
    """
    there = count_of(deployment, "replicas")
    none_wanted = (deployment.get("spec") or {}).get("replicas") == 0
    return (there > 0 or none_wanted) and is_rolled_out(deployment, there)


def _fixed(rollout: Rollout, waiting: Sequence[Obstacle], too_many: str) -> RolloutState:
    if rollout.strategy == "Surge" and waiting:
        room = too_many or "free what is lacking, or set spec.rollout.strategy to Auto or InPlace"
        return _blocked(waiting[0], room if waiting[0].of_room else _NO_WAY)
    return RolloutState()


def _went_in_place(rollout: Rollout) -> Problem:
    return Problem(
        Reason.WENT_IN_PLACE,
        f"there was no room for a surge pod for {rollout.surge_timeout_seconds} s: this rollout stops old pods first; "
        "the next one surges again",
    )
