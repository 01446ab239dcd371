"""Makes status.loading: the phase of the replica that has progressed furthest, and what it waits for. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_operator.api.conditions import LoadingPhase
from octavo_operator.api.status import LoadingStatus
from octavo_operator.reconcile.pods.pod_view import PodView
from octavo_operator.reconcile.status.facts import Facts

LOADED = (LoadingPhase.NOT_READY, LoadingPhase.SERVING)
"""Phases in which a pod has loaded the model."""
_WITHOUT_REPORT = (*LOADED, LoadingPhase.FAILED)
"""Phases in which a pod's last report says nothing any more."""
_PHASES = list(LoadingPhase)


def loading_status(facts: Facts) -> LoadingStatus:
    """Return the loading status of the furthest pod."""
    if facts.service.spec.suspend:
        return LoadingStatus(phase=LoadingPhase.SUSPENDED, message="")
    return _status_of(facts, facts.pods)


def next_phase(facts: Facts) -> LoadingPhase:
    """Return the phase of the furthest pod of the newest revision that is not ready yet; Pending: there is none."""
    if not facts.count("updatedReplicas"):  # the newest pods that there are will be replaced
        return LoadingPhase.PENDING
    newest = [pod for pod in facts.pods if pod.revision == facts.newest]
    others = [pod for pod in newest if not pod.ready]
    if not others and len(newest) > facts.newest_ready:  # the Deployment has not counted all of them yet
        return LoadingPhase.NOT_READY
    return _status_of(facts, others).phase


def _status_of(facts: Facts, pods: Sequence[PodView]) -> LoadingStatus:
    """Return the loading status of the furthest of `pods`."""
    furthest = max(pods, key=lambda pod: _PHASES.index(pod.phase), default=None)
    if furthest is None:
        return LoadingStatus(phase=LoadingPhase.PENDING, message="")
    if furthest.phase == LoadingPhase.SERVING and not facts.ready_replicas:
        # The Deployment has not counted the pod yet: a phase Serving beside 0 ready replicas would contradict itself.
        return LoadingStatus(phase=LoadingPhase.NOT_READY, message="")
    cause, report = furthest.problem or furthest.waits, facts.reports.get(furthest.uid)
    message = cause.message if cause else ""
    if report is None or furthest.phase in _WITHOUT_REPORT:
        return LoadingStatus(phase=furthest.phase, message=message)
    return LoadingStatus(
        phase=report.loading_phase or furthest.phase,
        message=message or report.detail,
        bytes_loaded=report.bytes_loaded,
        bytes_total=report.bytes_total,
    )
