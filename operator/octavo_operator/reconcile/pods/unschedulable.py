"""The problem of a pod that has no node: what it needs, what nodes have, what to do. Pure.

All is read from the scheduler's own sentence: no right to look at nodes is needed. Its part on preemption tells a node
that is too small (ending other pods would not help) from one whose devices are in use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo_operator.api.conditions import Reason
from octavo_operator.reconcile.advice import advice, is_about_claims
from octavo_operator.reconcile.pods.placement import lacking, placement_of
from octavo_operator.reconcile.problem import Problem

_DEFAULT_SCHEDULER = "default-scheduler"
_NO_DEVICE = "cannot allocate all claims"
_TOO_SMALL = "Preemption is not helpful for scheduling"
_IN_USE = "No preemption victims found"


def why_unschedulable(pod: Mapping[str, Any], condition: Mapping[str, Any], gpu_resource: str) -> Problem:
    """Return the problem of a pod that has no node, by its `condition` PodScheduled.

    GPUs are counted as `gpu_resource`.
    """
    name, message = pod["metadata"]["name"], condition.get("message") or ""
    if condition.get("reason") == "SchedulingGated":
        gates = ", ".join(gate["name"] for gate in (pod.get("spec") or {}).get("schedulingGates") or ())
        return Problem(Reason.SCHEDULING_GATED, f"pod {name} is held back by its scheduling gates ({gates})")
    begin = f"pod {name} cannot be scheduled: "
    if is_about_claims(message):
        return Problem(Reason.WAITING_FOR_VOLUMES, f"{begin}{advice(message)}")
    why = _no_gpu(pod, message, gpu_resource)
    if why is None:
        return Problem(Reason.UNSCHEDULABLE, f"{begin}{advice(message)}")
    return Problem(Reason.WAITING_FOR_GPU, f"{begin}{why}. The scheduler: {message}")


def no_scheduler(pod: Mapping[str, Any]) -> Problem:
    """Return the problem of a pod that no scheduler has looked at."""
    name, scheduler = pod["metadata"]["name"], (pod.get("spec") or {}).get("schedulerName") or _DEFAULT_SCHEDULER
    if scheduler == _DEFAULT_SCHEDULER:
        help_ = "check whether kube-scheduler runs: kubectl get pods -n kube-system"
    else:
        help_ = "start a scheduler of this name, or change schedulerName in spec.podTemplate"
    return Problem(Reason.NO_SCHEDULER, f"pod {name} waits for {scheduler}, which has not looked at it: {help_}")


def _no_gpu(pod: Mapping[str, Any], message: str, gpu_resource: str) -> str | None:
    """Explain which GPUs are lacking, and what helps; None if something else is lacking."""
    place = placement_of(pod.get("spec") or {})
    if _NO_DEVICE in message:
        names = ", ".join(str(claim["name"]) for claim in place.claims)
        return (
            f"it needs devices for its claims ({names}), and no node has them free: free some, or add a node; kubectl "
            "get resourceslices,resourceclaims shows all devices and the claims that use them"
        )
    lacks = lacking(message)
    if gpu_resource not in lacks:
        return None
    count = place.requests.get(gpu_resource)
    needs = f"it needs {gpu_resource if count is None else f'{count} {gpu_resource}'} on one node"
    return f"{needs}, and {_what_nodes_have(message, gpu_only=len(lacks) == 1)}"


def _what_nodes_have(message: str, gpu_only: bool) -> str:
    """Describe what nodes have; `gpu_only`: they lack nothing else, so preemption is about GPUs."""
    if gpu_only and _IN_USE in message:
        return "all nodes with that many have them in use: free some, or add a node"
    if gpu_only and _TOO_SMALL in message:
        return (
            "no node that it may use has that many in total: add such a node, request no more than your nodes have "
            "(spec.accelerator), or check that their device plugin runs: kubectl describe nodes, under Allocatable"
        )
    return (
        "no node that it may use has that many free: free some, or add a node; kubectl describe nodes shows what they "
        "have, under Allocatable"
    )
