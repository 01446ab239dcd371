"""`kubectl octavo status`: all LLMServices in a table, with the sentence that says why one is not ready. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo_operator.api.conditions import ConditionType
from octavo_operator.kubectl.table import table

_HEADER = ("NAMESPACE", "NAME", "MODEL", "READY", "PHASE", "LOADED", "QUEUE", "WHY")
_NOT_REPORTED = "the operator has not reported on it yet"


def status_table(services: Sequence[Mapping[str, Any]]) -> str:
    """Return a row for each LLMService, as `kubectl get -o json` shows it. WHY is empty where all is well."""
    return table(_HEADER, [_row(service) for service in services])


def condition_of(service: Mapping[str, Any], kind: ConditionType) -> Mapping[str, Any]:
    """Return a condition in an LLMService's status; empty while the operator has not written it."""
    conditions = (service.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each["type"] == kind), {})


def replicas_sentence(service: Mapping[str, Any]) -> str:
    """Return a sentence such as `1 of 2 replicas ready, phase Loading, 43 % of 2.8 GiB`."""
    if not (status := service.get("status")):
        return _NOT_REPORTED
    loading = status.get("loading") or {}
    ready = f"{status.get('readyReplicas', 0)} of {status.get('desiredReplicas', '?')} replicas ready"
    size = f", {share} of {loading['bytesTotal'] / 2**30:.1f} GiB" if (share := _loaded(loading)) else ""
    return f"{ready}, phase {loading.get('phase') or 'unknown'}{size}"


def _row(service: Mapping[str, Any]) -> tuple[str, ...]:
    metadata, status = service["metadata"], service.get("status") or {}
    loading, ready = status.get("loading") or {}, condition_of(service, ConditionType.READY)
    queued = (status.get("autoscaling") or {}).get("queueDepth")
    return (
        metadata["namespace"],
        metadata["name"],
        (status.get("model") or {}).get("name") or "-",
        f"{status.get('readyReplicas', 0)}/{status.get('desiredReplicas', '?')}",
        loading.get("phase") or "-",
        _loaded(loading) or "-",
        "-" if queued is None else str(queued),
        "" if ready.get("status") == "True" else ready.get("message") or _NOT_REPORTED,
    )


def _loaded(loading: Mapping[str, Any]) -> str:
    done, total = loading.get("bytesLoaded"), loading.get("bytesTotal")
    return f"{100 * done // total} %" if done is not None and total else ""
