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
from octavo_operator.api.status import EndedPodStatus
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
    """A pod that was ended, whether it was ready then, and when it was noted (RFC 3339)."""

    pod: EndedPodStatus
    ready: bool
    seen: str

    @property
    def is_preempted(self) -> bool:
        """Whether another pod has taken its room."""
        return self.pod.cause == _PREEMPTION

    @property
    def lacks_name(self) -> bool:
        """Whether the name of its preemptor is not known: its uid may be told before that pod is seen on the node."""
        return "/" not in (self.pod.preemptor or "")


class Disruptions:
    """Remembers, for each LLMService, the pods that others have ended, until it has all replicas again."""

    def __init__(self) -> None:
        self._victims: dict[Key, dict[str, _Victim]] = {}

    def restore(self, key: Key, pods: Iterable[EndedPodStatus], now: str) -> None:
        """Begin with what `note` returned to the process that looked after this LLMService before; `now`: RFC 3339."""
        known = (pod for pod in pods if pod.cause in (_PREEMPTION, *_CAUSES))  # another version may know more
        self._victims[key] = {pod.uid: _Victim(pod, ready=False, seen=now) for pod in known}

    async def note(
        self, cluster: EventReader, key: Key, pods: Iterable[Object], complete: bool, now: str
    ) -> list[EndedPodStatus]:
        """Note which of the trimmed `pods` others have ended; return those of which `ended_problems` tells.

        `complete`: the service has all replicas that it should have. `now` is RFC 3339.
        """
        known = self._victims.get(key, {})
        ended = {each["metadata"]["uid"]: found for each in pods if (found := _victim(each, now))}
        before = {uid: victim for uid, victim in known.items() if uid in ended or not complete}
        victims = dict([*{**before, **ended, **before}.items()][-_MOST:])  # in the order in which they were seen
        self.forget(key)
        if victims:  # before the requests, in which this may be cancelled, since the pods may be gone by the next time
            self._victims[key] = victims
        for victim in _preempted_of(victims.values())[-_SHOWN:]:
            if victim.lacks_name and seconds_between(victim.seen, now) < _ASKED_SECONDS:
                by = await _preemptor(cluster, key[0], victim.pod.uid, victim.pod.node or "")
                victim.pod = victim.pod.model_copy(update={"preemptor": by or victim.pod.preemptor})
        return _told(victims.values())

    def forget(self, key: Key) -> None:
        """Forget an LLMService that is gone."""
        self._victims.pop(key, None)


async def _preemptor(cluster: EventReader, namespace: str, uid: str, node: str) -> str:
    """Return for which pod (namespace/name, or its uid) that of this uid was ended; empty: no Event says so.

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
    """Return the pod of this uid, which the scheduler has put on the node or will: namespace/name, or else its uid."""
    if await cluster.may("list", POD, ""):
        for place in ("spec.nodeName", "status.nominatedNodeName"):
            for pod in await cluster.list_selected(POD, "", "", metadata_only=True, fields=f"{place}={node}"):
                if pod["metadata"]["uid"] == uid:
                    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    return uid


def _victim(pod: Object, now: str) -> _Victim | None:
    """Return a pod that something other than its Deployment or its node has ended; None: nothing has."""
    target = condition_of(pod, "DisruptionTarget")
    reason = target.get("reason") or ""
    if target.get("status") != "True" or reason not in (_PREEMPTION, *_CAUSES):
        return None
    metadata, node = pod["metadata"], (pod.get("spec") or {}).get("nodeName") or None
    when, ready = target.get("lastTransitionTime") or None, condition_of(pod, "Ready").get("status") == "True"
    found = EndedPodStatus(uid=metadata["uid"], name=metadata["name"], node=node, cause=reason, time=when)
    return _Victim(found, ready, now)


def _preempted_of(victims: Iterable[_Victim]) -> list[_Victim]:
    return _by_time(each for each in victims if each.is_preempted)


def _by_time(victims: Iterable[_Victim]) -> list[_Victim]:
    return sorted(victims, key=lambda each: each.pod.time or "")


def _told(victims: Iterable[_Victim]) -> list[EndedPodStatus]:
    """Return the pods that the sentences need, so that the status stays the same while those do."""
    preempted = _preempted_of(victims)[-_SHOWN - 1 :]
    evicted = _by_time(each for each in victims if not each.is_preempted and not each.ready)[:_AGAIN]
    return [each.pod for each in (*preempted, *(evicted if len(evicted) == _AGAIN else ()))]


def ended_problems(pods: Sequence[EndedPodStatus]) -> list[Problem]:
    """Return the problems that others have ended these pods, as `Disruptions.note` returns them."""
    preempted = [pod for pod in pods if pod.cause == _PREEMPTION]
    evicted = [pod for pod in pods if pod.cause != _PREEMPTION]
    return [*([_preempted(preempted)] if preempted else []), *([_evicted(evicted[0])] if evicted else [])]


def _preempted(pods: Sequence[EndedPodStatus]) -> Problem:
    sentences = [f"{_where(each)} was preempted{_at(each)}{_for_whom(each.preemptor)}" for each in pods[-_SHOWN:]]
    if len(pods) > _SHOWN:
        sentences.append("so were others before")
    help_ = "raise this model's priority (spec.scheduling.priorityClassName), add a node, or end something else there"
    return Problem(Reason.PREEMPTED, "; ".join([*sentences, help_]))


def _for_whom(preemptor: str | None) -> str:
    if preemptor:
        pod = f"pod {preemptor}" if "/" in preemptor else f"the pod of uid {preemptor}"
        return f" to make room for {pod}, which has a higher priority"
    return (
        " to make room for a pod of a higher priority (kubectl get events --field-selector reason=Preempted shows its "
        "uid)"
    )


def _evicted(first: EndedPodStatus) -> Problem:
    """Return the problem by its first pod, so that the sentence stays the same while more are evicted."""
    return Problem(
        Reason.EVICTED,
        f"pods are ended before they serve, such as {_where(first)}{_at(first)}, which was "
        f"{_CAUSES[first.cause]}: stop what ends them until they have loaded (the API server's audit log names it), "
        "or have the pods tolerate the taint (spec.scheduling.tolerations)",
    )


def _where(pod: EndedPodStatus) -> str:
    return f"pod {pod.name} on node {pod.node}" if pod.node else f"pod {pod.name}"


def _at(pod: EndedPodStatus) -> str:
    return f" at {pod.time}" if pod.time else ""
