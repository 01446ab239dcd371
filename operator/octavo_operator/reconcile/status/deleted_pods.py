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

    `newest`: the revision of the youngest pod. `surplus`: those that were there when more were there than are wanted,
    which Kubernetes then ends itself.
    """

    template: str
    wanted: int
    since: str
    newest: str = ""
    uids: dict[str, set[str]] = field(default_factory=dict)
    surplus: set[str] = field(default_factory=set)

    @property
    def most(self) -> int:
        """So many pods are too many."""
        return _TIMES * self.wanted

    @property
    def counted(self) -> set[str]:
        """The pods of the newest revision, since a rollout ends those of the revision before."""
        return self.uids.setdefault(self.newest, set())

    def is_of(self, deployment: Mapping[str, Any]) -> bool:
        """Return whether the Deployment is still the one whose pods these are."""
        return (self.template, self.wanted) == _identity(deployment)

    def count(self, pods: Sequence[Object]) -> None:
        """Count the pods that are there."""
        newest = _newest(pods)
        if not self.newest:  # restored from a status that was written while there was no pod, and names no revision
            self.uids[newest] = self.uids.pop("", set())
        self.newest = newest
        of_newest = [pod for pod in pods if revision_of(pod) == self.newest]
        lasting = _uids(pod for pod in of_newest if _lasts(pod))
        self.surplus = lasting if len(lasting) > self.wanted else self.surplus & lasting
        if len(self.counted) < self.most:  # a loop may make pods for weeks
            self.counted.update(lasting)
        self.counted.difference_update(self.surplus, _uids(pod for pod in of_newest if _says_why(pod)))


class DeletedPods:
    """Remembers the pods of each LLMService's newest revision until it has all replicas."""

    def __init__(self) -> None:
        self._seen: dict[Key, _Seen] = {}

    def restore(
        self, key: Key, deployment: Mapping[str, Any], pods: Sequence[Object], revision: str, since: str
    ) -> None:
        """Begin with what `note` returned to the process that looked after this LLMService before.

        The `pods` of the newest `revision` (empty: it is not known) that are there are among those that were counted.
        """
        seen = _Seen(*_identity(deployment), since, revision)
        there = _uids(pod for pod in pods if revision_of(pod) == revision and _lasts(pod))
        seen.counted.update(there, (f"gone {number}" for number in range(seen.most - len(there))))
        self._seen[key] = seen

    def note(self, key: Key, deployment: Mapping[str, Any], pods: Sequence[Object], complete: bool, now: str) -> str:
        """Note the `pods` of a trimmed Deployment that are there; return since when too many of them have gone.

        RFC 3339; empty: not too many have. `complete`: all replicas are available. Pods that say themselves why they
        end do not count.
        """
        known = self._seen.get(key)
        if complete or (known and not known.is_of(deployment)):
            self.forget(key)
            known = None
        if complete or not (pods or known):
            return ""
        if known is None:
            known = self._seen[key] = _Seen(*_identity(deployment), now)
        if pods:  # else the next ones are about to be made
            known.count(pods)
        return known.since if len(known.counted) >= known.most else ""

    def forget(self, key: Key) -> None:
        """Forget an LLMService that is gone."""
        self._seen.pop(key, None)


def deleted_problem(since: str) -> Problem:
    """Return the problem that pods are deleted again and again `since` then (RFC 3339)."""
    return Problem(
        Reason.PODS_DELETED,
        f"pods are deleted again and again since {since}, before all replicas are available: stop what deletes them, "
        "which the API server's audit log names",
    )


def _identity(deployment: Mapping[str, Any]) -> tuple[str, int]:
    """Return the digest of the pod template, and the wanted replicas."""
    return str(deployment.get("template") or ""), int((deployment.get("spec") or {}).get("replicas") or 0)


def _newest(pods: Iterable[Object]) -> str:
    return revision_of(max(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp") or "")))


def _uids(pods: Iterable[Object]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def _lasts(pod: Object) -> bool:
    """Return whether nothing ends the pod yet. One that is first seen as it ends may be surplus: it is not counted."""
    return "deletionTimestamp" not in pod["metadata"] and not has_ended(pod)


def _says_why(pod: Object) -> bool:
    return has_ended(pod) or condition_of(pod, "DisruptionTarget").get("status") == "True"
