"""Notices Deployments that no controller acts on: kube-controller-manager does not run, or hangs.

Their changes are not observed, or, where they are, no pod is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo_operator.api.conditions import Reason
from octavo_operator.reconcile.kinds import POD
from octavo_operator.reconcile.observation.observe import Key, Observation
from octavo_operator.reconcile.pods.pod_phase import has_ended
from octavo_operator.reconcile.pods.refused_pods import refusal_of
from octavo_operator.reconcile.problem import Problem
from octavo_operator.reconcile.timestamps import patience_left

CONTROLLER_PATIENCE_SECONDS = 45.0
"""The controller looks within moments; on a cluster with thousands of Deployments, or after an election, later."""


class UnobservedChanges:
    """Remembers since when a Deployment has been seen on which no controller acts, and the pod template on which the
    controller has acted, as a change may be one of the number of replicas alone.

    The time is counted from what the controller did last: the change that it observed, and the newest pod that it made.

    The API server does not tell: it notes no time of a change by the subresource /scale, as autoscalers make it.
    """

    def __init__(self) -> None:
        self._since: dict[Key, tuple[tuple[int | None, str], str]] = {}
        self._templates: dict[Key, str] = {}

    def note(self, key: Key, observed: Observation, now: str) -> str:
        """Return since when its Deployment is not acted on (RFC 3339); empty: it is, or there is none."""
        deployment = observed.children.get(("Deployment", key[1]), {})
        if not deployment:  # the next one of this name has nothing of it
            self.forget(key)
            return ""
        if _is_observed(deployment):
            self._templates[key] = deployment.get("template", "")
        if _is_acted_on(deployment, _has_pods(observed)):
            self._since.pop(key, None)
            return ""
        made = (pod["metadata"].get("creationTimestamp") or "" for pod in observed.pods)
        last = (deployment.get("status") or {}).get("observedGeneration"), max(made, default="")
        known = self._since.get(key)
        if known is None or known[0] != last:  # the controller has acted since
            known = self._since[key] = last, now
        return known[1]

    def observed_template(self, key: Key) -> str:
        """Return the digest of the pod template on which the controller acted last; empty: it is not known."""
        return self._templates.get(key, "")

    def forget(self, key: Key) -> None:
        """Forget an LLMService, or a Deployment, that is gone."""
        self._since.pop(key, None)
        self._templates.pop(key, None)


def unobserved(deployment: Mapping[str, Any], since: str, now: str) -> Problem | None:
    """Return the problem of a Deployment on which no controller has acted `since` (RFC 3339; empty: one does)."""
    if not deployment or not since or patience_left(since, now, CONTROLLER_PATIENCE_SECONDS):
        return None
    name = deployment["metadata"]["name"]
    if _is_observed(deployment):
        return Problem(
            Reason.NO_CONTROLLER,
            f"Deployment {name} has had no pod since {since}, except failed ones, and none was refused: "
            "kube-controller-manager does not make any, or its pods have other labels than those of this LLMService; "
            f"see whether it runs (kubectl get pods -n kube-system), and kubectl describe deployment {name}",
        )
    return Problem(
        Reason.NO_CONTROLLER,
        f"nothing makes pods of Deployment {name}: kube-controller-manager has not acted on a change seen at {since}; "
        "see whether it runs (kubectl get pods -n kube-system), and whether its log names this Deployment, as when "
        "annotations of nearly 256 KiB leave no room for its own",
    )


def _has_pods(observed: Observation) -> bool:
    """Return True if there are pods, even old ones, or may be some that the operator may not read.

    A pod that was ended for good (evicted, refused by its node) stays, and another has to be made for it.
    """
    return not all(map(has_ended, observed.pods)) or POD in observed.unwatched


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
