"""Notices Deployments that their controller does not look at: kube-controller-manager does not run, or hangs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo_operator.api.conditions import Reason
from octavo_operator.reconcile.moments import seconds_between
from octavo_operator.reconcile.pods.refused_pods import refusal_of
from octavo_operator.reconcile.problem import Problem

_PATIENCE_SECONDS = 45.0
"""The controller looks within moments; on a cluster with thousands of Deployments, or after an election, later."""


def unobserved(deployment: Mapping[str, Any], now: str) -> Problem | None:
    """Return the problem of a change of the Deployment that no controller acts on; `now` is RFC 3339."""
    waited = _waited(deployment, now)
    if waited is None or waited < _PATIENCE_SECONDS:
        return None
    name = deployment["metadata"]["name"]
    return Problem(
        Reason.NO_CONTROLLER,
        f"nothing makes pods of Deployment {name}: kube-controller-manager has not acted on its last change, at "
        f"{deployment['changed']}; see whether it runs (kubectl get pods -n kube-system), and whether its log names "
        "this Deployment, as when annotations of nearly 256 KiB leave no room for its own",
    )


def unobserved_patience(deployment: Mapping[str, Any], now: str) -> list[float]:
    """Return in how many seconds a change that was not looked at yet will be a problem, if there is one."""
    waited = _waited(deployment, now)
    return [] if waited is None or waited >= _PATIENCE_SECONDS else [_PATIENCE_SECONDS - waited]


def _waited(deployment: Mapping[str, Any], now: str) -> float | None:
    """Return the seconds since the last change; None if the controller has observed it, or its pods are refused."""
    changed, metadata = deployment.get("changed"), deployment.get("metadata") or {}
    seen = (deployment.get("status") or {}).get("observedGeneration") == metadata.get("generation")
    if not changed or seen or refusal_of(deployment):
        return None
    return seconds_between(changed, now)
