"""The state of each adapter in each replica, as pods report it, for the status and its conditions. Pure."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from pydantic import ValidationError

from octavo_operator.api.conditions import AdapterState, Reason
from octavo_operator.api.llmservice import Adapter
from octavo_operator.api.resource import LLMService
from octavo_operator.api.status import AdapterReplicaStatus, AdapterStatus
from octavo_operator.reconcile.pods.adapter_report import AdapterReport
from octavo_operator.reconcile.pods.pod_view import PodView
from octavo_operator.reconcile.problem import Problem
from octavo_operator.render.adapters import claim_of, problem_of, version_of

MOST_ROWS = 1000
"""Rows of a status: one object holds a megabyte or so."""
_SHOWN = 3
"""Adapters whose problems a condition spells out."""


def adapter_statuses(
    service: LLMService,
    pods: Sequence[PodView],
    reports: Mapping[str, AdapterReport],
    missing_claims: Container[str] = frozenset(),
) -> list[AdapterStatus]:
    """Return a row for each adapter and pod. `reports` are by the pods' uids."""
    adapters, before = service.spec.adapters, _rows_before(service)
    found = []
    for adapter in adapters:
        if problem := problem_of(adapter) or _without_claim(claim_of(adapter), missing_claims):
            rows = [AdapterReplicaStatus(pod=pod.name, state=AdapterState.FAILED, message=problem) for pod in pods]
        else:
            rows = [_row(adapter, pod, reports.get(pod.uid), before) for pod in pods]
        found.append(_status(adapter.name, rows, MOST_ROWS // len(adapters)))
    return found


_Rows = Mapping[tuple[str, str], AdapterReplicaStatus]
"""Rows by the names of adapter and pod."""


def _rows_before(service: LLMService) -> _Rows:
    """Return the rows that the status has for the same spec: an operator that begins has asked no pod yet."""
    status = service.status or {}
    if status.get("observedGeneration") != service.metadata.generation:
        return {}
    try:
        known = [AdapterStatus.model_validate(adapter) for adapter in status.get("adapters") or ()]
    except (ValidationError, TypeError):  # another version of the operator may have written it
        return {}
    return {(adapter.name, row.pod): row for adapter in known for row in adapter.replicas}


def _status(name: str, rows: Sequence[AdapterReplicaStatus], most: int) -> AdapterStatus:
    shown = sorted(rows, key=lambda row: row.pod)
    if len(rows) > most:
        shown = sorted(shown, key=lambda row: row.state == AdapterState.LOADED)[:most]
    loaded = sum(row.state == AdapterState.LOADED for row in rows)
    return AdapterStatus(name=name, loaded_replicas=loaded, replicas=shown)


def _without_claim(claim: str, missing: Container[str]) -> str:
    if claim not in missing:
        return ""
    return f"there is no PersistentVolumeClaim {claim}: once there is, pods are created that have it"


def _row(adapter: Adapter, pod: PodView, report: AdapterReport | None, before: _Rows) -> AdapterReplicaStatus:
    if report is None:
        known = before.get((adapter.name, pod.name))
        if pod.ready and known:
            return known
        message = "the pod has not reported its adapters yet"
        return AdapterReplicaStatus(pod=pod.name, state=AdapterState.PENDING, message=message)
    found = next((each for each in report.adapters if each.name == adapter.name), None)
    if found is None or found.version != version_of(adapter):
        message = "the pod has not read the new list yet; this takes some seconds"
        return AdapterReplicaStatus(pod=pod.name, state=AdapterState.PENDING, message=message)
    return AdapterReplicaStatus(pod=pod.name, state=found.state, message=found.message or None)


def adapter_problem(statuses: Sequence[AdapterStatus]) -> Problem | None:
    """Return the problem of adapters that failed, with reasons; None if none has failed."""
    failed = {
        status.name: rows
        for status in statuses
        if (rows := [row for row in status.replicas if row.state == AdapterState.FAILED])
    }
    if not failed:
        return None
    sentences = [
        f"adapter {name} failed in {len(rows)} replica{'s' if len(rows) > 1 else ''}: {rows[0].message or 'no reason'}"
        for name, rows in list(failed.items())[:_SHOWN]
    ]
    if len(failed) > _SHOWN:
        sentences.append(f"{len(failed) - _SHOWN} more adapters failed (status.adapters)")
    return Problem(Reason.ADAPTER_FAILED, "; ".join(sentences))


def adapters_ready(statuses: Sequence[AdapterStatus], replicas: int, unanswered: str = "") -> tuple[str, Reason, str]:
    """Return status, reason and message of AdaptersReady, where `replicas` pods should have the adapters.

    `unanswered`: why the operator cannot reach a pod that serves, in a sentence; empty: it can.
    """
    if not statuses:
        return "True", Reason.NO_ADAPTERS, "spec.adapters lists none"
    if problem := adapter_problem(statuses):
        return "False", problem.reason, problem.message
    missing = [status for status in statuses if status.loaded_replicas < max(1, replicas)]
    if missing:
        first = missing[0]
        words = f"{len(statuses) - len(missing)} of {len(statuses)} adapters are loaded by all replicas; "
        return (
            "False",
            Reason.ADAPTERS_LOADING,
            f"{words}{first.name} is loaded by {first.loaded_replicas} of {replicas}{unanswered and f'; {unanswered}'}",
        )
    return "True", Reason.ADAPTERS_LOADED, f"all replicas have loaded all {len(statuses)} adapters"
