"""Remembers pods that something other than their Deployment has ended, while their service lacks replicas.

Such a pod is gone within its grace period, and the one in its place does not say why: it finds no room where another of
a higher priority has taken it (preemption), or it loads until it is evicted too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from octavo_operator.api.conditions import Reason
from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.kinds import EVENT, POD, Kind
from octavo_operator.reconcile.observation.observe import Key, Object
from octavo_operator.reconcile.pods.pod_view import condition_of
from octavo_operator.reconcile.problem import Problem
from octavo_operator.reconcile.timestamps import seconds_between

_PREEMPTION = "PreemptionByScheduler"
_CAUSES = {
    "EvictionByEvictionAPI": "evicted through the API, as a drain, a descheduler or a VerticalPodAutoscaler does",
    "DeletionByTaintManager": "evicted for a taint of the node (kubectl describe node)",
}
"""The reasons of a pod's condition DisruptionTarget, as what happened. What the kubelet itself ends stays as a failed
pod, which says more (`failed_pods`).
"""
_AGAIN = 2
"""Evictions before the pod had served that count as a problem; one may be a drain."""
_BY = re.compile(r"by pod ([0-9a-f-]{36})")
"""The pod's uid, in the words of the scheduler, which does not name it."""
_NAMED = "pod "  # begins the words for a pod whose name is known
_SHOWN = 3
_ASKED_SECONDS = 120.0
"""The time for which the scheduler's Event about a pod is looked for; usually it is there at once."""
_MOST = 50
"""Pods of one LLMService that are remembered."""


class EventReader(Protocol):
    """The API calls that this file makes."""

    async def may(self, verb: str, kind: Kind, namespace: str) -> bool:
        """Return True if this operator may do so."""

    async def list_selected(
        self, kind: Kind, namespace: str, selector: str, *, metadata_only: bool = False, fields: str = ""
    ) -> Sequence[Mapping[str, Any]]:
        """Return the objects of the kind that both selectors select; "": all of the namespace."""


@dataclass
class _Victim:
    """A pod that was ended: for what reason, its name, its node, when (RFC 3339), and whether it was ready.

    `seen`: when it was noted (RFC 3339). `by`: the pod for which it was preempted, in words; empty: that is not known.
    """

    reason: str
    name: str
    node: str
    when: str
    ready: bool
    seen: str
    by: str = ""
    is_named: bool = False
    """Whether `by` has that pod's name: the scheduler may tell its uid a moment before it is seen on the node."""


class Disruptions:
    """Remembers, for each LLMService, the pods that others have ended, until it has all replicas again."""

    def __init__(self) -> None:
        self._victims: dict[Key, dict[str, _Victim]] = {}

    async def note(
        self, cluster: EventReader, key: Key, pods: Iterable[Object], complete: bool, now: str
    ) -> Sequence[Problem]:
        """Note which of the trimmed `pods` others have ended; return the problems of those that are remembered.

        `complete`: the service has all replicas that it should have. `now` is RFC 3339.
        """
        known = self._victims.get(key, {})
        ended = {each["metadata"]["uid"]: found for each in pods if (found := _victim(each, now))}
        before = {uid: victim for uid, victim in known.items() if uid in ended or not complete}
        victims = dict([*{**before, **ended, **before}.items()][-_MOST:])  # in the order in which they were seen
        self.forget(key)
        if victims:  # before the requests, in which this may be cancelled, since the pods may be gone by the next time
            self._victims[key] = victims
        for uid, victim in _preempted_of(victims)[-_SHOWN:]:
            if not victim.is_named and seconds_between(victim.seen, now) < _ASKED_SECONDS:
                by = await _preemptor(cluster, key[0], uid, victim.node)
                victim.by, victim.is_named = by or victim.by, by.startswith(_NAMED)
        return _problems(victims)

    def forget(self, key: Key) -> None:
        """Forget an LLMService that is gone."""
        self._victims.pop(key, None)


async def _preemptor(cluster: EventReader, namespace: str, uid: str, node: str) -> str:
    """Return for which pod that of this uid was ended, as the scheduler's Event says; empty: it is not known.

    That is no reason for a reconcile to fail.
    """
    try:
        if not await cluster.may("list", EVENT, namespace):
            return ""
        events = await cluster.list_selected(EVENT, namespace, "", fields=f"regarding.uid={uid},reason=Preempted")
        found = next((found[1] for each in events if (found := _BY.search(str(each.get("note"))))), "")
        return await _named(cluster, found, node) if found else ""
    except ApiError:
        return ""


async def _named(cluster: EventReader, uid: str, node: str) -> str:
    """Return the pod of this uid, which the scheduler has put on the node or will, by its name if it can be found."""
    if await cluster.may("list", POD, ""):
        for place in ("spec.nodeName", "status.nominatedNodeName"):
            for pod in await cluster.list_selected(POD, "", "", metadata_only=True, fields=f"{place}={node}"):
                if pod["metadata"]["uid"] == uid:
                    return f"{_NAMED}{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    return f"the pod of uid {uid}"


def _victim(pod: Object, now: str) -> _Victim | None:
    """Return a pod that something other than its Deployment or its node has ended; None: nothing has."""
    target = condition_of(pod, "DisruptionTarget")
    reason = target.get("reason") or ""
    if target.get("status") != "True" or reason not in (_PREEMPTION, *_CAUSES):
        return None
    node, ready = (pod.get("spec") or {}).get("nodeName") or "", condition_of(pod, "Ready").get("status") == "True"
    return _Victim(reason, pod["metadata"]["name"], node, target.get("lastTransitionTime") or "", ready, now)


def _preempted_of(victims: Mapping[str, _Victim]) -> list[tuple[str, _Victim]]:
    """Return those that were preempted, with their uids, the last one last."""
    found = [each for each in victims.items() if each[1].reason == _PREEMPTION]
    return sorted(found, key=lambda each: each[1].when)


def _problems(victims: Mapping[str, _Victim]) -> list[Problem]:
    preempted = [victim for _, victim in _preempted_of(victims)]
    evicted = [each for each in victims.values() if each.reason in _CAUSES and not each.ready]
    evicted.sort(key=lambda each: each.when)
    found = [_preempted(preempted)] if preempted else []
    return found + ([_evicted(evicted)] if len(evicted) >= _AGAIN else [])


def _preempted(victims: Sequence[_Victim]) -> Problem:
    sentences = [f"{_where(each)} was preempted at {each.when}{_for_whom(each)}" for each in victims[-_SHOWN:]]
    if len(victims) > _SHOWN:
        sentences.append("so were others before")
    help_ = "raise this model's priority (spec.scheduling.priorityClassName), add a node, or end something else there"
    return Problem(Reason.PREEMPTED, "; ".join([*sentences, help_]))


def _for_whom(victim: _Victim) -> str:
    if victim.by:
        return f" to make room for {victim.by}, which has a higher priority"
    return (
        " to make room for a pod of a higher priority (kubectl get events --field-selector reason=Preempted shows its "
        "uid)"
    )


def _evicted(victims: Sequence[_Victim]) -> Problem:
    first = victims[0]  # so that the sentence stays the same while more are evicted
    return Problem(
        Reason.EVICTED,
        f"pods are ended before they serve, such as {_where(first)} at {first.when}, which was "
        f"{_CAUSES[first.reason]}: stop what ends them until they have loaded (the API server's audit log names it), "
        "or have the pods tolerate the taint (spec.scheduling.tolerations)",
    )


def _where(victim: _Victim) -> str:
    return f"pod {victim.name} on node {victim.node}" if victim.node else f"pod {victim.name}"
