"""Notices pods that are deleted again and again before all replicas serve, so that none ever loads its model.

A pod that is deleted leaves nothing, and the one in its place looks like any other that has just begun.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo_operator.api.conditions import Reason
from octavo_operator.reconcile.observation.observe import Key, Object
from octavo_operator.reconcile.pods.pod_phase import has_ended
from octavo_operator.reconcile.pods.pod_view import condition_of, revision_of
from octavo_operator.reconcile.problem import Problem

_TIMES = 4
"""So many times as many pods as are wanted are too many; a person may delete each of them once or twice."""


@dataclass
class _Seen:
    """The pods that were seen while their Deployment stayed the same, by their revision, and since when (RFC 3339).

    `surplus`: those that were there when more were there than are wanted, which Kubernetes then ends itself.
    """

    deployment: tuple[str, int]
    since: str
    uids: dict[str, set[str]] = field(default_factory=dict)
    surplus: set[str] = field(default_factory=set)


class DeletedPods:
    """Remembers the pods of each LLMService's newest revision until it has all replicas."""

    def __init__(self) -> None:
        self._seen: dict[Key, _Seen] = {}

    def note(
        self, key: Key, deployment: Mapping[str, Any], pods: Sequence[Object], complete: bool, now: str
    ) -> list[Problem]:
        """Note the `pods` of a trimmed Deployment that are there; return the problem if too many of them have gone.

        `complete`: all replicas are available. Pods that say themselves why they end do not count.
        """
        wanted = int((deployment.get("spec") or {}).get("replicas") or 0)
        same = str(deployment.get("template") or ""), wanted
        if complete or not pods:
            if complete:
                self.forget(key)
            return []
        known = self._seen.get(key)
        if known is None or known.deployment != same:
            known = self._seen[key] = _Seen(same, now)
        newest = revision_of(max(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp") or "")))
        of_newest = [pod for pod in pods if revision_of(pod) == newest]
        lasting = _uids(pod for pod in of_newest if _lasts(pod))
        known.surplus = lasting if len(lasting) > wanted else known.surplus & lasting
        seen = known.uids.setdefault(newest, set())  # a rollout ends the pods of the revision before
        if len(seen) < _TIMES * wanted:  # a loop may make pods for weeks
            seen |= lasting
        seen -= known.surplus | _uids(pod for pod in of_newest if _says_why(pod))
        return [_problem(known.since)] if len(seen) >= _TIMES * wanted else []

    def forget(self, key: Key) -> None:
        """Forget an LLMService that is gone."""
        self._seen.pop(key, None)


def _uids(pods: Iterable[Object]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def _lasts(pod: Object) -> bool:
    """Return whether nothing ends the pod yet. One that is first seen as it ends may be surplus: it is not counted."""
    return "deletionTimestamp" not in pod["metadata"] and not has_ended(pod)


def _says_why(pod: Object) -> bool:
    return has_ended(pod) or condition_of(pod, "DisruptionTarget").get("status") == "True"


def _problem(since: str) -> Problem:
    return Problem(
        Reason.PODS_DELETED,
        f"pods are deleted again and again since {since}, before all replicas are available: stop what deletes them, "
        "which the API server's audit log names",
    )
