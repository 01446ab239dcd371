"""How a rollout goes on: with a surge, or, where no GPU is free for one, in place. Pure; all state is the cluster's.

A surge pod starts before the pod that it replaces ends, so it needs a GPU of its own. Where there is none, it would
wait for ever for the one that the old pod holds. Strategy Auto then goes on in place: it stops old pods first, but only
where that surely helps, since it would else end what serves for nothing. The strategy is no part of the pod template,
so this begins no new rollout; once it has ended the Deployment surges again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from octavo_operator.api.conditions import Reason
from octavo_operator.api.llmservice import Rollout
from octavo_operator.api.status import RevisionStatus
from octavo_operator.reconcile.finding import Finding
from octavo_operator.reconcile.place import lacking
from octavo_operator.reconcile.pods import PodView

_NOTHING = Finding(Reason.NOT_BLOCKED, "nothing holds a rollout back")
_NO_ROOM = (
    "ending an old pod would not make room for it (another resource, more of it, or another node), so they go on "
    "serving: free a GPU, or set rollout.strategy to InPlace"
)
_NOTICE_SECONDS = 1.0  # times in the API are whole seconds: looked at a moment later, the time is surely over


@dataclass(frozen=True)
class Course:
    """How a rollout goes on. `again`: in how many seconds the answer may be another though nothing changes."""

    in_place: bool = False
    blocked: bool = False
    finding: Finding = _NOTHING
    again: float | None = None


def course(rollout: Rollout, deployment: Mapping[str, Any], pods: Sequence[PodView], now: str) -> Course:
    """The course of the Deployment's rollout; `now` is RFC 3339."""
    waiting = surge_pods(pods)
    if not falls_back(rollout):
        return _fixed(rollout, waiting)
    helped = [pod for pod in waiting if _finds_room(pod, pods)]
    has_ended = is_rolled_out(deployment, count_of(deployment, "replicas"))  # however many are wanted by now
    if is_in_place(deployment) and not has_ended and (helped or not waiting):
        return Course(in_place=True, finding=_went_in_place(rollout))
    if not waiting or rollout.paused:
        return Course()
    return (
        _soon_in_place(rollout, helped, now) if helped else Course(blocked=True, finding=_no_gpu(waiting[0], _NO_ROOM))
    )


def _soon_in_place(rollout: Rollout, waiting: Sequence[PodView], now: str) -> Course:
    left = rollout.surge_timeout_seconds - max(_seconds(pod.waits_since, now) for pod in waiting)
    if left <= 0:
        return Course(in_place=True, finding=_went_in_place(rollout))
    after = f"the rollout goes on in place after rollout.surgeTimeoutSeconds ({rollout.surge_timeout_seconds})"
    return Course(blocked=True, finding=_no_gpu(waiting[0], after), again=left + _NOTICE_SECONDS)


def revisions(deployment: Mapping[str, Any], pods: Sequence[PodView]) -> RevisionStatus | None:
    """Which revision serves (the older one while two do), and which is the newest; None without pods."""
    there = sorted((pod for pod in pods if not pod.ended), key=lambda pod: pod.created)
    if not there:
        return None
    ready = [pod.revision for pod in there if pod.ready]
    return RevisionStatus(
        current=ready[0] if ready else None,
        updated=there[-1].revision,
        collision_count=(deployment.get("status") or {}).get("collisionCount"),
    )


def falls_back(rollout: Rollout) -> bool:
    """Whether a surge without a GPU is followed by going in place; with maxSurge 0, it always goes in place."""
    return rollout.strategy == "Auto" and rollout.max_surge > 0


def surge_pods(pods: Sequence[PodView]) -> list[PodView]:
    """The pods that wait for a GPU while an older pod of another revision has a node."""
    return [
        pod
        for pod in pods
        if pod.waits and pod.waits.reason == Reason.WAITING_FOR_GPU and any(_is_before(old, pod) for old in pods)
    ]


def _is_before(old: PodView, new: PodView) -> bool:
    """Whether `old` has a node and is to be replaced by a pod of the revision of `new`."""
    return old.scheduled and not old.ended and old.revision != new.revision and old.created <= new.created


def _finds_room(pod: PodView, pods: Sequence[PodView]) -> bool:
    """Whether the pod could have the node of one that it replaces."""
    lacks = lacking(pod.waits.message) if pod.waits else frozenset()
    return any(_is_before(old, pod) and old.place.makes_room_for(pod.place, lacks) for old in pods)


def is_in_place(deployment: Mapping[str, Any]) -> bool:
    """Whether the live Deployment stops old pods first."""
    strategy = (deployment.get("spec") or {}).get("strategy") or {}
    return (strategy.get("rollingUpdate") or {}).get("maxSurge") == 0


def count_of(deployment: Mapping[str, Any], name: str) -> int:
    """A counter of a Deployment's status; it leaves zeros out."""
    return int((deployment.get("status") or {}).get(name) or 0)


def is_replaced(deployment: Mapping[str, Any], wanted: int) -> bool:
    """Whether there are as many pods as are `wanted`, all of the newest revision."""
    metadata, status = deployment.get("metadata") or {}, deployment.get("status") or {}
    return (
        bool(metadata)
        and status.get("observedGeneration") == metadata.get("generation")
        and count_of(deployment, "updatedReplicas") == count_of(deployment, "replicas") == wanted
    )


def is_rolled_out(deployment: Mapping[str, Any], wanted: int) -> bool:
    """Whether these are available too."""
    return is_replaced(deployment, wanted) and count_of(deployment, "availableReplicas") == wanted


def _fixed(rollout: Rollout, waiting: Sequence[PodView]) -> Course:
    if rollout.strategy == "Surge" and waiting:
        return Course(
            blocked=True, finding=_no_gpu(waiting[0], "free a GPU, or set rollout.strategy to Auto or InPlace")
        )
    return Course()


def _no_gpu(pod: PodView, what_helps: str) -> Finding:
    said = pod.waits.message if pod.waits else ""
    return Finding(Reason.NO_GPU_FOR_SURGE, f"{said}; {what_helps}")


def _went_in_place(rollout: Rollout) -> Finding:
    return Finding(
        Reason.WENT_IN_PLACE,
        f"no GPU was free for a surge pod for {rollout.surge_timeout_seconds} s: this rollout stops old pods first; "
        "the next one surges again",
    )


def _seconds(since: str, now: str) -> float:
    return (datetime.fromisoformat(now) - datetime.fromisoformat(since)).total_seconds() if since else 0.0
