"""Notices Deployments that their controller does not look at: kube-controller-manager does not run, or hangs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo_operator.api.conditions import Reason
from octavo_operator.reconcile.moments import seconds_between
from octavo_operator.reconcile.observation.observe import Key
from octavo_operator.reconcile.pods.refused_pods import refusal_of
from octavo_operator.reconcile.problem import Problem

_PATIENCE_SECONDS = 45.0
"""The controller looks within moments; on a cluster with thousands of Deployments, or after an election, later."""


class UnobservedChanges:
    """Remembers since when passes have seen changes of a Deployment, and no act of its controller; and the pod template
    on which the controller has acted, as a change may be one of the number of replicas alone.

    The API server does not tell: it notes no time of a change by the subresource /scale, as autoscalers make it.
    """

    def __init__(self) -> None:
        self._since: dict[Key, tuple[int | None, str]] = {}
        self._templates: dict[Key, str] = {}

    def note(self, key: Key, deployment: Mapping[str, Any], now: str) -> str:
        """Return since when the Deployment has a change that is not acted on (RFC 3339); empty: it has none."""
        if _is_observed(deployment):
            self._since.pop(key, None)
            self._templates[key] = deployment.get("template", "")
            return ""
        generation = (deployment.get("status") or {}).get("observedGeneration")
        known = self._since.get(key)
        if known is None or known[0] != generation:  # the controller has acted on another change since
            known = self._since[key] = generation, now
        return known[1]

    def observed_template(self, key: Key) -> str:
        """Return the digest of the pod template on which the controller acted last; empty: it is not known."""
        return self._templates.get(key, "")

    def forget(self, key: Key) -> None:
        """Forget an LLMService that is gone."""
        self._since.pop(key, None)
        self._templates.pop(key, None)


def unobserved(deployment: Mapping[str, Any], since: str, now: str) -> Problem | None:
    """Return the problem of changes of the Deployment that no controller acts on; moments are RFC 3339."""
    waited = _waited(deployment, since, now)
    if waited is None or waited < _PATIENCE_SECONDS:
        return None
    name = deployment["metadata"]["name"]
    return Problem(
        Reason.NO_CONTROLLER,
        f"nothing makes pods of Deployment {name}: kube-controller-manager has not acted on a change seen at {since}; "
        "see whether it runs (kubectl get pods -n kube-system), and whether its log names this Deployment, as when "
        "annotations of nearly 256 KiB leave no room for its own",
    )


def unobserved_patience(deployment: Mapping[str, Any], since: str, now: str) -> list[float]:
    """Return in how many seconds a change that was not looked at yet will be a problem, if there is one."""
    waited = _waited(deployment, since, now)
    return [] if waited is None or waited >= _PATIENCE_SECONDS else [_PATIENCE_SECONDS - waited]


def _waited(deployment: Mapping[str, Any], since: str, now: str) -> float | None:
    """Return the seconds since the change; None if the controller has observed it, or the pods are refused."""
    if not since or _is_observed(deployment) or refusal_of(deployment):
        return None
    return seconds_between(since, now)


def _is_observed(deployment: Mapping[str, Any]) -> bool:
    generation = (deployment.get("metadata") or {}).get("generation")
    return bool((deployment.get("status") or {}).get("observedGeneration") == generation)
