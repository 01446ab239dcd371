"""Notices Deployments that no controller acts on: kube-controller-manager does not run, or hangs.

Their changes are not observed, or, where they are, no pod is made.
"""

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
    """Remembers since when passes have seen a Deployment that no controller acts on; and the pod template on which the
    controller has acted, as a change may be one of the number of replicas alone.

    The API server does not tell: it notes no time of a change by the subresource /scale, as autoscalers make it.
    """

    def __init__(self) -> None:
        self._since: dict[Key, tuple[int | None, str]] = {}
        self._templates: dict[Key, str] = {}

    def note(self, key: Key, deployment: Mapping[str, Any], has_pods: bool, now: str) -> str:
        """Return since when the Deployment is not acted on (RFC 3339); empty: it is. `has_pods`: any, even old ones."""
        if not deployment:  # the next one of this name has nothing of it
            self.forget(key)
            return ""
        if _is_observed(deployment):
            self._templates[key] = deployment.get("template", "")
        if _is_acted_on(deployment, has_pods):
            self._since.pop(key, None)
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
        """Forget an LLMService, or a Deployment, that is gone."""
        self._since.pop(key, None)
        self._templates.pop(key, None)


def unobserved(deployment: Mapping[str, Any], has_pods: bool, since: str, now: str) -> Problem | None:
    """Return the problem of a Deployment that no controller acts on; moments are RFC 3339."""
    waited = _waited(deployment, has_pods, since, now)
    if waited is None or waited < _PATIENCE_SECONDS:
        return None
    name = deployment["metadata"]["name"]
    if _is_observed(deployment):
        return Problem(
            Reason.NO_CONTROLLER,
            f"Deployment {name} has had no pod since {since}, and none was refused: kube-controller-manager does not "
            "make any, or its pods have other labels than those of this LLMService; see whether it runs (kubectl get "
            f"pods -n kube-system), and kubectl describe deployment {name}",
        )
    return Problem(
        Reason.NO_CONTROLLER,
        f"nothing makes pods of Deployment {name}: kube-controller-manager has not acted on a change seen at {since}; "
        "see whether it runs (kubectl get pods -n kube-system), and whether its log names this Deployment, as when "
        "annotations of nearly 256 KiB leave no room for its own",
    )


def unobserved_patience(deployment: Mapping[str, Any], has_pods: bool, since: str, now: str) -> list[float]:
    """Return in how many seconds what is not acted on yet will be a problem, if there is something."""
    waited = _waited(deployment, has_pods, since, now)
    return [] if waited is None or waited >= _PATIENCE_SECONDS else [_PATIENCE_SECONDS - waited]


def _waited(deployment: Mapping[str, Any], has_pods: bool, since: str, now: str) -> float | None:
    """Return for how many seconds nothing acts; None if the controller has acted."""
    if not since or _is_acted_on(deployment, has_pods):
        return None
    return seconds_between(since, now)


def _is_acted_on(deployment: Mapping[str, Any], has_pods: bool) -> bool:
    """Return True if the controller has seen the last change, and there are pods where some are wanted; or if it says
    that its pods are refused, for which it is not to blame.
    """
    if refusal_of(deployment):
        return True
    spec = deployment.get("spec") or {}
    wants_pods = bool(spec.get("replicas")) and not spec.get("paused")  # none is made of a paused one's first revision
    return _is_observed(deployment) and (has_pods or not wants_pods)


def _is_observed(deployment: Mapping[str, Any]) -> bool:
    generation = (deployment.get("metadata") or {}).get("generation")
    return bool((deployment.get("status") or {}).get("observedGeneration") == generation)
