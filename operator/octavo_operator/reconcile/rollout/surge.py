"""Finds what keeps the pods of a surge from starting, and whether the end of an old pod would help. Pure.

A surge pod starts before the pod that it replaces ends, so it needs resources beside it: GPUs, memory, a quota, a
volume.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from octavo_operator.api.conditions import Reason
from octavo_operator.api.quantity import parse_quantity
from octavo_operator.reconcile.advice import advice
from octavo_operator.reconcile.pods.failed_pods import newest_revision
from octavo_operator.reconcile.pods.placement import lacking
from octavo_operator.reconcile.pods.pod_view import PodView, usual_wait_seconds
from octavo_operator.reconcile.pods.refused_pods import refusal_of

_QUOTA = "exceeded quota"
_HELD_BY_OLD_PODS = ("anti-affinity rules", "free ports", "ReadWriteOncePod", "Too many pods")
"""The scheduler's words about a node that is refused for a pod that runs there."""


@dataclass(frozen=True)
class Obstacle:
    """The reason why a surge pod does not start."""

    reason: Reason
    message: str
    since: str
    """RFC 3339."""
    helped: bool
    """Whether ending an old pod helps."""
    of_room: bool = True
    """Whether the pod might start in the place of old pods; else the strategy InPlace would end them for nothing."""


def obstacles(
    deployment: Mapping[str, Any],
    pods: Sequence[PodView],
    exclusive: frozenset[str],
    now: str,
    cordoned: frozenset[str] = frozenset(),
) -> list[Obstacle]:
    """Return what the surge pods wait for while older pods still run; `now` is RFC 3339.

    `exclusive`: the claims that are known to be for one node or one pod at a time. `cordoned`: the nodes of older pods
    that are known to take no new one.
    """
    waiting = [pod for pod in pods if pod.waits]
    found = [_of_pod(pod, [old for old in pods if is_before(old, pod)], exclusive, now, cordoned) for pod in waiting]
    found.insert(0, _refused(deployment, pods))
    return [each for each in found if each]


def is_before(old: PodView, new: PodView) -> bool:
    """Return True if `old` has a node and is to be replaced by a pod of the revision of `new`."""
    return old.scheduled and not old.ended and old.revision != new.revision and old.created <= new.created


def _of_pod(
    pod: PodView, before: Sequence[PodView], exclusive: frozenset[str], now: str, cordoned: frozenset[str]
) -> Obstacle | None:
    """Return what a surge pod waits for, if the pods `before` it may have it."""
    if not (pod.waits and before):
        return None
    message = pod.waits.message + _cordoned_sentence(before, cordoned)
    open_nodes = any(old.node not in cordoned for old in before)

    def obstacle(reason: Reason, helps: Callable[[PodView], bool]) -> Obstacle:
        return Obstacle(reason, message, pod.waits_since, any(map(helps, before)))

    def makes_room(old: PodView) -> bool:
        return old.node not in cordoned and old.placement.makes_room_for(pod.placement, lacking(message))

    match pod.waits.reason:
        case Reason.WAITING_FOR_GPU:
            return replace(obstacle(Reason.NO_GPU_FOR_SURGE, makes_room), of_room=open_nodes)
        case Reason.SCHEDULING_GATED:  # whatever holds it counts what old pods have
            return obstacle(Reason.SURGE_GATED, lambda _: True)
        case Reason.UNSCHEDULABLE | Reason.NO_SCHEDULER if not usual_wait_seconds(pod, now):
            held = bool(lacking(message)) or any(words in message for words in _HELD_BY_OLD_PODS)
            found = obstacle(Reason.NO_ROOM_FOR_SURGE, lambda old: held and makes_room(old))
            return replace(found, of_room=held and open_nodes)  # else its nodes are cordoned, tainted or not there
        case Reason.WAITING_FOR_VOLUMES if not usual_wait_seconds(pod, now):
            # Without a node it waits for a claim that is not there, or has no volume: no end of a pod brings that.
            claims = pod.claims & exclusive if pod.scheduled else frozenset()
            return obstacle(Reason.NO_VOLUME_FOR_SURGE, lambda old: bool(old.claims & claims))
    return None


def _cordoned_sentence(before: Sequence[PodView], cordoned: frozenset[str]) -> str:
    """Return which nodes of the pods `before` take no new pod, as the end of a sentence; empty: none."""
    names = " ".join(sorted({old.node for old in before} & cordoned))
    return f"; old pods run on cordoned nodes: kubectl uncordon {names} if a new pod may run there" if names else ""


def _refused(deployment: Mapping[str, Any], pods: Sequence[PodView]) -> Obstacle | None:
    """Return a surge pod that the API server refuses to create, while there are pods of an older revision."""
    refusal = refusal_of(deployment)
    if refusal is None:
        return None
    old = [pod for pod in pods if pod.scheduled and not pod.ended] if refusal.whole else _older(deployment, pods)
    if not old:  # those that end already make room
        return None
    message = f"a pod cannot be created: {advice(refusal.message)}"
    if _QUOTA not in refusal.message or refusal.whole:
        return Obstacle(Reason.SURGE_REFUSED, message, refusal.since, False, of_room=False)
    wanted = _to_be_freed(refusal.message)
    helped = any(pod.placement.holds(wanted) for pod in old)
    return Obstacle(Reason.NO_QUOTA_FOR_SURGE, message, refusal.since, helped)


def _older(deployment: Mapping[str, Any], pods: Sequence[PodView]) -> list[PodView]:
    """Return the pods of older revisions that have a node and stay."""
    status = deployment.get("status") or {}
    updated = int(status.get("updatedReplicas") or 0)
    if int(status.get("replicas") or 0) <= updated:
        return []
    newest = newest_revision(pods) if updated else None
    return [pod for pod in pods if pod.scheduled and not pod.ended and pod.revision != newest]


_EXCEEDED = re.compile(r"requested: (\S+?),? used:(?: (\S+?),? limited: ([^\s;\])\x22']+))?")


def _to_be_freed(message: str) -> dict[str, Decimal]:
    """Read from the API server's message what must be free of the quotas that a pod exceeds: at least what it requests,
    and more of a quota that was lowered below its use.

    It is empty where the message is an admission webhook's own, with other words than quantities.
    """
    freed: dict[str, Decimal] = {}
    try:
        for lists in _EXCEEDED.findall(message):
            requested, used, limited = map(_amounts, lists)
            for name, amount in requested.items():
                excess = used[name] + amount - limited[name] if name in used and name in limited else amount
                freed[name] = max(amount, excess, freed.get(name, amount))
    except (ValueError, ArithmeticError):
        return {}
    return freed


def _amounts(pairs: str) -> dict[str, Decimal]:
    """Parse "requests.cpu=4,pods=1"; ValueError or ArithmeticError if something else is there."""
    split = (pair.partition("=") for pair in pairs.split(","))
    return {name: parse_quantity(amount) for name, _, amount in split if amount}
