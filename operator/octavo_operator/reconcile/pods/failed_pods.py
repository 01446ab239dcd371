"""Pods that a node has refused or ended for good (phase Failed), such as by an eviction. Pure.

Their Deployment makes others at once. Where these fail too, no container ever says why.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from octavo_operator.api.conditions import Reason
from octavo_operator.reconcile.advice import advice
from octavo_operator.reconcile.pods.pod_view import PodView, revision_of, status_changed
from octavo_operator.reconcile.problem import Problem
from octavo_operator.reconcile.timestamps import seconds_between

_RECENT_SECONDS = 3600.0
"""A model may be downloaded for this long before it fills the disk again."""
_OF_THE_SPEC = re.compile("exceeds the (?:total )?limit")
"""The kubelet's words about a limit in the pod's own spec: the next pod will exceed it too."""
_AGAIN = 2
_MOST = 100
"""Failed pods stay until the cluster has 12,500 of them, and a node with a broken device refuses as many in minutes.
Each is a change after which a reconcile looks at all of them.
"""


def without_most_failed(pods: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Return the pods; of those that were ended for good only the last ones, and the first of each revision.

    A pod that has served for days may have ended after many younger ones.
    """
    there, failed = list[Mapping[str, Any]](), list[Mapping[str, Any]]()
    for pod in pods:
        ended = (pod.get("status") or {}).get("phase") == "Failed" and "deletionTimestamp" not in pod["metadata"]
        (failed if ended else there).append(pod)
    if len(failed) > _MOST:
        failed.sort(key=status_changed)
        before, last = failed[:-_MOST], failed[-_MOST:]
        before.sort(key=lambda pod: pod["metadata"].get("creationTimestamp") or "", reverse=True)
        first = {revision_of(pod): pod for pod in before}
        failed = [*first.values(), *last]
    return (*there, *failed)


def failing_again(pods: Sequence[PodView], now: str) -> Problem | None:
    """Return the problem that pods of the newest revision fail again and again, as of `now` (RFC 3339).

    Its example is the first of them, so that the sentence stays the same while more fail.
    """
    known = [pod for pod in pods if not pod.ended or pod.failure]
    failed = [pod for pod in known if pod.failure and seconds_between(pod.failed_at, now) < _RECENT_SECONDS]
    revision = newest_revision(known)
    newest = sorted((pod for pod in failed if pod.revision == revision), key=lambda pod: pod.created)
    lasts = len(newest) >= _AGAIN or any(pod.failure and _OF_THE_SPEC.search(pod.failure) for pod in newest)
    if not lasts:
        return None
    first = newest[0]
    return Problem(Reason.POD_FAILED, f"pods fail and are replaced, such as {advice(first.failure)}")


def newest_revision(pods: Sequence[PodView]) -> str:
    """Return the revision whose first pod was made last; empty: there is no pod.

    Pods of an older revision that fail are replaced too, by pods that are younger than those of the newest one.
    """
    first: dict[str, str] = {}
    for pod in pods:
        first[pod.revision] = min(pod.created, first.get(pod.revision, pod.created))
    return max(first, key=lambda revision: first[revision], default="")
