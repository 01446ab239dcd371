"""The reason for which a pod is not ready though its engine is: another container, a readiness gate, or a lost node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from octavo_operator.api.conditions import Reason
from octavo_operator.reconcile.pods.container_problem import exit_problem, waiting_problem
from octavo_operator.reconcile.pods.sidecars import sidecar_statuses
from octavo_operator.reconcile.problem import Problem

_GATES = "ReadinessGatesNotReady"


def why_unready(
    pod: Mapping[str, Any], ready: Mapping[str, Any], containers_ready: Mapping[str, Any]
) -> tuple[Problem, Problem | None]:
    """Return the pod's wait, and its fault if it has one, by its conditions `ready` and `containers_ready`."""
    name = pod["metadata"]["name"]  # the engine is ready, whatever its container is called
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    others = [each for each in (*statuses, *sidecar_statuses(pod)) if not each.get("ready")]
    if others:
        names = ", ".join(each["name"] for each in others)
        waits = Problem(Reason.NO_READY_REPLICA, f"the engine of pod {name} is ready, but its container {names} is not")
        return waits, first_problem(name, others)
    if ready.get("reason") == _GATES:
        message = ready.get("message") or "its readiness gates are not met"
        return Problem(
            Reason.NO_READY_REPLICA, f"the engine of pod {name} is ready, but the pod is not: {message}"
        ), None
    if is_on_lost_node(ready, containers_ready):
        return _of_lost_node(pod), None
    return Problem(Reason.NO_READY_REPLICA, f"the engine of pod {name} is ready, but the pod is not yet"), None


def is_on_lost_node(ready: Mapping[str, Any], containers_ready: Mapping[str, Any]) -> bool:
    """Return True if a pod with these conditions is on a lost node: only the node controller makes a pod with ready
    containers unready.
    """
    unready = ready.get("status") == "False" and ready.get("reason") != _GATES
    return unready and containers_ready.get("status") == "True"


def first_problem(pod: str, containers: Iterable[Mapping[str, Any]]) -> Problem | None:
    """Return why the first of these `containers` that waits or has ended does not run; None: all run."""
    return next(filter(None, (_problem(pod, each) for each in containers)), None)


def _problem(pod: str, container: Mapping[str, Any]) -> Problem | None:
    state = container.get("state") or {}
    if waiting := state.get("waiting"):
        return waiting_problem(pod, waiting, container)
    terminated = state.get("terminated")
    return exit_problem(pod, container, terminated) if terminated else None


def _of_lost_node(pod: Mapping[str, Any]) -> Problem:
    """Return the problem of a pod on a lost node."""
    name, node = pod["metadata"]["name"], (pod.get("spec") or {}).get("nodeName") or ""
    return Problem(
        Reason.NODE_LOST,
        f"pod {name} cannot be counted on, since its node {node} has not answered for a while (kubectl describe node "
        f"{node}): the pod is replaced once that has lasted for its tolerationSeconds, 5 minutes unless "
        "scheduling.tolerations says otherwise",
    )
